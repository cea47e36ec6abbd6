// A block before it runs: its slot's memory and what its threads find in their special registers. Called by
// run.cc, on the worker's thread that owns the slot.
#pragma once

#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {

inline constexpr uint32_t kReservedSharedBytes =
    1024;  // as on hardware; cooperative groups use 288 from offset 1

// Prepares the part that stays the same for all blocks that this slot runs.
void prepare_slot(Block& b, Grid& grid, Worker& worker);
// `linear`: which cluster; the block's rank in it is set already.
void start_block(Block& b, uint64_t linear);

}  // namespace tessera::softgpu::exec
