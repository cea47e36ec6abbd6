// A service whose kernels have few blocks, or whose launches come one by one, leaves most of the GPU idle while it is busy. What
// best-effort work on the whole GPU costs it is found out by trials: beside the end of one burst in a few, then beside
// more of it. Where that is less than the target allows, work runs all the time, bursts or not. Where it is more, work runs
// beside the end of each burst, as much of it as the target pays for:
//
//   share of the burst = target x spent_together / cost
//
// A service that is never idle gives best-effort work nothing else.
#include <algorithm>
#include <vector>

#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// In the mean; for certain is another question.
bool is_bearable(const NeighbourCost& cost, double target, const Tuning& t) {
  return cost.cost() <= target * t.spent_on_packing;
}

// Bursts from one trial to the next. Trials that cost little so far need not be rare: a request of 300 ms would need half a
// minute for six.
uint64_t pace(const NeighbourCost& cost, double target, const Tuning& t) {
  return cost.judged() != 0 && is_bearable(cost, target, t) ? 1 : t.trial_every;
}

}  // namespace

// The share of each burst of this client that the target pays for, at the known cost. `idle`: the share of the time in
// which no protected client is busy.
double Together::affordable(size_t protected_client, double idle) const {
  const Tuning& t = f_.tuning;
  const ClientView& c = f_.o.clients[protected_client];
  const NeighbourCost& cost = f_.learnt.of(protected_client).cost[kAnywhere];
  const double target = f_.parameters.slowdown_target * cost.spent(), upper = std::max(1e-6, cost.upper(t));
  if (upper <= target * t.spent_on_packing) return 1;
  // Best-effort work that has the time between bursts gains little by the rest.
  if (1 - idle < t.least_gain * upper * idle * t.between_efficiency) return 0;
  // In a burst after a gap, work that was in flight at its beginning has used a part of the target.
  const bool exposed = c.busy && c.busy_since_ns > c.idle_since_ns + t.longest_gap_ns;
  const double spent_in_flight =
      exposed ? double(t.useful_in_flight_ns) / t.in_flight_per_target / double(c.next_burst_ns) : 0;
  return std::clamp((target * t.spent_together - spent_in_flight) / upper, 0.0, 1.0);
}

// The share of one burst that a trial takes, to learn the cost. Nobody can stop a long piece, so it has a whole burst, as
// rarely as p99 does not show.
double Together::tried(size_t protected_client, double longest_piece) const {
  const ProtectedClientState& l = f_.learnt.of(protected_client);
  const NeighbourCost& cost = l.cost[kAnywhere];
  const Tuning& t = f_.tuning;
  if (longest_piece >= t.most_piece)
    return l.together_retry.due(f_.o.clients[protected_client].bursts, t.retry_every) ? 1 : 0;
  const double share =
      cost.limit() < 1
          ? t.first_together
          : std::min(l.together_share, f_.parameters.slowdown_target / std::max(1e-6, cost.cost()));
  return std::max(share, longest_piece);
}

