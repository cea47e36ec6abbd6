#include "scheduler_daemon/policy/temporal.h"

#include <algorithm>
#include <tuple>

#include "base/units.h"
#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {
namespace {

constexpr uint64_t kDrainLook_ns = base::us(500);    // look again while a revoked client drains
constexpr uint64_t kContendedLook_ns = base::ms(2);  // while others wait for their turn
constexpr uint64_t kUnwatchedLook_ns = base::ms(1);  // nobody tells us when an unwatched pulse becomes busy
constexpr uint64_t kShortestTurn_ns = base::ms(1);
constexpr uint64_t kWallPerQuantum = 2;    // a turn ends after this many quanta of wall time, charged or not
constexpr double kLostToSwitching = 0.05;  // of a turn, if everybody's hold limit allows it
// Overdue drains: each makes the next one's patience a quarter, down to what an honest drain of a window
// takes on a busy machine, and doubles what a drain given up is charged.
constexpr uint32_t kPatienceShift = 2, kMostOverdue = 4;
constexpr uint64_t kLeastPatience_ns = base::ms(10);
// A program that pauses no longer between two launches wants its share all the time. What it is owed when it
// is back, beyond so many of the holder's turns, it gets at once: else a pause would cost a turn, and weights
// would mean nothing among programs that pause.
constexpr uint64_t kPause_ns = base::ms(20), kOwedTurns = 2;
constexpr uint64_t kLostTurns = 4;                   // for each of them, when its owner comes back
constexpr uint64_t kEligibleLead_ns = base::ms(20);  // virtual time that a client with an SLO may be ahead

// Time in [from, now] in which some protected client was busy, as far as its last transitions tell.
uint64_t busy_since(const Observation& o, uint64_t from_ns) {
  uint64_t longest = 0;
  for (const ClientView& c : o.clients) {
    if (!is_protected(c)) continue;
    uint64_t start = std::clamp(c.busy_since_ns, from_ns, o.now_ns);
    uint64_t end = c.busy ? o.now_ns : std::clamp(c.idle_since_ns, from_ns, o.now_ns);
    if (end > start) longest = std::max(longest, end - start);
  }
  return longest;
}

}  // namespace

Decision TemporalPolicy::decide(const Observation& o) {
  Decision d;
  const size_t n = o.clients.size();
  d.leases.reserve(n);
  best_effort_.clear();
  bool unwatched = false, unwatched_busy = false;
  for (size_t i = 0; i < n; ++i) {
    const ClientView& c = o.clients[i];
    if (!is_protected(c)) {
      best_effort_.push_back(i);
    } else if (!c.watched) {
      unwatched = true;
      unwatched_busy |= c.busy;
    }
  }
  overdue_client_ = 0;
  const bool free_running = best_effort_.empty() || n == 1;
  const bool exclusive = !o.mps && best_effort_.size() > 1;
  if (free_running || !exclusive) {
    // Whoever has the GPU now has the first turn when a competitor comes: what it started while it was
    // free-running was not measured, so its drain could not be proven at that moment.
    turn_ = {};
    if (!best_effort_.empty()) start_turn(o.clients[best_effort_.front()], o.now_ns);
  } else {
    open_accounts(o);
    if (!took_turns_) {  // the incumbent's turn begins now
      last_look_ns_ = turn_.started_ns = turn_.last_active_ns = o.now_ns;
    }
    d.next_look_ns = decide_turns(o);
  }
  took_turns_ = !free_running && exclusive;
  for (const ClientView& c : o.clients) {
    if (free_running || is_protected(c)) {
      d.leases.push_back({.client_id = c.id, .grant = Grant::kFree});
      continue;
    }
    d.leases.push_back(granted(c, parameters_));
    d.leases.back().overdue = c.id == overdue_client_;
    const bool has_turn = !exclusive || (turn_.holder == c.id && turn_.revoked_ns == 0);
    if (!has_turn || unwatched_busy) d.leases.back().grant = Grant::kHold;
  }
  if (!free_running) {
    look_at(o.now_ns + parameters_.lease_ns / 2, &d);
    if (unwatched) look_at(o.now_ns + kUnwatchedLook_ns, &d);
    nudge_after_guard(o, &d);
  }
  last_look_ns_ = o.now_ns;
  return d;
}

