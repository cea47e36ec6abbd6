// The interface of host and kernels in the stand-in cuDNN: the one argument of each kernel, by value, and the list of
// kernels. Included by the host files and by kernels.cu; plain data, nothing is owned.
#pragma once

#include <cstdint>

namespace tessera::softgpu::cudnn {

inline constexpr int kDimensions = 5;  // n, c, and three of space; tensors of fewer have ones
inline constexpr int kSpace = 3;

// Element (i0 .. i4) lies at the sum of i * stride. Strides may be zero: one element for all.
struct View {
  int32_t dims[kDimensions];
  int32_t zero_;
  int64_t strides[kDimensions];  // elements
};

// result = alpha * value + beta * what was there; beta 0: what was there is not read.
struct Blend {
  double alpha, beta;
};

enum class Activation : uint32_t { kIdentity, kSigmoid, kRelu, kTanh, kClippedRelu, kElu, kSwish };
struct ActivationCall {
  Activation mode;
  uint32_t propagate_nan;  // of the rectifiers
  double coefficient;      // ceiling, alpha or beta of the mode
};

// All three convolutions of y[n,k,o] = sum of x[n,c,i] w[k,c,f] with i = o * stride - pad + f * dilation. The filter is the first
// of its group at `w`; a flipped one (true convolution) has negative strides.
struct ConvolutionCall {
  const void* x;
  const void* w;
  const void* y;
  void* result;                 // y, x or w: what is computed
  View x_view, w_view, y_view;  // w: k, c of a group, f
  int32_t pad[kSpace], stride[kSpace], dilation[kSpace];
  int32_t groups;
  Blend blend;
  uint64_t count;  // elements of the result
  // Forward only: activation(... + z_factor * z + bias).
  const void* z;
  const void* bias;
  View z_view, bias_view;
  double z_factor;
  ActivationCall activation;
};

// One kind of arithmetic on each element of y, from up to three others of its shape (or with strides of zero).
enum class Elementwise : uint32_t {
  kCopy,                // a
  kConstant,            // scale_a
  kActivation,          // of a
  kActivationBackward,  // a is x, b is y, c is dy
  kAdd,
  kMultiply,
  kLeast,
  kLargest,
  kRoot,
  kNot,  // of scale_a * a and scale_b * b
};
struct ElementwiseCall {
  const void* a;
  const void* b;
  const void* c;
  void* y;
  View a_view, b_view, c_view, y_view;
  double scale_a, scale_b;
  Blend blend;
  ActivationCall activation;
  Elementwise operation;
  uint32_t propagate_nan;
  uint64_t count;
};

// Dimensions by bits: those of a set tell groups apart, the rest counts a group's members.
using Dimensions = uint32_t;
inline constexpr Dimensions kBatch = 1u << 0, kChannel = 1u << 1, kAll = (1u << kDimensions) - 1;

// As cudnnReduceTensorOp_t numbers them.
enum class Reduction : uint32_t {
  kAdd,
  kMultiply,
  kLeast,
  kLargest,
  kLargestSize,
  kMean,
  kNorm1,
  kNorm2,
  kMultiplyNotZero
};
// One result for each group of x.
struct ReductionCall {
  const void* x;
  void* y;
  View x_view, y_view;
  Dimensions groups;
  Reduction operation;
  Blend blend;
  uint32_t members;
  uint32_t zero_;
};

// As cudnnSoftmaxAlgorithm_t numbers them.
enum class Softmax : uint32_t { kFast, kAccurate, kLog };
struct SoftmaxCall {
  const void* x;  // backward: y
  const void* dy;
  void* y;  // backward: dx
  View x_view, dy_view, y_view;
  Dimensions groups;
  Softmax algorithm;
  Blend blend;
  uint32_t members;
  uint32_t zero_;
};

enum class Pooling : uint32_t { kMax, kMeanWithPadding, kMeanWithoutPadding };
struct PoolingCall {
  const void* x;
  const void* dy;  // backward only
  void* result;    // y or dx
  View x_view, y_view, result_view;
  View dy_view;
  int32_t window[kSpace], pad[kSpace], stride[kSpace];
  Pooling mode;
  uint32_t propagate_nan;
  Blend blend;
  uint64_t count;
};

// Batch normalisation; scale, bias, means and variances have one element for each group, packed, in single precision.
struct NormalisationCall {
  const void* x;
  const void* dy;    // backward only
  const void* y_in;  // backward through an activation: the forward pass's result
  const void* z;     // added before the activation; may be null
  void* result;      // y or dx
  void* dz;          // backward; may be null
  View x_view, dy_view, y_in_view, z_view, result_view, dz_view;
  const float* scale;
  const float* bias;
  float* running_mean;  // training: may be null; inference: read
  float* running_variance;
  float* saved_mean;  // training: written, backward: read; may be null
  float* saved_inverse;
  float* scale_gradient;
  float* bias_gradient;
  double average_factor, epsilon;
  Blend blend, parameter_blend;
  Dimensions groups;
  uint32_t members;
  uint32_t rectify;  // y = max(0, ...)
  uint32_t zero_;
};

inline constexpr uint32_t kThreads = 128;       // of kernels with one element for each thread
inline constexpr uint32_t kGroupThreads = 128;  // of kernels with one group for each block

}  // namespace tessera::softgpu::cudnn

// clang-format off
// Every kernel of kernels.cu, each for both types of elements.
#define TS_CUDNN_KERNELS(X)                                                                                    \
  X(convolution_forward) X(convolution_data) X(convolution_filter) X(elementwise) X(reduction)                  \
  X(softmax_forward) X(softmax_backward) X(pooling_forward) X(pooling_backward)                                 \
  X(normalise_training) X(normalise_inference) X(normalise_backward)
// clang-format on
