// The answers of CUDA and NVML about memory, with a limit and without: `tessera run` of a program on the software GPU.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "tests/integration/sharing/fixture.h"

namespace tessera::test {
namespace {

using Figures = std::vector<uint64_t>;  // total, free, used

class AskedForMemory : public SharingFixture {
 protected:
  std::map<std::string, Figures> answers(const std::string& name, std::vector<std::string> options,
                                         const std::string& nvml = "") {
    options.push_back("--audit");
    std::vector<std::string> words = {TS_ASKER, "3145728"};
    if (!nvml.empty()) words.push_back(nvml);
    auto program = run(name, "best-effort", options, words, {});
    const auto end = program.wait(kPatienceS);
    EXPECT_TRUE(end.ok() && *end == 0) << read_file(path(name + ".err"));
    std::map<std::string, Figures> out;
    std::istringstream lines(read_file(path(name + ".out")));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream figures(line);
      std::string key;
      figures >> key;
      for (uint64_t n; figures >> n;) out[key].push_back(n);
    }
    return out;
  }
};

// 16.
TEST_F(AskedForMemory, CudaAndNvmlAgreeOnALimit) {
  start_daemon();
  constexpr uint64_t kLimit = 64 << 20, kUsed = 3 << 20;
  auto said = answers("limited", {"--memory-limit", "64MiB"});
  const Figures all{kLimit, kLimit, 0}, rest{kLimit, kLimit - kUsed, kUsed};
  EXPECT_EQ(said["before_nvml"], all);
  EXPECT_EQ(said["before_nvml_v2"], all);
  EXPECT_EQ(said["device"], Figures{kLimit});
  EXPECT_EQ(said["cuda"], rest);
  EXPECT_EQ(said["after_nvml"], rest);
  EXPECT_EQ(said["after_nvml_v2"], rest);
}

TEST_F(AskedForMemory, WithoutALimitEveryAnswerIsTheirOwn) {
  start_daemon();
  auto said = answers("free", {});
  const uint64_t total = said["device"].at(0);
  EXPECT_GT(total, uint64_t(1) << 30);
  EXPECT_EQ(said["cuda"], (Figures{total, total - (3 << 20), 3 << 20}));
  EXPECT_EQ(said["after_nvml"], said["cuda"]);
  EXPECT_EQ(said["after_nvml_v2"], said["cuda"]);
}

// NVML never says more of the program itself than that is used; of others it says its own.
TEST_F(AskedForMemory, NvmlsProcessesAgreeWithALimit) {
  start_daemon();
  constexpr uint64_t kMiB = 1 << 20, kUsed = 3 * kMiB;
  const char* const kFunctions[] = {
      "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2",
      "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"};
  auto limited = answers("limited", {"--memory-limit", "64MiB"}, TS_PRETENDED_NVML);
  auto free = answers("free", {}, TS_PRETENDED_NVML);
  EXPECT_EQ(limited["after_nvml"], (Figures{64 * kMiB, 64 * kMiB - kUsed, kUsed}));
  for (const char* function : kFunctions) {
    EXPECT_EQ(limited[function], (Figures{kUsed, 500 * kMiB})) << function;
    EXPECT_EQ(free[function], (Figures{303 * kMiB, 500 * kMiB})) << function;
  }
}

// 18, and what a reservation is: others have the rest, until its run has ended.
TEST_F(AskedForMemory, WhatARunReservedIsItsOwnAndItsEndEndsIt) {
  start_daemon("[daemon]\nanswer_within_ms = 60000\n");
  constexpr uint64_t kGiB = 1 << 30, kDevice = 2 * kGiB, kForPrograms = kDevice - kDevice / 64;
  auto holder = run("service", "high", {"--memory-reserve", "1GiB"}, {"sleep", "600"}, {});
  const auto rest = [&](const std::string& name) { return answers(name, {})["device"].at(0); };
  EXPECT_TRUE(eventually([&] { return rest("other") == kForPrograms - kGiB; }));
  const Figures own = answers("own", {"--memory-reserve", "512MiB"})["device"];
  EXPECT_EQ(own, Figures{kGiB / 2});
  auto refused = run("refused", "best-effort", {"--memory-reserve", "1GiB"}, {"true"}, {});
  const auto end = refused.wait(kPatienceS);
  EXPECT_TRUE(end.ok() && *end == 2);
  const std::string why = read_file(path("refused.err"));
  EXPECT_NE(why.find("has 1.97 GiB for programs, 1.00 GiB are taken: the run of pid " +
                     std::to_string(holder.pid()) + ", reserved, 1.00 GiB"),
            why.npos)
      << why;
  holder.kill_now();
  EXPECT_EQ(rest("later"), kDevice);
}

class StepsOfMemory : public SharingFixture {
 protected:
  cli::Process steps_of(const std::string& name, const std::vector<std::string>& options,
                        const std::vector<std::string>& what, std::vector<std::string> environment = {}) {
    environment.push_back("TESSERA_SOFTGPU_DEVICES=2");
    std::vector<std::string> program = {TS_STEPS};
    program.insert(program.end(), what.begin(), what.end());
    return run(name, "best-effort", options, program, environment);
  }
  void all_well(const std::vector<std::string>& options) {
    for (const char* what : {"devices", "fork"}) {
      auto program = steps_of(what, options, {what});
      const auto end = program.wait(kPatienceS);
      ASSERT_TRUE(end.ok());
      EXPECT_EQ(*end, 0) << what << ": line of steps.cc";
    }
  }
  const std::string of_user_ =
      "[daemon]\nanswer_within_ms = 60000\n[[memory.limit]]\nuid = " + std::to_string(getuid()) +
      "\nmax_mib = 64\n";
};

// 10 and 15.
TEST_F(StepsOfMemory, OfAProgramsOwnLimitWithoutADaemon) {
  all_well({"--memory-limit", "64MiB"});
}
TEST_F(StepsOfMemory, OfItsUsersLimit) {
  start_daemon(of_user_);
  all_well({});
}

// 11.
TEST_F(StepsOfMemory, LimitsFollowGpusAndNotTheirNumbers) {
  start_daemon(of_user_);
  auto holder = steps_of("holder", {}, {"hold", path("ready")});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path("ready")); }));
  auto other = steps_of("other", {}, {"other"}, {"CUDA_VISIBLE_DEVICES=1,0"});
  const auto end = other.wait(kPatienceS);
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, 0) << "line of steps.cc";
  (void)holder.stop(kPatienceS);
}

}  // namespace
}  // namespace tessera::test
