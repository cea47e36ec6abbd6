// cuDNN's operations on groups of elements: reductions and softmax, a group for each block.
#include "softgpu/libraries/cudnn/handle.h"

namespace tessera::softgpu::cudnn {
namespace {

Dimensions groups_of(cudnnSoftmaxMode_t mode) {
  return mode == CUDNN_SOFTMAX_MODE_CHANNEL ? kAll & ~kChannel : kBatch;
}

cudnnStatus_t softmax(const char* function, cudnnHandle_t handle, Kernel kernel, int algorithm, int mode,
                      const void* alpha, const cudnnTensorStruct* x_tensor, const void* x,
                      const cudnnTensorStruct* dy_tensor, const void* dy, const void* beta,
                      const cudnnTensorStruct* y_tensor, void* y) {
  if (!handle || !alpha || !beta || !x_tensor || !x || !dy_tensor || !dy || !y_tensor || !y ||
      algorithm < CUDNN_SOFTMAX_FAST || algorithm > CUDNN_SOFTMAX_LOG || mode < CUDNN_SOFTMAX_MODE_INSTANCE ||
      mode > CUDNN_SOFTMAX_MODE_CHANNEL)
    return CUDNN_STATUS_BAD_PARAM;
  const auto x_view = view_of(*x_tensor), dy_view = view_of(*dy_tensor), y_view = view_of(*y_tensor);
  if (!x_view || !dy_view || !y_view || x_tensor->type != y_tensor->type || dy_tensor->type != x_tensor->type)
    return not_computed(function);
  if (!same_shape(*x_view, *y_view) || !same_shape(*x_view, *dy_view)) return CUDNN_STATUS_BAD_PARAM;
  const Dimensions groups = groups_of(cudnnSoftmaxMode_t(mode));
  const uint64_t blocks = count_of(*x_view, groups);
  const SoftmaxCall call{.x = x,
                         .dy = dy,
                         .y = y,
                         .x_view = *x_view,
                         .dy_view = *dy_view,
                         .y_view = *y_view,
                         .groups = groups,
                         .algorithm = Softmax(algorithm),
                         .blend = blend_of(alpha, beta),
                         .members = uint32_t(count_of(*x_view) / blocks),
                         .zero_ = 0};
  return launch(handle, kernel, x_tensor->type, blocks, call);
}

bool of_extremes(cudnnReduceTensorOp_t operation) {
  return operation == CUDNN_REDUCE_TENSOR_MIN || operation == CUDNN_REDUCE_TENSOR_MAX ||
         operation == CUDNN_REDUCE_TENSOR_AMAX;
}

}  // namespace
}  // namespace tessera::softgpu::cudnn

using namespace tessera::softgpu::cudnn;

cudnnStatus_t cudnnSoftmaxForward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                  cudnnSoftmaxMode_t mode, const void* alpha,
                                  const cudnnTensorDescriptor_t x_tensor, const void* x, const void* beta,
                                  const cudnnTensorDescriptor_t y_tensor, void* y) {
  return softmax(__func__, handle, Kernel::softmax_forward, algorithm, mode, alpha, x_tensor, x, x_tensor, x,
                 beta, y_tensor, y);
}
cudnnStatus_t cudnnSoftmaxBackward(cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm,
                                   cudnnSoftmaxMode_t mode, const void* alpha,
                                   const cudnnTensorDescriptor_t y_tensor, const void* y,
                                   const cudnnTensorDescriptor_t dy_tensor, const void* dy, const void* beta,
                                   const cudnnTensorDescriptor_t dx_tensor, void* dx) {
  return softmax(__func__, handle, Kernel::softmax_backward, algorithm, mode, alpha, y_tensor, y, dy_tensor,
                 dy, beta, dx_tensor, dx);
}

cudnnStatus_t cudnnReduceTensor(cudnnHandle_t handle, const cudnnReduceTensorDescriptor_t reduction, void*,
                                size_t, void*, size_t, const void* alpha,
                                const cudnnTensorDescriptor_t a_tensor, const void* a, const void* beta,
                                const cudnnTensorDescriptor_t c_tensor, void* c) {
  if (!handle || !reduction || !alpha || !beta || !a_tensor || !a || !c_tensor || !c)
    return CUDNN_STATUS_BAD_PARAM;
  const auto a_view = view_of(*a_tensor), c_view = view_of(*c_tensor);
  const bool nan = reduction->nan == CUDNN_PROPAGATE_NAN && of_extremes(reduction->operation);
  if (!a_view || !c_view || a_tensor->type != c_tensor->type || reduction->compute != CUDNN_DATA_FLOAT ||
      reduction->indices != CUDNN_REDUCE_TENSOR_NO_INDICES || nan)
    return not_computed(__func__);
  Dimensions groups = 0;
  for (int d = 0; d < kDimensions; ++d) {
    if (c_view->dims[d] == a_view->dims[d])
      groups |= 1u << d;
    else if (c_view->dims[d] != 1)
      return CUDNN_STATUS_BAD_PARAM;
  }
  const uint64_t blocks = count_of(*c_view);
  const ReductionCall call{.x = a,
                           .y = c,
                           .x_view = *a_view,
                           .y_view = *c_view,
                           .groups = groups,
                           .operation = Reduction(reduction->operation),
                           .blend = blend_of(alpha, beta),
                           .members = uint32_t(count_of(*a_view) / blocks),
                           .zero_ = 0};
  return launch(handle, Kernel::reduction, a_tensor->type, blocks, call);
}
cudnnStatus_t cudnnGetReductionWorkspaceSize(cudnnHandle_t handle,
                                             const cudnnReduceTensorDescriptor_t reduction,
                                             const cudnnTensorDescriptor_t a, const cudnnTensorDescriptor_t c,
                                             size_t* bytes) {
  return handle && reduction && a && c && bytes ? (*bytes = 0, CUDNN_STATUS_SUCCESS) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t cudnnGetReductionIndicesSize(cudnnHandle_t handle,
                                           const cudnnReduceTensorDescriptor_t reduction,
                                           const cudnnTensorDescriptor_t a, const cudnnTensorDescriptor_t c,
                                           size_t* bytes) {
  return cudnnGetReductionWorkspaceSize(handle, reduction, a, c, bytes);
}
