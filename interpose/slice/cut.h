// Decides which launches are cut. Called by the hooks of best-effort clients, in the caller's thread; allocation-free. What may be cut at all was decided at module load (interpose/track).
#pragma once

#include "interpose/gate/launch.h"
#include "interpose/gate/timing.h"

namespace tessera::cut {

// May this launch be cut at all now? Its attributes, the image and the user may forbid it, and holds that
// expired.
bool allowed(const gate::LaunchCall& launch, const state::KernelRecord& kernel);

// Is a launch that may be cut worth it under the lease as it stands?
bool wanted(const gate::LaunchCall& launch, const gate::Timing* timing);

// First slice of a kernel that was never measured: a few blocks on each SM, whatever they cost.
uint64_t pilot_blocks(const gate::LaunchCall& launch);

// Writes the outcomes of cut launches into the region. Helper thread.
void publish(ipc::abi::SignalLine& signals);

}  // namespace tessera::cut
