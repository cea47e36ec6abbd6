#include "scheduler_daemon/policy/learnt/protected_client.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {
namespace {

// Part of its latest measured burst during which best-effort work may have been there; all of it where that is not known.
double met_share(const KindSlowdown& burst) {
  return burst.own_slowdown > 0 ? std::clamp(1 - burst.own_slowdown / burst.slowdown, 0.0, 1.0) : 1;
}

}  // namespace

bool ProtectedClientState::observe(const ClientView& c, uint64_t last_look_ns, uint64_t now_ns,
                                   const Collision& collision, double target, const Neighbours& neighbours,
                                   const Tuning& t, bool* slow) {
  if (last_look_ns != 0 && now_ns > last_look_ns) {
    const double passed_ns = double(now_ns - last_look_ns);
    const double busy = double(busy_since(c, last_look_ns, now_ns)) / passed_ns;
    watched_ns_ = std::min(watched_ns_ + passed_ns, double(t.asleep_ns));
    busy_share += (busy - busy_share) * std::min(1.0, passed_ns / watched_ns_);
  }
  for_each_burst(c, now_ns, [&](const Span& burst) {
    period_.add(burst, gap_hold.wait_ns, t.longest_gap_ns, [&](uint64_t length_ns) {
      exposed.add(length_ns);
      exposed_ns = exposed.quantile(t.short_bursts);
    });
    idle_.add(burst, [&](uint64_t gap_ns, uint64_t since_began_ns) {
      observe_gap(gap_ns, since_began_ns, collision, t);
    });
  });
  return c.bursts != bursts_ && observe_bursts(c, target, neighbours, t, slow);
}

bool ProtectedClientState::varies(double target) const {
  const auto regular = [&](const auto& of_kind) { return of_kind.second.p99 <= 1 + target; };
  return !own_tails_.empty() && std::ranges::none_of(own_tails_, regular);
}

void ProtectedClientState::observe_gap(uint64_t gap_ns, uint64_t since_began_ns, const Collision& collision,
                                       const Tuning& t) {
  next_burst.add(gap_ns, since_began_ns);
  gap_hold = next_burst.hold(collision, t);
  const GapModel& gaps = next_burst.gaps();
  // Few gaps say nothing about rare short ones.
  if (gaps.total() < t.enough) return;
  surely_idle_ns = gaps.quantile_ns(t.too_slow_share / 2);
  asleep_ns = std::max(t.asleep_ns, gaps.quantile_ns(1));
}

bool ProtectedClientState::observe_bursts(const ClientView& c, double target, const Neighbours& neighbours,
                                          const Tuning& t, bool* slow) {
  bursts_ = c.bursts;
  const auto observe = [&](const KindSlowdown& burst) {
    bool slow_now = false;
    if (burst.slowdown <= 0 || !observe_burst(burst, target, neighbours, t, &slow_now)) return false;
    *slow |= slow_now;
    return true;
  };
  bool judged = false;
  for (const KindSlowdown& of_kind : c.kinds) judged |= observe(of_kind);
  if (c.kinds.empty())
    judged = observe({.burst_ns = c.burst_ns, .slowdown = c.slowdown, .own_slowdown = c.own_slowdown});
  std::fill(std::begin(during_burst_), std::end(during_burst_), DuringBurst{});
  return judged;
}

bool ProtectedClientState::observe_burst(const KindSlowdown& burst, double target,
                                         const Neighbours& neighbours, const Tuning& t, bool* slow) {
  OwnTail& own = own_tails_.try_emplace(burst.kind, t).first->second;
  *slow = too_slow(burst, target, t);
  // Slow bursts beside packed work are due to that; good ones say that free SMs and the reserve are enough.
  const bool packed = was_packed(burst, target, *slow, t);
  if (packed && (*slow || confined_between)) return false;
  if (!packed) {
    note_plain(std::min(burst.slowdown, t.most_slowdown) - 1, t);
    if (burst.own_slowdown > 0) own.latest.add(burst.own_slowdown);
    if (own.latest.total() >= t.enough) own.p99 = own.latest.value();
  }
  if (own.p99 == 0 && met_share(burst) < t.mostly_met) return false;
  *slow = too_slow(burst, target, t);
  block_scale.judge(*slow, !neighbours.crowd, t);
  if (neighbours.confined && !packed)
    reserve.judge(*slow, slower_than_alone(burst, t.far_too_slow * target, t), t);
  return true;
}

