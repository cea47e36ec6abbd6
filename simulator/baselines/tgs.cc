#include "simulator/baselines/tgs.h"

#include <algorithm>

#include "base/units.h"

namespace tessera::simulator::baselines {
namespace {

constexpr uint64_t kWindow_ns = base::ms(5000), kPeriod_ns = base::ms(50), kTick_ns = base::ms(10);
constexpr int kProfileWindows = 5;
constexpr double kTolerated = 0.03, kLarge = 0.09, kForget = 0.12;
constexpr double kSlowStart = 1.5, kDecrease = 0.92, kLeastStep = 1000, kFirstLimit = 1000;
constexpr int kForgetAfter = 20;

}  // namespace

void TgsPolicy::end_window(double protected_rate, double) {
  if (++windows_ <= kProfileWindows) {
    solo_rate_ = std::max(solo_rate_, protected_rate);
    limit_blocks_ = windows_ == kProfileWindows ? kFirstLimit : 0;
    return;
  }
  const double drop = solo_rate_ > 0 ? 1 - protected_rate / solo_rate_ : 0;
  if (protected_rate == 0) {  // idle: opened fully
    limit_blocks_ = std::max(limit_blocks_, 2 * most_per_period_);
    return;
  }
  bad_windows_ = drop >= kForget ? bad_windows_ + 1 : 0;
  if (bad_windows_ >= kForgetAfter) solo_rate_ *= 0.8, bad_windows_ = 0;
  if (drop >= kLarge) {
    limit_blocks_ = std::max(1.0, limit_blocks_ / 10);
    slow_start_ = true;
  } else if (drop > kTolerated) {
    limit_blocks_ = slow_start_ ? limit_blocks_ / kSlowStart
                                : std::min(limit_blocks_ * kDecrease, limit_blocks_ - kLeastStep);
    limit_blocks_ = std::max(1.0, limit_blocks_);
    slow_start_ = false;
  } else {
    limit_blocks_ =
        slow_start_ ? limit_blocks_ * kSlowStart : limit_blocks_ + std::max(0.00025 * solo_rate_, kLeastStep);
  }
}

Decision TgsPolicy::decide(const Observation& o) {
  Decision d;
  uint64_t protected_blocks = 0, best_effort_blocks = 0;
  bool any_protected = false;
  for (const ClientView& c : o.clients) {
    (is_protected(c) ? protected_blocks : best_effort_blocks) += c.blocks_launched;
    any_protected |= is_protected(c);
  }
  if (window_start_ns_ == 0) {
    window_start_ns_ = period_start_ns_ = o.now_ns;
    protected_blocks_ = protected_blocks;
    best_effort_blocks_ = best_effort_blocks;
  }
  if (o.now_ns - window_start_ns_ >= kWindow_ns) {
    const double seconds = double(o.now_ns - window_start_ns_) / 1e9;
    const uint64_t launched = protected_blocks - std::min(protected_blocks, protected_blocks_);
    end_window(double(launched) / seconds, seconds);
    window_start_ns_ = o.now_ns;
    protected_blocks_ = protected_blocks;
  }
  const uint64_t used = best_effort_blocks - std::min(best_effort_blocks, best_effort_blocks_);
  if (o.now_ns - period_start_ns_ >= kPeriod_ns) {
    most_per_period_ = std::max(most_per_period_, double(used));
    period_start_ns_ = o.now_ns;
    best_effort_blocks_ = best_effort_blocks;
  }
  const bool open = !any_protected || double(best_effort_blocks - best_effort_blocks_) < limit_blocks_;
  for (const ClientView& c : o.clients) {
    Lease lease{.client_id = c.id, .grant = Grant::kFree};
    if (!is_protected(c)) {
      lease = granted(c, parameters_);
      lease.slice_ns = base::kNsPerS;
      lease.packed = true;
      if (!open) lease.grant = Grant::kHold;
    }
    d.leases.push_back(lease);
  }
  look_at(o.now_ns + kTick_ns, &d);
  return d;
}

}  // namespace tessera::simulator::baselines
