// Work of any kind around the driver's own call: what a hook of a launch, copy or fill is, for each role.
// Called by the hooks of this folder; any thread of the program; all state is on the caller's stack.
#pragma once

#include "interpose/gate/ask.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"

namespace tessera::hooks {

// Gated work that is not a plain kernel: estimate, then `call()`. `learn` = timing entry to fill, or null.
template <class F>
CUresult best_effort_unit(driver_api::StreamArg stream, uint64_t estimate_ns, gate::Timing* learn,
                          uint64_t record_key, bool blocking, F&& call) {
  if (state::t_thread.depth) return call();
  if (state::g_state.captures.load(std::memory_order_relaxed) && gate::capturing(stream)) return call();
  const gate::DepthGuard depth;
  gate::Wait wait;
  gate::Reservation reservation;
  const admission::Action action = gate::ask({.estimate_ns = estimate_ns}, stream, wait, reservation);
  if (action == admission::Action::kForward) return call();
  const bool timed = gate::should_time(learn) == gate::TimeIt::kYes && action == admission::Action::kGo;
  gate::Sample* sample = timed ? gate::sample_begin(learn, stream, record_key) : nullptr;
  const CUresult result = call();
  gate::sample_end(sample, stream, 1, 0, result);
  if (blocking)
    reservation.settle_blocking(result);
  else
    reservation.settle(stream, result);
  return result;
}

// A protected kernel, graph or other launch: of unknown class, and counted.
template <class F>
CUresult protected_launch(driver_api::StreamArg stream, uint64_t function, F&& call) {
  const gate::Work work = gate::begin_work(state::stream_key(stream), ipc::abi::kResourceUnknown, function);
  gate::count_launch(function);
  const CUresult result = call();
  gate::end_work(work);
  return result;
}

}  // namespace tessera::hooks
