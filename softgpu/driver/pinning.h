// Tells which of the program's own memory the device may see: cuMemHostRegister pins its pages, and the kernel refuses
// that for some. Called by memory.cc, any thread; reads /proc/self/maps and keeps nothing.
#pragma once

#include <cstdint>

namespace tessera::softgpu::driver {

// Whether the pages of the range can be pinned for writing. They cannot if part of the range is not mapped, or maps an
// ordinary file for all to see: the kernel (6.5 and newer) lets nobody write to such pages behind the file system's
// back. Files in memory (memfd, /dev/shm, huge pages) and private mappings can be pinned.
bool can_be_pinned(uint64_t address, uint64_t bytes);

}  // namespace tessera::softgpu::driver
