// Random kernels whose result does not depend on the order of blocks, for the differential test of the
// slicing rewrite: arithmetic, divergent branches and loops, early returns, shared memory with barriers, warp
// shuffles, integer reductions, module variables, device functions that read block coordinates, clusters that
// read each other's shared memory, 1-3 dimensional grids. On request with a look-back in front: each block
// waits for lower ones, in grids of one row. Deterministic by seed. Used by slice_diff.cc only.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tessera::golden {

struct Random {  // splitmix64
  uint64_t state;
  uint64_t next();
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }
  bool chance(uint32_t percent) { return below(100) < percent; }
};

enum Feature : uint32_t {  // what a kernel holds; printed as counts
  kCoordinates,
  kCallee,
  kNestedCallee,
  kShared,
  kShuffle,
  kReduction,
  kModuleGlobal,
  kEarlyReturn,
  kLoop,
  kDivergence,
  kFloat,
  kGuardedRead,
  kMultiDimensional,
  kEdgeSize,
  kClusterByKernel,  // shape fixed by the kernel
  kClusterByLaunch,
  kClusterCoordinates,
  kClusterMemory,
  kRefusedOnPurpose,
  kLookBackX,       // by where a block has its number from: %ctaid.x,
  kLookBackRow,     // where y is fastest,
  kLookBackTicket,  // drawn
  kFeatureCount,
};
extern const char* const kFeatureNames[kFeatureCount];

// Buffers that the kernel expects, in elements of 4 bytes: input (read only), output (one per thread),
// reductions.
inline constexpr uint32_t kInputWords = 256, kReductionWords = 128;
// Behind the reductions, zero at first: the words of a look-back, what it found by ticket, the next ticket.
inline constexpr uint32_t kMostBlocks = 40, kLookBackWords = 2 * kMostBlocks + 1;

struct RandomKernel {
  std::string text;  // module with the entry `k(.param .u64 in, out, red)`
  std::array<uint32_t, 3> grid, block;
  std::array<uint32_t, 3> cluster{};  // asked for at launch; zeros: what the kernel says
  uint32_t features = 0;              // bits of Feature
  uint32_t n_threads() const { return grid[0] * grid[1] * grid[2] * block[0] * block[1] * block[2]; }
};

RandomKernel random_kernel(uint64_t seed, bool look_back = false);

}  // namespace tessera::golden
