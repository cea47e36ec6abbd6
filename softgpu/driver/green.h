// Green contexts: a part of a device's SMs. Work goes through the primary context of the device; its streams
// say which SMs the model may use for their kernels.
#pragma once

#include <memory>

#include "softgpu/driver/objects.h"

namespace tessera::softgpu::driver {

struct GreenContext {
  uint64_t id = 0;
  std::shared_ptr<Context> base;  // primary context of the device
  uint32_t first_sm = 0, n_sms = 0;
  std::shared_ptr<Stream> default_stream;  // what NULL means while it is current
  std::shared_ptr<Context> face;           // the CUcontext it can be made current as; has no work of its own
};

// The green context that is current in the calling thread; null for ordinary ones.
std::shared_ptr<GreenContext> current_green();

}  // namespace tessera::softgpu::driver
