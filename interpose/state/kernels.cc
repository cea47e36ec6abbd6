#include "interpose/state/kernels.h"

namespace tessera::state {

constinit KernelSlot g_kernels[kKernelSlots] = {};

}  // namespace tessera::state
