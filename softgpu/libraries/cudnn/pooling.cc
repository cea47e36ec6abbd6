// Pooling of cuDNN, forward and backward.
#include <algorithm>

#include "softgpu/libraries/cudnn/handle.h"

namespace tessera::softgpu::cudnn {
namespace {

// `result` and its tensor: y forward, dx backward.
cudnnStatus_t pool(const char* function, cudnnHandle_t handle, Kernel kernel,
                   const cudnnPoolingStruct* pooling, const void* alpha, const cudnnTensorStruct* x_tensor,
                   const void* x, const cudnnTensorStruct* y_tensor, const cudnnTensorStruct* dy_tensor,
                   const void* dy, const void* beta, const cudnnTensorStruct* result_tensor, void* result) {
  if (!handle || !pooling || !alpha || !beta || !x_tensor || !x || !y_tensor || !dy_tensor ||
      !result_tensor || !result)
    return CUDNN_STATUS_BAD_PARAM;
  int dims[CUDNN_DIM_MAX];
  const int n = x_tensor->n;
  if (cudnnGetPoolingNdForwardOutputDim(const_cast<cudnnPoolingStruct*>(pooling),
                                        const_cast<cudnnTensorStruct*>(x_tensor), n,
                                        dims) != CUDNN_STATUS_SUCCESS ||
      y_tensor->n != n || !std::equal(dims, dims + n, y_tensor->dims))
    return CUDNN_STATUS_BAD_PARAM;
  const auto x_view = view_of(*x_tensor), y_view = view_of(*y_tensor), dy_view = view_of(*dy_tensor),
             result_view = view_of(*result_tensor);
  if (!x_view || !y_view || !dy_view || !result_view || x_tensor->type != result_tensor->type ||
      y_tensor->type != x_tensor->type || dy_tensor->type != x_tensor->type)
    return not_computed(function);
  if (!same_shape(*y_view, *dy_view)) return CUDNN_STATUS_BAD_PARAM;
  static constexpr Pooling kModes[] = {Pooling::kMax, Pooling::kMeanWithPadding, Pooling::kMeanWithoutPadding,
                                       Pooling::kMax};
  PoolingCall call{.x = x,
                   .dy = dy,
                   .result = result,
                   .x_view = *x_view,
                   .y_view = *y_view,
                   .result_view = *result_view,
                   .dy_view = *dy_view,
                   .window = {1, 1, 1},
                   .pad = {},
                   .stride = {1, 1, 1},
                   .mode = kModes[pooling->mode],
                   .propagate_nan = pooling->nan == CUDNN_PROPAGATE_NAN,
                   .blend = blend_of(alpha, beta),
                   .count = count_of(*result_view)};
  const int shift = kSpace - pooling->n;
  std::copy_n(pooling->window, pooling->n, call.window + shift);
  std::copy_n(pooling->pad, pooling->n, call.pad + shift);
  std::copy_n(pooling->stride, pooling->n, call.stride + shift);
  return launch(handle, kernel, x_tensor->type, blocks_of(call.count), call);
}

}  // namespace
}  // namespace tessera::softgpu::cudnn

using namespace tessera::softgpu::cudnn;

cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling,
                                  const void* alpha, const cudnnTensorDescriptor_t x_tensor, const void* x,
                                  const void* beta, const cudnnTensorDescriptor_t y_tensor, void* y) {
  return pool(__func__, handle, Kernel::pooling_forward, pooling, alpha, x_tensor, x, y_tensor, y_tensor,
              nullptr, beta, y_tensor, y);
}
// The largest element of each window is found again in x.
cudnnStatus_t cudnnPoolingBackward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t pooling,
                                   const void* alpha, const cudnnTensorDescriptor_t y_tensor, const void* y,
                                   const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                   const cudnnTensorDescriptor_t x_tensor, const void* x, const void* beta,
                                   const cudnnTensorDescriptor_t dx_tensor, void* dx) {
  if (!y || !dy) return CUDNN_STATUS_BAD_PARAM;
  if (dx_tensor && x_tensor && !std::equal(x_tensor->dims, x_tensor->dims + CUDNN_DIM_MAX, dx_tensor->dims))
    return CUDNN_STATUS_BAD_PARAM;
  return pool(__func__, handle, Kernel::pooling_backward, pooling, alpha, x_tensor, x, y_tensor, dy_tensor,
              dy, beta, dx_tensor, dx);
}
