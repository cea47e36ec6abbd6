// A short `tessera demo` on the software GPU leaves what it promises. Whether its figures are good is not
// asserted here: two seconds on a busy machine prove nothing, and the demo itself says so (exit status 3).
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/demo/process.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(Demo, LeavesWhatItPromises) {
  char scratch[] = "/tmp/tessera-demo-test-XXXXXX";
  ASSERT_NE(mkdtemp(scratch), nullptr);
  const std::string out = scratch;
  auto demo = cli::Process::start({std::string(TESSERA_PREFIX) + "/bin/tessera", "demo", "--seconds", "2",
                                   "--nonce", "some text", "--gpu", "soft", "--out", out},
                                  {}, out + "/stdout", out + "/stderr");
  ASSERT_TRUE(demo.ok());
  auto status = demo->wait(240);
  ASSERT_TRUE(status.ok()) << status.error().text;
  std::ifstream errors(out + "/stderr");
  ASSERT_TRUE(*status == 0 || *status == 3) << std::string(std::istreambuf_iterator<char>(errors), {});

  std::ifstream file(out + "/demo.json");
  const json result = json::parse(file, nullptr, false);
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result.value("nonce", ""), "some text");
  EXPECT_EQ(result.value("seconds", 0), 2);
  EXPECT_EQ(result.value("load", 0.0), 0.5);
  EXPECT_EQ(result.value("valid", false), *status == 0);
  EXPECT_TRUE(result.contains("lag_p99") && result.contains("gpu") && result.contains("commit"));
  for (const char* name :
       {"alone", "unmanaged_timesliced", "unmanaged_mps", "tessera_timesliced", "tessera_mps"}) {
    ASSERT_TRUE(result["regimes"].contains(name)) << name;
    const json& regime = result["regimes"][name];
    for (const char* key : {"p50_ms", "p99_ms", "p99_over_alone", "trainer_share"}) {
      ASSERT_TRUE(regime.contains(key) && regime[key].is_number()) << name << " " << key;
      EXPECT_GT(regime[key].get<double>(), 0) << name << " " << key;
    }
    EXPECT_TRUE(regime.value("checksums_equal", false)) << name;
    EXPECT_TRUE(fs::exists(out + "/" + regime.value("csv", "none"))) << name;
  }
  for (const char* name : {"tessera_timesliced", "tessera_mps"}) {
    const json& regime = result["regimes"][name];
    EXPECT_GT(regime.value("preemptions", 0), 0) << name;
    EXPECT_TRUE(regime["turnaround_p50_us"].is_number() && regime["turnaround_p99_us"].is_number()) << name;
  }
  EXPECT_TRUE(fs::exists(out + "/demo.png"));
  fs::remove_all(out);
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

}  // namespace
}  // namespace tessera
