// One thing that a GPU did, in our own terms: what stands between whoever observes a GPU (CUPTI, the software
// GPU's traces, recorded buffers in tests) and everything that makes profiles of it. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tessera::profiles {

enum class ActivityKind : uint8_t { kKernel, kCopy, kSet, kGraph, kUnknown };
const char* activity_name(ActivityKind kind);

struct Activity {
  ActivityKind kind = ActivityKind::kUnknown;
  uint64_t start_ns = 0, end_ns = 0;  // the source's clock; both 0: it could not be timed
  uint32_t device = 0;                // ordinal in the observed process
  uint64_t bytes = 0;                 // copies and sets
  // Kernels.
  uint64_t tag = 0;  // 0: none; of the library call that launched it (operations/table.h)
  std::string name;
  uint64_t image_hash = 0;  // 0 = not known
  uint32_t grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  uint64_t n_blocks = 0;  // 0: grid's product
  uint32_t registers_per_thread = 0, static_shared_bytes = 0, dynamic_shared_bytes = 0;
  // Work of this launch, where it was counted.
  bool counted = false;
  double memory_bytes = 0, warp_instructions = 0;
  std::map<std::string, double> operations;
};

}  // namespace tessera::profiles
