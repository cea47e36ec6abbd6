// Slowdown of a protected client: the length of its bursts over what bursts with the same signature take when
// no lower lease is at work. Pure; one object per protected client; used by whoever observes bursts. Robust:
// the baseline is a median of recent solo bursts, so single outliers, first launches and clock ramps pass.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>

namespace tessera::policy {

class BurstBaseline {
 public:
  static constexpr size_t kKept = 15, kNeeded = 3;
  static constexpr size_t kMaxSignatures = 64;  // bounded: a client cannot make the observer grow

  // Returns the slowdown of this burst, 0 = no baseline (yet). `solo`: no lower lease was at work during it.
  double add(uint64_t signature, uint64_t length_ns, bool solo) {
    if (const auto before = rows_.find(latest_); before != rows_.end()) before->second.next = signature;
    latest_ = signature;
    auto it = rows_.find(signature);
    if (it == rows_.end()) {
      if (rows_.size() >= kMaxSignatures) rows_.clear();
      it = rows_.emplace(signature, Row{}).first;
    }
    Row& row = it->second;
    if (solo) {
      row.kept[row.n++ % kKept] = length_ns;
      row.median_ns = median(row);
    }
    baseline_ns_ = row.n >= kNeeded ? row.median_ns : 0;
    return baseline_ns_ == 0 ? 0 : double(length_ns) / double(baseline_ns_);
  }
  uint64_t baseline_ns() const { return baseline_ns_; }  // of the latest burst
  // The length of the burst that came after the latest one of this kind: a request may have several. 0 = not known.
  uint64_t next_ns() const {
    const auto latest = rows_.find(latest_);
    const auto next = latest == rows_.end() ? latest : rows_.find(latest->second.next);
    return next == rows_.end() || next->second.n < kNeeded ? 0 : next->second.median_ns;
  }

 private:
  struct Row {
    std::array<uint64_t, kKept> kept{};
    size_t n = 0;
    uint64_t median_ns = 0;
    uint64_t next = 0;  // signature of the burst that came after the latest such one
  };
  static uint64_t median(const Row& row) {
    auto sorted = row.kept;
    size_t n = std::min(row.n, kKept);
    std::nth_element(sorted.begin(), sorted.begin() + long(n / 2), sorted.begin() + long(n));
    return sorted[n / 2];
  }
  std::unordered_map<uint64_t, Row> rows_;
  uint64_t baseline_ns_ = 0;
  uint64_t latest_ = 0;  // signature of the latest burst
};

}  // namespace tessera::policy
