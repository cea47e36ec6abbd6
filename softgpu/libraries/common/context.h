// The state behind a stand-in's handles: the context that was current when a handle was made, the library's kernels
// there, and how a launch reaches them. Any thread.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "softgpu/libraries/common/driver.h"

namespace tessera::softgpu::libraries {

struct Context {
  CUcontext context = nullptr;
  std::shared_ptr<Kernels> kernels;
};

// Opens the context of the calling thread; a thread without one gets the first device's primary context. False: there
// is no device.
bool open_context(Context* context);

// A handle's context is current while this lives.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  bool pushed_ = false;
};

// Blocks and threads of a launch; x and y count blocks.
struct Grid {
  uint32_t x, y, threads;
};

// One launch with `call`, the kernel's only argument; `kernel` counts in kKernelNames. False: the driver refused it.
template <class Call>
bool launch_kernel(const Context& context, CUstream stream, size_t kernel, const Grid& grid,
                   const Call& call) {
  const CurrentContext current(context.context);
  void* arguments[] = {const_cast<Call*>(&call)};
  return driver().LaunchKernel(context.kernels->functions[kernel], grid.x, grid.y, 1, grid.threads, 1, 1, 0,
                               stream, arguments, nullptr) == CUDA_SUCCESS;
}

}  // namespace tessera::softgpu::libraries
