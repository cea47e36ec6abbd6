// The gaps between bursts that come in the order of their beginnings. A burst that has not ended yet may come again,
// longer: it makes no further gap. Pure value.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

class GapSweep {
 public:
  // `on_gap`: void(uint64_t gap_ns, uint64_t since_began_ns), from the end and from the beginning of the burst before.
  template <class OnGap>
  void add(const Span& burst, const OnGap& on_gap) {
    const bool gap = burst.began_ns > busy_until_ns_;
    if (gap && busy_until_ns_ != 0) on_gap(burst.began_ns - busy_until_ns_, burst.began_ns - busy_from_ns_);
    if (gap) busy_from_ns_ = burst.began_ns;
    busy_until_ns_ = std::max(busy_until_ns_, burst.ended_ns);
  }

 private:
  uint64_t busy_from_ns_ = 0, busy_until_ns_ = 0;  // 0: no burst yet
};

}  // namespace tessera::policy
