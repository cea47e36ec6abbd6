// Occupancy shaping: how many blocks of a kernel fit on one multiprocessor, and how much dynamic shared
// memory added to a launch makes fewer fit, so that room is left for others without changing the kernel.
// Pure; any thread. Source: CUDA C++ Programming Guide, "Compute Capabilities" (limits and allocation units
// per multiprocessor).
#pragma once

#include <string>
#include <vector>

#include "kernels/ptx/ir.h"

namespace tessera::slice {

struct SmLimits {
  uint32_t warps = 64, blocks = 32;
  uint32_t registers = 65536, register_unit = 256;  // allocated per warp in units of
  uint32_t shared_bytes = 0, shared_unit = 128;     // all blocks together
  uint32_t shared_reserved_bytes = 1024;            // by the system, per block
  uint32_t shared_per_block = 0;                    // most that one block may ask for (opt-in)
};
SmLimits sm_limits(unsigned sm);  // 75, 80, 86, 87, 89, 90, 100, 103, 120; others: as the next older one

struct BlockNeeds {
  uint32_t threads = 0, registers = 0;  // per block, per thread; 0 registers = not known, not a limit
  uint64_t shared_bytes = 0;            // static and dynamic
};
uint32_t blocks_per_sm(const SmLimits& limits, const BlockNeeds& needs);

struct WidthStep {
  uint64_t added_shared_bytes = 0;  // least that has this effect
  uint32_t blocks = 0;              // per multiprocessor then
};
// From as it is (0 added) down to one block, each number of blocks that can be reached once.
std::vector<WidthStep> width_steps(const SmLimits& limits, const BlockNeeds& needs);

// Why the dynamic shared memory of this kernel must not be changed; "" = it may. The kernel and all that it
// calls must not be able to see its size, and must not come from elsewhere.
std::string width_obstacle(const ptx::Module& module, ptx::Name kernel);

}  // namespace tessera::slice
