// Batch normalisation of cuDNN: training, inference and backward, also with an addition and a rectifier behind it.
#include <algorithm>

#include "softgpu/libraries/cudnn/handle.h"

namespace tessera::softgpu::cudnn {
namespace {

struct Part {
  const cudnnTensorStruct* tensor;
  const void* data;
  View* view;
};

// Whatever every form has: the mode, x, and the tensors of its shape that take part; `parameters` describes scale, bias and
// statistics.
cudnnStatus_t prepare(const char* function, cudnnHandle_t handle, int mode, const cudnnTensorStruct* x_tensor,
                      std::initializer_list<Part> parts, const cudnnTensorStruct* parameters, double epsilon,
                      NormalisationCall* call, uint64_t* blocks) {
  if (!handle || !x_tensor || !parameters || mode < CUDNN_BATCHNORM_PER_ACTIVATION ||
      mode > CUDNN_BATCHNORM_SPATIAL_PERSISTENT || epsilon < CUDNN_BN_MIN_EPSILON)
    return CUDNN_STATUS_BAD_PARAM;
  cudnnTensorStruct derived;
  if (cudnnDeriveBNTensorDescriptor(&derived, const_cast<cudnnTensorStruct*>(x_tensor),
                                    cudnnBatchNormMode_t(mode)) != CUDNN_STATUS_SUCCESS ||
      derived.n != parameters->n || !std::equal(derived.dims, derived.dims + derived.n, parameters->dims))
    return CUDNN_STATUS_BAD_PARAM;
  const auto x_view = view_of(*x_tensor);
  if (!x_view || parameters->type != CUDNN_DATA_FLOAT) return not_computed(function);
  for (const Part& part : parts) {
    if (!part.tensor || !part.data) return CUDNN_STATUS_BAD_PARAM;
    const auto view = view_of(*part.tensor);
    if (!view || part.tensor->type != x_tensor->type) return not_computed(function);
    if (!same_shape(*view, *x_view)) return CUDNN_STATUS_BAD_PARAM;
    *part.view = *view;
  }
  call->groups = mode == CUDNN_BATCHNORM_PER_ACTIVATION ? kAll & ~kBatch : kChannel;
  *blocks = count_of(*x_view, call->groups);
  call->members = uint32_t(count_of(*x_view) / *blocks);
  call->epsilon = epsilon;
  return CUDNN_STATUS_SUCCESS;
}

const float* floats(const void* data) {
  return static_cast<const float*>(data);
}
float* floats(void* data) {
  return static_cast<float*>(data);
}

// Reads the operation that follows a normalisation: none, a rectifier, or a rectifier of a sum.
cudnnStatus_t read_operations(const char* function, int operations, const cudnnActivationStruct* activation,
                              bool* adds, uint32_t* rectifies) {
  *adds = operations == CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION;
  *rectifies = operations != CUDNN_BATCHNORM_OPS_BN;
  if (operations < CUDNN_BATCHNORM_OPS_BN || operations > CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION ||
      (*rectifies && !activation))
    return CUDNN_STATUS_BAD_PARAM;
  return *rectifies && activation->mode != CUDNN_ACTIVATION_RELU ? not_computed(function)
                                                                 : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t none(size_t* bytes) {
  return bytes ? (*bytes = 0, CUDNN_STATUS_SUCCESS) : CUDNN_STATUS_BAD_PARAM;
}

}  // namespace
}  // namespace tessera::softgpu::cudnn

using namespace tessera::softgpu::cudnn;

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const void* alpha,
    const void* beta, const cudnnTensorDescriptor_t x_tensor, const void* x,
    const cudnnTensorDescriptor_t z_tensor, const void* z, const cudnnTensorDescriptor_t y_tensor, void* y,
    const cudnnTensorDescriptor_t parameters, const void* scale, const void* bias, double average_factor,
    void* running_mean, void* running_variance, double epsilon, void* saved_mean, void* saved_inverse,
    cudnnActivationDescriptor_t activation, void*, size_t, void*, size_t) {
  NormalisationCall call{};
  bool adds;
  if (const auto status = read_operations(__func__, operations, activation, &adds, &call.rectify);
      status != CUDNN_STATUS_SUCCESS)
    return status;
  if (!alpha || !beta || !scale || !bias || !running_mean != !running_variance ||
      !saved_mean != !saved_inverse)
    return CUDNN_STATUS_BAD_PARAM;
  uint64_t blocks;
  const auto status = prepare(__func__, handle, mode, x_tensor,
                              {{x_tensor, x, &call.x_view},
                               {y_tensor, y, &call.result_view},
                               adds ? Part{z_tensor, z, &call.z_view} : Part{x_tensor, x, &call.z_view}},
                              parameters, epsilon, &call, &blocks);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  call.x = x, call.z = adds ? z : nullptr, call.result = y;
  call.scale = floats(scale), call.bias = floats(bias);
  call.running_mean = floats(running_mean), call.running_variance = floats(running_variance);
  call.saved_mean = floats(saved_mean), call.saved_inverse = floats(saved_inverse);
  call.average_factor = average_factor;
  call.blend = blend_of(alpha, beta);
  return launch(handle, Kernel::normalise_training, x_tensor->type, blocks, call);
}
cudnnStatus_t cudnnBatchNormalizationForwardTraining(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
    const cudnnTensorDescriptor_t x_tensor, const void* x, const cudnnTensorDescriptor_t y_tensor, void* y,
    const cudnnTensorDescriptor_t parameters, const void* scale, const void* bias, double average_factor,
    void* running_mean, void* running_variance, double epsilon, void* saved_mean, void* saved_inverse) {
  return cudnnBatchNormalizationForwardTrainingEx(handle, mode, CUDNN_BATCHNORM_OPS_BN, alpha, beta, x_tensor,
                                                  x, nullptr, nullptr, y_tensor, y, parameters, scale, bias,
                                                  average_factor, running_mean, running_variance, epsilon,
                                                  saved_mean, saved_inverse, nullptr, nullptr, 0, nullptr, 0);
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                                      const void* alpha, const void* beta,
                                                      const cudnnTensorDescriptor_t x_tensor, const void* x,
                                                      const cudnnTensorDescriptor_t y_tensor, void* y,
                                                      const cudnnTensorDescriptor_t parameters,
                                                      const void* scale, const void* bias, const void* mean,
                                                      const void* variance, double epsilon) {
  if (!alpha || !beta || !scale || !bias || !mean || !variance) return CUDNN_STATUS_BAD_PARAM;
  NormalisationCall call{};
  uint64_t blocks;
  const auto status = prepare(__func__, handle, mode, x_tensor,
                              {{x_tensor, x, &call.x_view}, {y_tensor, y, &call.result_view}}, parameters,
                              epsilon, &call, &blocks);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  call.x = x, call.result = y;
  call.scale = floats(scale), call.bias = floats(bias);
  call.running_mean = const_cast<float*>(floats(mean));  // read only
  call.running_variance = const_cast<float*>(floats(variance));
  call.blend = blend_of(alpha, beta);
  return launch(handle, Kernel::normalise_inference, x_tensor->type, blocks, call);
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t operations, const void* alpha,
    const void* beta, const void* parameter_alpha, const void* parameter_beta,
    const cudnnTensorDescriptor_t x_tensor, const void* x, const cudnnTensorDescriptor_t y_tensor,
    const void* y, const cudnnTensorDescriptor_t dy_tensor, const void* dy,
    const cudnnTensorDescriptor_t dz_tensor, void* dz, const cudnnTensorDescriptor_t dx_tensor, void* dx,
    const cudnnTensorDescriptor_t parameters, const void* scale, const void* bias, void* scale_gradient,
    void* bias_gradient, double epsilon, const void* saved_mean, const void* saved_inverse,
    cudnnActivationDescriptor_t activation, void*, size_t, void*, size_t) {
  NormalisationCall call{};
  bool adds;
  if (const auto status = read_operations(__func__, operations, activation, &adds, &call.rectify);
      status != CUDNN_STATUS_SUCCESS)
    return status;
  if (!alpha || !beta || !parameter_alpha || !parameter_beta || !scale || !scale_gradient || !bias_gradient ||
      (call.rectify && !bias) || !saved_mean != !saved_inverse)
    return CUDNN_STATUS_BAD_PARAM;
  uint64_t blocks;
  const Part own{x_tensor, x, &call.x_view};
  const auto status = prepare(__func__, handle, mode, x_tensor,
                              {own,
                               {dy_tensor, dy, &call.dy_view},
                               {dx_tensor, dx, &call.result_view},
                               call.rectify ? Part{y_tensor, y, &call.y_in_view} : own,
                               adds ? Part{dz_tensor, dz, &call.dz_view} : own},
                              parameters, epsilon, &call, &blocks);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  call.x = x, call.dy = dy, call.y_in = y, call.result = dx, call.dz = adds ? dz : nullptr;
  call.scale = floats(scale);
  call.saved_mean = const_cast<float*>(floats(saved_mean));  // read only
  call.saved_inverse = const_cast<float*>(floats(saved_inverse));
  call.scale_gradient = floats(scale_gradient), call.bias_gradient = floats(bias_gradient);
  call.blend = blend_of(alpha, beta), call.parameter_blend = blend_of(parameter_alpha, parameter_beta);
  return launch(handle, Kernel::normalise_backward, x_tensor->type, blocks, call);
}
cudnnStatus_t cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t mode,
                                              const void* alpha, const void* beta,
                                              const void* parameter_alpha, const void* parameter_beta,
                                              const cudnnTensorDescriptor_t x_tensor, const void* x,
                                              const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                              const cudnnTensorDescriptor_t dx_tensor, void* dx,
                                              const cudnnTensorDescriptor_t parameters, const void* scale,
                                              void* scale_gradient, void* bias_gradient, double epsilon,
                                              const void* saved_mean, const void* saved_inverse) {
  return cudnnBatchNormalizationBackwardEx(
      handle, mode, CUDNN_BATCHNORM_OPS_BN, alpha, beta, parameter_alpha, parameter_beta, x_tensor, x,
      nullptr, nullptr, dy_tensor, dy, nullptr, nullptr, dx_tensor, dx, parameters, scale, nullptr,
      scale_gradient, bias_gradient, epsilon, saved_mean, saved_inverse, nullptr, nullptr, 0, nullptr, 0);
}

// Nothing is kept between the passes, and nothing needs room beside them.
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t* bytes) {
  return none(bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t,
    size_t* bytes) {
  return none(bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                   cudnnBatchNormOps_t,
                                                                   const cudnnActivationDescriptor_t,
                                                                   const cudnnTensorDescriptor_t,
                                                                   size_t* bytes) {
  return none(bytes);
}
