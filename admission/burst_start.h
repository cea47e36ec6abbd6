// Protected clients with deadlines (LeaseView::defers): which of two bursts goes first. Bursts that run are
// never stopped.
#pragma once

#include "admission/lease.h"
#include "admission/pulse.h"

namespace tessera::admission {

struct BurstStart {  // a burst that wants to begin
  uint32_t priority;
  uint64_t slo_ns;  // 0 = none
  uint64_t arrived_ns;
};

// A busy peer goes first if its level is higher, or on the same level if its deadline is earlier. A page is
// untrusted: what it says moves the start by the bound of the wait at most.
constexpr bool goes_first(const PulseView& peer, uint64_t peer_slo_ns, const BurstStart& own,
                          uint64_t now_ns) {
  if (!is_busy(peer, now_ns)) return false;
  if (peer.priority != own.priority) return peer.priority > own.priority;
  if (peer_slo_ns == 0 || own.slo_ns == 0) return false;
  return peer.busy_since_ns + peer_slo_ns < own.arrived_ns + own.slo_ns;
}

// No burst waits longer than the hold limit or its own deadline.
constexpr uint64_t most_defer_ns(uint64_t max_hold_ns, uint64_t slo_ns) {
  return slo_ns != 0 && slo_ns < max_hold_ns ? slo_ns : max_hold_ns;
}

}  // namespace tessera::admission
