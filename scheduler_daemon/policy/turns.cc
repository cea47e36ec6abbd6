#include "scheduler_daemon/policy/turns.h"

#include <algorithm>
#include <tuple>

#include "base/units.h"
#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {
namespace {

uint64_t per_weight(uint64_t ns, const ClientView& c) {
  return ns * 100 / std::max(1u, c.weight);
}

}  // namespace

void Turns::suspend(const Observation& o, const ClientView* incumbent) {
  overdue_client_ = 0;
  turn_ = {};
  if (incumbent != nullptr) start_turn(*incumbent, o.now_ns);
  active_ = false;
  last_look_ns_ = o.now_ns;
}

uint64_t Turns::decide(const Observation& o, const std::vector<size_t>& best_effort) {
  overdue_client_ = 0;
  best_effort_ = best_effort;
  open_accounts(o);
  if (!active_) last_look_ns_ = turn_.started_ns = turn_.last_active_ns = o.now_ns;
  active_ = true;
  size_t holder = kNone;
  uint64_t n_waiting = 0;
  for (size_t i : best_effort_) {
    if (o.clients[i].id == turn_.holder)
      holder = i;
    else
      n_waiting += o.clients[i].waiting;
  }
  if (holder == kNone) turn_ = {};  // died or left
  if (turn_.revoked_ns != 0) {
    const ClientView& h = o.clients[holder];
    if (!drain_ended(o, holder)) {
      last_look_ns_ = o.now_ns;
      return std::min(o.now_ns + tuning_.look_ns, turn_.revoked_ns + drain_patience_ns(h));
    }
    n_waiting += h.waiting;
    turn_ = {};
    holder = kNone;
  }
  if (holder != kNone) charge_holder(o, holder);
  last_look_ns_ = o.now_ns;
  if (holder != kNone && n_waiting > 0 && end_turn(o, holder, n_waiting)) return o.now_ns + tuning_.look_ns;
  if (turn_.holder == 0) {
    const size_t next = next_in_line(o, false);
    // Nobody waits: somebody has the lease anyway, so that its next launch need not ask.
    start_turn(o.clients[next != kNone ? next : best_effort_.front()], o.now_ns);
    if (n_waiting > 0) --n_waiting;
  }
  if (n_waiting == 0) return 0;
  const uint64_t quantum = quantum_ns(n_waiting);
  return o.now_ns +
         std::clamp(quantum - std::min(quantum, turn_.charged_ns), tuning_.soonest_look_ns, tuning_.look_ns);
}

bool Turns::end_turn(const Observation& o, size_t holder, uint64_t n_waiting) {
  const uint64_t quantum = quantum_ns(n_waiting);
  const bool idle = o.now_ns - turn_.last_active_ns >= parameters_.idle_grace_ns;
  const bool over = turn_.charged_ns >= quantum ||
                    o.now_ns - turn_.started_ns >= quantum * tuning_.wall_per_quantum ||
                    (turn_.charged_ns >= tuning_.look_ns && owes(o, holder, quantum));
  if (!idle && !over) return false;
  if (idle) judge_idle_turn(o, holder);
  if (next_in_line(o, !idle) == holder) {
    start_turn(o.clients[holder], o.now_ns);
    return false;
  }
  turn_.revoked_ns = o.now_ns;
  return true;
}

// Tried again after a turn of the others, then after longer, at most half of the hold limit.
void Turns::judge_idle_turn(const Observation& o, size_t holder) {
  if (turn_.worked || !has_demand(o.clients[holder])) return;
  Account& account = accounts_[holder];
  const uint64_t pause_ns = parameters_.quantum_ns << std::min<uint32_t>(account.wasted++, 16);
  account.last_in_line_until_ns = o.now_ns + std::min(pause_ns, parameters_.max_hold_ns / 2);
}

void Turns::open_accounts(const Observation& o) {
  accounts_.follow(o.clients);
  uint64_t least = UINT64_MAX;
  for (size_t i : best_effort_)
    if (accounts_[i].had_demand) least = std::min(least, accounts_[i].virtual_ns);
  if (least != UINT64_MAX) least_virtual_ns_ = std::max(least_virtual_ns_, least);
  for (size_t i : best_effort_) {
    const ClientView& c = o.clients[i];
    Account& account = accounts_[i];
    bool demand =
        (c.waiting && !is_last_in_line(i, o.now_ns)) || (c.id == turn_.holder && c.in_flight_ns > 0);
    // Idling earns nothing: whoever comes back starts beside the one that is furthest behind. Nor does coming
    // anew after overdue drains: those turns are lost.
    const uint64_t lost_ns = per_weight(c.overdue_drains * tuning_.owed_turns * parameters_.quantum_ns, c);
    const bool paused = o.now_ns - std::min(o.now_ns, account.demand_ns) <= tuning_.wake_up_ns;
    if (demand && !account.had_demand && !(paused && lost_ns == 0))
      account.virtual_ns = std::max(account.virtual_ns, least_virtual_ns_ + lost_ns);
    account.had_demand = demand;
    if (demand) account.demand_ns = o.now_ns;
  }
}

