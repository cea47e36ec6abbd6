#include "scheduler_daemon/policy/learnt/protected_client.h"

#include <algorithm>

namespace tessera::policy {

bool ProtectedClient::observe(const ClientView& c, double passed_ns, uint64_t worth_ns, double target,
                              const Neighbours& neighbours, const Tuning& t, bool* slow) {
  busy_share += (double(c.busy) - busy_share) * std::min(1.0, passed_ns / t.busy_memory_ns);
  if (c.busy_since_ns != burst_began_ns_) {
    const uint64_t idle_ns = c.busy ? c.idle_since_ns : went_idle_ns_;
    burst_began_ns_ = c.busy_since_ns;
    if (idle_ns != 0 && c.busy_since_ns > idle_ns) observe_gap(c.busy_since_ns - idle_ns, worth_ns, t);
  }
  if (!c.busy) went_idle_ns_ = c.idle_since_ns;
  return c.bursts != bursts_ && observe_burst(c, target, neighbours, t, slow);
}

void ProtectedClient::observe_gap(uint64_t gap_ns, uint64_t worth_ns, const Tuning& t) {
  gaps.add(gap_ns);
  exposed_ = gap_ns > t.longest_gap_ns;
  gap_wait_ns = gaps.wait_ns(worth_ns, t.longest_gap_ns);
  // Few gaps say nothing about rare short ones.
  if (gaps.total() < t.needed_surely) return;
  surely_idle_ns = uint64_t(double(gaps.quantile_ns(t.surely)) * t.surely_margin);
  asleep_ns = std::max(t.asleep_ns, t.asleep_gaps * gaps.quantile_ns(1));
}

bool ProtectedClient::observe_burst(const ClientView& c, double target, const Neighbours& neighbours,
                                    const Tuning& t, bool* slow) {
  bursts_ = c.bursts;
  if (exposed_ && c.burst_ns != 0) {
    exposed_bursts.add(c.burst_ns);
    if (exposed_bursts.total() >= t.needed_exposed) exposed_ns = exposed_bursts.quantile(t.short_bursts);
  }
  if (c.slowdown <= 0) {
    packing.forget_packed();
    return false;
  }
  // Single bursts vary for other reasons (what was in flight when they began): outliers are clipped.
  const double slowdown = std::min(c.slowdown, t.most_slowdown);
  packing.add_burst(slowdown, c.bursts, busy_share, target, t);
  if (c.own_slowdown > 0) own_.add(c.own_slowdown);
  if (c.own_slowdown > 0 && own_.total() < t.needed_own) return false;
  *slow = slower_than_alone(c, target, t);
  block_scale.judge(*slow, !neighbours.crowd, t);
  if (neighbours.confined) reserve.judge(*slow, slower_than_alone(c, t.far_too_slow * target, t), t);
  return true;
}

// The target is over the client's own p99. A client that varies by less than the target counts as one that does
// not: what its first kernels lose to cold caches is not its own.
bool ProtectedClient::slower_than_alone(const ClientView& c, double target, const Tuning& t) const {
  const double late = c.burst_ns == 0 ? target : std::max(target, t.least_late_ns / double(c.burst_ns));
  const double own_tail = own_.value();
  return c.slowdown > (1 + late) * (own_tail > 1 + late ? own_tail : 1);
}

bool ProtectedClient::asleep(const ClientView& c, uint64_t now_ns) const {
  return !c.busy && now_ns - std::min(now_ns, c.idle_since_ns) >= asleep_ns;
}

}  // namespace tessera::policy
