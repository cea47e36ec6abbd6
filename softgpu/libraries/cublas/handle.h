// A handle of cuBLAS and how its calls reach the GPU. A handle belongs to the context that was current when it was made; as in
// cuBLAS, threads take turns with one.
#pragma once

#include <cublas_api.h>
#include <cuda.h>

#include <memory>
#include <utility>

#include "softgpu/libraries/cublas/driver.h"
#include "softgpu/libraries/cublas/kernels.h"

struct cublasContext {
  CUcontext context = nullptr;
  std::shared_ptr<tessera::softgpu::cublas::Kernels> kernels;
  CUstream stream = nullptr;
  void* host_result = nullptr;  // pinned; where a reduction leaves its result in pointer mode HOST
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  int sm_count_target = 0;
  cublasEmulationStrategy_t emulation_strategy = CUBLAS_EMULATION_STRATEGY_DEFAULT;
};

namespace tessera::softgpu::cublas {

// The handle's context is current while this lives.
class CurrentContext {
 public:
  explicit CurrentContext(CUcontext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  bool pushed_ = false;
};

// One launch on the handle's stream with `call`, the kernel's only argument.
template <class Call>
cublasStatus_t launch(cublasHandle_t handle, Kernel kernel, uint32_t blocks, uint32_t blocks_y,
                      uint32_t threads, const Call& call) {
  const CurrentContext current(handle->context);
  void* arguments[] = {const_cast<Call*>(&call)};
  const CUresult result = driver().LaunchKernel(handle->kernels->functions[size_t(kernel)], blocks, blocks_y,
                                                1, threads, 1, 1, 0, handle->stream, arguments, nullptr);
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// alpha or beta as the handle's pointer mode has it.
Scalar scalar(cublasHandle_t handle, const void* value, ScalarType type);

}  // namespace tessera::softgpu::cublas
