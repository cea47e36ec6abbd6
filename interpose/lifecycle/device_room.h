// Is there room on its GPUs for what this process has in checkpoints? NVML knows it: the driver itself answers nothing to a
// process that is off its GPU. Unlike the daemon's books it knows of programs without Tessera, too, and of GPUs that the
// process does not see. Helper thread, and at
// exit the thread that returns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver_api/cuda.h"

namespace tessera::lifecycle {

// The most that one of its devices lacks. 0: there is room, or NVML is not there and nobody knows.
uint64_t lacking_bytes();

// The GPUs of the machine, as far as NVML shows them.
inline constexpr size_t kMostGpus = 64;
struct MachineGpu {
  CUuuid uuid;
  char name[96];
  uint64_t free_bytes;  // 0: none, or NVML has no figure
  bool has_mig;         // it is divided: no program can have all of it
};
size_t gpus_of_machine(MachineGpu (&out)[kMostGpus]);  // how many; 0: NVML is not there

}  // namespace tessera::lifecycle
