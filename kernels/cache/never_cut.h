// Kernels that the watchdog had to release once: cut, they wait for blocks of later slices. Kept in the
// folder of cache files, so that no later start cuts them; forgotten when the rewriter or the driver changes.
//
// At module load, and when the watchdog releases. Of two processes that add at once the later wins: what is
// lost is found again by the watchdog.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cache/store.h"

namespace tessera::cache {

inline constexpr size_t kMostNeverCut = 4096;  // hashes; the oldest go first

// Hashes as base::kernel_hash(), oldest first. Empty if there is no file, or none to be trusted.
std::vector<uint64_t> never_cut(const Store& store, int driver_version);
base::Status add_never_cut(const Store& store, int driver_version, uint64_t kernel_hash);

}  // namespace tessera::cache
