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

// The call that this thread was in is over and never returned: a signal handler jumped out of it, or its thread ends. Lowers what
// it had raised; what it reserved counts as launched.
void abandon_call();

// While it lives, calls that the driver makes back into us, and signal handlers, pass straight through.
class DepthGuard {
 public:
  DepthGuard() {
    state::Thread& t = state::t_thread;
    const auto here = reinterpret_cast<uintptr_t>(this);
    if (t.inside != 0 && state::is_left(t.inside, here)) [[unlikely]]
      abandon_call();
    before_ = t.inside;
    if (before_ == 0) t.inside = here;
    t.memo.epoch = 0;  // nor are they taken for the thread's latest launch
  }
  ~DepthGuard() { state::t_thread.inside = before_; }
  DepthGuard(const DepthGuard&) = delete;

 private:
  uintptr_t before_;
};

}  // namespace tessera::gate