void ProtectedClientState::note_during_bursts(const ClientView& c, uint64_t last_look_ns, uint64_t now_ns,
                                              size_t resource_class, double width) {
  DuringBurst& beside = during_burst_[resource_class];
  beside.width_ns += width * double(busy_since(c, last_look_ns, now_ns));
  beside.widest = std::max(beside.widest, width);
}

// Nothing ran beside it.
void ProtectedClientState::note_plain(double excess, const Tuning& t) {
  const double off = excess - plain_excess_;
  plain_excess_ += off / double(t.memory);
  ++n_plain_;
  plain_variance_ += (off * off - plain_variance_) / std::min(double(n_plain_), double(t.memory));
  if (n_plain_ < t.enough) return;
  for (NeighbourCost& of_kind : cost)
    of_kind.know_spread(std::max(std::sqrt(plain_variance_), t.least_spread));
}

// A burst that ran beside packed work says what that costs, and nothing about room and reserve.
bool ProtectedClientState::was_packed(const KindSlowdown& burst, double target, bool slow, const Tuning& t) {
  double width[kKinds], sum = 0;
  const double length_ns = std::max(1.0, burst.slowdown * double(burst.burst_ns));
  const double met = met_share(burst);
  for (size_t k = 0; k < kKinds; ++k) {
    // The widths of bursts that were not measured may have added up to more.
    width[k] = std::min(during_burst_[k].width_ns / length_ns, during_burst_[k].widest) * met;
    sum += width[k];
  }
  if (sum < t.too_slow_share) return false;
  const double excess =
      std::min(burst.slowdown, t.most_slowdown) - 1 - std::clamp(plain_excess_, 0.0, target);
  const bool far_too_slow = slower_than_alone(burst, t.far_too_slow * target, t);
  // Work of several kinds beside one burst: what it says of one is uncertain by what the others cost. Work anywhere is
  // beside the end of bursts that had other work before.
  const size_t k = width[kAnywhere] >= t.too_slow_share
                       ? kAnywhere
                       : size_t(std::max_element(std::begin(width), std::end(width)) - std::begin(width));
  double others = 0;
  for (size_t j = 0; j < kKinds; ++j) {
    if (j == k || width[j] < t.too_slow_share) continue;
    if (cost[j].judged() == 0) return true;
    others += width[j] * cost[j].cost();
  }
  cost[k].judge(width[k], excess - others, slow, far_too_slow, spending[k], t);
  if (k == kAnywhere && !far_too_slow && width[k] > t.mostly_met * together_share)
    together_share = std::min(1.0, together_share * t.together_growth);
  return true;
}

// The target is over the client's own p99. A client that varies by less than the target counts as one that does
// not: what its first kernels lose to cold caches is not its own. What would have been slow alone is nobody's fault.
bool ProtectedClientState::slower_than_alone(const KindSlowdown& burst, double target,
                                             const Tuning& t) const {
  const double late =
      burst.burst_ns == 0 ? target : std::max(target, double(t.reaction_ns) / double(burst.burst_ns));
  const double p99 = own_tails_.at(burst.kind).p99;
  const double limit = (1 + late) * (p99 > 1 + late ? p99 : 1);
  return burst.slowdown > limit && burst.own_slowdown <= limit;
}

// Or than its SLO allows, if alone it keeps that.
bool ProtectedClientState::too_slow(const KindSlowdown& burst, double target, const Tuning& t) const {
  const double limit = double(burst.slo_ns) / double(std::max<uint64_t>(1, burst.burst_ns));
  const bool misses_slo = limit > 1 && burst.slowdown > limit && burst.own_slowdown <= limit;
  return (burst.burst_ns != 0 && misses_slo) || slower_than_alone(burst, target, t);
}

bool ProtectedClientState::asleep(const ClientView& c, uint64_t now_ns) const {
  return !c.busy && now_ns - std::min(now_ns, c.idle_since_ns) >= asleep_ns;
}

}  // namespace tessera::policy
