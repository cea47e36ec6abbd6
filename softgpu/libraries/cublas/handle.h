// A handle of cuBLAS: a context and the settings of cublasSet*. As in cuBLAS, threads take turns with one.
#pragma once

#include "softgpu/libraries/cublas/context.h"

struct cublasContext : tessera::softgpu::cublas::Context {
  CUstream stream = nullptr;
  void* host_result = nullptr;  // pinned; where a reduction leaves its result in pointer mode HOST
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  int sm_count_target = 0;
  cublasEmulationStrategy_t emulation_strategy = CUBLAS_EMULATION_STRATEGY_DEFAULT;
};

namespace tessera::softgpu::cublas {

// alpha or beta as the handle's pointer mode has it.
inline Scalar scalar(cublasHandle_t handle, const void* value, ScalarType type) {
  return scalar(value, type, handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE);
}

}  // namespace tessera::softgpu::cublas
