#include "scheduler_daemon/policy/burst_watch.h"

#include <algorithm>

namespace tessera::policy {

void BurstWatch::add(const Burst& b) {
  if (ended_.size() == kMostEnded) ended_.erase(ended_.begin(), ended_.begin() + kMostEnded / 2);
  last_end_ns_ = b.end_ns;
  ended_.push_back({b.end_ns - std::min(b.end_ns, b.length_ns), b.end_ns});

  solo_ += b.solo;
  double slowdown = solo_baseline_.add(b.signature, b.length_ns, b.solo);
  baseline_ns_ = solo_baseline_.baseline_ns();
  const double unpacked = unpacked_baseline_.add(b.signature, b.length_ns, !b.packed);
  if (baseline_ns_ == 0) {
    slowdown = unpacked;
    baseline_ns_ = unpacked_baseline_.baseline_ns();
  }
  if (slowdown <= 0) return;
  ++compared_;
  Mean& mean = b.floor ? beside_floor_ : without_floor_;
  ++mean.n;
  mean.value += (slowdown - mean.value) / double(std::min(mean.n, kMeanOver));
  sum_ += slowdown;
  own_sum_ += double(b.length_ns - std::min(b.length_ns, b.overlap_ns)) / double(baseline_ns_);
  ++n_sum_;
}

double BurstWatch::take_slowdown() {
  if (n_sum_ != 0) {
    slowdown_ = sum_ / double(n_sum_);
    own_slowdown_ = own_sum_ / double(n_sum_);
  }
  sum_ = own_sum_ = 0;
  n_sum_ = 0;
  return slowdown_;
}

}  // namespace tessera::policy
