// The shortest `tessera demo` on the software GPU, on a machine that nobody would measure on: one CPU, and a
// neighbour that computes. It stretches modelled time until its figures are valid, and leaves what it
// promises. Whether the figures are good is not asserted: a few requests prove nothing.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/demo/process.h"
#include "cli/demo/regime.h"
#include "tests/integration/sharing/run_demo.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// As they are measured, which is not the order of names.
constexpr const char* kRegimes[] = {"alone", "unmanaged_timesliced", "unmanaged_mps", "tessera_timesliced",
                                    "tessera_mps"};

// This process and what it starts get one CPU, for as long as this lives.
class OneCpu {
 public:
  OneCpu() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneCpu() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_;
};

TEST(Demo, IsValidOnOneBusyCpuAndLeavesWhatItPromises) {
  const OneCpu one;
  auto neighbour =
      cli::Process::start({"/bin/sh", "-c", "while :; do :; done"}, {}, "/dev/null", "/dev/null");
  ASSERT_TRUE(neighbour.ok());
  char scratch[] = "/tmp/tessera-demo-test-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  const std::string out = scratch;
  auto demo = cli::Process::start({std::string(TESSERA_PREFIX) + "/bin/tessera", "demo", "--seconds", "2",
                                   "--nonce", "some text", "--gpu", "soft", "--out", out},
                                  {}, out + "/stdout", out + "/stderr");
  ASSERT_TRUE(demo.ok());
  auto status = demo->wait(1200);
  ASSERT_TRUE(status.ok()) << status.error().text;
  std::ifstream errors(out + "/stderr");
  const std::string said(std::istreambuf_iterator<char>(errors), {});
  ASSERT_EQ(*status, 0) << said;

  std::ifstream file(out + "/demo.json");
  const json result = json::parse(file, nullptr, false);
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result.value("nonce", ""), "some text");
  EXPECT_EQ(result.value("seconds", 0), 2);
  EXPECT_EQ(result.value("load", 0.0), 0.5);
  EXPECT_TRUE(result.value("valid", false));
  EXPECT_GE(result.value("stretch", 0.0), 1);
  EXPECT_TRUE(result.contains("lag_p99") && result.contains("gpu") && result.contains("commit"));
  for (const char* name : kRegimes) {
    ASSERT_TRUE(result["regimes"].contains(name)) << name;
    const json& regime = result["regimes"][name];
    for (const char* key : {"p50_ms", "p99_ms", "p99_over_alone", "trainer_share", "stretch"}) {
      ASSERT_TRUE(regime.contains(key) && regime[key].is_number()) << name << " " << key;
      EXPECT_GT(regime[key].get<double>(), 0) << name << " " << key;
    }
    EXPECT_TRUE(regime.value("checksums_equal", false)) << name;
    EXPECT_TRUE(regime["lost"].is_number_unsigned()) << name;
    EXPECT_LE(regime.value("lag_share", 1.0), 0.05) << name;
    EXPECT_TRUE(fs::exists(out + "/" + regime.value("csv", "none"))) << name;
  }
  // Somebody who waits knows the reason, also if a phase had to be measured again.
  EXPECT_LT(said.find("this takes about"), said.find("first, some trials")) << said;
  EXPECT_NE(said.find("6 phases of about"), std::string::npos) << said;
  EXPECT_NE(said.find("[6/6] tessera_mps"), std::string::npos) << said;
  double stretch = result.value("stretch", 0.0);
  const double first = stretch;
  for (const char* name : kRegimes) {  // what one phase needed, later ones have
    const double slower = result["regimes"][name].value("stretch", 0.0);
    EXPECT_GE(slower, stretch) << name;
    stretch = slower;
  }
  if (stretch > first) {
    EXPECT_NE(said.find("measured again"), std::string::npos) << said;
  }
  for (const char* name : {"tessera_timesliced", "tessera_mps"}) {
    const json& regime = result["regimes"][name];
    EXPECT_GT(regime.value("preemptions", 0), 0) << name;
    EXPECT_TRUE(regime["turnaround_p50_us"].is_number() && regime["turnaround_p99_us"].is_number()) << name;
  }
  EXPECT_TRUE(fs::exists(out + "/demo.png"));
  fs::remove_all(out);
}

