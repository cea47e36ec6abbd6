// Work of any kind around the driver's own call: what a hook of a launch, copy or fill is, for each role.
// Called by the hooks of this folder; any thread of the program; all state is on the caller's stack.
#pragma once

#include "interpose/gate/device_gate.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/operation_counts.h"
#include "interpose/gate/piece.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/signals.h"
#include "interpose/gate/timing.h"

namespace tessera::hooks {

// Gated work that is not a plain kernel: estimate, then `call()`. `learn` = timing entry to fill, or null.
template <class F>
CUresult best_effort_unit(driver_api::StreamArg stream, uint64_t estimate_ns, gate::Timing* learn,
                          uint64_t record_key, bool blocking, F&& call,
                          uint32_t resource_class = ipc::abi::kResourceUnknown) {
  if (state::is_nested()) return call();
  if (state::g_state.captures.load(std::memory_order_relaxed) && gate::capturing(stream)) return call();
  const gate::DepthGuard depth;
  gate::Wait wait;
  const gate::Piece piece{
      .stream = stream,
      .ask = {.estimate_ns = estimate_ns, .resource_class = resource_class},
      .sampling = {.time_it = gate::should_time(learn) == gate::TimeIt::kYes ? gate::TimeIt::kYes
                                                                             : gate::TimeIt::kNo,
                   .timing = learn,
                   .record_key = record_key},
      .blocking = blocking};
  CUresult result = CUDA_ERROR_UNKNOWN;
  gate::pass(piece, wait, &result, [&](admission::Action, CUresult* r) { return *r = call(), true; });
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

inline uint64_t id(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

// Returns the timing of a kernel's shape, whoever launches it.
inline gate::Timing* timing_of_kernel(const gate::LaunchCall& launch, const state::KernelRecord* kernel) {
  return gate::timing_of(gate::timing_key(
      {gate::kernel_id(launch, kernel), launch.blocks(), launch.threads(), launch.shared_bytes}));
}

// The first pointer argument (function, graph, parameter list) identifies a whole launch for timing.
template <class First, class... Rest>
const void* first_of(First first, Rest...) {
  return reinterpret_cast<const void*>(first);
}

// Times of a graph say nothing about another one with its handle, or about the graph after a change.
inline void forget_timing(CUgraphExec graph) {
  gate::Timing* t = gate::timing_of(gate::timing_key({id(graph), 1, 0, 0}));
  if (!t) return;
  t->block_ps.store(0, std::memory_order_relaxed);
  t->samples.store(0, std::memory_order_relaxed);
  t->launches.store(0, std::memory_order_relaxed);
}

// Kernels that cannot be cut, and graphs, as one unit. `known_ns`: what it takes if it was never timed itself;
// 0 = not known.
template <class F>
CUresult whole_launch(driver_api::StreamArg stream, const void* what, uint64_t known_ns, F&& call,
                      uint32_t resource_class = ipc::abi::kResourceUnknown) {
  using state::Role;
  const Role role = state::g_state.role.load(std::memory_order_relaxed);
  if (role == Role::kForward) return call();
  if (role == Role::kProtected) return protected_launch(stream, id(what), call);
  state::Thread& t = state::t_thread;
  if (!t.slot) state::claim_slot(t);
  gate::count_launch(id(what));
  gate::count_uncut();
  gate::describe_whole(state::g_state.link.load(std::memory_order_acquire), resource_class);
  state::KernelRecord* kernel = state::find_kernel(static_cast<CUfunction>(const_cast<void*>(what)));
  if (kernel && kernel->loaded.never_hold) {
    gate::charge_operation(0);
    gate::leave_device_gate();
    return call();
  }
  if (state::g_state.captures.load(std::memory_order_relaxed) && gate::capturing(stream)) {
    if (operations::Note* note = state::t_note) note->captured++;  // its graph does not know of it
    return call();
  }
  const uint64_t key = gate::timing_key({id(what), 1, 0, 0});
  gate::Timing* timing = gate::timing_of(key);
  const bool timed = timing && timing->block_ps.load(std::memory_order_relaxed) != 0;
  const uint64_t estimate_ns = timed || known_ns == 0 ? gate::estimate_of(timing, 1) : known_ns;
  gate::charge_operation(estimate_ns);
  gate::count_outcome(ipc::abi::kOutcomeWhole, 1, estimate_ns);
  return best_effort_unit(stream, estimate_ns, timing, key, false, call, resource_class);
}

}  // namespace tessera::hooks
