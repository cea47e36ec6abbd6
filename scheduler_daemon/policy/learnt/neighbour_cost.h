// What best-effort work of one class costs a protected client whose bursts it runs beside, on SMs of its own: by how much
// a burst becomes longer per GPU of width. By least squares over the measured bursts,
//
//   excess = cost x width        cost = sum(width x excess) / sum(width^2)
//
// of which older bursts count less and less. How certain that is follows from what the bursts vary by; until it is, the
// cost counts as higher, so work starts narrow and widens as bursts stay short. A burst that is far too slow has found
// no SM free: beyond that width nothing is tried for a while. Pure value; one per protected client and class.
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
  // The widest that makes bursts longer by so much at most; 0 = none may run.
  double widest(double allowed, const Tuning& t) const;
  double cost() const { return sum_ww_ > 0 ? std::max(0.0, sum_we_ / sum_ww_) : 0; }
  double upper(const Tuning& t) const;  // of the cost: as certain as it is
  // What upper() is at best after as many trials as there may be.
  double promised(const Tuning& t) const;
  // What bursts vary by with nothing beside them: counts as one burst's distance from what the cost says.
  void know_spread(double spread) { spread_ = spread; }
  double limit() const { return limit_; }  // wider was far too much
  double spent() const { return spent_; }  // of what is allowed
  uint64_t judged() const { return n_; }
  bool known(const Tuning& t) const;
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
