// Descriptors of cuDNN: made, set, read back, given back. Which arguments are refused, and how, is what NVIDIA's library answers
// (cuDNN 9.19 without a driver).
#include "softgpu/libraries/cudnn/descriptors.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>

namespace tessera::softgpu::cudnn {

void pack(cudnnTensorFormat_t format, int n, const int* dims, int64_t* strides) {
  const bool channels_last = format == CUDNN_TENSOR_NHWC;
  int64_t step = channels_last ? dims[1] : 1;
  for (int d = n - 1; d >= 0; --d) {
    if (d == 1 && channels_last) {
      strides[d] = 1;
      continue;
    }
    strides[d] = step;
    step *= dims[d];
  }
}

}  // namespace tessera::softgpu::cudnn

using tessera::softgpu::cudnn::pack;

namespace {

constexpr int kMostSpace = CUDNN_DIM_MAX - 2;

template <class T>
cudnnStatus_t create(T** descriptor) {
  if (!descriptor) return CUDNN_STATUS_BAD_PARAM;
  *descriptor = new (std::nothrow) T;
  return *descriptor ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}
template <class T>
cudnnStatus_t destroy(T* descriptor) {
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

template <class T, class Value>
void put(T* to, const Value& value) {
  if (to) *to = value;
}

size_t size_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
    case CUDNN_DATA_COMPLEX_FP32:
      return 8;
    case CUDNN_DATA_COMPLEX_FP64:
      return 16;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
    case CUDNN_DATA_UINT32:
    case CUDNN_DATA_INT8x4:
    case CUDNN_DATA_UINT8x4:
      return 4;
    case CUDNN_DATA_INT8x32:
      return 32;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

// As enumerations are passed by C programs: any number. Types that came later are for graphs only.
bool known(cudnnDataType_t type) {
  return int(type) >= CUDNN_DATA_FLOAT && int(type) <= CUDNN_DATA_BFLOAT16;
}
bool floating(cudnnDataType_t type) {
  return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_DOUBLE || type == CUDNN_DATA_HALF;
}
bool known(cudnnTensorFormat_t format) {
  return int(format) >= CUDNN_TENSOR_NCHW && int(format) <= CUDNN_TENSOR_NCHW_VECT_C;
}

bool all(const int* values, int n, auto test) {
  return std::all_of(values, values + n, test);
}
bool positive(const int* values, int n) {
  return all(values, n, [](int x) { return x > 0; });
}

// Elements from the first to behind the last.
int64_t extent(int n, const int* dims, const int64_t* strides) {
  int64_t last = 0;
  for (int d = 0; d < n; ++d) last += int64_t(dims[d] - 1) * strides[d];
  return last + 1;
}

int64_t extent(const cudnnTensorStruct& x) {
  int64_t strides[CUDNN_DIM_MAX];
  for (int d = 0; d < x.n; ++d) strides[d] = std::abs(int64_t(x.strides[d]));
  return extent(x.n, x.dims, strides);
}

cudnnStatus_t set_tensor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, const int* dims,
                         const int64_t* strides) {
  if (extent(n, dims, strides) > std::numeric_limits<int32_t>::max()) return CUDNN_STATUS_NOT_SUPPORTED;
  *tensor = {.type = type, .n = n};
  std::copy_n(dims, n, tensor->dims);
  std::transform(strides, strides + n, tensor->strides, [](int64_t s) { return int(s); });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
  return create(tensor);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  return destroy(tensor);
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
  return create(filter);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  return destroy(filter);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
  return create(convolution);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return destroy(convolution);
}
cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling) {
  return create(pooling);
}
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) {
  return destroy(pooling);
}
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* activation) {
  return create(activation);
}
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation) {
  return destroy(activation);
}
cudnnStatus_t cudnnCreateOpTensorDescriptor(cudnnOpTensorDescriptor_t* operation) {
  return create(operation);
}
cudnnStatus_t cudnnDestroyOpTensorDescriptor(cudnnOpTensorDescriptor_t operation) {
  return destroy(operation);
}
cudnnStatus_t cudnnCreateReduceTensorDescriptor(cudnnReduceTensorDescriptor_t* reduction) {
  return create(reduction);
}
cudnnStatus_t cudnnDestroyReduceTensorDescriptor(cudnnReduceTensorDescriptor_t reduction) {
  return destroy(reduction);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  const int dims[] = {n, c, h, w};
  return cudnnSetTensorNdDescriptorEx(tensor, format, type, 4, dims);
}
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n, int c,
                                           int h, int w, int n_step, int c_step, int h_step, int w_step) {
  const int dims[] = {n, c, h, w}, strides[] = {n_step, c_step, h_step, w_step};
  return cudnnSetTensorNdDescriptor(tensor, type, 4, dims, strides);
}
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int n,
                                         const int dims[], const int strides[]) {
  if (!tensor || !known(type) || n < 2) return CUDNN_STATUS_BAD_PARAM;
  if (n > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  int64_t wide[CUDNN_DIM_MAX];
  for (int d = 0; d < n; ++d) {
    if (dims[d] <= 0 || (dims[d] > 1 && strides[d] == 0)) return CUDNN_STATUS_BAD_PARAM;
    wide[d] = strides[d];
  }
  return set_tensor(tensor, type, n, dims, wide);
}
cudnnStatus_t cudnnSetTensorNdDescriptorEx(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format,
                                           cudnnDataType_t type, int n, const int dims[]) {
  if (!tensor || !known(type) || !known(format) || n < 2) return CUDNN_STATUS_BAD_PARAM;
  if (n > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!positive(dims, n)) return CUDNN_STATUS_BAD_PARAM;
  if (format == CUDNN_TENSOR_NCHW_VECT_C) return CUDNN_STATUS_NOT_SUPPORTED;
  int64_t strides[CUDNN_DIM_MAX];
  pack(format, n, dims, strides);
  return set_tensor(tensor, type, n, dims, strides);
}

cudnnStatus_t cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t tensor, cudnnDataType_t* type, int* n,
                                         int* c, int* h, int* w, int* n_step, int* c_step, int* h_step,
                                         int* w_step) {
  if (!tensor) return CUDNN_STATUS_BAD_PARAM;
  put(type, tensor->type);
  int* const dims[] = {n, c, h, w};
  int* const strides[] = {n_step, c_step, h_step, w_step};
  for (int d = 0; d < 4; ++d) put(dims[d], tensor->dims[d]), put(strides[d], tensor->strides[d]);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int wanted,
                                         cudnnDataType_t* type, int* n, int dims[], int strides[]) {
  if (!tensor) return CUDNN_STATUS_BAD_PARAM;
  put(type, tensor->type), put(n, tensor->n);
  for (int d = 0; d < std::min(wanted, tensor->n); ++d)
    dims[d] = tensor->dims[d], strides[d] = tensor->strides[d];
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t tensor, size_t* bytes) {
  if (!tensor || !bytes) return CUDNN_STATUS_BAD_PARAM;
  const int64_t elements = tensor->n == 0 ? 0 : extent(*tensor);
  *bytes = size_t(elements) * size_of(tensor->type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  const int dims[] = {k, c, h, w};
  return cudnnSetFilterNdDescriptor(filter, type, format, 4, dims);
}
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int n, const int dims[]) {
  if (!filter || !known(type) || type == CUDNN_DATA_INT32 || !known(format) || n < 3)
    return CUDNN_STATUS_BAD_PARAM;
  if (n > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!positive(dims, n)) return CUDNN_STATUS_BAD_PARAM;
  if (format == CUDNN_TENSOR_NCHW_VECT_C) return CUDNN_STATUS_NOT_SUPPORTED;
  *filter = {.type = type, .format = format, .n = n};
  std::copy_n(dims, n, filter->dims);
  std::fill(filter->dims + n, filter->dims + CUDNN_DIM_MAX, 1);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilter4dDescriptor(const cudnnFilterDescriptor_t filter, cudnnDataType_t* type,
                                         cudnnTensorFormat_t* format, int* k, int* c, int* h, int* w) {
  if (!filter) return CUDNN_STATUS_BAD_PARAM;
  put(type, filter->type), put(format, filter->format);
  int* const dims[] = {k, c, h, w};
  for (int d = 0; d < 4; ++d) put(dims[d], filter->dims[d]);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t filter, int wanted,
                                         cudnnDataType_t* type, cudnnTensorFormat_t* format, int* n,
                                         int dims[]) {
  if (!filter || wanted < 1) return CUDNN_STATUS_BAD_PARAM;
  put(type, filter->type), put(format, filter->format), put(n, filter->n);
  if (wanted > CUDNN_DIM_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  std::copy_n(filter->dims, wanted, dims);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetFilterSizeInBytes(const cudnnFilterDescriptor_t filter, size_t* bytes) {
  if (!filter || !bytes) return CUDNN_STATUS_BAD_PARAM;
  *bytes = filter->n == 0 ? 0 : size_of(filter->type);
  for (int d = 0; d < filter->n; ++d) *bytes *= size_t(filter->dims[d]);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  const int pad[] = {pad_h, pad_w}, stride[] = {stride_h, stride_w}, dilation[] = {dilation_h, dilation_w};
  return cudnnSetConvolutionNdDescriptor(convolution, 2, pad, stride, dilation, mode, compute);
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int n,
                                              const int pad[], const int stride[], const int dilation[],
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  const bool computes = compute == CUDNN_DATA_FLOAT || compute == CUDNN_DATA_DOUBLE ||
                        compute == CUDNN_DATA_HALF || compute == CUDNN_DATA_INT32;
  if (!convolution || n < 0 || int(mode) < 0 || int(mode) > CUDNN_CROSS_CORRELATION || !computes)
    return CUDNN_STATUS_BAD_PARAM;
  if (n > kMostSpace) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!all(pad, n, [](int x) { return x >= 0; }) || !positive(stride, n) || !positive(dilation, n))
    return CUDNN_STATUS_BAD_PARAM;
  convolution->n = n, convolution->mode = mode, convolution->compute = compute;
  std::copy_n(pad, n, convolution->pad);
  std::copy_n(stride, n, convolution->stride);
  std::copy_n(dilation, n, convolution->dilation);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolution2dDescriptor(const cudnnConvolutionDescriptor_t convolution, int* pad_h,
                                              int* pad_w, int* stride_h, int* stride_w, int* dilation_h,
                                              int* dilation_w, cudnnConvolutionMode_t* mode,
                                              cudnnDataType_t* compute) {
  if (!convolution) return CUDNN_STATUS_BAD_PARAM;
  put(pad_h, convolution->pad[0]), put(pad_w, convolution->pad[1]);
  put(stride_h, convolution->stride[0]), put(stride_w, convolution->stride[1]);
  put(dilation_h, convolution->dilation[0]), put(dilation_w, convolution->dilation[1]);
  put(mode, convolution->mode), put(compute, convolution->compute);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionNdDescriptor(const cudnnConvolutionDescriptor_t convolution, int wanted,
                                              int* n, int pad[], int stride[], int dilation[],
                                              cudnnConvolutionMode_t* mode, cudnnDataType_t* compute) {
  if (!convolution || wanted < 0) return CUDNN_STATUS_BAD_PARAM;
  if (wanted > kMostSpace) return CUDNN_STATUS_NOT_SUPPORTED;
  put(n, convolution->n), put(mode, convolution->mode), put(compute, convolution->compute);
  std::copy_n(convolution->pad, wanted, pad);
  std::copy_n(convolution->stride, wanted, stride);
  std::copy_n(convolution->dilation, wanted, dilation);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math) {
  if (!convolution || int(math) < 0 || int(math) > CUDNN_FMA_MATH) return CUDNN_STATUS_BAD_PARAM;
  convolution->math = math;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t* math) {
  if (!convolution || !math) return CUDNN_STATUS_BAD_PARAM;
  *math = convolution->math;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  if (!convolution || groups < 1) return CUDNN_STATUS_BAD_PARAM;
  convolution->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int* groups) {
  if (!convolution || !groups) return CUDNN_STATUS_BAD_PARAM;
  *groups = convolution->groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionReorderType(cudnnConvolutionDescriptor_t convolution,
                                             cudnnReorderType_t reorder) {
  if (!convolution || int(reorder) < 0 || int(reorder) > CUDNN_NO_REORDER) return CUDNN_STATUS_BAD_PARAM;
  convolution->reorder = reorder;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionReorderType(cudnnConvolutionDescriptor_t convolution,
                                             cudnnReorderType_t* reorder) {
  if (!convolution || !reorder) return CUDNN_STATUS_BAD_PARAM;
  *reorder = convolution->reorder;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionNdForwardOutputDim(const cudnnConvolutionDescriptor_t convolution,
                                                    const cudnnTensorDescriptor_t x,
                                                    const cudnnFilterDescriptor_t w, int n, int out[]) {
  if (!convolution || !x || !w || !out || x->n != w->n || x->n != convolution->n + 2 || n < 0 || n > x->n)
    return CUDNN_STATUS_BAD_PARAM;
  if (x->dims[1] != w->dims[1] * convolution->groups) return CUDNN_STATUS_BAD_PARAM;
  int dims[CUDNN_DIM_MAX] = {x->dims[0], w->dims[0]};
  for (int d = 0; d < n - 2; ++d) {  // what is not asked for is not checked
    const int64_t room = int64_t(x->dims[d + 2]) + 2 * int64_t(convolution->pad[d]) -
                         int64_t(w->dims[d + 2] - 1) * convolution->dilation[d] - 1;
    if (room < 0) return CUDNN_STATUS_BAD_PARAM;
    dims[d + 2] = int(room / convolution->stride[d] + 1);
  }
  std::copy_n(dims, std::max(n, 2), out);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t convolution,
                                                    const cudnnTensorDescriptor_t x,
                                                    const cudnnFilterDescriptor_t w, int* n, int* c, int* h,
                                                    int* out_w) {
  int dims[4] = {};
  const cudnnStatus_t status = cudnnGetConvolutionNdForwardOutputDim(convolution, x, w, 4, dims);
  if (status == CUDNN_STATUS_SUCCESS) put(n, dims[0]), put(c, dims[1]), put(h, dims[2]), put(out_w, dims[3]);
  return status;
}

cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int window_h, int window_w, int pad_h,
                                          int pad_w, int stride_h, int stride_w) {
  const int window[] = {window_h, window_w}, pad[] = {pad_h, pad_w}, stride[] = {stride_h, stride_w};
  return cudnnSetPoolingNdDescriptor(pooling, mode, nan, 2, window, pad, stride);
}
cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t pooling, const cudnnPoolingMode_t mode,
                                          const cudnnNanPropagation_t nan, int n, const int window[],
                                          const int pad[], const int stride[]) {
  if (!pooling) return CUDNN_STATUS_BAD_PARAM;
  if (n > kMostSpace) return CUDNN_STATUS_NOT_SUPPORTED;
  if (int(mode) < 0 || int(mode) > CUDNN_POOLING_MAX_DETERMINISTIC || int(nan) < 0 ||
      int(nan) > CUDNN_PROPAGATE_NAN || n < 1)
    return CUDNN_STATUS_BAD_PARAM;
  if (!positive(window, n) || !positive(stride, n)) return CUDNN_STATUS_BAD_PARAM;
  *pooling = {.mode = mode, .nan = nan, .n = n};
  std::copy_n(window, n, pooling->window);
  std::copy_n(pad, n, pooling->pad);
  std::copy_n(stride, n, pooling->stride);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetPooling2dDescriptor(const cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t* mode,
                                          cudnnNanPropagation_t* nan, int* window_h, int* window_w,
                                          int* pad_h, int* pad_w, int* stride_h, int* stride_w) {
  if (!pooling) return CUDNN_STATUS_BAD_PARAM;
  put(mode, pooling->mode), put(nan, pooling->nan);
  put(window_h, pooling->window[0]), put(window_w, pooling->window[1]);
  put(pad_h, pooling->pad[0]), put(pad_w, pooling->pad[1]);
  put(stride_h, pooling->stride[0]), put(stride_w, pooling->stride[1]);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetPoolingNdDescriptor(const cudnnPoolingDescriptor_t pooling, int wanted,
                                          cudnnPoolingMode_t* mode, cudnnNanPropagation_t* nan, int* n,
                                          int window[], int pad[], int stride[]) {
  if (!pooling) return CUDNN_STATUS_BAD_PARAM;
  if (wanted > kMostSpace) return CUDNN_STATUS_NOT_SUPPORTED;
  put(mode, pooling->mode), put(nan, pooling->nan), put(n, pooling->n);
  wanted = std::max(wanted, 0);
  std::copy_n(pooling->window, wanted, window);
  std::copy_n(pooling->pad, wanted, pad);
  std::copy_n(pooling->stride, wanted, stride);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetPoolingNdForwardOutputDim(const cudnnPoolingDescriptor_t pooling,
                                                const cudnnTensorDescriptor_t x, int n, int out[]) {
  if (!pooling || !x || !out || x->n != n || x->n != pooling->n + 2) return CUDNN_STATUS_BAD_PARAM;
  int dims[CUDNN_DIM_MAX] = {x->dims[0], x->dims[1]};
  for (int d = 0; d < pooling->n; ++d) {
    const int64_t room = int64_t(x->dims[d + 2]) + 2 * int64_t(pooling->pad[d]) - pooling->window[d];
    if (room < 0 || room / pooling->stride[d] >= std::numeric_limits<int>::max())
      return CUDNN_STATUS_BAD_PARAM;
    dims[d + 2] = int(room / pooling->stride[d] + 1);
  }
  std::copy_n(dims, n, out);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetPooling2dForwardOutputDim(const cudnnPoolingDescriptor_t pooling,
                                                const cudnnTensorDescriptor_t x, int* n, int* c, int* h,
                                                int* w) {
  int dims[4] = {};
  const cudnnStatus_t status = cudnnGetPoolingNdForwardOutputDim(pooling, x, 4, dims);
  if (status == CUDNN_STATUS_SUCCESS) put(n, dims[0]), put(c, dims[1]), put(h, dims[2]), put(w, dims[3]);
  return status;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t nan, double coefficient) {
  if (!activation || int(mode) < 0 || int(mode) > CUDNN_ACTIVATION_SWISH || int(nan) < 0 ||
      int(nan) > CUDNN_PROPAGATE_NAN)
    return CUDNN_STATUS_BAD_PARAM;
  activation->mode = mode, activation->nan = nan, activation->coefficient = coefficient;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetActivationDescriptor(const cudnnActivationDescriptor_t activation,
                                           cudnnActivationMode_t* mode, cudnnNanPropagation_t* nan,
                                           double* coefficient) {
  if (!activation) return CUDNN_STATUS_BAD_PARAM;
  put(mode, activation->mode), put(nan, activation->nan), put(coefficient, activation->coefficient);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t activation, double beta) {
  if (!activation) return CUDNN_STATUS_BAD_PARAM;
  activation->swish_beta = beta;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetActivationDescriptorSwishBeta(cudnnActivationDescriptor_t activation, double* beta) {
  if (!activation || !beta) return CUDNN_STATUS_BAD_PARAM;
  *beta = activation->swish_beta;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetOpTensorDescriptor(cudnnOpTensorDescriptor_t operation, cudnnOpTensorOp_t kind,
                                         cudnnDataType_t compute, cudnnNanPropagation_t nan) {
  if (!operation || int(kind) < 0 || int(kind) > CUDNN_OP_TENSOR_NOT ||
      (!floating(compute) && compute != CUDNN_DATA_BFLOAT16) || int(nan) < 0 ||
      int(nan) > CUDNN_PROPAGATE_NAN)
    return CUDNN_STATUS_BAD_PARAM;
  *operation = {kind, compute, nan};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetOpTensorDescriptor(const cudnnOpTensorDescriptor_t operation, cudnnOpTensorOp_t* kind,
                                         cudnnDataType_t* compute, cudnnNanPropagation_t* nan) {
  if (!operation) return CUDNN_STATUS_BAD_PARAM;
  put(kind, operation->operation), put(compute, operation->compute), put(nan, operation->nan);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetReduceTensorDescriptor(cudnnReduceTensorDescriptor_t reduction,
                                             cudnnReduceTensorOp_t kind, cudnnDataType_t compute,
                                             cudnnNanPropagation_t nan, cudnnReduceTensorIndices_t indices,
                                             cudnnIndicesType_t type) {
  if (!reduction || int(kind) < 0 || int(kind) > CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS || !floating(compute) ||
      int(nan) < 0 || int(nan) > CUDNN_PROPAGATE_NAN || int(indices) < 0 ||
      int(indices) > CUDNN_REDUCE_TENSOR_FLATTENED_INDICES || int(type) < 0 || int(type) > CUDNN_8BIT_INDICES)
    return CUDNN_STATUS_BAD_PARAM;
  *reduction = {kind, compute, nan, indices, type};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetReduceTensorDescriptor(const cudnnReduceTensorDescriptor_t reduction,
                                             cudnnReduceTensorOp_t* kind, cudnnDataType_t* compute,
                                             cudnnNanPropagation_t* nan, cudnnReduceTensorIndices_t* indices,
                                             cudnnIndicesType_t* type) {
  if (!reduction) return CUDNN_STATUS_BAD_PARAM;
  put(kind, reduction->operation), put(compute, reduction->compute), put(nan, reduction->nan);
  put(indices, reduction->indices), put(type, reduction->indices_type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDeriveBNTensorDescriptor(cudnnTensorDescriptor_t derived, const cudnnTensorDescriptor_t x,
                                            cudnnBatchNormMode_t mode) {
  if (!derived || !x || x->n < 2 || int(mode) < 0 || int(mode) > CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
    return CUDNN_STATUS_BAD_PARAM;
  int dims[CUDNN_DIM_MAX] = {1, x->dims[1]};
  for (int d = 2; d < x->n; ++d) dims[d] = mode == CUDNN_BATCHNORM_PER_ACTIVATION ? x->dims[d] : 1;
  const cudnnDataType_t type = size_of(x->type) <= 2 ? CUDNN_DATA_FLOAT : x->type;
  return cudnnSetTensorNdDescriptorEx(derived, CUDNN_TENSOR_NCHW, type, x->n, dims);
}
