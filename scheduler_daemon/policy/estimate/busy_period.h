// How long a stretch of bursts best-effort work in flight makes late. Bursts without a long gap between them belong together, as
// those of a request do. Their time is divided by how often best-effort work can have been in flight when one of them began:
// at first, and after each gap that was used. Bursts come in the order of their beginnings. One that has not ended yet may come
// again, longer. Pure value.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

class BusyPeriod {
 public:
  // Best-effort work used a gap that was longer than `used_gap_ns`. One longer than `long_gap_ns` ends the period.
  template <class OnPeriod>  // void(uint64_t length_ns), once the next period has begun
  void add(const Span& burst, uint64_t used_gap_ns, uint64_t long_gap_ns, const OnPeriod& on_period) {
    const uint64_t gap_ns = burst.began_ns - std::min(burst.began_ns, ended_ns_);
    if (exposures_ == 0 || gap_ns > long_gap_ns) {
      if (exposures_ != 0) on_period((ended_ns_ - began_ns_ - used_ns_) / exposures_);
      began_ns_ = burst.began_ns;
      used_ns_ = 0;
      exposures_ = 1;
    } else if (gap_ns > used_gap_ns) {
      used_ns_ += gap_ns;
      ++exposures_;
    }
    ended_ns_ = std::max(ended_ns_, burst.ended_ns);
  }

 private:
  uint64_t began_ns_ = 0, ended_ns_ = 0;
  uint64_t used_ns_ = 0;    // of it, gaps that were used
  uint64_t exposures_ = 0;  // 0: no burst yet
};

}  // namespace tessera::policy
