// A recorded program as a workload of the simulator: the order of a Chakra trace's nodes becomes one stream of kernels,
// a host node that waits for GPU work becomes a synchronise with host work behind it. Pure.
#pragma once

#include "simulator/chakra.h"
#include "simulator/workload.h"

namespace tessera::simulator {

// Nodes with an attribute `burst` make one job per burst: the job of median length stands for all, their spread is the
// workload's cv, times between their starts are its recorded gaps. Without, the whole trace is one job.
// Errors name the node and what is wrong with it.
base::Result<Workload> workload_of(const chakra::Trace& trace, const std::string& name, uint32_t sm_count);

}  // namespace tessera::simulator
