#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

uint64_t used_by_best_effort_ns(const Observation& o) {
  uint64_t used_ns = 0;
  for (const ClientView& c : o.clients)
    if (!is_protected(c)) used_ns += c.used_ns;
  return used_ns;
}

}  // namespace

void account_minimum(const Observation& o, const Tuning& t, PolicyState* learnt) {
  const uint64_t used_ns = used_by_best_effort_ns(o);
  const bool over = learnt->share_window_ns == 0 || o.now_ns - learnt->share_window_ns >= t.recent_ns;
  if (!over && used_ns >= learnt->used_at_window_ns) return;
  learnt->share_window_ns = o.now_ns;
  learnt->used_at_window_ns = used_ns;
}

// Grants the time owed by the end of this window once the rest of the window is needed for it.
Minimum::Minimum(const Facts& facts) : Part(facts) {
  if (f_.parameters.min_share <= 0) return;
  const Tuning& t = f_.tuning;
  decide_again_at(f_.o.now_ns + t.look_ns);
  const uint64_t used_ns = used_by_best_effort_ns(f_.o) - f_.learnt.used_at_window_ns;
  const double owed_ns = f_.parameters.min_share * double(t.recent_ns) - double(used_ns);
  const double left_ns = double(f_.learnt.share_window_ns + t.recent_ns - f_.o.now_ns);
  if (owed_ns <= 0 || left_ns > owed_ns * t.owed_margin) return;
  for (size_t i = 0; i < f_.o.clients.size(); ++i) {
    const ClientView& c = f_.o.clients[i];
    if (is_protected(c) || !c.waiting || !f_.learnt.clients[i].may_run()) continue;
    chosen_ = longest_waiting(chosen_, i);
  }
}

Constraint Minimum::of(size_t client) const {
  return {.start = client == chosen_ ? Constraint::Start::kDuringBursts : Constraint::Start::kAsGranted};
}

}  // namespace tessera::policy
