// Checkpoints of this process: who may be in a call, and the states that cuda.h draws.
//
//   RUNNING -lock-> LOCKED -checkpoint-> CHECKPOINTED -restore-> LOCKED -unlock-> RUNNING      FAILED is final
//
// But in RUNNING, calls of the program block where they begin. A lock waits until no call is under way and all work has
// ended. Device memory moves into host memory of the process, its address space stays. Called by state.h (every entry
// point) and checkpoint_service.h; any thread.
#pragma once

#include <chrono>
#include <span>

#include "softgpu/driver/cuda_api.h"

namespace tessera::softgpu::driver::checkpoint {

// Every entry point is such a call, from its first line to its return; blocks while the process is locked. A call within
// a call passes, and so does one of a thread that may not call anyway (a host function's). False: not counted.
bool begin_call();
void end_call();

CUprocessState state();
CUresult lock(std::chrono::milliseconds limit);  // 0: none
CUresult save();
// Empty pairs: to the same GPUs. See move_devices (state.h).
CUresult restore(std::span<const CUcheckpointGpuPair> pairs);
CUresult unlock();

}  // namespace tessera::softgpu::driver::checkpoint
