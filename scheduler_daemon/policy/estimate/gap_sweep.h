// The gaps between bursts that come in the order of their beginnings. A burst that has not ended yet may come again,
// longer: it makes no further gap. Pure value.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

class GapSweep {
 public:
  template <class OnGap>  // void(uint64_t gap_ns)
  void add(const Span& burst, const OnGap& on_gap) {
    if (busy_until_ns_ != 0 && burst.began_ns > busy_until_ns_) on_gap(burst.began_ns - busy_until_ns_);
    busy_until_ns_ = std::max(busy_until_ns_, burst.ended_ns);
  }

 private:
  uint64_t busy_until_ns_ = 0;  // 0: no burst yet
};

}  // namespace tessera::policy
