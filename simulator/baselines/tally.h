// `tally`: the priority policy of Tally (Zhao et al., ASPLOS'25), re-implemented from its description; not
// the authors' system. Strict order; at most one best-effort kernel in flight in the whole system, of the
// client that came last; it starts when the protected client was idle for the guard time and leaves the GPU
// at a block boundary. That takes persistent-thread variants, which only the simulator has; with real gates
// slices of 31.6 us take their place. Pure.
#pragma once

#include "simulator/baselines/common.h"

namespace tessera::simulator::baselines {

class TallyPolicy final : public Policy {
 public:
  explicit TallyPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "tally"; }
  Decision decide(const Observation& observation) override;

 private:
  Parameters parameters_;
};

}  // namespace tessera::simulator::baselines
