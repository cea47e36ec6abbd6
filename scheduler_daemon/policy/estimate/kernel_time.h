// How long kernels take, by key (what a key is, is the observer's choice: kernel, grid, block, shared
// memory). Pure; bounded memory; one owner, no lock.
//
// Robust: the first launches of a key are not used (lazy loading, cold caches); quantiles do not move with
// single outliers; samples fade. A clock ramp lengthens every kernel at once: the ratio of samples to what
// was expected of them is followed over all keys (`clock_ratio`), and estimates are scaled by it, so that
// keys that are seen rarely need not learn the new clock one by one.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "scheduler_daemon/policy/estimate/histogram.h"

namespace tessera::policy {

class KernelTimes {
 public:
  static constexpr uint32_t kSkipped = 1, kNeeded = 3;
  static constexpr size_t kMaxKeys = 1024;  // a client cannot make the observer grow

  void add(uint64_t key, uint64_t ns) {
    auto it = rows_.find(key);
    if (it == rows_.end()) {
      if (rows_.size() >= kMaxKeys) forget_oldest();
      it = rows_.emplace(key, Row{}).first;
    }
    Row& row = it->second;
    row.last_use = ++uses_;
    if (row.n++ < kSkipped || ns == 0) return;
    if (row.times.total() >= kNeeded) {
      const double expected = double(row.times.quantile(0.5)) * ratio_;
      // One sample says little: it is clipped, and its weight is small.
      const double seen = std::clamp(double(ns) / std::max(1.0, expected), 0.5, 2.0);
      ratio_ = std::clamp(ratio_ * (1 + kRatioWeight * (seen - 1)), 1.0 / kMostRatio, kMostRatio);
    }
    row.times.add(std::max<uint64_t>(1, uint64_t(double(ns) / ratio_)));  // at the reference clock
  }
  // 0 = not known (yet).
  uint64_t quantile_ns(uint64_t key, double q) const {
    auto it = rows_.find(key);
    if (it == rows_.end() || it->second.times.total() < kNeeded) return 0;
    return uint64_t(double(it->second.times.quantile(q)) * ratio_);
  }
  double clock_ratio() const { return ratio_; }  // > 1: slower than when the kernels were learnt
  size_t size() const { return rows_.size(); }

 private:
  static constexpr double kRatioWeight = 0.05, kMostRatio = 8;
  struct Row {
    Histogram times{64};
    uint32_t n = 0;
    uint64_t last_use = 0;
  };
  void forget_oldest() {
    auto oldest = std::min_element(rows_.begin(), rows_.end(), [](const auto& a, const auto& b) {
      return a.second.last_use < b.second.last_use;
    });
    rows_.erase(oldest);
  }
  std::unordered_map<uint64_t, Row> rows_;
  uint64_t uses_ = 0;
  double ratio_ = 1;
};

}  // namespace tessera::policy
