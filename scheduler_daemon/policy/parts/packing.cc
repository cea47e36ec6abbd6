// The tail budget, spent where it buys most share. Between bursts work has either the whole GPU, which costs what is in
// flight when one begins, and beside them the width that what is left of the target pays for. Or it keeps to SMs of its
// own between bursts, too: then all of the target is for the width beside them.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// The part of the target for work in flight when a burst begins.
double for_in_flight(const ClientView& c, const Tuning& t) {
  return double(t.useful_in_flight_ns) / t.in_flight_per_target / double(c.burst_ns);
}

}  // namespace

Packing::Packing(const Facts& facts, bool gaps_hold) : Part(facts) {
  const Tuning& t = f_.tuning;
  budget_ = f_.parameters.slowdown_target * t.spent_on_packing;
  if (!f_.both_kinds || !f_.o.mps || !t.packing || budget_ <= 0) return;
  bool busy = false;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const ProtectedClientState& l = f_.learnt.of(i);
    if (l.asleep(c, f_.o.now_ns)) continue;
    // Without a baseline nobody knows what it costs.
    if (c.burst_ns < t.look_ns) {
      at_work_.clear();
      return;
    }
    at_work_.push_back(i);
    busy |= c.busy;
    idle_ *= 1 - l.busy_share;
    shortest_ns_ = std::min(shortest_ns_, c.burst_ns);
  }
  if (at_work_.empty()) return;
  now_ = busy || gaps_hold;
  for (size_t k = 0; k < kClasses; ++k) choose(k);
  // Nobody else would say that a pulse is busy, or that the next launch is of another class.
  for (size_t i = 0; i < f_.o.clients.size() && !tell_busy_; ++i)
    tell_busy_ = may_be_packed(i) && (f_.parameters.packing || has_few_blocks(i));
  if (busy && tell_busy_) decide_again_at(f_.o.now_ns + t.look_ns);
}

void Packing::give_way() {
  gives_way_ = true;
  tell_busy_ = false;
}

double Packing::share() const {
  double share = 1;
  for (size_t i = 0; i < f_.o.clients.size(); ++i) {
    if (is_protected(f_.o.clients[i])) continue;
    const Plan& plan = plan_[size_t(f_.o.clients[i].resource_class)];
    if (!may_be_packed(i)) return 0;
    if (has_few_blocks(i)) continue;
    share = std::min(share, waits_on_device(i) || plan.trial ? 0 : plan.beside);
  }
  return share;
}

bool Packing::may_be_packed(size_t client) const {
  const ClientView& c = f_.o.clients[client];
  return !at_work_.empty() && !is_protected(c) && c.can_confine && f_.learnt.clients[client].may_run();
}

// Work of few blocks loses nothing on few SMs.
bool Packing::has_few_blocks(size_t client) const {
  const uint32_t need = f_.learnt.clients[client].widest_sms;
  return need != 0 && need <= sms(few_blocks_width_[size_t(f_.o.clients[client].resource_class)]);
}

void Packing::choose(size_t k) {
  const Tuning& t = f_.tuning;
  double widest = t.most_width, limit = t.most_width;
  bool known = true, too_dear = false, trial = false, retry = false, solo = false;
  uint64_t judged = UINT64_MAX;
  for (size_t i : at_work_) {
    const uint64_t bursts = f_.o.clients[i].bursts;
    const NeighbourCost& cost = f_.learnt.of(i).cost[k];
    solo |= f_.learnt.of(i).solo.due(bursts, t.solo_every);
    known &= cost.judged() >= t.enough;
    too_dear |= cost.too_dear(t.least_sms, budget_);
    widest = std::min(widest, cost.widest(budget_, t));
    limit = std::min(limit, cost.limit());
    judged = std::min(judged, cost.judged());
    trial |= f_.learnt.of(i).trial.due(bursts, t.trial_every);
    retry |= f_.learnt.of(i).retry.due(bursts, t.retry_every);
  }
  // All of a burst would overlap a piece that outlasts it.
  const bool packs = f_.parameters.packing && longest_ns(k) < shortest_ns_;
  const Plan plan = packs ? best(k, &NeighbourCost::upper) : Plan{};
  const double promised = packs && judged < t.enough ? best(k, &NeighbourCost::promised).gain : 0;
  in_thread_[k] = std::max(plan.gain, promised) > t.pays_in_thread * idle_;
  if (solo) return;
  few_blocks_width_[k] = retry      ? t.first_sms
                         : too_dear ? 0
                         : known    ? std::min(widest, t.first_sms)
                                    : t.first_sms;
  if (!packs) return;
  plan_[k] = plan;
  if (plan.beside > 0) return;
  const bool hopeful = promised > t.least_worth;
  if (hopeful ? !trial : !retry) return;
  plan_[k].trial = true;
  const double first =
      k == size_t(ResourceClass::kCompute) ? t.first_sms : t.first_sms / 2;  // memory costs more
  plan_[k].beside = !hopeful ? t.least_sms : judged == 0 ? first : std::max(widest, t.least_sms);
  for (size_t i : at_work_)  // what is in flight when it begins must not be taken for its cost
    if (for_in_flight(f_.o.clients[i], t) > budget_ / 2) plan_[k].between = limit;
}