void TemporalPolicy::nudge_after_guard(const Observation& o, Decision* d) {
  uint64_t idle_since_ns = 0;
  for (const ClientView& c : o.clients) {
    if (!is_protected(c)) continue;
    if (c.busy) return;
    idle_since_ns = std::max(idle_since_ns, std::min(c.idle_since_ns, o.now_ns));
  }
  if (idle_since_ns <= nudged_idle_ns_) return;
  if (o.now_ns < idle_since_ns + parameters_.guard_ns) {
    look_at(idle_since_ns + parameters_.guard_ns, d);
    return;
  }
  nudged_idle_ns_ = idle_since_ns;
  for (size_t i : best_effort_)
    d->leases[i].nudge = d->leases[i].grant == Grant::kGranted && o.clients[i].waiting;
}

void TemporalPolicy::open_accounts(const Observation& o) {
  accounts_.follow(o.clients);
  uint64_t least = UINT64_MAX;
  for (size_t i : best_effort_)
    if (accounts_[i].had_demand) least = std::min(least, accounts_[i].virtual_ns);
  if (least != UINT64_MAX) floor_virtual_ns_ = std::max(floor_virtual_ns_, least);
  for (size_t i : best_effort_) {
    const ClientView& c = o.clients[i];
    Account& account = accounts_[i];
    bool demand = c.waiting || (c.id == turn_.holder && c.in_flight_ns > 0);
    // Idling earns nothing: whoever comes back starts beside the one that is furthest behind. Nor does coming
    // anew after overdue drains: those turns are lost.
    const uint64_t lost_ns =
        c.overdue_drains * kLostTurns * parameters_.quantum_ns * 100 / std::max(1u, c.weight);
    const bool paused = o.now_ns - std::min(o.now_ns, account.demand_ns) <= kPause_ns;
    if (demand && !account.had_demand && !(paused && lost_ns == 0))
      account.virtual_ns = std::max(account.virtual_ns, floor_virtual_ns_ + lost_ns);
    account.had_demand = demand;
    if (demand) account.demand_ns = o.now_ns;
  }
}

void TemporalPolicy::charge(const Observation& o, size_t index, uint64_t since_ns, uint64_t price) {
  const uint64_t from_ns = std::min(since_ns, o.now_ns), elapsed_ns = o.now_ns - from_ns;
  const uint64_t charge_ns = elapsed_ns - std::min(elapsed_ns, busy_since(o, from_ns));
  turn_.charged_ns += charge_ns;
  accounts_[index].virtual_ns += charge_ns * price * 100 / std::max(1u, o.clients[index].weight);
}

void TemporalPolicy::charge_holder(const Observation& o, size_t index, bool any_busy) {
  const ClientView& holder = o.clients[index];
  charge(o, index, std::max(last_look_ns_, turn_.started_ns), 1);
  // A launch that waits although it may run is no activity: a stopped process looks like that.
  if (holder.in_flight_ns > 0 || holder.used_ns != turn_.last_used_ns || any_busy)
    turn_.last_active_ns = o.now_ns;
  turn_.last_used_ns = holder.used_ns;
}

uint64_t TemporalPolicy::drain_patience_ns(const ClientView& holder) const {
  const uint32_t shift = kPatienceShift * std::min(holder.overdue_drains, kMostOverdue);
  return std::min(parameters_.drain_timeout_ns,
                  std::max(parameters_.drain_timeout_ns >> shift, kLeastPatience_ns));
}

bool TemporalPolicy::drain_ended(const Observation& o, size_t holder) {
  const ClientView& h = o.clients[holder];
  if (!h.drained && o.now_ns < turn_.revoked_ns + drain_patience_ns(h)) return false;
  if (!h.drained) overdue_client_ = h.id;
  if (turn_.busy_to_the_end && h.drained)
    switch_cost_.add(turn_.charged_ns + (o.now_ns - std::min(o.now_ns, turn_.revoked_ns)),
                     h.used_ns - std::min(h.used_ns, turn_.used_at_start_ns));
  charge(o, holder, turn_.revoked_ns, h.drained ? 1 : 2u << std::min(h.overdue_drains, kMostOverdue));
  return true;
}

uint64_t TemporalPolicy::quantum_ns(uint64_t n_waiting) const {
  // All who wait now are served within half the hold limit, so that no wait ends by expiry.
  const uint64_t fair_ns = parameters_.max_hold_ns / 2 / std::max<uint64_t>(1, n_waiting) / kWallPerQuantum;
  const uint64_t worthwhile_ns = std::max(parameters_.quantum_ns, switch_cost_.turn_ns(kLostToSwitching));
  return std::max(kShortestTurn_ns, std::min(worthwhile_ns, fair_ns));
}

