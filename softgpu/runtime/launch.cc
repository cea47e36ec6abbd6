// Kernel launches. Compiled once per default-stream flavour, see copy.cc.

#include "softgpu/runtime/registry.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define TS_LAUNCH_KERNEL __cudaLaunchKernel_ptsz
#else
#define TS_LAUNCH_KERNEL __cudaLaunchKernel
#endif

namespace {

// A kernel handle stands for its function in the current context wherever the driver wants a CUfunction.
CUfunction as_function(CUkernel kernel) {
  return reinterpret_cast<CUfunction>(kernel);
}

// The driver says "invalid value" for everything; the runtime tells a wrong configuration from wrong
// arguments.
cudaError_t launch_error(CUresult result, dim3 grid, dim3 block) {
  if (result != CUDA_ERROR_INVALID_VALUE) return as_error(result);
  int device = 0, max_threads = 1024;
  if (current_device(&device) == cudaSuccess) {
    driver().DeviceGetAttribute(&max_threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
  }
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  const bool bad_grid =
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535;
  const bool bad_block = threads == 0 || threads > uint64_t(max_threads) || block.z > 64;
  return bad_grid || bad_block ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;
}

cudaError_t launch(CUkernel kernel, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                   cudaStream_t stream) {
  return launch_error(driver().LaunchKernel(as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                                            block.z, unsigned(shared_bytes), stream, args, nullptr),
                      grid, block);
}

}  // namespace

extern "C" {

// The compiler turns <<<>>> into this call. A null handle means that the lookup failed and generated code ignored it.
cudaError_t TS_LAUNCH_KERNEL(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                             cudaStream_t stream) {
  return with_context([&] {
    return kernel ? launch(kernel, grid, block, args, shared_bytes, stream) : last_kernel_failure();
  });
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, size_t shared_bytes,
                             cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    CUkernel kernel = nullptr;
    if (const cudaError_t status = find_kernel(function, &kernel)) return status;
    return launch(kernel, grid, block, args, shared_bytes, stream);
  });
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** args,
                                        size_t shared_bytes, cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    CUkernel kernel = nullptr;
    if (const cudaError_t status = find_kernel(function, &kernel)) return status;
    return launch_error(
        driver().LaunchCooperativeKernel(as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y,
                                         block.z, unsigned(shared_bytes), stream, args),
        grid, block);
  });
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** args) {
  static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));
  return with_context([&]() -> cudaError_t {
    if (!config) return cudaErrorInvalidValue;
    CUkernel kernel = nullptr;
    if (const cudaError_t status = find_kernel(function, &kernel)) return status;
    CUlaunchConfig c{};
    c.gridDimX = config->gridDim.x;
    c.gridDimY = config->gridDim.y;
    c.gridDimZ = config->gridDim.z;
    c.blockDimX = config->blockDim.x;
    c.blockDimY = config->blockDim.y;
    c.blockDimZ = config->blockDim.z;
    c.sharedMemBytes = unsigned(config->dynamicSmemBytes);
    c.hStream = config->stream;
    c.attrs = reinterpret_cast<CUlaunchAttribute*>(config->attrs);
    c.numAttrs = config->numAttrs;
    return launch_error(driver().LaunchKernelEx(&c, as_function(kernel), args, nullptr), config->gridDim,
                        config->blockDim);
  });
}

}  // extern "C"
