#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

Holds::Holds(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !t.holds) return;
  const auto patience_ns = uint64_t(double(f_.parameters.max_hold_ns) * t.forestall_at);
  for (size_t i = 0; i < f_.o.clients.size(); ++i) {
    const ClientView& c = f_.o.clients[i];
    // A turn still counts. The expiry would end any other reason to hold it, too.
    if (is_protected(c) || !c.waiting || c.waiting_since_ns == 0 || !f_.learnt.clients[i].in_turn) continue;
    const uint64_t begun_ns = f_.learnt.clients[i].forestalled_ns;
    uint64_t due_ns = c.waiting_since_ns + patience_ns;
    if (f_.o.now_ns - begun_ns >= t.wake_up_ns) due_ns = std::max(due_ns, begun_ns + patience_ns);
    decide_again_at(std::max(due_ns, f_.o.now_ns + t.soonest_look_ns));
    if (f_.o.now_ns < due_ns) continue;
    chosen_ = longest_waiting(chosen_, i);
  }
}

Constraint Holds::of(size_t client) const {
  return {.start = client == chosen_ ? Constraint::Start::kDuringBursts : Constraint::Start::kAsGranted};
}

void Holds::note(PolicyState* learnt) const {
  if (chosen_ == kNobody) return;
  uint64_t& begun_ns = learnt->clients[chosen_].forestalled_ns;
  if (f_.o.now_ns - begun_ns >= f_.tuning.wake_up_ns) begun_ns = f_.o.now_ns;
}

}  // namespace tessera::policy
