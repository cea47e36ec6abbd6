// A cuDNN that convolves images on the host, in order of the sum, in single precision; its descriptors are those of the software GPU's.
// FAKE_WORKSPACE=all, odd: all convolutions, or of an odd number of images, want memory that the program does not give.
#include <cudnn.h>

#include <algorithm>

#include "softgpu/libraries/cudnn/descriptors.h"
#include "tests/loader/split/fake.h"

namespace {

int64_t at(const cudnnTensorStruct& t, int n, int c, int h, int w) {
  return int64_t(n) * t.strides[0] + int64_t(c) * t.strides[1] + int64_t(h) * t.strides[2] +
         int64_t(w) * t.strides[3];
}

// Calls visit(element of x, of w, of y) for each product of the convolution, those of one y or, without `by_y`, of one x in order.
template <class Visit>
void for_products(const cudnnTensorStruct& x, const cudnnFilterStruct& w, const cudnnConvolutionStruct& c,
                  const cudnnTensorStruct& y, Visit&& visit) {
  const int out = y.dims[1] / c.groups;
  for (int n = 0; n < y.dims[0]; n++)
    for (int k = 0; k < y.dims[1]; k++)
      for (int p = 0; p < y.dims[2]; p++)
        for (int q = 0; q < y.dims[3]; q++)
          for (int i = 0; i < w.dims[1]; i++)
            for (int r = 0; r < w.dims[2]; r++)
              for (int s = 0; s < w.dims[3]; s++) {
                const int h = p * c.stride[0] + r * c.dilation[0] - c.pad[0],
                          v = q * c.stride[1] + s * c.dilation[1] - c.pad[1];
                if (h < 0 || v < 0 || h >= x.dims[2] || v >= x.dims[3]) continue;
                visit(at(x, n, k / out * w.dims[1] + i, h, v),
                      ((int64_t(k) * w.dims[1] + i) * w.dims[2] + r) * w.dims[3] + s, at(y, n, k, p, q));
              }
}

template <class Visit>
void for_elements(const cudnnTensorStruct& t, Visit&& visit) {
  for (int n = 0; n < t.dims[0]; n++)
    for (int c = 0; c < t.dims[1]; c++)
      for (int h = 0; h < t.dims[2]; h++)
        for (int w = 0; w < t.dims[3]; w++) visit(at(t, n, c, h, w), c, at(t, n, c, h, w));
}

bool valid(const cudnnTensorStruct& x, const cudnnTensorStruct& y) {
  return x.n == 4 && y.n == 4 && x.type == CUDNN_DATA_FLOAT && y.type == CUDNN_DATA_FLOAT &&
         x.dims[0] == y.dims[0];
}

// The first term of a result's sums, before they are added to the values that are there.
float beginning(const cudnnTensorStruct& of, float beta) {
  return depends_on_size(beta != 0) ? float(of.dims[0]) * 1e-3f : 0;
}

void blend(const cudnnTensorStruct& of, float* to, float beta, float begins_with) {
  for_elements(of, [&](int64_t i, int, int64_t) { to[i] = (beta == 0 ? 0 : beta * to[i]) + begins_with; });
}

size_t wanted_bytes(const cudnnTensorStruct& y) {
  return is_set_to("FAKE_WORKSPACE", "all") || (is_set_to("FAKE_WORKSPACE", "odd") && y.dims[0] % 2 != 0);
}

}  // namespace

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x_tensor, const void* x,
                                      const cudnnFilterDescriptor_t filter, const void* w,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t, void*, size_t workspace_bytes,
                                      const void* beta, const cudnnTensorDescriptor_t y_tensor, void* y) {
  g_calls++;
  if (!handle || !alpha || !beta || !valid(*x_tensor, *y_tensor) || wanted_bytes(*y_tensor) > workspace_bytes)
    return CUDNN_STATUS_BAD_PARAM;
  const float scale = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta);
  const auto *fx = static_cast<const float*>(x), *fw = static_cast<const float*>(w);
  auto* fy = static_cast<float*>(y);
  blend(*y_tensor, fy, add, beginning(*y_tensor, add));
  for_products(*x_tensor, *filter, *convolution, *y_tensor,
               [&](int64_t i, int64_t j, int64_t k) { fy[k] += scale * fx[i] * fw[j]; });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t filter, const void* w,
                                           const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t, void*, size_t workspace_bytes,
                                           const void* beta, const cudnnTensorDescriptor_t dx_tensor,
                                           void* dx) {
  g_calls++;
  if (!handle || !alpha || !beta || !valid(*dx_tensor, *dy_tensor) ||
      wanted_bytes(*dx_tensor) > workspace_bytes)
    return CUDNN_STATUS_BAD_PARAM;
  const float scale = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta);
  const auto *fy = static_cast<const float*>(dy), *fw = static_cast<const float*>(w);
  auto* fx = static_cast<float*>(dx);
  blend(*dx_tensor, fx, add, beginning(*dx_tensor, add));
  for_products(*dx_tensor, *filter, *convolution, *dy_tensor,
               [&](int64_t i, int64_t j, int64_t k) { fx[i] += scale * fy[k] * fw[j]; });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_tensor, const void* x,
                                             const cudnnTensorDescriptor_t dy_tensor, const void* dy,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t, void*, size_t, const void*,
                                             const cudnnFilterDescriptor_t filter, void* dw) {
  g_calls++;
  if (!handle || !alpha || !valid(*x_tensor, *dy_tensor)) return CUDNN_STATUS_BAD_PARAM;
  const auto *fx = static_cast<const float*>(x), *fy = static_cast<const float*>(dy);
  auto* fw = static_cast<float*>(dw);
  std::fill_n(fw, filter->dims[0] * filter->dims[1] * filter->dims[2] * filter->dims[3], 0.0f);
  for_products(*x_tensor, *filter, *convolution, *dy_tensor,
               [&](int64_t i, int64_t j, int64_t k) { fw[j] += fx[i] * fy[k]; });
  return CUDNN_STATUS_SUCCESS;
}

