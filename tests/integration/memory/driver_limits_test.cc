// `tesserad --driver-limits` and an NVML that keeps limits for control groups (pretended_limits.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "scheduler_daemon/kernel_limits/driver_limits.h"

namespace tessera::kernel_limits {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
constexpr char kNone[] = "18446744073709551615", kGroup[] = "/sys/fs/cgroup/jobs/a b";

class TesseradSetsLimits : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    now("0 " + std::string(kNone) + "\n0 " + kNone + "\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string file() const { return std::string(folder_) + "/limits"; }
  void now(const std::string& text) const { std::ofstream(file()) << text; }
  std::string then() const {
    std::ifstream in(file());
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  std::vector<std::string> set(const std::vector<DriverLimit>& wanted,
                               const std::string& variable = "NOTHING=1",
                               const std::string& nvml = TS_NVML_FOLDER) const {
    DriverLimits driver({"env", "TS_LIMITS=" + file(), variable, "LD_LIBRARY_PATH=" + nvml, TESSERAD_PATH,
                         "--driver-limits"});
    EXPECT_TRUE(driver.can_ask());
    driver.ask(wanted);
    EXPECT_FALSE(driver.can_ask());
    for (;;) {
      pollfd answered{driver.fd(), POLLIN, 0};
      if (poll(&answered, 1, 60'000) != 1) return {"no answer"};
      if (auto answers = driver.answers()) return *answers;
    }
  }
  char folder_[32] = "/tmp/tessera-limits-XXXXXX";
};

TEST_F(TesseradSetsLimits, OnEveryGpuAndTakesThemBack) {
  EXPECT_THAT(set({{kGroup, 1000, 0}}), ElementsAre(""));
  EXPECT_EQ(then(), "0 1000\n0 1000\n");
  EXPECT_THAT(set({{kGroup, 2000, 1000}}), ElementsAre(""));
  EXPECT_EQ(then(), "0 2000\n0 2000\n");
  EXPECT_THAT(set({{kGroup, 0, 2000}}), ElementsAre(""));
  EXPECT_EQ(then(), std::string("0 ") + kNone + "\n0 " + kNone + "\n");
}

TEST_F(TesseradSetsLimits, AndLeavesThoseOfOthers) {
  now("500 3000\n500 1000\n");
  EXPECT_THAT(set({{kGroup, 1000, 0}}),
              ElementsAre(HasSubstr("GPU 0: a limit of 3000 bytes is there already")));
  EXPECT_EQ(then(), "500 3000\n500 1000\n");
  EXPECT_THAT(set({{kGroup, 0, 1000}}), ElementsAre(""));
  EXPECT_EQ(then(), std::string("500 3000\n500 ") + kNone + "\n");
}

TEST_F(TesseradSetsLimits, WithTheSoftLimitBelowThem) {
  now("5000 9000\n500 9000\n");
  EXPECT_THAT(set({{kGroup, 1000, 9000}}), ElementsAre(""));
  EXPECT_EQ(then(), "1000 1000\n500 1000\n");
}

TEST_F(TesseradSetsLimits, AndNamesTheGpuThatCannot) {
  EXPECT_THAT(set({{kGroup, 1000, 0}, {kGroup, 1000, 1000}}, "TS_LIMITS_REFUSE=1"),
              ElementsAre("GPU 1: Not Supported", "GPU 1: Not Supported"));
}

TEST_F(TesseradSetsLimits, NotWithoutNvml) {
  EXPECT_THAT(set({{kGroup, 1000, 0}, {kGroup, 1000, 0}}, "NOTHING=1", "/no/such/folder"),
              ElementsAre(kNoDriverLimits, kNoDriverLimits));
}

}  // namespace
}  // namespace tessera::kernel_limits
