// One best-effort launch from its facts to the driver: whole, or piece by piece, as the rule plans it under the lease
// (admission/plan.h). Called by the launch hook, in the caller's thread, within a DepthGuard; all state is on its stack, and
// nothing is allocated.
#pragma once

#include "interpose/gate/launch.h"
#include "interpose/gate/signals.h"
#include "interpose/gate/timing.h"

namespace tessera::cut {

struct Launch {  // what is known of it
  const gate::LaunchCall& call;
  state::KernelRecord* kernel;  // null: not known
  gate::Timing* timing;         // of its shape; may be null
  gate::TimeIt time_it;
  uint64_t expected_ns;  // whole, on all SMs
  uint32_t resource_class;
  gate::Width width;
  bool may_cut;
};

// Returns what the program gets.
CUresult send(const Launch& launch);

}  // namespace tessera::cut
