// Is there room on its GPUs for what this process has in checkpoints? NVML knows it: the driver itself answers nothing to a
// process that is off its GPU. Unlike the daemon's books it knows of programs without Tessera, too. Helper thread, and at
// exit the thread that returns.
#pragma once

#include <cstdint>

namespace tessera::lifecycle {

// The most that one of its devices lacks. 0: there is room, or NVML is not there and nobody knows.
uint64_t lacking_bytes();

}  // namespace tessera::lifecycle
