// Kernels that cannot be cut are in flight with their whole length when a burst begins. SMs that they may not use are
// free at once, whatever is in flight on the others.
#include <cmath>

#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

// The largest share of those who are at work: their bursts seldom coincide, and each was measured beside the others.
Reserve::Reserve(const Facts& facts) : Part(facts) {
  if (!f_.both_kinds || !f_.o.mps || !f_.tuning.reserve) return;
  double share = 0;
  for (size_t i : f_.learnt.protected_clients) {
    const ProtectedClient& l = f_.learnt.of(i);
    if (!l.asleep(f_.o.clients[i], f_.o.now_ns)) share = std::max(share, l.reserve.value());
  }
  // In steps, as hardware gives SMs and so that leases do not change with every burst. Less than a whole one is none.
  const uint64_t step = f_.tuning.reserve_sms;
  const auto reserved = uint32_t(std::floor(share * f_.o.sm_count / double(step)) * double(step));
  if (reserved != 0 && reserved < f_.o.sm_count) sm_limit_ = f_.o.sm_count - reserved;
}

Constraint Reserve::of(size_t client) const {
  const ClientView& c = f_.o.clients[client];
  return {.sm_limit = c.can_confine && c.uncut_launches != 0 ? sm_limit_ : 0};
}

}  // namespace tessera::policy
