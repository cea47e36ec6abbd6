// Launches in clusters of blocks: which shape, and boxes of whole clusters only. Blocks of a cluster wait for
// each other and reach each other's shared memory, so they must be in one slice. Called by cut.cc and, for
// the shape that a function fixes, by interpose/track; any thread, no state, allocation-free.
#pragma once

#include "interpose/slice/cut.h"

namespace tessera::cut {

struct Cluster {  // in blocks; a launch without clusters has ones
  uint32_t shape[3] = {1, 1, 1};
  uint64_t blocks() const { return uint64_t(shape[0]) * shape[1] * shape[2]; }
};

// The clusters of a launch: what it asks for, else what its function has (KernelRecord::cluster). False: not
// known, or the driver will refuse it, so leave it to the driver.
bool cluster_of(const gate::LaunchCall& launch, const gate::KernelRecord& kernel, Cluster* cluster);

// next_piece() in units of clusters: `first` and the budget are in blocks, and a piece is at least one
// cluster.
Piece next_piece(const uint32_t grid[3], const Cluster& cluster, uint64_t first, const Budget& budget);

// What CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_* say of a function, as KernelRecord::cluster holds it. False: a
// shape that no driver launches. `must_be_set`: as CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET.
bool pack_cluster(const int shape[3], bool must_be_set, uint64_t* packed);

}  // namespace tessera::cut