TEST(Demo, AlsoOfATrainerWhoseCpuIsItsLimit) {
  const Ended ended =
      run_demo({"--workload", "eager", "--gate", "device", "--gpu", "soft", "--seconds", "2"}, {});
  // 3: measured, but on a machine too busy for its figures.
  ASSERT_TRUE(ended.status == 0 || ended.status == 3) << ended.said;
  ASSERT_TRUE(ended.result.is_object());
  EXPECT_EQ(ended.result.value("workload", ""), "eager");
  EXPECT_EQ(ended.result.value("gate", ""), "device");
  EXPECT_EQ(ended.result["regimes"].size(), 5u);
  for (const auto& [name, regime] : ended.result["regimes"].items()) {
    EXPECT_TRUE(regime.value("checksums_equal", false)) << name;
    EXPECT_GT(regime.value("trainer_share", 0.0), 0) << name;
  }
}

// The trainer alone is given a gate: the service, and programs that serve both, keep theirs.
TEST(Demo, GivesTheGateToTheTrainer) {
  char scratch[] = "/tmp/tessera-demo-test-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  cli::Setting setting;
  setting.layout = cli::find_layout();
  setting.out = scratch;
  setting.soft = false;
  setting.workload.service = setting.workload.trainer = {"/bin/sh", "-c", "env", "sh"};
  setting.workload.trainer_environment = {"TESSERA_GATE=device"};
  const auto printed = [&](bool service) {
    const cli::Phase phase{.name = "p", .service = service, .trainer = !service};
    EXPECT_FALSE(cli::run_phase(phase, setting, [](double, double) {}).ok());  // neither measures anything
    std::ifstream file(setting.out + (service ? "/p/service.out" : "/p/trainer.out"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_NE(printed(false).find("TESSERA_GATE=device"), std::string::npos);
  EXPECT_EQ(printed(true).find("TESSERA_GATE"), std::string::npos);
  fs::remove_all(scratch);
}

TEST(Demo, EndsWithItsProgramsWhenInterrupted) {
  char scratch[] = "/tmp/tessera-demo-test-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  const std::string out = scratch;
  auto demo = cli::Process::start(
      {std::string(TESSERA_PREFIX) + "/bin/tessera", "demo", "--gpu", "soft", "--out", out}, {},
      out + "/stdout", out + "/stderr");
  ASSERT_TRUE(demo.ok());
  while (demo->running() && !fs::exists(out + "/calibrate/service.out")) usleep(1000);
  auto status = demo->stop(30);
  ASSERT_TRUE(status.ok()) << status.error().text;
  EXPECT_EQ(*status, 128 + SIGTERM);
  fs::remove_all(out);
}

TEST(Demo, SaysWhereItCannotWrite) {
  char scratch[] = "/tmp/tessera-demo-test-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  const std::string out = scratch, errors = out + "/stderr";
  auto demo = cli::Process::start({std::string(TESSERA_PREFIX) + "/bin/tessera", "demo", "--out", errors}, {},
                                  out + "/stdout", errors);
  ASSERT_TRUE(demo.ok());
  auto status = demo->wait(30);
  ASSERT_TRUE(status.ok()) << status.error().text;
  EXPECT_EQ(*status, 1);
  std::ifstream file(errors);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_NE(text.find("choose another folder with --out"), std::string::npos) << text;
  fs::remove_all(out);
}

TEST(Demo, SaysWhatToDoWhereJaxIsNot) {
  const Ended ended = run_demo({"--workload", "jax"}, {"TESSERA_FRAMEWORKS=/nowhere"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.said.find("there is no /nowhere/jax/bin/python: scripts/frameworks.sh jax fetches it"),
            std::string::npos)
      << ended.said;
}

TEST(Demo, StockPyTorchNeedsAGpu) {
  const Ended ended = run_demo({"--workload", "torch", "--gpu", "soft"}, {});
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.said.find("--workload torch needs a GPU"), std::string::npos) << ended.said;
}

}  // namespace
}  // namespace tessera
