// Virtual time by weight among clients whose leases overlap. Hysteresis keeps it from flapping.
#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

struct Contenders {
  double least_virtual_ns = -1;  // who is furthest behind among those that want the GPU; below 0: nobody does
  size_t n = 0;
  double weights = 0;  // sum of theirs, 1 = the usual one
};

// How far one may be ahead of another. A round in which each has its turn takes this distance times the sum of the weights; if
// that were near the hold limit those of little weight would be urgent again and again.
double turn_ns(double weights, const Parameters& p, const Tuning& t) {
  return std::min(t.ahead_ns, double(p.max_hold_ns) / t.turns_per_hold / std::max(1.0, weights));
}

// A client between two launches still wants its share; what it is owed is forgotten when it rests for longer, or cannot run.
bool wants_gpu(const ClientState& c, const Observation& o, const Parameters& p) {
  const uint64_t demand_ns = c.share.last_demand_ns;
  return demand_ns != 0 && o.now_ns - demand_ns <= p.idle_grace_ns && !c.progress.stalled;
}

Contenders charge_use(const Observation& o, const Parameters& p, PolicyState* learnt) {
  Contenders found;
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c)) continue;
    Share& s = learnt->clients[i].share;
    if (!s.known) s.last_used_ns = c.used_ns;
    s.known = true;
    const uint64_t used_ns = c.used_ns - std::min(c.used_ns, s.last_used_ns);
    s.last_used_ns = c.used_ns;
    if (used_ns != 0) s.virtual_ns += double(used_ns) * 100 / std::max(1u, c.weight);
    if (has_demand(c)) s.last_demand_ns = o.now_ns;
    const bool demand = wants_gpu(learnt->clients[i], o, p);
    found.n += demand;
    if (demand) found.weights += double(c.weight) / 100;
    if (demand && s.had_demand && (found.least_virtual_ns < 0 || s.virtual_ns < found.least_virtual_ns))
      found.least_virtual_ns = s.virtual_ns;
  }
  return found;
}

}  // namespace

void account_shares(const Observation& o, const Parameters& p, const Tuning& t, PolicyState* learnt) {
  const Contenders others = charge_use(o, p, learnt);
  learnt->turn_ns = turn_ns(others.weights, p, t);
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c)) continue;
    Share& s = learnt->clients[i].share;
    const bool demand = wants_gpu(learnt->clients[i], o, p);
    if (demand && !s.had_demand)
      s.virtual_ns = std::max(s.virtual_ns, others.least_virtual_ns);  // idling earns nothing
    s.had_demand = demand;
    // Time that it used while nobody else was there does not count against it for long.
    if (others.least_virtual_ns >= 0)
      s.virtual_ns = std::min(s.virtual_ns, others.least_virtual_ns + t.most_ahead_ns);
    const double lead_ns = others.least_virtual_ns < 0 ? 0 : s.virtual_ns - others.least_virtual_ns;
    s.ahead = others.n >= 2 && lead_ns > (s.ahead ? 0 : learnt->turn_ns);
    const uint64_t waited_ns = c.waiting ? o.now_ns - std::min(o.now_ns, c.waiting_since_ns) : 0;
    const bool slo_at_stake = c.slo_ns != 0 && lead_ns < t.most_ahead_ns && waited_ns > c.slo_ns / 2;
    s.urgent = slo_at_stake || waited_ns > p.max_hold_ns / 2;
    learnt->clients[i].held_back = t.fairness && s.ahead && !s.urgent;
  }
}

Fairness::Fairness(const Facts& facts) : Part(facts) {
  if (!f_.o.mps) return;
  size_t n = 0, n_stalled = 0;
  for (size_t i = 0; i < f_.o.clients.size(); ++i) {
    n += f_.learnt.clients[i].share.had_demand;
    n_stalled += f_.learnt.clients[i].progress.stalled;
  }
  if (n + n_stalled >= 2) decide_again_at(f_.o.now_ns + (n >= 2 ? f_.tuning.look_ns : f_.tuning.wake_up_ns));
}

Constraint Fairness::of(size_t client) const {
  return {
      .start = f_.learnt.clients[client].held_back ? Constraint::Start::kHeld : Constraint::Start::kAsGranted,
      .held_by = HeldBy::kShare};
}

}  // namespace tessera::policy
