#include "interpose/gate/kernels.h"

namespace tessera::gate {

constinit KernelSlot g_kernels[kKernelSlots] = {};

}  // namespace tessera::gate
