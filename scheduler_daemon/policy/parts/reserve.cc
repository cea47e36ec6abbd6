// Kernels that cannot be cut, or whose blocks last long, are in flight for longer than a burst can wait. SMs that they
// may not use are free at once, whatever is in flight on the others.
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

// In steps, as hardware gives SMs and so that leases do not change with every burst. Less than a whole one is none.
Reserve::Reserve(const Facts& facts) : Part(facts) {
  const uint32_t reserved = uint32_t(f_.reserve_share * f_.o.sm_count) / kSmsPerStep * kSmsPerStep;
  if (reserved != 0 && reserved < f_.o.sm_count) sm_limit_ = f_.o.sm_count - reserved;
}

Constraint Reserve::of(size_t client) const {
  return {.sm_limit = f_.o.clients[client].can_confine ? sm_limit_ : 0};
}

}  // namespace tessera::policy