void Turns::charge(const Observation& o, size_t index, uint64_t since_ns, uint64_t price) {
  const uint64_t from_ns = std::min(since_ns, o.now_ns), elapsed_ns = o.now_ns - from_ns;
  const uint64_t charge_ns = elapsed_ns - std::min(elapsed_ns, busy_since(o, from_ns));
  turn_.charged_ns += charge_ns;
  accounts_[index].virtual_ns += per_weight(charge_ns * price, o.clients[index]);
}

void Turns::charge_holder(const Observation& o, size_t index) {
  const ClientView& holder = o.clients[index];
  if (holder.withheld) {  // its turn waits for those on other GPUs, as long as a turn may last
    turn_.last_active_ns = turn_.last_progress_ns = o.now_ns;
    return;
  }
  charge(o, index, std::max(last_look_ns_, turn_.started_ns), 1);
  // A launch that waits although it may run is no activity: a stopped process looks like that. So does a queue on the
  // device that gets no shorter for longer than it should last.
  const bool progress = holder.used_ns != turn_.last_used_ns;
  if (progress || any_protected_busy(o)) turn_.last_progress_ns = o.now_ns;
  const bool stands_still = holder.gate_on_device && o.now_ns - turn_.last_progress_ns >
                                                         holder.in_flight_ns + parameters_.idle_grace_ns;
  const bool works = progress || (holder.in_flight_ns > 0 && !stands_still);
  const bool worked = holder.gate_on_device ? progress : works;
  turn_.worked |= worked;
  if (worked) accounts_[index].wasted = 0;
  if (works || any_protected_busy(o)) turn_.last_active_ns = o.now_ns;
  turn_.last_used_ns = holder.used_ns;
}

uint64_t Turns::drain_patience_ns(const ClientView& holder) const {
  const uint64_t shift = std::min<uint64_t>(63, tuning_.patience_shift * holder.overdue_drains);
  return std::min(parameters_.drain_timeout_ns,
                  std::max(parameters_.drain_timeout_ns >> shift, tuning_.wake_up_ns));
}

bool Turns::drain_ended(const Observation& o, size_t holder) {
  const ClientView& h = o.clients[holder];
  if (!h.drained && o.now_ns < turn_.revoked_ns + drain_patience_ns(h)) return false;
  if (!h.drained) overdue_client_ = h.id;
  charge(o, holder, turn_.revoked_ns,
         h.drained ? 1 : 2 * parameters_.drain_timeout_ns / std::max<uint64_t>(1, drain_patience_ns(h)));
  return true;
}

uint64_t Turns::quantum_ns(uint64_t n_waiting) const {
  // All who wait now are served within half the hold limit, so that no wait ends by expiry.
  const uint64_t fair_ns =
      parameters_.max_hold_ns / 2 / std::max<uint64_t>(1, n_waiting) / tuning_.wall_per_quantum;
  return std::max(tuning_.look_ns, std::min(parameters_.quantum_ns, fair_ns));
}

void Turns::start_turn(const ClientView& holder, uint64_t now_ns) {
  turn_ = {.holder = holder.id,
           .started_ns = now_ns,
           .last_active_ns = now_ns,
           .last_progress_ns = now_ns,
           .last_used_ns = holder.used_ns};
}

size_t Turns::next_in_line(const Observation& o, bool holder_may_stay) const {
  auto candidate = [&](const ClientView& c) { return c.id == turn_.holder ? holder_may_stay : c.waiting; };
  uint64_t least_virtual_ns = UINT64_MAX;
  for (size_t i : best_effort_)
    if (candidate(o.clients[i])) least_virtual_ns = std::min(least_virtual_ns, accounts_[i].virtual_ns);
  // Ties go to the one that has waited longer, then to the older client: deterministic.
  auto key = [&](size_t i) {
    const ClientView& c = o.clients[i];
    const bool eligible =
        c.slo_ns != 0 && accounts_[i].virtual_ns - least_virtual_ns <= parameters_.quantum_ns;
    const uint64_t from_ns = c.waiting ? c.waiting_since_ns : o.now_ns;
    const bool goes_first = c.goes_first && c.id != turn_.holder;
    return std::tuple(!goes_first, is_last_in_line(i, o.now_ns), !eligible,
                      eligible ? from_ns + c.slo_ns : accounts_[i].virtual_ns, from_ns, c.id);
  };
  size_t next = kNone;
  for (size_t i : best_effort_)
    if (candidate(o.clients[i]) && (next == kNone || key(i) < key(next))) next = i;
  return next;
}

bool Turns::owes(const Observation& o, size_t holder, uint64_t quantum_ns) const {
  const uint64_t turns_ns = per_weight(tuning_.owed_turns * quantum_ns, o.clients[holder]);
  return std::any_of(best_effort_.begin(), best_effort_.end(), [&](size_t i) {
    return i != holder && o.clients[i].waiting && !is_last_in_line(i, o.now_ns) &&
           accounts_[i].virtual_ns + turns_ns < accounts_[holder].virtual_ns;
  });
}

}  // namespace tessera::policy
