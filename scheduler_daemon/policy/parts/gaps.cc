#include "scheduler_daemon/policy/burst_end.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

Gaps::Gaps(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !t.gaps) return;
  unknown_ = f_.learnt.all_gaps.is_known()
                 ? f_.learnt.all_gap_hold
                 : GapModel::Hold{.wait_ns = std::max(f_.parameters.guard_ns, t.unknown_gap_ns)};
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const GapModel::Hold hold = hold_of(i);
    const uint64_t idle_ns = c.busy ? 0 : f_.o.now_ns - std::min(f_.o.now_ns, c.idle_since_ns);
    hold_ |= hold.covers(idle_ns);
    const uint64_t next_ns = hold.next_end_ns(idle_ns);
    if (!c.busy && next_ns != UINT64_MAX) decide_again_at(c.idle_since_ns + next_ns);
  }
}

// One gap in many is left alone where processes take turns on the GPU: the burst behind it says what the others lose to work
// that ran before them.
bool Gaps::stays_unused(size_t protected_client) const {
  const ClientView& c = f_.o.clients[protected_client];
  return !f_.o.mps && f_.learnt.of(protected_client).unused_gap.due(c.bursts, every(c));
}

uint64_t Gaps::every(const ClientView& c) const {
  return c.knows_change ? f_.tuning.retry_every : f_.tuning.solo_every;
}

void Gaps::note(PolicyState* learnt) const {
  for (size_t i : learnt->protected_clients)
    learnt->clients[i].learnt->unused_gap.note(f_.o.clients[i].bursts, every(f_.o.clients[i]));
}

GapModel::Hold Gaps::hold_of(size_t protected_client) const {
  const ProtectedClientState& l = f_.learnt.of(protected_client);
  if (stays_unused(protected_client)) return {.wait_ns = f_.tuning.longest_gap_ns};
  GapModel::Hold hold = l.gaps.is_known() ? l.gap_hold : unknown_;
  if (hold.wait_ns <= f_.tuning.gate_guard_ns) hold.wait_ns = 0;  // gates wait as long by themselves
  return hold;
}

void Gaps::close_gates(Decision* d) const {
  if (!f_.both_kinds) return;
  for (size_t i : f_.learnt.protected_clients) {
    const GapModel::Hold hold = f_.tuning.gaps ? hold_of(i) : GapModel::Hold{};
    wait_out_gaps(f_.o, i, hold.wait_ns, f_.tuning.gate_guard_ns, d);
    d->leases[i].timed = hold.from_ns != 0;
  }
}

Constraint Gaps::of(size_t) const {
  return {.start = hold_ ? Constraint::Start::kHeld : Constraint::Start::kAsGranted, .held_by = HeldBy::kGap};
}

}  // namespace tessera::policy
