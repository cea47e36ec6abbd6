// Tests of limits that the kernel keeps (scheduler_daemon/kernel_limits), with pretended files of cgroup and PCI. A pretended
// dmem.max only grows: the kernel would merge the lines, so the last one of a region counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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
  KernelLimits limits(sys_);
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_EQ(written("/jobs/a"), kGpu + " 104857600\n");
  EXPECT_THAT(limits.kept(), ElementsAre("/jobs/a"));
  EXPECT_THAT(news(limits), ElementsAre(HasSubstr("/jobs/a: the kernel limits its GPU memory to 100 MiB")));
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_EQ(written("/jobs/a"), kGpu + " 104857600\n");
  EXPECT_TRUE(news(limits).empty());
}

TEST_F(KernelLimitsTest, FollowTheConfiguration) {
  KernelLimits limits(sys_);
  limits.apply({limit("/jobs/a", 100)});
  limits.apply({limit("/jobs/a", 200)});
  limits.apply({});
  EXPECT_EQ(written("/jobs/a"), kGpu + " 104857600\n" + kGpu + " 209715200\n" + kGpu + " max\n");
  EXPECT_TRUE(limits.kept().empty());
}

TEST_F(KernelLimitsTest, OfAGroupThatComesLaterAreSetThen) {
  KernelLimits limits(sys_);
  limits.apply({limit("/jobs/later", 100)});
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_TRUE(news(limits).empty());
  group("/jobs/later");
  limits.apply({limit("/jobs/later", 100)});
  EXPECT_EQ(written("/jobs/later"), kGpu + " 104857600\n");
}

TEST_F(KernelLimitsTest, ThatOthersWroteStay) {
  group("/jobs/a", "1048576");
  KernelLimits limits(sys_);
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
  KernelLimits limits(sys_);
  limits.apply({limit("/jobs/a", 100)});
  group("/jobs/a", "1048576");
  limits.apply({});
  EXPECT_EQ(written("/jobs/a"), "");
}

TEST_F(KernelLimitsTest, ThatCannotBeWrittenAreNamed) {
  fs::remove(sys_ + std::string("/fs/cgroup/jobs/a/dmem.max"));
  ASSERT_EQ(symlink("/proc/self/mountinfo", (sys_ + std::string("/fs/cgroup/jobs/a/dmem.max")).c_str()), 0);
  KernelLimits limits(sys_);
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_TRUE(limits.kept().empty());
  EXPECT_THAT(news(limits), ElementsAre(HasSubstr("warning /jobs/a: Tessera alone keeps its limit")));
}

TEST_F(KernelLimitsTest, OfPatternsAndUsersHaveNoFile) {
  core::MemoryLimit of_user;
  of_user.id = 1000;
  of_user.bytes = base::kMiB;
  KernelLimits limits(sys_);
  limits.apply({of_user, limit("/jobs/*", 100)});
  EXPECT_EQ(written("/jobs/a"), "");
  EXPECT_TRUE(limits.kept().empty() && news(limits).empty());
}

TEST_F(KernelLimitsTest, AreNotSetWhereTheControllerIsNotThere) {
  fs::remove(sys_ + std::string("/fs/cgroup/dmem.capacity"));
  KernelLimits limits(sys_);
  limits.apply({limit("/jobs/a", 100)});
  EXPECT_TRUE(limits.kept().empty() && news(limits).empty());
}

}  // namespace
}  // namespace tessera::kernel_limits
