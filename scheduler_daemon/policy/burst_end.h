// The end of a burst: when gates on the device open, and whether the daemon must hear of it (Lease::quiet), which costs
// the client a system call in each synchronise call. Pure.
#pragma once

#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {

// Best-effort work waits for this time after the end of a burst of this client.
inline void wait_out_gaps(const Observation& o, size_t protected_client, uint64_t wait_ns,
                          uint64_t gate_guard_ns, Decision* d) {
  const ClientView& c = o.clients[protected_client];
  Lease& lease = d->leases[protected_client];
  const uint64_t until_ns = c.idle_since_ns + wait_ns;
  lease.keeps_closed = wait_ns > gate_guard_ns;
  lease.opens_gates = !c.busy && o.now_ns >= until_ns;
  if (!c.busy && !lease.opens_gates) look_at(until_ns, d);
}

// Called when all leases are decided. Without best-effort clients nobody acts on the end of a burst. A client that is idle
// and whose gap is being waited out may have further bursts in it: each only moves the moment at which the gap is long
// enough, and the decision looks again before that. Where work waits on the device and nobody keeps it closed, the client
// opens it by itself. Whom nobody watches holds others by the daemon alone.
inline void choose_quiet(const Observation& o, Decision* d) {
  bool acts = false, shares = false;
  for (size_t i = 0; i < o.clients.size(); ++i) {
    if (is_protected(o.clients[i])) continue;
    const Lease& lease = d->leases[i];
    shares = true;
    acts |= lease.quantum_ns == 0 || lease.packed || lease.confine_all;
  }
  for (size_t i = 0; i < o.clients.size(); ++i) {
    if (!is_protected(o.clients[i])) continue;
    Lease& lease = d->leases[i];
    const bool waits_out = !o.clients[i].busy && !lease.opens_gates;
    lease.quiet =
        !shares || (o.clients[i].watched && (waits_out || !(acts || lease.keeps_closed || lease.timed)));
  }
}

}  // namespace tessera::policy
