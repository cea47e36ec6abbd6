// Tests of limits that the kernel keeps (scheduler_daemon/kernel_limits), with pretended files of cgroup and PCI. A pretended
// dmem.max only grows: the kernel would merge the lines, so the last one of a region counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/units.h"
#include "scheduler_daemon/kernel_limits/kernel_limits.h"

namespace tessera::kernel_limits {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
const std::string kGpu = "drm/0000:65:00.0/vram0", kOther = "drm/0000:03:00.0/vram0";

core::MemoryLimit limit(const std::string& cgroup, uint64_t mib) {
  core::MemoryLimit one;
  one.cgroup = cgroup;
  one.bytes = mib * base::kMiB;
  return one;
}

class KernelLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(sys_), nullptr);
    file("bus/pci/devices/0000:65:00.0/vendor", "0x10de\n");
    file("bus/pci/devices/0000:03:00.0/vendor", "0x1002\n");
    file("fs/cgroup/dmem.capacity", kGpu + " 85899345920\n" + kOther + " 8514437120\n");
    group("/jobs/a");
  }
  void TearDown() override { fs::remove_all(sys_); }
  void file(const std::string& name, const std::string& text) const {
    const fs::path path = fs::path(sys_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void group(const std::string& cgroup, const std::string& most = "max") const {
    file("fs/cgroup" + cgroup + "/dmem.max", kGpu + ' ' + most + '\n' + kOther + " max\n");
  }
  std::string written(const std::string& cgroup) const {  // after what was there
    std::ifstream in(sys_ + ("/fs/cgroup" + cgroup + "/dmem.max"));
    std::string all(std::istreambuf_iterator<char>(in), {});
    return all.substr(all.find(kOther) + kOther.size() + sizeof " max");
  }
  std::vector<std::string> news(KernelLimits& limits) const {
    std::vector<std::string> lines;
    for (const auto& line : limits.take_news()) lines.push_back((line.warning ? "warning " : "") + line.text);
    return lines;
  }
  char sys_[32] = "/tmp/tessera-sys-XXXXXX";
};

TEST_F(KernelLimitsTest, AreWrittenForGpusOnceAndSaid) {
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_EQ(written("/jobs/a"), kGpu + " 104857600\n");
  EXPECT_THAT(limits.kept(), ElementsAre("/jobs/a"));
  EXPECT_THAT(news(limits), ElementsAre(HasSubstr("/jobs/a: the kernel limits its GPU memory to 100 MiB")));
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_EQ(written("/jobs/a"), kGpu + " 104857600\n");
  EXPECT_TRUE(news(limits).empty());
}

TEST_F(KernelLimitsTest, FollowTheConfiguration) {
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/a", 100)});
  limits.apply({limit("/jobs/a", 200)});
  limits.apply({});
  EXPECT_EQ(written("/jobs/a"), kGpu + " 104857600\n" + kGpu + " 209715200\n" + kGpu + " max\n");
  EXPECT_TRUE(limits.kept().empty());
}

TEST_F(KernelLimitsTest, OfAGroupThatComesLaterAreSetThen) {
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/later", 100)});
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_TRUE(news(limits).empty());
  group("/jobs/later");
  limits.apply({limit("/jobs/later", 100)});
  EXPECT_EQ(written("/jobs/later"), kGpu + " 104857600\n");
}

TEST_F(KernelLimitsTest, ThatOthersWroteStay) {
  group("/jobs/a", "1048576");
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/a", 100)});
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_EQ(written("/jobs/a"), "");
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_THAT(news(limits), ElementsAre(HasSubstr("warning /jobs/a: its dmem.max has 1048576")));
  group("/jobs/a", "104857600");  // as an earlier daemon left it
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_EQ(written("/jobs/a"), "");
  EXPECT_THAT(limits.kept(), ElementsAre("/jobs/a"));
}

TEST_F(KernelLimitsTest, ThatOthersWroteLaterStayWhenOursIsWithdrawn) {
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/a", 100)});
  group("/jobs/a", "1048576");
  limits.apply({});
  EXPECT_EQ(written("/jobs/a"), "");
}

TEST_F(KernelLimitsTest, ThatCannotBeWrittenAreNamed) {
  fs::remove(sys_ + std::string("/fs/cgroup/jobs/a/dmem.max"));
  ASSERT_EQ(symlink("/proc/self/mountinfo", (sys_ + std::string("/fs/cgroup/jobs/a/dmem.max")).c_str()), 0);
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_THAT(news(limits), ElementsAre(HasSubstr("warning /jobs/a: Tessera alone keeps its limit")));
}

TEST_F(KernelLimitsTest, OfPatternsAndUsersHaveNoFile) {
  core::MemoryLimit of_user;
  of_user.id = 1000;
  of_user.bytes = base::kMiB;
  KernelLimits limits({}, sys_);
  limits.apply({of_user, limit("/jobs/*", 100)});
  EXPECT_EQ(written("/jobs/a"), "");
  EXPECT_TRUE(limits.kept().empty() && news(limits).empty());
}

TEST_F(KernelLimitsTest, AreNotSetWhereTheControllerIsNotThere) {
  fs::remove(sys_ + std::string("/fs/cgroup/dmem.capacity"));
  KernelLimits limits({}, sys_);
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_TRUE(limits.kept().empty() && news(limits).empty());
}

// The driver is a shell that notes what it is asked, and answers each request with the line of `answer_`.
class DriverLimitsTest : public KernelLimitsTest {
 protected:
  void SetUp() override {
    KernelLimitsTest::SetUp();
    fs::remove(sys_ + std::string("/fs/cgroup/dmem.capacity"));
    answer("");
  }
  void answer(const std::string& line) const { file("answer", line + "\n"); }
  std::vector<std::string> command() const {
    return {
        "sh", "-c",
        "cd \"$0\"; while read -r bytes ours folder; do echo $bytes $ours ${folder#$0/fs/cgroup} >> asked; "
        "cat answer >&0; done",
        sys_};
  }
  // As the server does it.
  void apply(KernelLimits& limits, const std::vector<core::MemoryLimit>& wanted) const {
    limits.apply(wanted);
    while (limits.driver_fd() >= 0) {
      pollfd answered{limits.driver_fd(), POLLIN, 0};
      ASSERT_EQ(poll(&answered, 1, 60'000), 1);
      limits.driver_answered();
      if (limits.driver_fd() < 0) limits.apply(wanted);
    }
  }
  std::string asked() const {
    std::ifstream in(sys_ + std::string("/asked"));
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
};

TEST_F(DriverLimitsTest, AreAskedForOnceAndFollowTheConfiguration) {
  KernelLimits limits(command(), sys_);
  apply(limits, {limit("/jobs/a", 100), limit("/jobs/none", 100)});
  EXPECT_EQ(asked(), "104857600 0 /jobs/a\n");
  EXPECT_THAT(limits.kept(), ElementsAre("/jobs/a"));
  EXPECT_THAT(news(limits), ElementsAre("/jobs/a: the driver limits its GPU memory to 100 MiB of each GPU"));
  apply(limits, {limit("/jobs/a", 100)});
  apply(limits, {limit("/jobs/a", 200)});
  apply(limits, {});
  apply(limits, {});
  EXPECT_EQ(asked(), "104857600 0 /jobs/a\n209715200 104857600 /jobs/a\n0 209715200 /jobs/a\n");
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_EQ(written("/jobs/a"), "");
}

TEST_F(DriverLimitsTest, ThatAreRefusedAreNamedAndWhatWasSetIsRemembered) {
  KernelLimits limits(command(), sys_);
  apply(limits, {limit("/jobs/a", 100)});
  (void)limits.take_news();
  answer("GPU 0: Insufficient Permissions");
  apply(limits, {limit("/jobs/a", 200)});
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_THAT(news(limits),
              ElementsAre("warning /jobs/a: Tessera alone keeps its limit: GPU 0: Insufficient Permissions"));
  apply(limits, {limit("/jobs/a", 200)});
  answer("");
  apply(limits, {limit("/jobs/a", 300)});
  EXPECT_EQ(asked(), "104857600 0 /jobs/a\n209715200 104857600 /jobs/a\n314572800 104857600 /jobs/a\n");
}

TEST_F(DriverLimitsTest, OfAGroupThatWasMadeAnewAreAskedForAgain) {
  KernelLimits limits(command(), sys_);
  apply(limits, {limit("/jobs/a", 100)});
  const fs::path folder = sys_ + std::string("/fs/cgroup/jobs/a");
  fs::create_directory(folder.string() + ".new");  // has another number than the old one
  fs::remove_all(folder);
  fs::rename(folder.string() + ".new", folder);
  apply(limits, {limit("/jobs/a", 100)});
  EXPECT_EQ(asked(), "104857600 0 /jobs/a\n104857600 0 /jobs/a\n");
}

TEST_F(DriverLimitsTest, OfAnOlderDriverAreNoWarning) {
  answer(kNoDriverLimits);
  KernelLimits limits(command(), sys_);
  apply(limits, {limit("/jobs/a", 100)});
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_THAT(news(limits),
              ElementsAre(std::string("/jobs/a: Tessera alone keeps its limit: ") + kNoDriverLimits));
}

TEST_F(DriverLimitsTest, OfAProcessThatDiesOrCannotStartAreNotKept) {
  for (const std::vector<std::string>& program :
       {std::vector<std::string>{"sh", "-c", "kill -9 $$"}, std::vector<std::string>{"/no/such/program"}}) {
    KernelLimits limits(program, sys_);
    apply(limits, {limit("/jobs/a", 100)});
    EXPECT_TRUE(limits.kept().empty());
    EXPECT_THAT(news(limits),
                ElementsAre(HasSubstr("warning /jobs/a: Tessera alone keeps its limit: the driver did not")));
  }
}

}  // namespace
}  // namespace tessera::kernel_limits
