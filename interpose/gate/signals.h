// Best-effort client: what packing and slice sizing need to know of its launches (abi::SignalLine). Called on
// the gated path, not by launches that use credit; stores only what changed. No allocation, no lock, no
// system call.
#pragma once

#include "interpose/gate/launch.h"

namespace tessera::gate {

struct Width {           // of one launch
  uint32_t wave_blocks;  // blocks that fill the GPU once, as far as known
  uint32_t launch_sms;   // SMs that it would fill
};
Width width_of(const LaunchCall& launch, const state::KernelRecord* kernel);

// Would it fill more than an eighth of the GPU? Smaller ones disturb nobody, cut or not.
inline bool is_wide(const LaunchCall& launch, const Width& width) {
  return launch.blocks() * 8 > width.wave_blocks;
}

// The launch that is about to ask for admission. `may_cut`: slices of any width are possible.
void describe(const state::DaemonLink* link, uint32_t resource_class, const Width& width, bool may_cut);
// Work that is one piece: graphs, cooperative launches, copies.
void describe_whole(const state::DaemonLink* link, uint32_t resource_class);

// Counts of one launch, in the thread's own slot.
inline void count_blocks(uint64_t blocks) {
  state::Thread& t = state::t_thread;
  state::add(t.slot->blocks, blocks, t.shared != 0);
}
inline void count_uncut() {
  state::Thread& t = state::t_thread;
  state::add(t.slot->uncut, 1, t.shared != 0);
}

inline void count_outcome(ipc::abi::LaunchOutcome outcome, uint64_t launches, uint64_t gpu_ns) {
  state::Thread& t = state::t_thread;
  state::OutcomeCount& counts = t.slot->outcomes[outcome];
  state::add(counts.launches, launches, t.shared != 0);
  state::add(counts.gpu_ns, gpu_ns, t.shared != 0);
}
// Counts the repeats of the thread's latest launch that were not looked at. Called before the thread remembers another one.
inline void count_repeats() {
  state::LaunchMemo& memo = state::t_thread.memo;
  if (memo.repeats == 0) return;
  count_outcome(memo.outcome, memo.repeats, memo.repeats * memo.expected_ns);
  memo.repeats = 0;
}

// Sums over threads and what was learnt, into the line. Helper thread.
void publish_signals(const state::DaemonLink* link);

}  // namespace tessera::gate
