#include "scheduler_daemon/policy/temporal.h"

#include <algorithm>
#include <tuple>

#include "base/units.h"

namespace tessera::policy {
namespace {

constexpr uint64_t kDrainLook_ns = base::us(500);    // look again while a revoked client drains
constexpr uint64_t kContendedLook_ns = base::ms(2);  // while others wait for their turn
constexpr uint64_t kUnwatchedLook_ns = base::ms(1);  // nobody tells us when an unwatched pulse becomes busy
constexpr uint64_t kShortestTurn_ns = base::ms(1);
constexpr uint64_t kWallPerQuantum = 2;  // a turn ends after this many quanta of wall time, charged or not

bool is_protected(const ClientView& c) {
  return c.priority > 0;
}

bool protected_busy(const Observation& o) {
  return std::any_of(o.clients.begin(), o.clients.end(),
                     [](const ClientView& c) { return is_protected(c) && c.busy; });
}

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

void look_by(uint64_t at_ns, uint64_t* next_look_ns) {
  if (at_ns != 0 && (*next_look_ns == 0 || at_ns < *next_look_ns)) *next_look_ns = at_ns;
}

}  // namespace

Decision TemporalPolicy::decide(const Observation& o) {
  Decision d;
  std::vector<const ClientView*> best_effort;
  bool unwatched = false, unwatched_busy = false;
  for (const ClientView& c : o.clients) {
    d.leases.push_back({.client_id = c.id, .grant = Grant::kFree});
    if (!is_protected(c)) {
      best_effort.push_back(&c);
    } else if (!c.watched) {
      unwatched = true;
      unwatched_busy |= c.busy;
    }
  }
  bool free_running = best_effort.empty() || o.clients.size() == 1;
  bool exclusive = !o.mps && best_effort.size() > 1;
  open_accounts(best_effort);
  if (free_running || !exclusive) {
    // Whoever has the GPU now has the first turn when a competitor comes: what it started while it was
    // free-running was not measured, so its drain could not be proven at that moment.
    turn_ = {};
    if (!best_effort.empty()) start_turn(*best_effort.front(), o.now_ns);
  } else {
    if (!took_turns_) {  // the incumbent's turn begins now
      last_look_ns_ = turn_.started_ns = turn_.last_active_ns = o.now_ns;
    }
    d.next_look_ns = decide_turns(o, best_effort);
  }
  took_turns_ = !free_running && exclusive;
  if (!free_running) {
    for (Lease& lease : d.leases) {
      auto it = std::find_if(best_effort.begin(), best_effort.end(),
                             [&](const ClientView* c) { return c->id == lease.client_id; });
      if (it == best_effort.end()) continue;  // protected
      bool has_turn = !exclusive || (turn_.holder == lease.client_id && turn_.revoked_ns == 0);
      lease.grant = has_turn && !unwatched_busy ? Grant::kGranted : Grant::kHold;
      lease.duration_ns = parameters_.lease_ns;
      lease.window_ns = parameters_.window_ns;
      lease.slice_ns = parameters_.slice_ns;
      lease.marker_spacing_ns = parameters_.marker_spacing_ns;
    }
    look_by(o.now_ns + parameters_.lease_ns / 2, &d.next_look_ns);
    if (unwatched) look_by(o.now_ns + kUnwatchedLook_ns, &d.next_look_ns);
    nudge_after_guard(o, &d);
  }
  last_look_ns_ = o.now_ns;
  return d;
}

void TemporalPolicy::nudge_after_guard(const Observation& o, Decision* d) {
  if (protected_busy(o)) return;
  uint64_t idle_since_ns = 0;
  for (const ClientView& c : o.clients)
    if (is_protected(c)) idle_since_ns = std::max(idle_since_ns, std::min(c.idle_since_ns, o.now_ns));
  if (idle_since_ns <= nudged_idle_ns_) return;
  if (o.now_ns < idle_since_ns + parameters_.guard_ns) {
    look_by(idle_since_ns + parameters_.guard_ns, &d->next_look_ns);
    return;
  }
  nudged_idle_ns_ = idle_since_ns;
  for (size_t i = 0; i < d->leases.size(); ++i)
    d->leases[i].nudge = d->leases[i].grant == Grant::kGranted && o.clients[i].waiting;
}

void TemporalPolicy::open_accounts(const Clients& best_effort) {
  std::erase_if(accounts_, [&](const auto& row) {
    return std::none_of(best_effort.begin(), best_effort.end(),
                        [&](const ClientView* c) { return c->id == row.first; });
  });
  uint64_t least = UINT64_MAX;
  for (auto& [id, account] : accounts_)
    if (account.had_demand) least = std::min(least, account.virtual_ns);
  if (least != UINT64_MAX) floor_virtual_ns_ = std::max(floor_virtual_ns_, least);
  for (const ClientView* c : best_effort) {
    Account& account = accounts_[c->id];
    bool demand = c->waiting || (c->id == turn_.holder && c->in_flight_ns > 0);
    // Idling earns nothing: whoever comes back starts beside the one that is furthest behind.
    if (demand && !account.had_demand) account.virtual_ns = std::max(account.virtual_ns, floor_virtual_ns_);
    account.had_demand = demand;
  }
}

void TemporalPolicy::charge_holder(const Observation& o, const ClientView& holder) {
  uint64_t from_ns = std::min(std::max(last_look_ns_, turn_.started_ns), o.now_ns);
  uint64_t elapsed_ns = o.now_ns - from_ns;
  uint64_t charge_ns = elapsed_ns - std::min(elapsed_ns, busy_since(o, from_ns));
  turn_.charged_ns += charge_ns;
  accounts_[holder.id].virtual_ns += charge_ns * 100 / std::max(1u, holder.weight);
  // A launch that waits although it may run is no activity: a stopped process looks like that.
  if (holder.in_flight_ns > 0 || holder.used_ns != turn_.last_used_ns || protected_busy(o))
    turn_.last_active_ns = o.now_ns;
  turn_.last_used_ns = holder.used_ns;
}

uint64_t TemporalPolicy::quantum_ns(uint64_t n_waiting) const {
  // All who wait now are served within half the hold limit, so that no wait ends by expiry.
  uint64_t fair_ns = parameters_.max_hold_ns / 2 / std::max<uint64_t>(1, n_waiting) / kWallPerQuantum;
  return std::max(kShortestTurn_ns, std::min(parameters_.quantum_ns, fair_ns));
}

void TemporalPolicy::start_turn(const ClientView& holder, uint64_t now_ns) {
  turn_ = {
      .holder = holder.id, .started_ns = now_ns, .last_active_ns = now_ns, .last_used_ns = holder.used_ns};
}

const ClientView* TemporalPolicy::next_in_line(const Clients& best_effort, bool holder_may_stay) const {
  const ClientView* next = nullptr;
  for (const ClientView* c : best_effort) {
    bool is_holder = c->id == turn_.holder;
    if (is_holder ? !holder_may_stay : !c->waiting) continue;
    // Ties go to the one that has waited longer, then to the older client: deterministic.
    auto key = [&](const ClientView* v) {
      return std::tuple(accounts_.at(v->id).virtual_ns, v->waiting_since_ns, v->id);
    };
    if (next == nullptr || key(c) < key(next)) next = c;
  }
  return next;
}

uint64_t TemporalPolicy::decide_turns(const Observation& o, const Clients& best_effort) {
  auto found = std::find_if(best_effort.begin(), best_effort.end(),
                            [&](const ClientView* c) { return c->id == turn_.holder; });
  const ClientView* holder = found == best_effort.end() ? nullptr : *found;
  if (holder == nullptr) turn_ = {};  // died or left
  if (turn_.revoked_ns != 0) {
    uint64_t hung_ns = turn_.revoked_ns + parameters_.drain_timeout_ns;
    if (!holder->drained && o.now_ns < hung_ns) return std::min(o.now_ns + kDrainLook_ns, hung_ns);
    turn_ = {};
    holder = nullptr;
  }
  if (holder != nullptr) charge_holder(o, *holder);
  uint64_t n_waiting =
      uint64_t(std::count_if(best_effort.begin(), best_effort.end(),
                             [&](const ClientView* c) { return c->waiting && c->id != turn_.holder; }));
  if (holder != nullptr && n_waiting > 0) {
    uint64_t quantum = quantum_ns(n_waiting);
    bool idle = o.now_ns - turn_.last_active_ns >= parameters_.idle_grace_ns;
    bool over = turn_.charged_ns >= quantum || o.now_ns - turn_.started_ns >= quantum * kWallPerQuantum;
    if (idle || over) {
      const ClientView* next = next_in_line(best_effort, !idle);
      if (next != holder) {
        turn_.revoked_ns = o.now_ns;
        return o.now_ns + kDrainLook_ns;
      }
      start_turn(*holder, o.now_ns);
    }
  }
  if (turn_.holder == 0) {
    const ClientView* next = next_in_line(best_effort, false);
    // Nobody waits: somebody has the lease anyway, so that its next launch need not ask.
    start_turn(next != nullptr ? *next : *best_effort.front(), o.now_ns);
    if (n_waiting > 0) --n_waiting;
  }
  if (n_waiting == 0) return 0;
  uint64_t charged_left_ns = quantum_ns(n_waiting) - std::min(quantum_ns(n_waiting), turn_.charged_ns);
  return o.now_ns + std::clamp(charged_left_ns, base::us(100), kContendedLook_ns);
}

}  // namespace tessera::policy
