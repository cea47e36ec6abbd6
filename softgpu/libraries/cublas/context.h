// The common part of cuBLAS and cuBLASLt on top of libraries/common: their kernels, statuses, factors. Any thread.
#pragma once

#include <cublas_api.h>
#include <cuda.h>

#include "softgpu/libraries/common/context.h"
#include "softgpu/libraries/common/unsupported.h"
#include "softgpu/libraries/cublas/kernels.h"

namespace tessera::softgpu::cublas {

using libraries::CurrentContext;
using libraries::driver;
using libraries::Grid;
using libraries::load_driver;
using libraries::not_supported;

enum class Kernel {
#define TS_KERNEL(name) name,
  TS_CUBLAS_KERNELS(TS_KERNEL)
#undef TS_KERNEL
};

// The beginning of both kinds of handle: a cublasHandle_t may be given to cuBLASLt.
struct Context : libraries::Context {};

cublasStatus_t open(Context* context);

// One launch with `call`, the kernel's only argument.
template <class Call>
cublasStatus_t launch(const Context& context, CUstream stream, Kernel kernel, const Grid& grid,
                      const Call& call) {
  return libraries::launch_kernel(context, stream, size_t(kernel), grid, call)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}

// alpha or beta, read now or (on_device) by the kernel.
Scalar scalar(const void* value, ScalarType type, bool on_device);

const char* status_name(cublasStatus_t status);
const char* status_text(cublasStatus_t status);
cublasStatus_t library_property(libraryPropertyType type, int* value);

}  // namespace tessera::softgpu::cublas
