// From a launch and a lease to slices: which launches are cut, and the loop that sends each slice through the
// gate. How many blocks a slice has is the rule's business (admission/slices.h). Called by the launch hook of
// best-effort clients; runs in the caller's thread; all state is on its stack (allocation-free). What may be
// cut at all was decided at module load (interpose/track).
#pragma once

#include "interpose/gate/launch.h"

namespace tessera::cut {

// May this launch be cut at all now? Its attributes, the image and the user may forbid it, and holds that
// expired.
bool allowed(const gate::LaunchCall& launch, const gate::KernelRecord& kernel);

// Is a launch that may be cut worth it under the lease as it stands?
bool wanted(const gate::LaunchCall& launch, const gate::Timing* timing);

// Sends an allowed launch as slices; *result is what the program gets. False: nothing was launched (no
// variant, or the driver refused the first slice): launch the original. `wait` carries what was waited
// already.
bool launch(const gate::LaunchCall& launch, gate::KernelRecord& kernel, gate::Timing* timing,
            gate::Wait& wait, CUresult* result);

// Cut launches whose rest went out whole after the hold limit; and whether that happened so often that
// nothing is cut for a while. For the signal line.
extern constinit std::atomic<uint64_t> g_whole_releases;
bool cutting_off();

// Slow path, set by interpose/track: the variant's handle, with the original's attributes in `context`, or
// null.
using ResolveVariant = CUfunction (*)(gate::KernelRecord& kernel, const gate::LaunchCall& launch,
                                      CUcontext context) noexcept;
extern constinit std::atomic<ResolveVariant> g_resolve_variant;  // relaxed: constant code
// Slow path, set by interpose/track: what only a launch shows. kHung: a slice did not end by itself
// (trial.h). kRows, kOneQueue: waits for lower blocks, and the grid has more rows than one, or the program's
// streams share one queue of the device; told once per kernel.
enum class Obstacle : uint8_t { kHung, kRows, kOneQueue };
using Met = void (*)(const gate::KernelRecord& kernel, Obstacle obstacle) noexcept;
extern constinit std::atomic<Met> g_met;
extern constinit std::atomic<uint32_t> g_sm_count;   // of the client's GPU; 0 = not known yet
extern constinit std::atomic<uint32_t> g_forbidden;  // 1: TESSERA_SLICE=0, or holds expired again and again

}  // namespace tessera::cut
