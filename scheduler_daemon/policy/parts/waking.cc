#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

Waking::Waking(const Facts& facts) : Part(facts) {
  if (!f_.both_kinds || !f_.tuning.waking) return;
  uint64_t end_ns = 0;  // of all bursts
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    if (!c.busy) continue;
    if (c.burst_ns == 0) return;
    end_ns = std::max(end_ns, c.busy_since_ns + c.burst_ns);
  }
  if (end_ns == 0 || f_.o.now_ns > end_ns + f_.tuning.watch_ns) return;
  watch_ = f_.o.now_ns + f_.tuning.reaction_ns >= end_ns;
  if (!watch_) decide_again_at(end_ns - f_.tuning.reaction_ns);
}

Constraint Waking::of(size_t client) const {
  return {.spin_ns = watch_ && f_.o.clients[client].waiting ? uint32_t(f_.tuning.watch_ns) : 0};
}

}  // namespace tessera::policy
