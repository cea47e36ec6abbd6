// What stood in the way of a protected client's bursts, from a trace (docs/trace.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/trace/model.h"

namespace tessera::cli {

// A burst's time, part by part: length_ns = own_ns + drain_ns + beside_ns + wait_ns + host_ns.
struct BurstParts {
  uint32_t client = 0;
  uint64_t start_ns = 0, end_ns = 0, launches = 0;
  uint64_t own_ns = 0;  // the rest: its own work, with the GPU to itself
  uint64_t drain_ns =
      0;  // its calls returned, but best-effort work that was in flight when it began had not ended
  uint64_t beside_ns = 0;  // best-effort work that started later ran beside it: packed, let go, not managed
  uint64_t wait_ns = 0;    // before it: held for a burst that goes first
  uint64_t host_ns = 0;    // between its calls, with none of its work enqueued: the program itself
  uint64_t length_ns() const { return own_ns + drain_ns + beside_ns + wait_ns + host_ns; }
};

std::vector<BurstParts> slowest_bursts(const Trace& trace, size_t n);
std::string explanation(const std::vector<BurstParts>& bursts, const Trace& trace);

}  // namespace tessera::cli
