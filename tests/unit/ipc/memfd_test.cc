#include "ipc/channel/memfd.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <string>

#include "ipc/channel/pulse.h"
#include "ipc/channel/server.h"

namespace tessera::ipc {
namespace {

TEST(Memfd, SizeIsFixedAndSealsAreFinal) {
  auto fd = create_memfd("test", 8192, kRegionSeals);
  ASSERT_TRUE(fd.ok()) << fd.error().text;
  EXPECT_TRUE(check_memfd(fd->get(), kRegionSeals, 8192).ok());
  EXPECT_NE(ftruncate(fd->get(), 4096), 0);
  EXPECT_NE(ftruncate(fd->get(), 16384), 0);
  EXPECT_FALSE(add_seals(fd->get(), F_SEAL_FUTURE_WRITE).ok());
  EXPECT_EQ(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(Memfd, ReceiverRefusesWrongSealsSizeAndKind) {
  auto soft = create_memfd("test", 4096, F_SEAL_GROW);  // can shrink under our feet
  ASSERT_TRUE(soft.ok());
  EXPECT_FALSE(check_memfd(soft->get(), kRegionSeals, 4096).ok());
  auto small = create_memfd("test", 4096, kRegionSeals);
  ASSERT_TRUE(small.ok());
  EXPECT_FALSE(check_memfd(small->get(), kRegionSeals, 8192).ok());
  base::ScopedFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(check_memfd(file.get(), kRegionSeals, 4096).ok());
  EXPECT_FALSE(check_memfd(-1, kRegionSeals, 4096).ok());
}

TEST(PulsePage, OwnerKeepsWritingAndNobodyElseCanMapItWritable) {
  auto memory = create_client_memory(1, 2, 5, {});
  ASSERT_TRUE(memory.ok()) << memory.error().text;
  auto owner = map_shared(memory->pulse_fd.get(), abi::kPulseBytes, Access::kReadWrite);
  ASSERT_TRUE(owner.ok());
  ASSERT_TRUE(seal_pulse(*memory).ok());
  EXPECT_TRUE(check_memfd(memory->pulse_fd.get(), kPulseSharedSeals, abi::kPulseBytes).ok());

  pulse_set_busy(*owner->as<abi::PulsePage>(), 1, 0, 1, 1000);
  auto watcher = map_shared(memory->pulse_fd.get(), abi::kPulseBytes, Access::kReadOnly);
  ASSERT_TRUE(watcher.ok()) << watcher.error().text;
  EXPECT_TRUE(pulse_is_busy(*watcher->as<const abi::PulsePage>(), 1000));

  EXPECT_FALSE(map_shared(memory->pulse_fd.get(), abi::kPulseBytes, Access::kReadWrite).ok());
  EXPECT_NE(mprotect(watcher->data(), abi::kPulseBytes, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(pwrite(memory->pulse_fd.get(), "x", 1, 64), -1);
  std::string again = "/proc/self/fd/" + std::to_string(memory->pulse_fd.get());
  base::ScopedFd reopened(open(again.c_str(), O_RDWR | O_CLOEXEC));
  if (reopened.valid()) {  // the classic way around a read-only descriptor
    EXPECT_FALSE(map_shared(reopened.get(), abi::kPulseBytes, Access::kReadWrite).ok());
  }
}

TEST(Mapping, IsNotInheritedByAForkedChild) {
  auto fd = create_memfd("test", 4096, kRegionSeals);
  ASSERT_TRUE(fd.ok());
  auto mapping = map_shared(fd->get(), 4096, Access::kReadWrite);
  ASSERT_TRUE(mapping.ok());
  pid_t child = fork();
  if (child == 0) _exit(msync(mapping->data(), 4096, MS_ASYNC) == 0 ? 1 : 0);  // ENOMEM: not mapped there
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Mapping, LeakKeepsThePagesAndBadDescriptorIsAnError) {
  auto fd = create_memfd("test", 4096, kRegionSeals);
  ASSERT_TRUE(fd.ok());
  void* pages;
  {
    auto mapping = map_shared(fd->get(), 4096, Access::kReadWrite);
    ASSERT_TRUE(mapping.ok());
    pages = mapping->leak();
    EXPECT_FALSE(mapping->valid());
  }
  *static_cast<int*>(pages) = 42;  // still mapped
  EXPECT_EQ(*static_cast<int*>(pages), 42);
  munmap(pages, 4096);
  EXPECT_FALSE(map_shared(-1, 4096, Access::kReadWrite).ok());
}

}  // namespace
}  // namespace tessera::ipc
