// What a library call that the thread is in (interpose/state/note.h) says of the kernels under it, where nothing else is
// known of them: their class, and how long the first takes. Launches of best-effort clients; hot path, any thread.
#pragma once

#include "interpose/gate/state_names.h"
#include "interpose/state/note.h"

namespace tessera::gate {

// By the roofline of the current device; unknown if that was never described. Kept in the note.
uint32_t class_of_operation(operations::Note& note);

// Of a launch: its kernel's class, or that of the call that it belongs to. `kernel` may be null.
inline uint32_t class_of(const KernelRecord* kernel) {
  const uint32_t known = kernel ? kernel->resource_class() : uint32_t(abi::kResourceUnknown);
  if (known != abi::kResourceUnknown) return known;
  operations::Note* note = state::t_note;
  return note ? class_of_operation(*note) : uint32_t(abi::kResourceUnknown);
}

// For a launch of which nothing is known: the time of the whole call by the roofline, for the first that asks. 0: no call,
// not the first, or no roofline. Those that follow are helpers more often than not.
uint64_t expected_of_operation();

}  // namespace tessera::gate
