// cuDNN's element-wise operations: activations, sums, products and copies of tensors.
#include <cuda_fp16.h>

#include "softgpu/libraries/cudnn/handle.h"

namespace tessera::softgpu::cudnn {
namespace {

// `from` as a tensor of `over`'s shape: a dimension of one stands for all of that dimension.
std::optional<View> spread(const View& from, const View& over) {
  View out = over;
  for (int d = 0; d < kDimensions; ++d) {
    if (from.dims[d] != over.dims[d] && from.dims[d] != 1) return std::nullopt;
    out.strides[d] = from.dims[d] == 1 ? 0 : from.strides[d];
  }
  return out;
}

struct Operand {
  const cudnnTensorStruct* tensor;
  const void* data;
};

// result = alpha * operation(a, b, c) + beta * result. Operands without data take no part.
cudnnStatus_t compute(const char* function, cudnnHandle_t handle, Elementwise operation, const void* alpha,
                      const Operand (&operands)[3], const void* beta, const cudnnTensorStruct* result,
                      void* data, ElementwiseCall call) {
  if (!handle || !result || !data) return CUDNN_STATUS_BAD_PARAM;
  const auto view = view_of(*result);
  if (!view) return not_computed(function);
  View* const views[] = {&call.a_view, &call.b_view, &call.c_view};
  const void** const from[] = {&call.a, &call.b, &call.c};
  for (int i = 0; i < 3; ++i) {
    if (!operands[i].tensor) continue;
    if (!operands[i].data) return CUDNN_STATUS_BAD_PARAM;
    const auto own = view_of(*operands[i].tensor);
    if (!own || operands[i].tensor->type != result->type) return not_computed(function);
    const auto spread_out = spread(*own, *view);
    if (!spread_out) return CUDNN_STATUS_BAD_PARAM;
    *views[i] = *spread_out, *from[i] = operands[i].data;
  }
  call.operation = operation;
  call.y = data, call.y_view = *view, call.count = count_of(*view);
  call.blend = {alpha ? factor(alpha) : 1, beta ? factor(beta) : 0};
  return launch(handle, Kernel::elementwise, result->type, blocks_of(call.count), call);
}

constexpr ElementwiseCall kUnscaled{.scale_a = 1, .scale_b = 1};

}  // namespace
}  // namespace tessera::softgpu::cudnn

using namespace tessera::softgpu::cudnn;

cudnnStatus_t cudnnActivationForward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation,
                                     const void* alpha, const cudnnTensorDescriptor_t x_tensor, const void* x,
                                     const void* beta, const cudnnTensorDescriptor_t y_tensor, void* y) {
  if (!activation || !alpha || !beta || !x_tensor) return CUDNN_STATUS_BAD_PARAM;
  ElementwiseCall call = kUnscaled;
  call.activation = activation_of(*activation);
  return compute(__func__, handle, Elementwise::kActivation, alpha, {{x_tensor, x}}, beta, y_tensor, y, call);
}
cudnnStatus_t cudnnActivationBackward(cudnnHandle_t handle, cudnnActivationDescriptor_t activation,
                                      const void* alpha, const cudnnTensorDescriptor_t y_tensor,
                                      const void* y, const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                      const cudnnTensorDescriptor_t x_tensor, const void* x, const void* beta,
                                      const cudnnTensorDescriptor_t dx_tensor, void* dx) {
  if (!activation || !alpha || !beta || !x_tensor || !y_tensor || !dy_tensor) return CUDNN_STATUS_BAD_PARAM;
  ElementwiseCall call = kUnscaled;
  call.activation = activation_of(*activation);
  return compute(__func__, handle, Elementwise::kActivationBackward, alpha,
                 {{x_tensor, x}, {y_tensor, y}, {dy_tensor, dy}}, beta, dx_tensor, dx, call);
}

cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t a_tensor,
                             const void* a, const void* beta, const cudnnTensorDescriptor_t c_tensor,
                             void* c) {
  if (!alpha || !beta || !a_tensor) return CUDNN_STATUS_BAD_PARAM;
  return compute(__func__, handle, Elementwise::kCopy, alpha, {{a_tensor, a}}, beta, c_tensor, c, kUnscaled);
}
cudnnStatus_t cudnnTransformTensor(cudnnHandle_t handle, const void* alpha,
                                   const cudnnTensorDescriptor_t x_tensor, const void* x, const void* beta,
                                   const cudnnTensorDescriptor_t y_tensor, void* y) {
  if (!alpha || !beta || !x_tensor) return CUDNN_STATUS_BAD_PARAM;
  return compute(__func__, handle, Elementwise::kCopy, alpha, {{x_tensor, x}}, beta, y_tensor, y, kUnscaled);
}
cudnnStatus_t cudnnScaleTensor(cudnnHandle_t handle, const cudnnTensorDescriptor_t tensor, void* y,
                               const void* alpha) {
  if (!alpha || !tensor) return CUDNN_STATUS_BAD_PARAM;
  return compute(__func__, handle, Elementwise::kCopy, alpha, {{tensor, y}}, nullptr, tensor, y, kUnscaled);
}
// The value has the tensor's type.
cudnnStatus_t cudnnSetTensor(cudnnHandle_t handle, const cudnnTensorDescriptor_t tensor, void* y,
                             const void* value) {
  if (!value || !tensor) return CUDNN_STATUS_BAD_PARAM;
  ElementwiseCall call = kUnscaled;
  call.scale_a =
      tensor->type == CUDNN_DATA_HALF ? __half2float(*static_cast<const __half*>(value)) : factor(value);
  return compute(__func__, handle, Elementwise::kConstant, nullptr, {}, nullptr, tensor, y, call);
}

cudnnStatus_t cudnnOpTensor(cudnnHandle_t handle, const cudnnOpTensorDescriptor_t operation,
                            const void* alpha_a, const cudnnTensorDescriptor_t a_tensor, const void* a,
                            const void* alpha_b, const cudnnTensorDescriptor_t b_tensor, const void* b,
                            const void* beta, const cudnnTensorDescriptor_t c_tensor, void* c) {
  static constexpr Elementwise kOperations[] = {Elementwise::kAdd,   Elementwise::kMultiply,
                                                Elementwise::kLeast, Elementwise::kLargest,
                                                Elementwise::kRoot,  Elementwise::kNot};
  const bool of_two = operation && operation->operation != CUDNN_OP_TENSOR_SQRT &&
                      operation->operation != CUDNN_OP_TENSOR_NOT;
  if (!operation || !alpha_a || !beta || !a_tensor || (of_two && (!alpha_b || !b_tensor)))
    return CUDNN_STATUS_BAD_PARAM;
  if (operation->compute != CUDNN_DATA_FLOAT) return not_computed(__func__);
  ElementwiseCall call = kUnscaled;
  call.scale_a = factor(alpha_a);
  if (of_two) call.scale_b = factor(alpha_b);
  call.propagate_nan = operation->nan == CUDNN_PROPAGATE_NAN;
  return compute(__func__, handle, kOperations[operation->operation], nullptr,
                 {{a_tensor, a}, of_two ? Operand{b_tensor, b} : Operand{}}, beta, c_tensor, c, call);
}
