// How much of the GPU's SMs kernels that cannot be cut leave to one protected client: follows its measured bursts so
// that one in a hundred is too slow. The first slow burst takes tuning.first_reserve, each other one
// tuning.reserve_step more; every good one gives back as much times too_slow_share. Pure value; one per
// protected client.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class ReserveShare {
 public:
  // A burst that kernels which cannot be cut may have met.
  void judge(bool slow, const Tuning& t) {
    if (slow)
      value_ = std::min(std::max(value_ + t.reserve_step, t.first_reserve), t.most_reserve);
    else
      value_ = std::max(0.0, value_ - t.reserve_step * t.too_slow_share);
  }
  double value() const { return value_; }  // of the SMs

 private:
  double value_ = 0;
};

}  // namespace tessera::policy
