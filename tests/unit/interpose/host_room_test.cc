// The memory that a process may take of its host, by a pretended file system.
#include "interpose/lifecycle/host_room.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tessera::lifecycle {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kGiB = uint64_t(1) << 30;

class HostRoom : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tessera-host-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    write("/proc/meminfo", "MemTotal: 200000000 kB\nMemAvailable:   104857600 kB\n");  // 100 GiB
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void group(const std::string& folder, const std::string& most, uint64_t used,
             const std::string& stat = "") const {
    write("/sys/fs/cgroup" + folder + "/memory.max", most + "\n");
    write("/sys/fs/cgroup" + folder + "/memory.current", std::to_string(used) + "\n");
    if (!stat.empty()) write("/sys/fs/cgroup" + folder + "/memory.stat", stat);
  }
  uint64_t room() const { return host_room_bytes(root_.c_str()); }
  std::string root_;
};

TEST_F(HostRoom, WithoutGroupsItIsWhatTheMachineHas) {
  EXPECT_EQ(room(), 100 * kGiB);
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(room(), 100 * kGiB);
}

TEST_F(HostRoom, OfNestedGroupsTheTightestCounts) {
  write("/proc/self/cgroup", "0::/jobs.slice/job7/step\n");
  group("/jobs.slice", std::to_string(64 * kGiB), 60 * kGiB);
  group("/jobs.slice/job7", std::to_string(32 * kGiB), 2 * kGiB);
  group("/jobs.slice/job7/step", "max", kGiB);
  EXPECT_EQ(room(), 4 * kGiB) << "its neighbours' share of the slice is gone";
  group("/jobs.slice/job7", std::to_string(3 * kGiB), 2 * kGiB);
  EXPECT_EQ(room(), kGiB);
  group("/jobs.slice/job7/step", "1000", 2000);
  EXPECT_EQ(room(), 0u) << "lowered below what it has";
}

TEST_F(HostRoom, AnotherGroupsLimitIsNotItsOwn) {
  write("/proc/self/cgroup", "0::/a\n");
  group("/a", "max", 5);
  group("/b", "10", 5);
  EXPECT_EQ(room(), 100 * kGiB);
}

TEST_F(HostRoom, PageCacheThatCanBeDroppedIsRoom) {
  write("/proc/self/cgroup", "0::/a\n");
  group("/a", std::to_string(8 * kGiB), 8 * kGiB,
        "anon 1\nfile 2\nactive_file 4\ninactive_file " + std::to_string(3 * kGiB) + "\n");
  EXPECT_EQ(room(), 3 * kGiB);
}

// A container sees the host's path, and its own group as the root of what is mounted.
TEST_F(HostRoom, APathThatIsNotThereLeavesTheRoot) {
  write("/proc/self/cgroup", "0::/kubepods/pod1/container2\n");
  group("", std::to_string(6 * kGiB), kGiB);
  EXPECT_EQ(room(), 5 * kGiB);
}

TEST_F(HostRoom, TheFirstVersionHasAHierarchyForMemory) {
  write("/proc/self/cgroup", "12:cpu,memory:/old/job\n3:memoryless:/no\n0::/\n");
  for (const auto& [folder, most] :
       {std::pair("", "9223372036854771712"), std::pair("/old", "9223372036854771712"),
        std::pair("/old/job", "4294967296")}) {
    const std::string at = std::string("/sys/fs/cgroup/memory") + folder;
    write(at + "/memory.limit_in_bytes", most);
    write(at + "/memory.usage_in_bytes", std::to_string(3 * kGiB));
  }
  EXPECT_EQ(room(), kGiB);
  write("/sys/fs/cgroup/memory/old/job/memory.stat", "cache 7\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(room(), 2 * kGiB);
}

}  // namespace
}  // namespace tessera::lifecycle
