// The few functions that are pure arithmetic, and the common answer of unsupported.cc.

#include "softgpu/runtime/runtime.h"

namespace tessera::softgpu::runtime {
int not_supported();
int not_supported() {
  return remember(cudaErrorNotSupported);
}
}  // namespace tessera::softgpu::runtime

extern "C" cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w,
                                                       cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
