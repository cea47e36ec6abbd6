// From a launch and a lease to slices: which launches are cut (cut.cc), and the loop that sends each slice
// through the gate (cutting.cc). How many blocks a slice has is the rule's business (admission/slices.h).
// Called by the launch hook of best-effort clients; runs in the caller's thread; all state is on its stack
// (allocation-free). What may be cut at all was decided at module load (interpose/track).
#pragma once

#include "interpose/gate/ask.h"
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

// Sends an allowed launch as slices; *result is what the program gets. False: nothing was launched (no
// variant, or the driver refused the first slice): launch the original. `wait` carries what was waited
// already.
bool launch(const gate::LaunchCall& launch, state::KernelRecord& kernel, gate::Timing* timing,
            gate::Wait& wait, CUresult* result);

// Writes the outcomes of cut launches into the region. Helper thread.
void publish(ipc::abi::SignalLine& signals);

}  // namespace tessera::cut
