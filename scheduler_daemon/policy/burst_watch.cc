#include "scheduler_daemon/policy/burst_watch.h"

#include <algorithm>

namespace tessera::policy {

// Only kinds of bursts count that were seen often enough with work before them and without.
void BurstWatch::learn_change(const Burst& b) {
  if (b.overlap_ns >= b.length_ns) return;
  const uint64_t length_ns = b.length_ns - b.overlap_ns;
  after_work_.add(b.signature, length_ns, b.after_work);
  after_none_.add(b.signature, length_ns, !b.after_work);
  if (after_work_.baseline_ns() == 0 || after_none_.baseline_ns() == 0) return;
  const double now_ns = double(after_work_.baseline_ns()) - double(after_none_.baseline_ns());
  change_ns_ += knows_change_ ? (now_ns - change_ns_) / double(kMeanOver) : now_ns;
  knows_change_ = true;
}

void BurstWatch::add(const Burst& b) {
  if (ended_.size() == kMostEnded) ended_.erase(ended_.begin(), ended_.begin() + kMostEnded / 2);
  last_end_ns_ = b.end_ns;
  ended_.push_back({b.end_ns - std::min(b.end_ns, b.length_ns), b.end_ns});

  learn_change(b);
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
  const uint64_t own_ns = b.length_ns - std::min(b.length_ns, b.overlap_ns);
  const uint64_t late_ns = own_ns - std::min(own_ns, baseline_ns_);
  const uint64_t changes_ns = b.after_work ? std::min(late_ns, kMostChanges * change_ns()) : 0;
  sum->of.own_slowdown += double(own_ns - changes_ns) / double(baseline_ns_);
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
