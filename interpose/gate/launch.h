// A kernel launch in one form, whatever entry point it came through. Lives on the hook's stack; all pointers
// are the program's own.
#pragma once

#include "driver_api/real_table.h"
#include "interpose/state/kernels.h"
#include "interpose/state/state.h"

namespace tessera::gate {

struct LaunchCall {
  CUfunction function;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  driver_api::StreamArg stream;
  void** params;  // kernelParams
  void** extra;
  const CUlaunchConfig* config;  // cuLaunchKernelEx: attributes come from here; null: cuLaunchKernel

  uint64_t blocks() const { return uint64_t(grid[0]) * grid[1] * grid[2]; }
  uint32_t threads() const { return block[0] * block[1] * block[2]; }
};

// The same in every process, if that is known.
inline uint64_t kernel_id(const LaunchCall& launch, const state::KernelRecord* kernel) {
  return kernel ? kernel->loaded.hash : reinterpret_cast<uint64_t>(launch.function);
}

CUresult issue(const LaunchCall& call);  // the real driver's entry of the same name and stream family

// True if this stream is being captured (or cannot say). Only asked while some capture is open.
bool capturing(driver_api::StreamArg stream);

struct DepthGuard {  // calls that the driver makes back into us, and signal handlers, pass straight through
  DepthGuard() {
    state::t_thread.depth++;
    state::t_thread.memo.epoch = 0;  // nor are they taken for the thread's latest launch
  }
  ~DepthGuard() { state::t_thread.depth--; }
};

}  // namespace tessera::gate