Together::Together(const Facts& facts, double packed_share) : Part(facts) {
  const Tuning& t = f_.tuning;
  const double target = f_.parameters.slowdown_target;
  if (!f_.both_kinds || !f_.o.mps || !f_.parameters.packing || !t.together || target <= 0 ||
      packed_share >= 1)
    return;
  std::vector<size_t> at_work;
  bool known = true, hopeful = true, trial = false, retry = false, solo = false;
  double idle = 1;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const ProtectedClientState& l = f_.learnt.of(i);
    if (l.asleep(c, f_.o.now_ns)) continue;
    if (c.next_burst_ns == 0) return;  // without a baseline nobody knows what it costs
    at_work.push_back(i);
    const NeighbourCost& cost = l.cost[kAnywhere];
    const bool enough_trials = cost.judged() >= t.needed_trials;
    known &= enough_trials;
    // One slow burst among few makes a cost uncertain that is bearable in the mean.
    hopeful &= cost.limit() >= 1 && (enough_trials ? cost.judged() < t.enough && is_bearable(cost, target, t)
                                                   : l.together_trials < t.least_seen);
    trial |= l.together_trial.due(c.bursts, pace(cost, target, t));
    retry |= l.together_retry.due(c.bursts, t.retry_every);
    solo |= l.solo.due(c.bursts, t.solo_every);
    idle *= 1 - l.busy_share;
  }
  if (at_work.empty() || solo) return;
  std::vector<double> shares;  // of each one's burst, that the target pays for
  for (size_t i : at_work) shares.push_back(affordable(i, idle));
  const bool pays = known && std::ranges::min(shares) > 0;
  trial_ = !pays && ((retry && !known) || (hopeful && trial));
  if (!pays && !trial_) return;
  uint64_t longest_ns = 0;  // piece of best-effort work, which nobody can stop
  for (size_t i = 0; i < f_.o.clients.size(); ++i)
    if (!is_protected(f_.o.clients[i])) longest_ns = std::max(longest_ns, f_.learnt.clients[i].longest_ns);
  share_ = 1;
  bool busy = false;
  uint64_t opens_ns = 0, late_ns = UINT64_MAX, ends_ns = UINT64_MAX;
  for (size_t n = 0; n < at_work.size(); ++n) {
    const size_t i = at_work[n];
    const ClientView& c = f_.o.clients[i];
    const auto burst_ns = double(c.next_burst_ns);
    const double piece = double(longest_ns) / burst_ns;
    const double share = trial_ ? tried(i, piece) : shares[n];
    // Pieces of any length were measured beside whole bursts, or are to be.
    const bool whole = share >= 1 && (!trial_ || piece >= t.most_piece);
    // Each burst has a decision of its own where work runs beside the end of it.
    const bool worth_opening = trial_ || share * burst_ns >= double(t.short_work_ns);
    if (!whole && (share < piece || !worth_opening)) share_ = 0;
    share_ = std::min(share_, share);
    if (!c.busy) continue;
    busy = true;
    opens_ns = std::max(opens_ns, c.busy_since_ns + uint64_t(burst_ns * (1 - share)));
    if (!whole) late_ns = std::min(late_ns, c.busy_since_ns + uint64_t(burst_ns * (1 + target)) - longest_ns);
    ends_ns = std::min(ends_ns, c.busy_since_ns + uint64_t(burst_ns));
  }
  if (!trial_ && share_ < 1) late_ns = std::min(late_ns, ends_ns - std::min(ends_ns, t.reaction_ns));
  if (share_ <= 0 || f_.o.now_ns >= late_ns || (!trial_ && share_ <= packed_share)) return;
  chosen_ = true;
  on_ = share_ >= 1 || (busy && f_.o.now_ns >= opens_ns);
  if (on_ && late_ns != UINT64_MAX) decide_again_at(late_ns);
  if (!on_) decide_again_at(std::min(busy ? opens_ns : UINT64_MAX, f_.o.now_ns + t.look_ns));
}

Constraint Together::of(size_t client) const {
  if (is_protected(f_.o.clients[client]) || !f_.learnt.clients[client].may_run() || !on_) return {};
  Constraint c{.start = Constraint::Start::kTogether};
  // Bursts were measured beside all of this work, so that nothing more is spared when the next one begins.
  if (share_ >= 1 && !trial_) c.window_ns = f_.parameters.window_ns;
  return c;
}

void Together::note(const Decision& d, PolicyState* learnt) const {
  for (size_t i = 0; i < d.leases.size(); ++i) {
    if (!d.leases[i].together) continue;
    learnt->clients[i].burst_width = 1;
    learnt->clients[i].burst_class = kAnywhere;
  }
  for (size_t i : f_.learnt.protected_clients) {
    ProtectedClientState& l = *learnt->clients[i].learnt;
    l.spending[kAnywhere] = chosen_ && !trial_;
    if (chosen_ && !trial_)
      l.packed_excess = std::min(share_ * l.cost[kAnywhere].upper(f_.tuning), f_.parameters.slowdown_target);
    if (!on_ || !trial_) continue;
    l.together_trials += l.together_trial.note(
        f_.o.clients[i].bursts, pace(l.cost[kAnywhere], f_.parameters.slowdown_target, f_.tuning));
    l.together_retry.note(f_.o.clients[i].bursts, f_.tuning.retry_every);
  }
}

}  // namespace tessera::policy
