// Physical memory (cuMemCreate) as a checkpoint sees it. Any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::softgpu::driver {

struct PhysicalMemory {
  int fd;
  uint64_t bytes;
  bool shared;  // another process made it, or may have it
};
std::vector<PhysicalMemory> physical_memory();

}  // namespace tessera::softgpu::driver
