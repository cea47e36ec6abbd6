// Two slices in the time that may be in flight, longer only where slicing would cost too much. While no burst can come: as the
// operator configured it, drained before the first one may.
#include <algorithm>

#include "base/length_class.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
InFlightLimit::InFlightLimit(const Facts& facts) : Part(facts) {
  if (!f_.both_kinds || !f_.tuning.in_flight_limit) return;
  if (f_.undisturbed_until_ns != 0) {
    if (f_.undisturbed_until_ns != UINT64_MAX)
      decide_again_at(f_.undisturbed_until_ns - f_.undisturbed_window_ns);
    return;
  }
  for (size_t i : f_.learnt.protected_clients) {  // it may fall asleep
    const ClientView& c = f_.o.clients[i];
    const ProtectedClientState& l = f_.learnt.of(i);
    if (!c.busy && l.asleep_ns != UINT64_MAX && !l.asleep(c, f_.o.now_ns))
      decide_again_at(c.idle_since_ns + l.asleep_ns);
  }
}

// The quantum of each client that waits on the device: all quanta together are no longer than a burst may be late. Work
// that is enqueued now may start much later, so only a service that sleeps allows more.
uint64_t InFlightLimit::quantum_ns() const {
  if (f_.undisturbed_until_ns == UINT64_MAX) return f_.parameters.slice_ns;
  const auto n = f_.o.mps ? uint64_t(std::count_if(f_.o.clients.begin(), f_.o.clients.end(),
                                                   [](const ClientView& c) { return c.gate_on_device; }))
                          : 1;  // they take turns
  const double late_ns = f_.learnt.allowance_ns * f_.tuning.in_flight_per_target;
  return std::max(base::kLongestOfClass[0], uint64_t(late_ns) / std::max<uint64_t>(1, n));
}

Constraint InFlightLimit::of(size_t client) const {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !t.in_flight_limit) return {};
  if (f_.o.clients[client].gate_on_device) {
    const uint64_t length_ns = quantum_ns();  // slices are quanta, unless that makes too many of them
    // The window is for what asks in its thread after all, and says which launches are long enough to keep off a reserve.
    return {.window_ns = std::min(f_.parameters.window_ns, f_.learnt.max_in_flight_ns),
            .slice_ns = std::max(t.least_slice_ns, length_ns),
            .quantum_ns = length_ns};
  }
  if (f_.undisturbed_until_ns != 0)
    return {.window_ns = f_.undisturbed_window_ns,
            .slice_ns = std::max(t.least_slice_ns, f_.undisturbed_window_ns / 2)};
  // One slice fills that time, unless a shorter one costs nearly nothing: then the next is ready when it
  // ends.
  const uint64_t overhead_ns = f_.o.clients[client].slice_overhead_ns,
                 max_in_flight_ns = f_.learnt.max_in_flight_ns;
  uint64_t slice_ns = max_in_flight_ns;
  if (overhead_ns != 0 && overhead_ns * t.slice_per_overhead * 2 <= max_in_flight_ns) slice_ns /= 2;
  slice_ns = std::max({slice_ns, t.least_slice_ns, overhead_ns * t.slice_per_overhead});
  slice_ns = std::min(slice_ns, f_.parameters.slice_ns);
  // Work that fills part of the GPU leaves the rest to the burst, so in proportion more of it may be in flight.
  const uint32_t widest_sms = f_.learnt.clients[client].widest_sms;
  const bool few_blocks = t.few_blocks && widest_sms != 0 && widest_sms < f_.o.sm_count;
  const uint64_t in_flight_ns =
      std::max(max_in_flight_ns, slice_ns) * (few_blocks ? f_.o.sm_count : 1) / (few_blocks ? widest_sms : 1);
  const uint64_t window_ns = std::min(f_.parameters.window_ns, in_flight_ns);
  return {.window_ns = window_ns,
          .slice_ns = slice_ns,
          .marker_spacing_ns = window_ns / std::max<uint64_t>(1, t.markers_per_window)};
}

}  // namespace tessera::policy
