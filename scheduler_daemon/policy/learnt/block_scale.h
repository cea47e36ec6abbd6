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
  struct Judged {  // bursts, old ones fading
    uint64_t n = 0, n_slow = 0;
    void add(bool slow, const Tuning& t);
    double slow_share() const { return n == 0 ? 0 : double(n_slow) / double(n); }
  };
  double value_ = 1;
  bool was_slow_ = false;  // the latest burst
  Judged wide_, narrow_;   // bursts while the value was above its least, and at the least
  uint64_t bursts_ = 0;
  uint64_t fixed_for_ = 0;  // bursts for which the value stays as it is
  uint64_t pause_ = 0;      // for how many, the last time
};

}  // namespace tessera::policy
