// Estimates at load from its PTX which resource bounds a kernel: issue slots against bytes of device memory
// per thread, loop bodies weighted, compared with what the GPU has of both. An estimate for packing, which is
// judged by measured slowdown afterwards: unknown rather than a guess near the border. Pure; any thread;
// allocates.
//
// What it cannot see: how often a loop runs, and what caches save (a kernel that reads the same bytes many
// times looks more memory-bound than it is).
#pragma once

#include <cstdint>

#include "ipc/abi/region.h"
#include "kernels/ptx/ir.h"

namespace tessera::track {

struct ThreadCost {  // one thread, loops weighted; relative units only
  double slots = 0;  // issue slots of one lane: 1 = an addition
  double bytes = 0;  // global memory read or written
};
ThreadCost cost_of(const ptx::Function& kernel);

// `slots_per_byte`: what the GPU issues (all lanes) while it moves one byte of device memory; 0 = not known,
// then a usual one is assumed.
ipc::abi::ResourceClass classify(const ThreadCost& cost, double slots_per_byte);

}  // namespace tessera::track
