// How long each launch and copy of a trace ran on the GPU. A trace has times of calls; what ran when is known only where
// something shows that a stream had reached a point: a marker, a call that waited, the end of a burst. The time between two
// such points is dealt out to what was enqueued between them, launches of one kernel and size being alike. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/trace/model.h"

namespace tessera::cli {

struct GpuSpan {
  uint64_t start_ns = 0, end_ns = 0;  // both 0: is no launch and no copy, failed, or was cut
};
// When each item of the trace ran, in order: what was dealt out of one stretch of time lies in it one after the other.
std::vector<GpuSpan> gpu_spans(const Trace& trace);

// One number per item of the trace, in order; 0 for what is no launch and no copy, or failed. A cut launch has the sum of
// its slices, and they have theirs. What nothing showed the end of has the time of its like, or else of its call.
std::vector<uint64_t> gpu_times_ns(const Trace& trace);

}  // namespace tessera::cli
