#include "scheduler_daemon/policy/learnt/block_scale.h"

#include <algorithm>
#include <cmath>

namespace tessera::policy {

// A slow burst after a slow one says nothing new: slower clocks, or the same long kernel.
void BlockScale::judge(bool slow, const Tuning& t) {
  ++bursts_;
  if (!slow || !was_slow_) value_ *= std::exp(t.scale_step * (t.too_slow_share - (slow ? 1 : 0)));
  value_ = std::clamp(value_, t.least_scale, std::max(t.least_scale, t.most_scale));
  was_slow_ = slow;
}

}  // namespace tessera::policy
