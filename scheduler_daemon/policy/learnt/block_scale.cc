#include "scheduler_daemon/policy/learnt/block_scale.h"

#include <algorithm>
#include <cmath>

namespace tessera::policy {

void BlockScale::judge(bool slow, bool may_search, const Tuning& t) {
  ++bursts_;
  if (!slow) {
    const bool searching = !ever_slow_ || ++good_in_a_row_ > t.retry_every;
    value_ *= std::exp(searching && may_search ? t.small_step : t.scale_step * t.too_slow_share);
  } else {
    const double down = std::exp(t.scale_step * (t.too_slow_share - 1));
    if (value_ > 1)
      value_ = std::sqrt(value_) * down;  // found by searching: too far
    else if (!was_slow_)
      value_ *= down;  // one after a slow one says nothing new: slower clocks, or the same long kernel
    ever_slow_ = true;
    good_in_a_row_ = 0;
  }
  value_ = std::clamp(value_, t.least_scale, std::max(t.least_scale, 1 / t.least_scale));
  was_slow_ = slow;
}

}  // namespace tessera::policy
