// `tgs`: the rate control of TGS (Wu et al., NSDI'23), re-implemented from its description; not the authors'
// system. The best-effort side launches freely up to a number of thread blocks per period; the number follows
// the protected side's rate of blocks: slow start, additive increase, multiplicative decrease. Kernels are
// never cut and pulses are not watched. Its windows are the published ones (5 s, five of them alone at first; 50 ms), so
// a run of less than minutes shows its start only. Pure.
#pragma once

#include "simulator/baselines/common.h"

namespace tessera::simulator::baselines {

class TgsPolicy final : public Policy {
 public:
  explicit TgsPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "tgs"; }
  Decision decide(const Observation& observation) override;

 private:
  void end_window(double protected_rate, double seconds);

  Parameters parameters_;
  double limit_blocks_ = 0;  // per period; 0 while the protected client is profiled alone
  double solo_rate_ = 0;     // protected blocks per second
  bool slow_start_ = true;
  int windows_ = 0, bad_windows_ = 0;
  uint64_t window_start_ns_ = 0, period_start_ns_ = 0;
  uint64_t protected_blocks_ = 0;    // at the start of the window
  uint64_t best_effort_blocks_ = 0;  // at the start of the period
  double most_per_period_ = 0;       // best-effort blocks seen in one period
};

}  // namespace tessera::simulator::baselines
