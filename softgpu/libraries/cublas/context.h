// What the handles of cuBLAS and cuBLASLt share: the context that was current when a handle was made, its kernels, and how a
// launch reaches them. Any thread.
#pragma once

#include <cublas_api.h>
#include <cuda.h>

#include <memory>

#include "softgpu/libraries/cublas/driver.h"
#include "softgpu/libraries/cublas/kernels.h"

namespace tessera::softgpu::cublas {

// The beginning of both kinds of handle: a cublasHandle_t may be given to cuBLASLt.
struct Context {
  CUcontext context = nullptr;
  std::shared_ptr<Kernels> kernels;
};

// Of the calling thread; a thread without one gets the first device's primary context.
cublasStatus_t open(Context* context);

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

// One launch with `call`, the kernel's only argument.
template <class Call>
cublasStatus_t launch(const Context& context, CUstream stream, Kernel kernel, const Grid& grid,
                      const Call& call) {
  const CurrentContext current(context.context);
  void* arguments[] = {const_cast<Call*>(&call)};
  const CUresult result = driver().LaunchKernel(context.kernels->functions[size_t(kernel)], grid.x, grid.y, 1,
                                                grid.threads, 1, 1, 0, stream, arguments, nullptr);
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// alpha or beta, read now or (on_device) by the kernel.
Scalar scalar(const void* value, ScalarType type, bool on_device);

const char* status_name(cublasStatus_t status);
const char* status_text(cublasStatus_t status);
cublasStatus_t library_property(libraryPropertyType type, int* value);

}  // namespace tessera::softgpu::cublas
