// How long the blocks of best-effort kernels may last, over the first guess: follows the measured bursts so
// that one in a hundred is too slow. A slow burst lowers the scale by tuning.scale_step, every other one
// raises it by as much times too_slow_share. Pure value; one per protected client, and one for all together.
#pragma once

#include <cstdint>

#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class BlockScale {
 public:
  void judge(bool slow, const Tuning& t);
  double value() const { return value_; }
  uint64_t bursts() const { return bursts_; }  // judged so far

 private:
  double value_ = 1;
  bool was_slow_ = false;  // the latest burst
  uint64_t bursts_ = 0;
};

}  // namespace tessera::policy