void TemporalPolicy::start_turn(const ClientView& holder, uint64_t now_ns) {
  turn_ = {.holder = holder.id,
           .started_ns = now_ns,
           .last_active_ns = now_ns,
           .last_used_ns = holder.used_ns,
           .used_at_start_ns = holder.used_ns};
}

size_t TemporalPolicy::next_in_line(const Observation& o, bool holder_may_stay) const {
  auto candidate = [&](const ClientView& c) { return c.id == turn_.holder ? holder_may_stay : c.waiting; };
  uint64_t least_virtual_ns = UINT64_MAX;
  for (size_t i : best_effort_)
    if (candidate(o.clients[i])) least_virtual_ns = std::min(least_virtual_ns, accounts_[i].virtual_ns);
  // Ties go to the one that has waited longer, then to the older client: deterministic.
  auto key = [&](size_t i) {
    const ClientView& c = o.clients[i];
    const bool eligible = c.slo_ns != 0 && accounts_[i].virtual_ns - least_virtual_ns <= kEligibleLead_ns;
    const uint64_t from_ns = c.waiting ? c.waiting_since_ns : o.now_ns;
    return std::tuple(!eligible, eligible ? from_ns + c.slo_ns : accounts_[i].virtual_ns, from_ns, c.id);
  };
  size_t next = kNone;
  for (size_t i : best_effort_)
    if (candidate(o.clients[i]) && (next == kNone || key(i) < key(next))) next = i;
  return next;
}

bool TemporalPolicy::owes(const Observation& o, size_t holder, uint64_t quantum_ns) const {
  const uint64_t turns_ns = kOwedTurns * quantum_ns * 100 / std::max(1u, o.clients[holder].weight);
  return std::any_of(best_effort_.begin(), best_effort_.end(), [&](size_t i) {
    return i != holder && o.clients[i].waiting &&
           accounts_[i].virtual_ns + turns_ns < accounts_[holder].virtual_ns;
  });
}

uint64_t TemporalPolicy::decide_turns(const Observation& o) {
  size_t holder = kNone;
  uint64_t n_waiting = 0;
  for (size_t i : best_effort_) {
    if (o.clients[i].id == turn_.holder)
      holder = i;
    else
      n_waiting += o.clients[i].waiting;
  }
  const bool any_busy = any_protected_busy(o);
  if (holder == kNone) turn_ = {};  // died or left
  if (turn_.revoked_ns != 0) {
    const ClientView& h = o.clients[holder];
    if (!drain_ended(o, holder))
      return std::min(o.now_ns + kDrainLook_ns, turn_.revoked_ns + drain_patience_ns(h));
    n_waiting += h.waiting;
    turn_ = {};
    holder = kNone;
  }
  if (holder != kNone) charge_holder(o, holder, any_busy);
  if (holder != kNone && n_waiting > 0) {
    uint64_t quantum = quantum_ns(n_waiting);
    bool idle = o.now_ns - turn_.last_active_ns >= parameters_.idle_grace_ns;
    bool over = turn_.charged_ns >= quantum || o.now_ns - turn_.started_ns >= quantum * kWallPerQuantum ||
                (turn_.charged_ns >= kShortestTurn_ns && owes(o, holder, quantum));
    if (idle || over) {
      const size_t next = next_in_line(o, !idle);
      if (next != holder) {
        turn_.revoked_ns = o.now_ns;
        turn_.busy_to_the_end = !idle;
        return o.now_ns + kDrainLook_ns;
      }
      start_turn(o.clients[holder], o.now_ns);
    }
  }
  if (turn_.holder == 0) {
    const size_t next = next_in_line(o, false);
    // Nobody waits: somebody has the lease anyway, so that its next launch need not ask.
    start_turn(o.clients[next != kNone ? next : best_effort_.front()], o.now_ns);
    if (n_waiting > 0) --n_waiting;
  }
  if (n_waiting == 0) return 0;
  uint64_t charged_left_ns = quantum_ns(n_waiting) - std::min(quantum_ns(n_waiting), turn_.charged_ns);
  return o.now_ns + std::clamp(charged_left_ns, base::us(100), kContendedLook_ns);
}

}  // namespace tessera::policy
