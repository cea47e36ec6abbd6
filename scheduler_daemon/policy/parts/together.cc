// A service whose kernels are narrow, or whose launches come one by one, leaves most of the GPU idle while it is busy. What
// best-effort work on the whole GPU costs it is found out by trials: beside the end of one burst in so many, then beside
// more of it. Where that is less than the target allows, work runs all the time, bursts or not.
#include <algorithm>

#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {

Together::Together(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  const double target = f_.parameters.slowdown_target, budget = target * t.spent_on_packing;
  if (!f_.both_kinds || !f_.o.mps || !f_.parameters.packing || !t.together || budget <= 0) return;
  uint64_t longest_ns = 0;  // piece of best-effort work, which nobody can stop
  for (size_t i = 0; i < f_.o.clients.size(); ++i)
    if (!is_protected(f_.o.clients[i])) longest_ns = std::max(longest_ns, f_.learnt.clients[i].longest_ns);
  bool works = false, known = true, hopeful = true, trial = false, retry = false, solo = false;
  bool busy = false, whole = true;  // a burst runs; a trial is beside all of it
  uint64_t opens_ns = 0, late_ns = UINT64_MAX;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const ProtectedClient& l = f_.learnt.of(i);
    if (l.asleep(c, f_.o.now_ns)) continue;
    // Without a baseline nobody knows what it costs.
    const auto burst_ns = double(c.next_burst_ns);
    if (c.next_burst_ns == 0 || double(longest_ns) > burst_ns * t.first_together) return;
    const NeighbourCost& cost = l.cost[kAnywhere];
    const double allowed = budget * cost.spent();
    works = true;
    known &= cost.known(t) && cost.upper(t) <= allowed;
    hopeful &= l.together_trials < t.together_trials && cost.limit() >= 1 && !cost.too_dear(1, allowed);
    trial |= l.together_trial.due(c.bursts, t.trial_every);
    retry |= l.together_retry.due(c.bursts, t.retry_every);
    solo |= l.solo.due(c.bursts, t.solo_every);
    const double share = cost.limit() < 1 ? t.first_together
                                          : std::min(l.together_share, target / std::max(1e-6, cost.cost()));
    whole &= share >= 1;
    if (!c.busy) continue;
    busy = true;
    opens_ns = std::max(opens_ns, c.busy_since_ns + uint64_t(burst_ns * (1 - share)));
    late_ns = std::min(late_ns, c.busy_since_ns + uint64_t(burst_ns * (1 + target)) - longest_ns);
  }
  if (!works || solo || f_.o.now_ns >= late_ns) return;
  trial_ = !known && (hopeful ? trial : retry);
  on_ = known || (trial_ && (whole || (busy && f_.o.now_ns >= opens_ns)));
  if (on_ && busy) decide_again_at(late_ns);
  if (trial_ && !on_) decide_again_at(std::min(busy ? opens_ns : UINT64_MAX, f_.o.now_ns + t.pack_look_ns));
}

Constraint Together::of(size_t client) const {
  if (is_protected(f_.o.clients[client]) || !f_.learnt.clients[client].may_run() || !on_) return {};
  return {.start = Constraint::Start::kTogether};
}

void Together::note(const Decision& d, Learnt* learnt) const {
  for (size_t i = 0; i < d.leases.size(); ++i) {
    if (!d.leases[i].together) continue;
    learnt->clients[i].beside_width = 1;
    learnt->clients[i].beside_class = kAnywhere;
  }
  for (size_t i : f_.learnt.protected_clients) {
    ProtectedClient& l = *learnt->clients[i].learnt;
    l.spending[kAnywhere] = on_ && !trial_;
    if (on_ && !trial_)
      l.packed_excess = std::min(l.cost[kAnywhere].upper(f_.tuning), f_.parameters.slowdown_target);
    if (!on_ || !trial_) continue;
    l.together_trials += l.together_trial.note(f_.o.clients[i].bursts, f_.tuning.trial_every);
    l.together_retry.note(f_.o.clients[i].bursts, f_.tuning.retry_every);
  }
}

}  // namespace tessera::policy
