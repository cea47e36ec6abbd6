#include "scheduler_daemon/policy/burst_end.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

Gaps::Gaps(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !t.gaps) return;
  unknown_ns_ = f_.learnt.all_gaps.is_known() ? f_.learnt.all_gap_wait_ns
                                              : std::max(f_.parameters.guard_ns, t.unknown_gap_ns);
  uint64_t until_ns = 0;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    if (wait_ns(i) <= t.gate_guard_ns) continue;
    until_ns = std::max(until_ns, c.busy ? UINT64_MAX : c.idle_since_ns + wait_ns(i));
  }
  hold_ = until_ns > f_.o.now_ns;
  if (hold_ && until_ns != UINT64_MAX) decide_again_at(until_ns);
}

uint64_t Gaps::wait_ns(size_t protected_client) const {
  const ProtectedClientState& l = f_.learnt.of(protected_client);
  return l.gaps.is_known() ? l.gap_wait_ns : unknown_ns_;
}

void Gaps::close_gates(Decision* d) const {
  if (!f_.both_kinds) return;
  for (size_t i : f_.learnt.protected_clients)
    wait_out_gaps(f_.o, i, f_.tuning.gaps ? wait_ns(i) : 0, f_.tuning.gate_guard_ns, d);
}

Constraint Gaps::of(size_t) const {
  return {.start = hold_ ? Constraint::Start::kHeld : Constraint::Start::kAsGranted, .held_by = HeldBy::kGap};
}

}  // namespace tessera::policy
