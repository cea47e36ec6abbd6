// The tail budget, spent where it buys most share. Either the whole GPU is used between bursts, which costs what is in
// flight when one begins, and what is left of the target is spent on width beside them. Or all is spent on that width:
// then work keeps to SMs of its own between bursts, too, and may be in flight for as long as it likes.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// Of the target, for what is in flight when a burst begins.
double for_turnaround(const ClientView& c, const Tuning& t) {
  return double(t.useful_turnaround_ns) / t.turnaround_per_target / double(c.burst_ns);
}

// One burst in a few has work beside it until its cost is known, and one in many later.
bool is_trial(const ClientView& c, const NeighbourCost& cost, double budget, const Tuning& t) {
  const bool enough = cost.known(t) || cost.too_dear(budget, t);
  const uint64_t every = enough ? t.solo_every : cost.varies(t) ? t.trial_every_varying : t.trial_every;
  return c.bursts % every == 1;
}

}  // namespace

Packing::Packing(const Facts& facts, bool gaps_hold) : Part(facts) {
  const Tuning& t = f_.tuning;
  const double budget = f_.parameters.slowdown_target * t.spent_on_packing;
  if (!f_.both_kinds || !f_.o.mps || !t.packing || budget <= 0) return;
  double idle = 1;
  bool busy = false;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const ProtectedClient& l = f_.learnt.of(i);
    if (l.asleep(c, f_.o.now_ns)) continue;
    // Without a baseline nobody knows what it costs.
    if (c.burst_ns < std::max<uint64_t>(1, t.least_burst_ns)) {
      on_ = false;
      return;
    }
    on_ = true;
    busy |= c.busy;
    idle *= 1 - l.busy_share;
  }
  if (!on_) return;
  now_ = busy || gaps_hold;
  for (size_t k = 0; k < kClasses; ++k) choose_width(k, idle);
  // Nobody else would say that a pulse is busy, or that the next launch is of another class.
  for (size_t i = 0; i < f_.o.clients.size() && !tell_busy_; ++i)
    tell_busy_ = may_be_packed(i) && (f_.parameters.packing || is_narrow(i));
  if (busy && tell_busy_) decide_again_at(f_.o.now_ns + t.pack_look_ns);
}

bool Packing::may_be_packed(size_t client) const {
  const ClientView& c = f_.o.clients[client];
  return on_ && !is_protected(c) && c.can_confine && f_.learnt.clients[client].may_run();
}

// What is no wider by itself loses nothing on few SMs.
bool Packing::is_narrow(size_t client) const {
  const uint32_t need = f_.learnt.clients[client].widest_sms;
  return need != 0 && need <= sms(narrow_[size_t(f_.o.clients[client].resource_class)]);
}

// Of each service that is at work the narrowest.
void Packing::choose_width(size_t k, double idle) {
  const Tuning& t = f_.tuning;
  const double budget = f_.parameters.slowdown_target * t.spent_on_packing;
  double beside = t.most_width, always = t.most_width, cost = 0;
  bool trial = false, known = true, too_dear = false;
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const ProtectedClient& l = f_.learnt.of(i);
    if (l.asleep(c, f_.o.now_ns)) continue;
    if (t.solo_every != 0 && c.bursts % t.solo_every == 0) return;
    known &= l.cost[k].known(t);
    too_dear |= l.cost[k].too_dear(budget, t);
    trial |= is_trial(c, l.cost[k], budget, t);
    cost = std::max(cost, l.cost[k].upper(t));
    beside = std::min(beside, l.cost[k].widest(budget - for_turnaround(c, t), t));
    always = std::min(always, l.cost[k].widest(budget, t));
  }
  narrow_[k] = too_dear ? 0 : known ? std::min(always, t.first_width) : t.first_width;
  if (!f_.parameters.packing) return;
  const bool worth = known && beside >= t.least_width && (1 - idle) >= cost * t.least_gain;
  beside_[k] = worth ? beside : trial ? std::max(t.first_width, always / 2) : 0;
  const double open = idle + (worth ? (1 - idle) * beside : 0);
  if (known && always > open + t.worth_always) always_[k] = always;
}

uint32_t Packing::sms(double width) const {
  const auto step = uint32_t(f_.tuning.reserve_sms);
  const auto reserved = uint32_t(std::ceil((1 - width) * f_.o.sm_count / step)) * step;
  return width > 0 && reserved < f_.o.sm_count ? f_.o.sm_count - reserved : 0;
}

double Packing::width(size_t k) const {
  return always_[k] > 0 ? always_[k] : now_ ? beside_[k] : 0;
}

Constraint Packing::of(size_t client) const {
  if (!may_be_packed(client)) return {};
  const auto k = size_t(f_.o.clients[client].resource_class);
  const bool narrow = is_narrow(client);
  const uint32_t limit = sms(narrow ? narrow_[k] : width(k));
  if (limit == 0) return {};
  const uint64_t window_ns =
      narrow || always_[k] > 0 ? f_.tuning.always_window_ns : f_.tuning.beside_window_ns;
  return {.start = Constraint::Start::kApart,
          .window_ns = std::min(f_.parameters.window_ns, window_ns),
          .slice_ns = std::min(f_.parameters.slice_ns, window_ns / 2),
          .sm_limit = limit,
          .apart_classes = 1u << k};
}

void Packing::note(const Decision& d, Learnt* learnt) const {
  bool offered[kClasses] = {};
  for (size_t i = 0; i < d.leases.size(); ++i) {
    Client& client = learnt->clients[i];
    const Lease& lease = d.leases[i];
    client.beside_width = lease.apart ? double(lease.sm_limit) / f_.o.sm_count : 0;
    client.beside_class = size_t(f_.o.clients[i].resource_class);
    if (!is_protected(f_.o.clients[i]) && has_demand(f_.o.clients[i])) offered[client.beside_class] = true;
  }
  for (size_t i : f_.learnt.protected_clients) {
    ProtectedClient& l = *learnt->clients[i].learnt;
    l.packed_excess = 0;
    for (size_t k = 0; k < kClasses; ++k)
      if (on_ && offered[k] && always_[k] == 0)
        l.packed_excess =
            std::max(l.packed_excess, double(sms(beside_[k])) / f_.o.sm_count * l.cost[k].upper(f_.tuning));
    l.packed_excess = std::min(l.packed_excess, f_.parameters.slowdown_target);
  }
}

}  // namespace tessera::policy
