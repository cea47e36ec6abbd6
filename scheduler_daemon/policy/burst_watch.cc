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
  Mean& mean = b.minimum_share ? during_minimum_share_ : without_minimum_share_;
  ++mean.n;
  mean.value += (slowdown - mean.value) / double(std::min(mean.n, kMeanOver));
  auto sum = std::ranges::find(sums_, b.kind, [](const Sum& s) { return s.of.kind; });
  if (sum == sums_.end()) sum = sums_.insert(sum, {.of = {.kind = b.kind}});
  ++sum->n;
  sum->of.slo_ns = b.slo_ns;
  sum->of.burst_ns = baseline_ns_;
  sum->of.slowdown += slowdown;
  sum->of.own_slowdown += double(b.length_ns - std::min(b.length_ns, b.overlap_ns)) / double(baseline_ns_);
}

std::vector<KindSlowdown> BurstWatch::kinds() const {
  std::vector<KindSlowdown> out;
  for (const Sum& s : sums_) {
    out.push_back(s.of);
    out.back().slowdown /= double(s.n);
    out.back().own_slowdown /= double(s.n);
  }
  return out;
}

double BurstWatch::take_slowdown() {
  uint64_t n = 0;
  double sum = 0, own_sum = 0;
  for (const Sum& s : sums_) n += s.n, sum += s.of.slowdown, own_sum += s.of.own_slowdown;
  if (n != 0) {
    slowdown_ = sum / double(n);
    own_slowdown_ = own_sum / double(n);
  }
  sums_.clear();
  return slowdown_;
}

}  // namespace tessera::policy
