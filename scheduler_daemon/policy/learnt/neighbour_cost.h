// The cost of best-effort work of one class for a protected client whose bursts it runs beside, on SMs of its own: how
// much longer a burst becomes per GPU of width. It is found by least squares over the measured bursts,
//
//   excess = cost x width        cost = sum(width x excess) / sum(width^2)
//
// in which older bursts count less and less. The variation of the bursts says how certain the cost is. An uncertain cost
// counts as higher, so work starts narrow and widens while bursts stay short. A burst that is far too slow has found no SM
// free; then nothing wider is tried for a while. Pure value; one per protected client and class.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class NeighbourCost {
 public:
  // A burst that took (1 + excess) times as long as it should beside work of this width, in parts of the GPU.
  // `spending`: it was there because that is worth it, not for a trial.
  void judge(double width, double excess, bool slow, bool far_too_slow, bool spending, const Tuning& t);
  // The widest that makes bursts longer by that slowdown at most; 0 = none may run.
  double widest(double allowed, const Tuning& t) const;
  double cost() const { return sum_ww_ > 0 ? std::max(0.0, sum_we_ / sum_ww_) : 0; }
  double upper(const Tuning& t) const;  // of the cost: as certain as it is
  // The best value of upper() after all trials that there may be.
  double promised(const Tuning& t) const;
  // Sets the variation of bursts with nothing beside them. It counts as the error of one burst.
  void know_spread(double spread) { spread_ = spread; }
  double limit() const { return limit_; }  // wider was far too much
  double spent() const { return spent_; }  // of what is allowed
  uint64_t judged() const { return n_; }
  bool too_dear(double width, double allowed) const;  // even if it costs less than it seems

 private:
  double error() const;

  double sum_ww_ = 0, sum_we_ = 0;  // width^2, width x excess
  double variance_ = 0;             // of the excess, around what the cost says
  double spread_ = 0;
  double spent_ = 1;  // of what is allowed: follows slow bursts
  double limit_ = 1;  // wider was far too much
  uint64_t n_ = 0;
};

}  // namespace tessera::policy
