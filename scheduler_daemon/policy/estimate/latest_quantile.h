// A quantile of the latest values, exact: where half a bucket of estimate/histogram.h is too much. Pure value; one
// owner, no lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tessera::policy {

class LatestQuantile {
 public:
  LatestQuantile(size_t memory, double q) : memory_(std::max<size_t>(1, memory)), q_(q) {}

  void add(double value) {
    if (kept_.size() < memory_)
      kept_.push_back(value);
    else
      kept_[n_ % memory_] = value;
    ++n_;
  }
  size_t total() const { return kept_.size(); }
  double value() const {  // 0 if there are none
    if (kept_.empty()) return 0;
    std::vector<double> sorted = kept_;
    const size_t at = std::min(sorted.size() - 1, size_t(q_ * double(sorted.size())));
    std::nth_element(sorted.begin(), sorted.begin() + std::ptrdiff_t(at), sorted.end());
    return sorted[at];
  }

 private:
  size_t memory_;
  double q_;
  std::vector<double> kept_;
  size_t n_ = 0;
};

}  // namespace tessera::policy
