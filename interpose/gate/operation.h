// Class and first estimate of kernels below a library call, from the call's note (interpose/state/note.h), where nothing
// else is known of them. For launches of best-effort clients; hot path, any thread.
#pragma once

#include "interpose/gate/first_estimate.h"
#include "interpose/state/kernels.h"
#include "interpose/state/note.h"
#include "operations/roofline.h"

namespace tessera::gate {

// By the current device, if that was ever described.
operations::Roofline roofline_of(const operations::Note& note);

// By that roofline; kept in the note.
uint32_t class_of_operation(operations::Note& note);

// Returns the class of a launch: its kernel's, or that of the call that it belongs to. `kernel` may be null.
inline uint32_t class_of(const state::KernelRecord* kernel) {
  const uint32_t known = kernel ? kernel->resource_class() : uint32_t(ipc::abi::kResourceUnknown);
  if (known != ipc::abi::kResourceUnknown) return known;
  operations::Note* note = state::t_note;
  return note ? class_of_operation(*note) : uint32_t(ipc::abi::kResourceUnknown);
}

// Returns the basis for a launch that is made now, `blocks` of a kernel's `of_blocks`; an empty one outside a call.
Basis below_call(uint64_t kernel, uint64_t blocks, uint64_t of_blocks);

// For a launch of a shape that was never measured: what its call says of it (first_estimate.h). 0: no call, or no more than
// stands for any kernel.
uint64_t expected_below_call(uint64_t kernel, uint64_t blocks);

// Returns the expected time of a whole call that was never made; 0: not known.
uint64_t expected_of_call(const operations::Note& note);
// Longest single launch that the lease wants; 0: it has no wish, or a capture is open.
uint64_t wanted_slice_ns();
// SMs that the lease leaves to a call of that length; 0: all. As admission/confine.h has it of a launch.
uint32_t sms_for_call(uint64_t expected_ns);
// Nobody of a higher level is busy.
bool undisturbed();

}  // namespace tessera::gate
