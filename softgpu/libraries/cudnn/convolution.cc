// Convolutions of cuDNN, forward and both ways back, with the one algorithm that is offered for each.
#include <algorithm>

#include "softgpu/libraries/cudnn/handle.h"

namespace tessera::softgpu::cudnn {
namespace {

enum class What { kForward, kData, kFilter };

// Derives a call from the descriptors; x, w and y are told apart by their place in the convolution, whichever is computed.
cudnnStatus_t prepare(const char* function, const cudnnTensorStruct* x, const cudnnFilterStruct* w,
                      const cudnnConvolutionStruct* convolution, const cudnnTensorStruct* y,
                      ConvolutionCall* call) {
  if (!x || !w || !convolution || !y) return CUDNN_STATUS_BAD_PARAM;
  int dims[CUDNN_DIM_MAX];
  if (cudnnGetConvolutionNdForwardOutputDim(
          const_cast<cudnnConvolutionStruct*>(convolution), const_cast<cudnnTensorStruct*>(x),
          const_cast<cudnnFilterStruct*>(w), x->n, dims) != CUDNN_STATUS_SUCCESS ||
      y->n != x->n || !std::equal(dims, dims + x->n, y->dims) || y->dims[1] % convolution->groups != 0 ||
      x->dims[1] != w->dims[1] * convolution->groups)
    return CUDNN_STATUS_BAD_PARAM;
  const auto x_view = view_of(*x), w_view = view_of(*w), y_view = view_of(*y);
  if (!x_view || !w_view || !y_view || x->type != w->type || y->type != x->type ||
      (convolution->compute != CUDNN_DATA_FLOAT && convolution->compute != CUDNN_DATA_HALF))
    return not_computed(function);
  *call = {};
  call->x_view = *x_view, call->w_view = *w_view, call->y_view = *y_view;
  const int shift = kSpace - convolution->n;
  std::fill(call->stride, call->stride + kSpace, 1);
  std::fill(call->dilation, call->dilation + kSpace, 1);
  std::copy_n(convolution->pad, convolution->n, call->pad + shift);
  std::copy_n(convolution->stride, convolution->n, call->stride + shift);
  std::copy_n(convolution->dilation, convolution->n, call->dilation + shift);
  call->groups = convolution->groups;
  return CUDNN_STATUS_SUCCESS;
}

// A true convolution reads its filter from the end: the first element, and steps back.
int64_t flip(View* w) {
  int64_t last = 0;
  for (int d = 2; d < kDimensions; ++d) {
    last += (w->dims[d] - 1) * w->strides[d];
    w->strides[d] = -w->strides[d];
  }
  return last;
}

const void* moved(const void* base, int64_t elements, cudnnDataType_t type) {
  return static_cast<const char*>(base) + elements * (type == CUDNN_DATA_HALF ? 2 : 4);
}

// Operations that may follow a convolution; null pointers: there is none.
struct Behind {
  const void* z;
  const void* bias;
  View z_view, bias_view;
  double z_factor;
  ActivationCall activation;
};

cudnnStatus_t convolve(const char* function, What what, cudnnHandle_t handle, const void* alpha,
                       const void* beta, const cudnnTensorStruct* x_tensor, const void* x,
                       const cudnnFilterStruct* w_filter, const void* w,
                       const cudnnConvolutionStruct* convolution, const cudnnTensorStruct* y_tensor,
                       const void* y, const Behind& behind = {}) {
  if (!handle || !alpha || !beta || !x || !w || !y) return CUDNN_STATUS_BAD_PARAM;
  ConvolutionCall call;
  if (const auto status = prepare(function, x_tensor, w_filter, convolution, y_tensor, &call);
      status != CUDNN_STATUS_SUCCESS)
    return status;
  if (convolution->mode == CUDNN_CONVOLUTION) w = moved(w, flip(&call.w_view), w_filter->type);
  if (behind.z && !same_shape(behind.z_view, call.y_view)) return CUDNN_STATUS_BAD_PARAM;
  call.x = x, call.w = w, call.y = y;
  call.z = behind.z, call.z_view = behind.z_view, call.z_factor = behind.z_factor;
  call.bias = behind.bias, call.bias_view = behind.bias_view, call.activation = behind.activation;
  call.blend = blend_of(alpha, beta);
  static constexpr Kernel kKernels[] = {Kernel::convolution_forward, Kernel::convolution_data,
                                        Kernel::convolution_filter};
  const View& computed = what == What::kForward ? call.y_view
                         : what == What::kData  ? call.x_view
                                                : call.w_view;
  call.result = const_cast<void*>(what == What::kForward ? y : what == What::kData ? x : w);
  call.count = count_of(computed);
  return launch(handle, kKernels[int(what)], x_tensor->type, blocks_of(call.count), call);
}

// The only algorithm: no workspace, always the same bits.
template <class Perf, class Algorithm>
cudnnStatus_t offer(cudnnStatus_t status, Algorithm algorithm, int wanted, int* n, Perf* found) {
  if (wanted < 1 || !n || !found) return CUDNN_STATUS_BAD_PARAM;
  *n = 0;
  if (status != CUDNN_STATUS_SUCCESS) return status;
  *n = 1;
  found[0] = {};
  found[0].algo = algorithm;
  found[0].time = -1;
  found[0].determinism = CUDNN_DETERMINISTIC;
  found[0].mathType = CUDNN_DEFAULT_MATH;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check(const char* function, cudnnHandle_t handle, const cudnnTensorStruct* x,
                    const cudnnFilterStruct* w, const cudnnConvolutionStruct* convolution,
                    const cudnnTensorStruct* y) {
  ConvolutionCall unused;
  return handle ? prepare(function, x, w, convolution, y, &unused) : CUDNN_STATUS_BAD_PARAM;
}
cudnnStatus_t no_workspace(cudnnStatus_t status, size_t* bytes) {
  if (!bytes) return CUDNN_STATUS_BAD_PARAM;
  if (status == CUDNN_STATUS_SUCCESS) *bytes = 0;
  return status;
}
cudnnStatus_t one_algorithm(cudnnHandle_t handle, int* count) {
  if (!handle || !count) return CUDNN_STATUS_BAD_PARAM;
  *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace tessera::softgpu::cudnn

using namespace tessera::softgpu::cudnn;

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x_tensor, const void* x,
                                      const cudnnFilterDescriptor_t w_filter, const void* w,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t, void*, size_t, const void* beta,
                                      const cudnnTensorDescriptor_t y_tensor, void* y) {
  return convolve(__func__, What::kForward, handle, alpha, beta, x_tensor, x, w_filter, w, convolution,
                  y_tensor, y);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_filter, const void* w,
                                           const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t, void*, size_t, const void* beta,
                                           const cudnnTensorDescriptor_t dx_tensor, void* dx) {
  return convolve(__func__, What::kData, handle, alpha, beta, dx_tensor, dx, w_filter, w, convolution,
                  dy_tensor, dy);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_tensor, const void* x,
                                             const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t, void*, size_t, const void* beta,
                                             const cudnnFilterDescriptor_t dw_filter, void* dw) {
  return convolve(__func__, What::kFilter, handle, alpha, beta, x_tensor, x, dw_filter, dw, convolution,
                  dy_tensor, dy);
}

cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                           const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                           const void* beta, const cudnnTensorDescriptor_t db_tensor,
                                           void* db) {
  if (!handle || !alpha || !beta || !dy_tensor || !dy || !db_tensor || !db || db_tensor->n < 2 ||
      db_tensor->dims[1] != dy_tensor->dims[1])
    return CUDNN_STATUS_BAD_PARAM;
  const auto dy_view = view_of(*dy_tensor), db_view = view_of(*db_tensor);
  if (!dy_view || !db_view || dy_tensor->type != db_tensor->type) return not_computed(__func__);
  const uint32_t channels = uint32_t(dy_view->dims[1]);
  const ReductionCall call{.x = dy,
                           .y = db,
                           .x_view = *dy_view,
                           .y_view = *db_view,
                           .groups = kChannel,
                           .operation = Reduction::kAdd,
                           .blend = blend_of(alpha, beta),
                           .members = uint32_t(count_of(*dy_view)) / channels,
                           .zero_ = 0};
  return launch(handle, Kernel::reduction, dy_tensor->type, channels, call);
}

// y = activation(alpha * convolution(x, w) + z_factor * z + bias).
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_tensor, const void* x,
    const cudnnFilterDescriptor_t w_filter, const void* w, const cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t, void*, size_t, const void* z_factor, const cudnnTensorDescriptor_t z_tensor,
    const void* z, const cudnnTensorDescriptor_t bias_tensor, const void* bias,
    const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t y_tensor, void* y) {
  if (!z_factor || !z_tensor || !z || !bias_tensor || !bias || !activation || bias_tensor->n < 2 ||
      !y_tensor || bias_tensor->dims[1] != y_tensor->dims[1])
    return CUDNN_STATUS_BAD_PARAM;
  const auto z_view = view_of(*z_tensor), bias_view = view_of(*bias_tensor);
  if (!z_view || !bias_view || z_tensor->type != y_tensor->type || bias_tensor->type != y_tensor->type)
    return not_computed(__func__);
  const Behind behind{z, bias, *z_view, *bias_view, factor(z_factor), activation_of(*activation)};
  const float nothing = 0;
  return convolve(__func__, What::kForward, handle, alpha, &nothing, x_tensor, x, w_filter, w, convolution,
                  y_tensor, y, behind);
}

#define TS_ALGORITHMS(Name, Perf, Algorithm, best, first, FirstDescriptor, second, SecondDescriptor, third,  \
                      ThirdDescriptor, x, w, y)                                                              \
  cudnnStatus_t cudnnGetConvolution##Name##AlgorithmMaxCount(cudnnHandle_t handle, int* count) {             \
    return one_algorithm(handle, count);                                                                     \
  }                                                                                                          \
  cudnnStatus_t cudnnGetConvolution##Name##Algorithm_v7(                                                     \
      cudnnHandle_t handle, const FirstDescriptor first, const SecondDescriptor second,                      \
      const cudnnConvolutionDescriptor_t convolution, const ThirdDescriptor third, const int wanted, int* n, \
      Perf* found) {                                                                                         \
    return offer(check(__func__, handle, x, w, convolution, y), best, wanted, n, found);                     \
  }                                                                                                          \
  cudnnStatus_t cudnnFindConvolution##Name##Algorithm(                                                       \
      cudnnHandle_t handle, const FirstDescriptor first, const SecondDescriptor second,                      \
      const cudnnConvolutionDescriptor_t convolution, const ThirdDescriptor third, const int wanted, int* n, \
      Perf* found) {                                                                                         \
    return offer(check(__func__, handle, x, w, convolution, y), best, wanted, n, found);                     \
  }                                                                                                          \
  cudnnStatus_t cudnnGetConvolution##Name##WorkspaceSize(                                                    \
      cudnnHandle_t handle, const FirstDescriptor first, const SecondDescriptor second,                      \
      const cudnnConvolutionDescriptor_t convolution, const ThirdDescriptor third, Algorithm,                \
      size_t* bytes) {                                                                                       \
    return no_workspace(check(__func__, handle, x, w, convolution, y), bytes);                               \
  }
TS_ALGORITHMS(Forward, cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t,
              CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, x, cudnnTensorDescriptor_t, w,
              cudnnFilterDescriptor_t, y, cudnnTensorDescriptor_t, x, w, y)
TS_ALGORITHMS(BackwardData, cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t,
              CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, w, cudnnFilterDescriptor_t, dy, cudnnTensorDescriptor_t, dx,
              cudnnTensorDescriptor_t, dx, w, dy)
TS_ALGORITHMS(BackwardFilter, cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t,
              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, x, cudnnTensorDescriptor_t, dy, cudnnTensorDescriptor_t,
              dw, cudnnFilterDescriptor_t, x, dw, dy)
