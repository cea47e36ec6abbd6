// Launches in clusters of blocks: which shape they have. Blocks of a cluster wait for each other and reach
// each other's shared memory, so they must be in one slice (admission/slices.h). Called for each launch that
// is cut, and for the shape that a function fixes; any thread, no state, allocation-free.
#pragma once

#include "admission/slices.h"
#include "interpose/gate/launch.h"
#include "interpose/state/kernels.h"

namespace tessera::track {

// The clusters of a launch: what it asks for, else what its function has (KernelRecord::cluster). False: not
// known, or the driver will refuse it, so leave it to the driver.
bool cluster_of(const gate::LaunchCall& launch, const state::KernelRecord& kernel,
                admission::Cluster* cluster);

// Packs a function's CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_* as KernelRecord::cluster holds them. False: a
// shape that no driver launches. `must_be_set`: as CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET.
bool pack_cluster(const int shape[3], bool must_be_set, uint64_t* packed);

}  // namespace tessera::track
