// How much of the GPU's SMs kernels that cannot be cut short leave to one protected client: follows its measured bursts
// so that one in a hundred is too slow. The first slow burst takes tuning.first_sms, each other one
// tuning.small_step more; every good one gives back as much times too_slow_share. Where bursts are far too slow
// although all that may be reserved is, SMs of its own do not help. Pure value; one per protected client.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class ReserveShare {
 public:
  // A burst that may have met such kernels.
  void judge(bool slow, bool far_too_slow, const Tuning& t) {
    const bool in_vain = far_too_slow && value_ >= t.most_reserve;
    value_ = slow ? std::min(std::max(value_ + t.small_step, t.first_sms), t.most_reserve)
                  : std::max(0.0, value_ - t.small_step * t.too_slow_share);
    vain_ = std::max(0.0, vain_ + (in_vain ? 1 : -t.too_slow_share));
    if (in_vain && vain_ >= double(t.least_seen))
      vain_ = double(t.least_seen) + double(t.retry_every) * t.too_slow_share;
  }
  double value() const { return value_; }  // of the SMs
  bool helps(const Tuning& t) const { return vain_ < double(t.least_seen); }

 private:
  double value_ = 0;
  double vain_ = 0;  // bursts that were far too slow in spite of it, lately
};

}  // namespace tessera::policy
