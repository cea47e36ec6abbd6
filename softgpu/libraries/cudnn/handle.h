// A handle of cuDNN, and how its functions launch kernels. As in cuDNN, threads take turns with a handle.
#pragma once

#include <atomic>
#include <optional>

#include "softgpu/libraries/common/context.h"
#include "softgpu/libraries/common/unsupported.h"
#include "softgpu/libraries/cudnn/descriptors.h"

struct cudnnContext : tessera::softgpu::libraries::Context {
  CUstream stream = nullptr;
};

namespace tessera::softgpu::cudnn {

// Each kernel is there for single and, behind it, half precision.
enum class Kernel {
#define TS_KERNEL(name) name, name##_f16,
  TS_CUDNN_KERNELS(TS_KERNEL)
#undef TS_KERNEL
};

template <class Call>
cudnnStatus_t launch(cudnnHandle_t handle, Kernel kernel, cudnnDataType_t type, uint64_t blocks,
                     const Call& call) {
  if (blocks > 0x7fffffff) return CUDNN_STATUS_NOT_SUPPORTED;
  const size_t which = size_t(kernel) + (type == CUDNN_DATA_HALF ? 1 : 0);
  const libraries::Grid grid{uint32_t(blocks), 1, kThreads};
  return libraries::launch_kernel(*handle, handle->stream, which, grid, call) ? CUDNN_STATUS_SUCCESS
                                                                              : CUDNN_STATUS_EXECUTION_FAILED;
}

// Null: of a type or shape that is not computed here.
std::optional<View> view_of(const cudnnTensorStruct& tensor);
std::optional<View> view_of(const cudnnFilterStruct& filter);
uint64_t count_of(const View& view, Dimensions dimensions = kAll);
bool same_shape(const View& a, const View& b);

// The blocks of a kernel with a thread for each element.
inline uint64_t blocks_of(uint64_t elements) {
  return (elements + kThreads - 1) / kThreads;
}

// The factors of single and half precision are single.
inline double factor(const void* value) {
  return *static_cast<const float*>(value);
}
inline Blend blend_of(const void* alpha, const void* beta) {
  return {factor(alpha), factor(beta)};
}
ActivationCall activation_of(const cudnnActivationStruct& activation);

cudnnStatus_t not_computed(const char* function);

}  // namespace tessera::softgpu::cudnn
