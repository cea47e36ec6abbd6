// How kernels and their launches are named in 64 bits, the same in every process and after every restart: the
// preload library's records, the daemon's learnt table and profile files are joined by these keys. Pure
// arithmetic, safe on the launch path. A change here makes what was learnt before unknown, not wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"

namespace tessera::base {

// A kernel: content of the image that it came from (FNV-1a of the entry the driver takes; 0 = not known), and
// its name there.
inline uint64_t kernel_hash(uint64_t image_hash, const char* name, size_t name_bytes) {
  return fnv1a(name, name_bytes, kFnvBasis ^ image_hash);
}

// Grids share a bucket if they are within a factor of two: bit length of the number of blocks.
inline uint32_t grid_bucket(uint64_t blocks) {
  return blocks ? 64 - uint32_t(__builtin_clzll(blocks)) : 0;
}

// Launches of one kernel that cost about the same per block. `shared_bytes`: dynamic. Never 0.
inline uint64_t launch_key(uint64_t kernel, uint32_t bucket, uint32_t threads_per_block,
                           uint32_t shared_bytes) {
  const uint64_t shape = (uint64_t(threads_per_block) << 40) ^ (uint64_t(shared_bytes) << 8) ^ bucket;
  return mix64(kernel ^ mix64(shape)) | 1;
}

}  // namespace tessera::base
