// Counts a best-effort client's library calls and the launches below them in its region (ipc/abi/operations.h), and
// records events for a trace. Runs around each outermost call, in the program's threads: no wait, no allocation, no system
// call.
#pragma once

#include "interpose/gate/trace.h"
#include "interpose/state/note.h"
#include "interpose/state/state.h"

namespace tessera::gate {

// Note::launches_before of a thread without a slot of its own.
inline constexpr uint64_t kNotCounted = UINT64_MAX;

void trace_from_now(operations::Note& note);
inline void begin_operation(operations::Note& note) {
  state::Thread& t = state::t_thread;
  if (!t.slot) state::claim_slot(t);
  // relaxed: of this thread
  note.launches_before = t.shared ? kNotCounted : t.slot->launches.load(std::memory_order_relaxed);
  note.start_ns = 0;
  if (tracing()) [[unlikely]]
    trace_from_now(note);
}
void end_operation(operations::Note& note,
                   bool begins_call = true);  // false: some of its launches were before

// The same in numbers, for calls that were captured: what a launch of their graph amounts to.
struct OperationSum {
  uint64_t calls, flop, bytes, gpu_ns, launches;
};
void count_operation(const operations::Note& note, const OperationSum& sum);
// An event for several calls, until now, that `text` names; `id` is that text's. Nothing if nobody traces.
struct TracedOperations {
  uint64_t start_ns, stream, flop, bytes;
};
void trace_operations(uint64_t id, const char* text, const TracedOperations& what);
// Adds to a 64-bit word of abi::OperationTotals, by its number.
void count_operations(uint32_t word, uint64_t n);
// Something of this class started while a burst of a higher level ran.
void count_during_burst(uint32_t resource_class);

// A launch of this thread that is looked at one by one. `expected_ns`: 0 while nothing is measured. What goes out as the
// thread's latest once more (interpose/hooks) is added when the call ends.
inline void charge_operation(uint64_t expected_ns) {
  operations::Note* note = state::t_note;
  if (!note) return;
  note->gated++;
  note->launches++;
  note->expected_ns += expected_ns;
}

}  // namespace tessera::gate
