#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

Gaps::Gaps(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !t.gaps) return;
  const uint64_t unknown_ns = f_.learnt.all_gaps.knows() ? f_.learnt.all_gap_wait_ns
                                                         : std::max(f_.parameters.guard_ns, t.unknown_gap_ns);
  uint64_t until_ns = 0;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const ProtectedClient& l = f_.learnt.of(i);
    const uint64_t wait_ns = l.gaps.knows() ? l.gap_wait_ns : unknown_ns;
    if (wait_ns <= t.gate_guard_ns) continue;
    until_ns = std::max(until_ns, c.busy ? UINT64_MAX : c.idle_since_ns + wait_ns);
  }
  hold_ = until_ns > f_.o.now_ns;
  if (hold_ && until_ns != UINT64_MAX) decide_again_at(until_ns);
}

Constraint Gaps::of(size_t) const {
  return {.start = hold_ ? Constraint::Start::kHeld : Constraint::Start::kAsGranted, .held_by = HeldBy::kGap};
}

}  // namespace tessera::policy