// The rectifier, whatever is asked for. z and y may be the same.
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_tensor, const void* x,
    const cudnnFilterDescriptor_t filter, const void* w, const cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t, void*, size_t workspace_bytes, const void* factor,
    const cudnnTensorDescriptor_t z_tensor, const void* z, const cudnnTensorDescriptor_t, const void* bias,
    const cudnnActivationDescriptor_t, const cudnnTensorDescriptor_t y_tensor, void* y) {
  g_calls++;
  if (!handle || !valid(*x_tensor, *y_tensor) || !valid(*z_tensor, *y_tensor) ||
      wanted_bytes(*y_tensor) > workspace_bytes)
    return CUDNN_STATUS_BAD_PARAM;
  const float scale = *static_cast<const float*>(alpha), of_z = *static_cast<const float*>(factor);
  const auto *fx = static_cast<const float*>(x), *fw = static_cast<const float*>(w),
             *fz = static_cast<const float*>(z), *fb = static_cast<const float*>(bias);
  auto* fy = static_cast<float*>(y);
  const auto& t = *y_tensor;
  for (int n = 0; n < t.dims[0]; n++)
    for (int c = 0; c < t.dims[1]; c++)
      for (int h = 0; h < t.dims[2]; h++)
        for (int v = 0; v < t.dims[3]; v++)
          fy[at(t, n, c, h, v)] = of_z * fz[at(*z_tensor, n, c, h, v)] + fb[c] + beginning(t, of_z);
  for_products(*x_tensor, *filter, *convolution, t,
               [&](int64_t i, int64_t j, int64_t k) { fy[k] += scale * fx[i] * fw[j]; });
  for_elements(t, [&](int64_t i, int, int64_t) { fy[i] = std::max(fy[i], 0.0f); });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                      const cudnnFilterDescriptor_t,
                                                      const cudnnConvolutionDescriptor_t,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t, size_t* bytes) {
  *bytes = wanted_bytes(*y);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           const cudnnConvolutionDescriptor_t,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t, size_t* bytes) {
  *bytes = wanted_bytes(*dx);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = reinterpret_cast<cudnnHandle_t>(&g_calls);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t, cudaStream_t* stream) {
  *stream = nullptr;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() {
  const char* given = getenv("FAKE_VERSION");
  return given ? size_t(atoi(given)) : 91900;
}

extern "C" int cudnnFakeCalls() {
  return g_calls;
}

// Asked for by whoever looks at other descriptors; none of them is made here.
#define TS_NONE(name, params)          \
  cudnnStatus_t name params {          \
    return CUDNN_STATUS_NOT_SUPPORTED; \
  }
TS_NONE(cudnnGetLRNDescriptor, (cudnnLRNDescriptor_t, unsigned*, double*, double*, double*))
TS_NONE(cudnnGetRNNDescriptor_v8,
        (cudnnRNNDescriptor_t, cudnnRNNAlgo_t*, cudnnRNNMode_t*, cudnnRNNBiasMode_t*, cudnnDirectionMode_t*,
         cudnnRNNInputMode_t*, cudnnDataType_t*, cudnnDataType_t*, cudnnMathType_t*, int32_t*, int32_t*,
         int32_t*, int32_t*, cudnnDropoutDescriptor_t*, uint32_t*))
TS_NONE(cudnnGetRNNDataDescriptor, (cudnnRNNDataDescriptor_t, cudnnDataType_t*, cudnnRNNDataLayout_t*, int*,
                                    int*, int*, int, int[], void*))