// The best plan that the services can bear, if work of the class has that cost.
Packing::Plan Packing::best(size_t k, double (NeighbourCost::*cost_of)(const Tuning&) const) const {
  const Tuning& t = f_.tuning;
  double open = t.most_width, between = t.most_width, during = t.most_width, dearest = 0, extra = 0;
  for (size_t i : at_work_) between = std::min(between, f_.learnt.of(i).cost[k].limit());
  const double in_flight = std::min(1.0, double(longest_ns(k)) / double(shortest_ns_));
  for (size_t i : at_work_) {
    const NeighbourCost& learnt = f_.learnt.of(i).cost[k];
    const double cost = std::max(1e-6, (learnt.*cost_of)(t)), allowed = budget_ * learnt.spent();
    const double spent_in_flight = for_in_flight(f_.o.clients[i], t);
    dearest = std::max(dearest, cost);
    open = std::min({open, learnt.limit(), (allowed - spent_in_flight) / cost});
    during = std::min({during, learnt.limit(), (allowed / cost - between * in_flight) / (1.001 - in_flight)});
    extra = std::max(extra, allowed - spent_in_flight);
  }
  const double alone = idle_ * t.between_efficiency;
  const double gain_open =
      open >= t.least_sms && 1 - idle_ >= dearest * t.least_gain ? (1 - idle_) * open : 0;
  double gain_confined = idle_ * between + (1 - idle_) * during - t.least_worth - alone;
  if (during < t.least_sms || gain_confined < extra * t.least_gain) gain_confined = 0;
  if (std::max(gain_open, gain_confined) <= 0) return {};
  if (gain_open >= gain_confined) return {.beside = open, .gain = gain_open};
  return {.between = between, .beside = during, .gain = gain_confined};
}

// The longest piece of the class in flight when a burst begins: neither a block nor an uncut kernel can be stopped.
uint64_t Packing::longest_ns(size_t k) const {
  uint64_t longest_ns = f_.tuning.short_work_ns;
  for (size_t i = 0; i < f_.o.clients.size(); ++i)
    if (!is_protected(f_.o.clients[i]) && size_t(f_.o.clients[i].resource_class) == k)
      longest_ns = std::max(longest_ns, f_.learnt.clients[i].longest_ns);
  return longest_ns;
}

// The nearest number that is left of whole steps.
uint32_t Packing::sms(double width) const {
  const auto reserved = uint32_t(std::lround((1 - width) * f_.o.sm_count / kSmsPerStep)) * kSmsPerStep;
  return width > 0 && reserved < f_.o.sm_count ? f_.o.sm_count - reserved : 0;
}

Constraint Packing::of(size_t client) const {
  if (!may_be_packed(client)) return {};
  const Tuning& t = f_.tuning;
  const auto k = size_t(f_.o.clients[client].resource_class);
  const Plan& plan = plan_[k];
  if (gives_way_) return {.quantum_ns = in_thread_[k] ? 0 : Constraint::kNoLimit};
  const auto on = [&](uint32_t sms, uint64_t window_ns, uint32_t classes) -> Constraint {
    if (sms == 0) return {};
    return {.start = Constraint::Start::kConfined,
            .window_ns = std::min(f_.parameters.window_ns, window_ns),
            .slice_ns = std::min(f_.parameters.slice_ns, window_ns / 2),
            .sm_limit = sms,
            .burst_classes = classes};
  };
  if (has_few_blocks(client)) return on(sms(few_blocks_width_[k]), t.look_ns, 1u << k);
  if (waits_on_device(client)) return {};
  Constraint c;
  if (now_) {
    c = on(sms(plan.beside), plan.between > 0 ? t.look_ns : t.short_work_ns, 1u << k);
  } else if (plan.between > 0 && f_.undisturbed_until_ns == 0) {
    // Wider than during a burst: what would start then waits until the daemon has heard of it.
    c = on(sms(plan.between), t.short_work_ns, 0);
  }
  if (!f_.o.clients[client].gate_on_device || !in_thread_[k]) return c;
  c.quantum_ns = 0;
  // Work that it enqueued before would delay work that may run during bursts. It goes, once.
  if (f_.o.clients[client].in_flight_ns > f_.parameters.window_ns) c.start = Constraint::Start::kDuringBursts;
  return c;
}

void Packing::note(const Decision& d, PolicyState* learnt) const {
  bool offered[kClasses] = {};
  for (size_t i = 0; i < d.leases.size(); ++i) {
    ClientState& client = learnt->clients[i];
    const Lease& lease = d.leases[i];
    client.burst_width = lease.confine_all ? double(lease.sm_limit) / f_.o.sm_count : 0;
    client.burst_class = size_t(f_.o.clients[i].resource_class);
    if (!is_protected(f_.o.clients[i]) && has_demand(f_.o.clients[i]) && !waits_on_device(i))
      offered[client.burst_class] = true;
  }
  for (size_t i : f_.learnt.protected_clients) {
    ProtectedClientState& l = *learnt->clients[i].learnt;
    const uint64_t bursts = f_.o.clients[i].bursts;
    if (!l.solo.due(bursts, f_.tuning.solo_every)) {  // nothing was tried otherwise
      l.trial.note(bursts, f_.tuning.trial_every);
      l.retry.note(bursts, f_.tuning.retry_every);
    }
    l.solo.note(bursts, f_.tuning.solo_every);
    l.packed_excess = 0;
    l.confined_between = false;
    for (size_t k = 0; k < kClasses; ++k) {
      l.spending[k] = plan_[k].beside > 0 && !plan_[k].trial;
      if (!offered[k] || plan_[k].beside <= 0) continue;
      l.confined_between |= plan_[k].between > 0;
      if (plan_[k].between <= 0)
        l.packed_excess = std::max(l.packed_excess, plan_[k].beside * l.cost[k].upper(f_.tuning));
    }
    l.packed_excess = std::min(l.packed_excess, budget_);
  }
}

}  // namespace tessera::policy
