#include "scheduler_daemon/policy/temporal.h"

#include <algorithm>

#include "scheduler_daemon/policy/burst_end.h"
#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {

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
  const bool free_running = best_effort_.empty() || n == 1;
  const bool exclusive = !free_running && !o.mps && best_effort_.size() > 1;
  if (exclusive)
    d.next_look_ns = turns_.decide(o, best_effort_);
  else
    turns_.suspend(o, best_effort_.empty() ? nullptr : &o.clients[best_effort_.front()]);
  for (const ClientView& c : o.clients) {
    if (free_running || is_protected(c)) {
      d.leases.push_back({.client_id = c.id, .grant = Grant::kFree});
      continue;
    }
    d.leases.push_back(granted(c, parameters_));
    d.leases.back().overdue = turns_.gave_up_drain_of(c.id);
    if ((exclusive && !turns_.has_turn(c.id)) || unwatched_busy) {
      d.leases.back().grant = Grant::kHold;
      d.leases.back().held_by = HeldBy::kTurn;
    }
  }
  if (!best_effort_.empty()) {
    for (size_t i = 0; i < n; ++i)
      if (is_protected(o.clients[i])) wait_out_gaps(o, i, parameters_.guard_ns, tuning_.gate_guard_ns, &d);
  }
  if (!free_running) {
    look_at(o.now_ns + parameters_.lease_ns / 2, &d);
    if (unwatched) look_at(o.now_ns + tuning_.look_ns, &d);
    nudge_after_guard(o, &d);
  }
  choose_quiet(o, &d);
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

}  // namespace tessera::policy
