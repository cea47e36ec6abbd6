// Finds clients that say they want the GPU, could have it, and leave it idle: programs that are stopped, or whose streams
// wait for a host function or for another program. Nobody is held for them, and they take nobody's place.
#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// Work in flight may run for this time without a sign of it.
bool at_work(const ClientView& c, const Progress& progress, const Observation& o, const Parameters& p) {
  const uint64_t expected_ns = p.idle_grace_ns + std::min(c.in_flight_ns, p.max_hold_ns);
  return c.in_flight_ns > 0 && o.now_ns - progress.moved_ns <= expected_ns;
}

void follow(const ClientView& c, const Observation& o, const Tuning& t, Progress* progress) {
  const uint64_t used_ns = c.used_ns - std::min(c.used_ns, progress->last_used_ns);
  const bool starts = c.in_flight_ns > 0 && !progress->in_flight;
  progress->in_flight = c.in_flight_ns > 0;
  progress->last_used_ns = c.used_ns;
  if (used_ns > 0 || starts) progress->moved_ns = o.now_ns;
  const auto worth_ns = uint64_t(std::min(double(used_ns) * t.idle_per_use, double(progress->unused_ns)));
  progress->unused_ns -= worth_ns;
}

}  // namespace

void account_progress(const Observation& o, const Parameters& p, const Tuning& t, PolicyState* learnt) {
  const uint64_t since_ns =
      std::max(learnt->progress_look_ns, o.now_ns - std::min(o.now_ns, p.idle_grace_ns));
  const uint64_t passed_ns = o.now_ns - std::min(o.now_ns, since_ns);  // of a longer time too little is known
  const uint64_t busy_ns = busy_since(o, since_ns);
  learnt->progress_look_ns = o.now_ns;
  size_t n_at_work = 0;
  for (size_t i = 0; i < o.clients.size(); ++i) {
    if (is_protected(o.clients[i])) continue;
    follow(o.clients[i], o, t, &learnt->clients[i].progress);
    n_at_work += at_work(o.clients[i], learnt->clients[i].progress, o, p);
  }
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c)) continue;
    Progress& progress = learnt->clients[i].progress;
    const bool alone = n_at_work == size_t(at_work(c, progress, o, p));
    if (alone && has_demand(c) && progress.offered)
      progress.unused_ns += passed_ns - (progress.offered_during_bursts ? 0 : std::min(passed_ns, busy_ns));
    // A piece that takes long may have begun when that was offered.
    const uint64_t most_ns = t.wake_up_ns + std::min(c.in_flight_ns, p.max_hold_ns / 2);
    progress.unused_ns = std::min(progress.unused_ns, most_ns);
    progress.stalled = progress.unused_ns >= (progress.stalled ? most_ns / 2 : most_ns);
  }
}

void note_offers(const Decision& d, PolicyState* learnt) {
  for (size_t i = 0; i < d.leases.size(); ++i) {
    Progress& progress = learnt->clients[i].progress;
    progress.offered = d.leases[i].grant == Grant::kGranted;
    progress.offered_during_bursts = d.leases[i].packed;
  }
}

}  // namespace tessera::policy
