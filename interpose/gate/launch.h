// A kernel launch in one form, whatever entry point it came through. Lives on the hook's stack; all pointers
// are the program's own. Used by interpose/gate (launch.cc) and interpose/slice.
#pragma once

#include "interpose/gate/ask.h"
#include "interpose/gate/kernels.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"

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

CUresult issue(const LaunchCall& call);  // the real driver's entry of the same name and stream family

// True if this stream is being captured (or cannot say). Only asked while some capture is open.
bool capturing(driver_api::StreamArg stream);

struct DepthGuard {  // calls that the driver makes back into us, and signal handlers, pass straight through
  DepthGuard() {
    t_thread.depth++;
    t_thread.memo.epoch = 0;  // nor are they taken for the thread's latest launch
  }
  ~DepthGuard() { t_thread.depth--; }
};

// Gated work that is not a plain kernel: estimate, then `call()`. `learn` = timing entry to fill, or null.
template <class F>
CUresult best_effort_unit(driver_api::StreamArg stream, uint64_t estimate_ns, Timing* learn,
                          uint64_t record_key, bool blocking, F&& call) {
  if (t_thread.depth) return call();
  if (g_state.captures.load(std::memory_order_relaxed) && capturing(stream)) return call();
  const DepthGuard depth;
  Wait wait;
  Reservation reservation;
  const admission::Action action = ask({.estimate_ns = estimate_ns}, stream, wait, reservation);
  if (action == admission::Action::kForward) return call();
  const bool timed = should_time(learn) == TimeIt::kYes && action == admission::Action::kGo;
  Sample* sample = timed ? sample_begin(learn, stream, record_key) : nullptr;
  const CUresult result = call();
  sample_end(sample, stream, 1, 0, result);
  if (blocking)
    reservation.settle_blocking(result);
  else
    reservation.settle(stream, result);
  return result;
}

// Protected work of any kind, around `call()`.
template <class F>
CUresult protected_unit(driver_api::StreamArg stream, uint32_t resource_class, uint64_t function, F&& call) {
  const Work work = begin_work(stream_key(stream), resource_class, function);
  const CUresult result = call();
  end_work(work);
  return result;
}

// A protected kernel, graph or other launch: a unit of unknown class that counts as a launch.
template <class F>
CUresult protected_launch(driver_api::StreamArg stream, uint64_t function, F&& call) {
  return protected_unit(stream, 0, function, [&] {
    count_launch(function);
    return call();
  });
}

}  // namespace tessera::gate
