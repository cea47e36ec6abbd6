// The causes of slow bursts of protected clients, from a trace (docs/trace.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "cli/trace/model.h"

namespace tessera::cli {

// A burst's or request's time, part by part: length_ns = own_ns + drain_ns + beside_ns + wait_ns + host_ns.
struct BurstParts {
  uint32_t client = 0;
  std::string request;  // its kind; "": a burst
  uint64_t start_ns = 0, end_ns = 0, launches = 0;
  uint64_t own_ns = 0;  // the rest: its own work, with the GPU to itself
  uint64_t drain_ns =
      0;  // its calls returned, but best-effort work that was in flight when it began had not ended
  uint64_t beside_ns = 0;  // best-effort work that started later ran beside it: packed, let go, not managed
  uint64_t wait_ns = 0;    // before a burst, within a request: held for a burst that goes first
  uint64_t host_ns = 0;    // between its calls, with none of its work enqueued: the program itself
  uint64_t length_ns() const { return own_ns + drain_ns + beside_ns + wait_ns + host_ns; }
};

// A best-effort kernel that ran while bursts of protected clients did.
struct KernelInTheWay {
  uint32_t client = 0;
  uint64_t function = 0;
  uint64_t bursts = 0;                     // that met it
  uint64_t waited_ns = 0, longest_ns = 0;  // time of these bursts in which it ran: all of it, of one burst
  std::string outcome;                     // of its launches, as ipc/abi/cutting.h names it; "": not said
};

// The n kernels that bursts waited for longest.
std::vector<KernelInTheWay> kernels_in_the_way(const Trace& trace, size_t n);
std::string told(const std::vector<KernelInTheWay>& kernels, const Trace& trace);

// Clients that have requests are explained by these, others by bursts.
std::vector<BurstParts> slowest_bursts(const Trace& trace, size_t n);
std::string explanation(const std::vector<BurstParts>& bursts, const Trace& trace);

}  // namespace tessera::cli
