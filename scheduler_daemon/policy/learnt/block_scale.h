// How long the blocks of best-effort kernels may last, over the first guess: follows the measured bursts so
// that one in a hundred is too slow. A slow burst lowers the scale by tuning.scale_step, every other one
// raises it by as much times too_slow_share. Where none was slow yet, or none of tuning.retry_every in a row, each
// raises it by tuning.small_step until one is; what was gained above the first guess then shrinks to its square
// root. Pure value; one per protected client, and one for all together.
#pragma once

#include <cstdint>

#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class BlockScale {
 public:
  // `may_search`: few best-effort clients are there. Of a crowd others run each time, and a good burst says little.
  void judge(bool slow, bool may_search, const Tuning& t);
  double value() const { return value_; }
  uint64_t bursts() const { return bursts_; }  // judged so far

 private:
  double value_ = 1;
  bool was_slow_ = false;       // the latest burst
  bool ever_slow_ = false;      // any burst
  uint64_t good_in_a_row_ = 0;  // bursts since the latest slow one
  uint64_t bursts_ = 0;
};

}  // namespace tessera::policy
