#include "scheduler_daemon/policy/learnt/block_scale.h"

#include <algorithm>
#include <cmath>

namespace tessera::policy {

void BlockScale::Judged::add(bool slow, const Tuning& t) {
  ++n;
  n_slow += slow;
  if (n >= t.most_judged) n /= 2, n_slow /= 2;
}

// A slow burst after a slow one says nothing new: slower clocks, or the same long kernel. Bursts that are as
// slow at the least scale as before vary by themselves: then the first guess holds, for long.
void BlockScale::judge(bool slow, const Tuning& t) {
  ++bursts_;
  if (fixed_for_ > 0) {
    --fixed_for_;
    return;
  }
  Judged& judged = value_ > t.near_least_scale * t.least_scale ? wide_ : narrow_;
  judged.add(slow, t);
  if (!slow || !was_slow_) value_ *= std::exp(t.scale_step * (t.too_slow_share - (slow ? 1 : 0)));
  value_ = std::clamp(value_, t.least_scale, std::max(t.least_scale, t.most_scale));
  was_slow_ = slow;
  const double still = narrow_.slow_share();
  const bool not_the_blocks =
      narrow_.n >= t.needed_judged && still >= t.still_slow_share && still >= t.helped * wide_.slow_share();
  if (!not_the_blocks) return;
  value_ = 1;
  wide_ = narrow_ = {};
  fixed_for_ = pause_ = std::clamp(pause_ * 2, t.first_pause, std::max(t.first_pause, t.most_pause));
}

}  // namespace tessera::policy
