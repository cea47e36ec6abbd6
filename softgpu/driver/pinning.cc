#include "softgpu/driver/pinning.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

namespace tessera::softgpu::driver {
namespace {

// A file of no file system with a device: memfd, shared anonymous memory, or one that was deleted from a tmpfs.
constexpr unsigned kNoBlockDevice = 0;

bool is_memory(const std::string& path, unsigned device_major) {
  struct statfs system {};
  if (statfs(path.c_str(), &system) != 0) return device_major == kNoBlockDevice;
  return system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC || system.f_type == HUGETLBFS_MAGIC;
}

}  // namespace

bool can_be_pinned(uint64_t address, uint64_t bytes) {
  std::ifstream maps("/proc/self/maps");
  const uint64_t end = address + bytes;
  for (std::string line; address < end && std::getline(maps, line);) {
    uint64_t from = 0, to = 0;
    char rights[5] = "";
    unsigned device_major = 0;
    int name_at = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %*x %x:%*x %*u %n", &from, &to, rights,
                    &device_major, &name_at) < 4)
      return false;
    if (to <= address) continue;
    const bool shared = rights[3] == 's';
    if (from > address || (shared && !is_memory(line.substr(size_t(name_at)), device_major))) return false;
    address = to;
  }
  return address >= end;
}

}  // namespace tessera::softgpu::driver
