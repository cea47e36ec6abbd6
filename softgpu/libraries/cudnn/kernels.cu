// The kernels of the stand-in cuDNN: simple and deterministic. Every element of a result is summed by one thread in a fixed order,
// sums over a group by one block in a fixed tree, so results do not depend on how a launch is cut. Elements are single or half
// precision, sums are single. Compiled to PTX and embedded (libraries/common/driver.cc).
#include <cuda_fp16.h>

#include "softgpu/libraries/cudnn/kernels.h"

using namespace tessera::softgpu::cudnn;

namespace {

__device__ float load(const float* from) {
  return *from;
}
__device__ float load(const __half* from) {
  return __half2float(*from);
}
__device__ void store(float* to, float x) {
  *to = x;
}
__device__ void store(__half* to, float x) {
  *to = __float2half_rn(x);
}

template <class T>
__device__ float at(const void* base, int64_t offset) {
  return load(static_cast<const T*>(base) + offset);
}

template <class T>
__device__ void blend_into(void* base, int64_t offset, const Blend& blend, float value) {
  T* to = static_cast<T*>(base) + offset;
  float result = float(blend.alpha) * value;
  if (blend.beta != 0) result = fmaf(float(blend.beta), load(to), result);
  store(to, result);
}

__device__ uint64_t first_index() {
  return uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}

struct Index {
  int32_t i[kDimensions];
};

__device__ Index index_of(uint32_t number, const View& view) {
  Index index;
#pragma unroll
  for (int d = kDimensions - 1; d >= 0; --d) {
    const uint32_t size = uint32_t(view.dims[d]);
    if (size == 1) {
      index.i[d] = 0;
    } else {
      index.i[d] = int32_t(number % size);
      number /= size;
    }
  }
  return index;
}
__device__ int64_t offset_of(const Index& index, const View& view) {
  int64_t offset = 0;
#pragma unroll
  for (int d = 0; d < kDimensions; ++d) offset += index.i[d] * view.strides[d];
  return offset;
}

// The index of member `member` of group `group`.
__device__ Index member_of(uint32_t group, uint32_t member, const View& view, Dimensions groups) {
  Index index;
#pragma unroll
  for (int d = kDimensions - 1; d >= 0; --d) {
    const uint32_t size = uint32_t(view.dims[d]);
    uint32_t& number = groups >> d & 1 ? group : member;
    if (size == 1) {
      index.i[d] = 0;
    } else {
      index.i[d] = int32_t(number % size);
      number /= size;
    }
  }
  return index;
}

// ---- what a block sums up together: a fixed tree, the result in every thread

template <class Join>
__device__ float join_all(float x, const Join& join) {
  __shared__ float warps[kGroupThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, offset));
  __syncthreads();  // whoever still reads the last result
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = warps[0];
  for (uint32_t w = 1; w < kGroupThreads / 32; ++w) x = join(x, warps[w]);
  return x;
}
__device__ float sum_all(float x) {
  return join_all(x, [](float a, float b) { return a + b; });
}

// ---- activations

__device__ float larger(float a, float b, bool propagate_nan) {
  if (propagate_nan && (isnan(a) || isnan(b))) return NAN;
  return fmaxf(a, b);
}
__device__ float smaller(float a, float b, bool propagate_nan) {
  if (propagate_nan && (isnan(a) || isnan(b))) return NAN;
  return fminf(a, b);
}
__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

__device__ float activate(const ActivationCall& a, float x) {
  const float coefficient = float(a.coefficient);
  switch (a.mode) {
    case Activation::kIdentity:
      return x;
    case Activation::kSigmoid:
      return sigmoid(x);
    case Activation::kRelu:
      return larger(x, 0, a.propagate_nan);
    case Activation::kTanh:
      return tanhf(x);
    case Activation::kClippedRelu:
      return smaller(larger(x, 0, a.propagate_nan), coefficient, a.propagate_nan);
    case Activation::kElu:
      return x > 0 ? x : coefficient * expm1f(x);
    case Activation::kSwish:
      return x * sigmoid(coefficient * x);
  }
  return x;
}
// The derivative of the result by x; y is the result.
__device__ float slope(const ActivationCall& a, float x, float y) {
  const float coefficient = float(a.coefficient);
  switch (a.mode) {
    case Activation::kIdentity:
      return 1;
    case Activation::kSigmoid:
      return y * (1 - y);
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
    case Activation::kTanh:
      return 1 - y * y;
    case Activation::kClippedRelu:
      return x > 0 && x < coefficient ? 1 : 0;
    case Activation::kElu:
      return x > 0 ? 1 : y + coefficient;
    case Activation::kSwish: {
      const float s = sigmoid(coefficient * x);
      return s + coefficient * x * s * (1 - s);
    }
  }
  return 1;
}

// ---- convolutions

// The filter places f of one dimension for which o * stride - pad + f * dilation is inside: [first, end).
__device__ void places(int32_t begin, int32_t size, int32_t window, int32_t dilation, int32_t* first,
                       int32_t* end) {
  *first = begin < 0 ? (-begin + dilation - 1) / dilation : 0;
  *end = begin >= size ? 0 : min(window, (size - 1 - begin) / dilation + 1);
}

template <class T>
__device__ void convolution_forward(const ConvolutionCall& call) {
  const uint64_t number = first_index();
  if (number >= call.count) return;
  const Index y = index_of(uint32_t(number), call.y_view);
  const int32_t channels = call.w_view.dims[1], group = y.i[1] / (call.y_view.dims[1] / call.groups);
  int32_t begin[kSpace], first[kSpace], end[kSpace];
#pragma unroll
  for (int d = 0; d < kSpace; ++d) {
    begin[d] = y.i[d + 2] * call.stride[d] - call.pad[d];
    places(begin[d], call.x_view.dims[d + 2], call.w_view.dims[d + 2], call.dilation[d], &first[d], &end[d]);
  }
  const int64_t x_base = y.i[0] * call.x_view.strides[0] + int64_t(group) * channels * call.x_view.strides[1];
  const int64_t w_base = y.i[1] * call.w_view.strides[0];
  const int64_t x_step = call.dilation[2] * call.x_view.strides[4], w_step = call.w_view.strides[4];
  float sum = 0;
  for (int32_t c = 0; c < channels; ++c)
    for (int32_t f0 = first[0]; f0 < end[0]; ++f0)
      for (int32_t f1 = first[1]; f1 < end[1]; ++f1) {
        const T* x = static_cast<const T*>(call.x) + x_base + c * call.x_view.strides[1] +
                     (begin[0] + f0 * call.dilation[0]) * call.x_view.strides[2] +
                     (begin[1] + f1 * call.dilation[1]) * call.x_view.strides[3] +
                     (begin[2] + first[2] * call.dilation[2]) * call.x_view.strides[4];
        const T* w = static_cast<const T*>(call.w) + w_base + c * call.w_view.strides[1] +
                     f0 * call.w_view.strides[2] + f1 * call.w_view.strides[3] + first[2] * w_step;
        for (int32_t f2 = first[2]; f2 < end[2]; ++f2, x += x_step, w += w_step)
          sum = fmaf(load(x), load(w), sum);
      }
  float value = float(call.blend.alpha) * sum;
  if (call.z) value = fmaf(float(call.z_factor), at<T>(call.z, offset_of(y, call.z_view)), value);
  if (call.bias) value += at<T>(call.bias, y.i[1] * call.bias_view.strides[1]);
  T* to = static_cast<T*>(call.result) + offset_of(y, call.y_view);
  if (call.blend.beta != 0) value = fmaf(float(call.blend.beta), load(to), value);
  store(to, activate(call.activation, value));
}

// The output place o with o * stride = i + pad - f * dilation, if there is one.
__device__ bool output_of(const ConvolutionCall& call, int d, int32_t i, int32_t f, int32_t* o) {
  const int32_t distance = i + call.pad[d] - f * call.dilation[d];
  if (distance < 0 || distance % call.stride[d] != 0) return false;
  *o = distance / call.stride[d];
  return *o < call.y_view.dims[d + 2];
}

template <class T>
__device__ void convolution_data(const ConvolutionCall& call) {
  const uint64_t number = first_index();
  if (number >= call.count) return;
  const Index x = index_of(uint32_t(number), call.x_view);
  const int32_t channels = call.w_view.dims[1], group = x.i[1] / channels, c = x.i[1] % channels;
  const int32_t outputs = call.y_view.dims[1] / call.groups, first = group * outputs;
  const int64_t y_base = x.i[0] * call.y_view.strides[0], w_base = c * call.w_view.strides[1];
  float sum = 0;
  for (int32_t f0 = 0; f0 < call.w_view.dims[2]; ++f0)
    for (int32_t f1 = 0; f1 < call.w_view.dims[3]; ++f1)
      for (int32_t f2 = 0; f2 < call.w_view.dims[4]; ++f2) {
        int32_t o0, o1, o2;
        if (!output_of(call, 0, x.i[2], f0, &o0) || !output_of(call, 1, x.i[3], f1, &o1) ||
            !output_of(call, 2, x.i[4], f2, &o2))
          continue;
        const T* y = static_cast<const T*>(call.y) + y_base + first * call.y_view.strides[1] +
                     o0 * call.y_view.strides[2] + o1 * call.y_view.strides[3] + o2 * call.y_view.strides[4];
        const T* w = static_cast<const T*>(call.w) + w_base + first * call.w_view.strides[0] +
                     f0 * call.w_view.strides[2] + f1 * call.w_view.strides[3] + f2 * call.w_view.strides[4];
        for (int32_t k = 0; k < outputs; ++k, y += call.y_view.strides[1], w += call.w_view.strides[0])
          sum = fmaf(load(y), load(w), sum);
      }
  blend_into<T>(call.result, offset_of(x, call.x_view), call.blend, sum);
}

// The output places o of one dimension for which o * stride + shift is inside: [first, end).
__device__ void outputs_inside(int32_t shift, int32_t size, int32_t n, int32_t stride, int32_t* first,
                               int32_t* end) {
  *first = shift < 0 ? (-shift + stride - 1) / stride : 0;
  *end = shift >= size ? 0 : min(n, (size - 1 - shift) / stride + 1);
}

template <class T>
__device__ void convolution_filter(const ConvolutionCall& call) {
  const uint64_t number = first_index();
  if (number >= call.count) return;
  const Index w = index_of(uint32_t(number), call.w_view);
  const int32_t group = w.i[0] / (call.w_view.dims[0] / call.groups);
  const int32_t channel = group * call.w_view.dims[1] + w.i[1];
  int32_t shift[kSpace], first[kSpace], end[kSpace];
#pragma unroll
  for (int d = 0; d < kSpace; ++d) {
    shift[d] = w.i[d + 2] * call.dilation[d] - call.pad[d];
    outputs_inside(shift[d], call.x_view.dims[d + 2], call.y_view.dims[d + 2], call.stride[d], &first[d],
                   &end[d]);
  }
  const int64_t x_step = call.stride[2] * call.x_view.strides[4], y_step = call.y_view.strides[4];
  float sum = 0;
  for (int32_t n = 0; n < call.x_view.dims[0]; ++n)
    for (int32_t o0 = first[0]; o0 < end[0]; ++o0)
      for (int32_t o1 = first[1]; o1 < end[1]; ++o1) {
        const T* x = static_cast<const T*>(call.x) + n * call.x_view.strides[0] +
                     channel * call.x_view.strides[1] +
                     (o0 * call.stride[0] + shift[0]) * call.x_view.strides[2] +
                     (o1 * call.stride[1] + shift[1]) * call.x_view.strides[3] +
                     (first[2] * call.stride[2] + shift[2]) * call.x_view.strides[4];
        const T* y = static_cast<const T*>(call.y) + n * call.y_view.strides[0] +
                     w.i[0] * call.y_view.strides[1] + o0 * call.y_view.strides[2] +
                     o1 * call.y_view.strides[3] + first[2] * y_step;
        for (int32_t o2 = first[2]; o2 < end[2]; ++o2, x += x_step, y += y_step)
          sum = fmaf(load(x), load(y), sum);
      }
  blend_into<T>(call.result, offset_of(w, call.w_view), call.blend, sum);
}

// ---- element by element

template <class T>
__device__ float combine(const ElementwiseCall& call, const Index& i) {
  const auto a = [&] { return float(call.scale_a) * at<T>(call.a, offset_of(i, call.a_view)); };
  const auto b = [&] { return float(call.scale_b) * at<T>(call.b, offset_of(i, call.b_view)); };
  switch (call.operation) {
    case Elementwise::kCopy:
      return a();
    case Elementwise::kConstant:
      return float(call.scale_a);
    case Elementwise::kActivation:
      return activate(call.activation, a());
    case Elementwise::kActivationBackward:
      return slope(call.activation, a(), b()) * at<T>(call.c, offset_of(i, call.c_view));
    case Elementwise::kAdd:
      return a() + b();
    case Elementwise::kMultiply:
      return a() * b();
    case Elementwise::kLeast:
      return smaller(a(), b(), call.propagate_nan);
    case Elementwise::kLargest:
      return larger(a(), b(), call.propagate_nan);
    case Elementwise::kRoot:
      return sqrtf(a());
    case Elementwise::kNot:
      return 1 - a();
  }
  return 0;
}

template <class T>
__device__ void elementwise(const ElementwiseCall& call) {
  const uint64_t number = first_index();
  if (number >= call.count) return;
  const Index i = index_of(uint32_t(number), call.y_view);
  blend_into<T>(call.y, offset_of(i, call.y_view), call.blend, combine<T>(call, i));
}

// ---- one group for each block

template <class T, class Value>
__device__ float sum_of_group(const View& view, Dimensions groups, uint32_t members, const Value& value) {
  float sum = 0;
  for (uint32_t m = threadIdx.x; m < members; m += kGroupThreads)
    sum += value(member_of(blockIdx.x, m, view, groups));
  return sum_all(sum);
}

__device__ float start_of(Reduction operation) {
  switch (operation) {
    case Reduction::kMultiply:
    case Reduction::kMultiplyNotZero:
      return 1;
    case Reduction::kLeast:
      return INFINITY;
    case Reduction::kLargest:
      return -INFINITY;
    default:
      return 0;
  }
}
__device__ float term_of(Reduction operation, float x) {
  switch (operation) {
    case Reduction::kLargestSize:
    case Reduction::kNorm1:
      return fabsf(x);
    case Reduction::kNorm2:
      return x * x;
    case Reduction::kMultiplyNotZero:
      return x == 0 ? 1 : x;
    default:
      return x;
  }
}
__device__ float joined(Reduction operation, float a, float b) {
  switch (operation) {
    case Reduction::kMultiply:
    case Reduction::kMultiplyNotZero:
      return a * b;
    case Reduction::kLeast:
      return fminf(a, b);
    case Reduction::kLargest:
    case Reduction::kLargestSize:
      return fmaxf(a, b);
    default:
      return a + b;
  }
}

template <class T>
__device__ void reduction(const ReductionCall& call) {
  float x = start_of(call.operation);
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads)
    x = joined(
        call.operation, x,
        term_of(call.operation,
                at<T>(call.x, offset_of(member_of(blockIdx.x, m, call.x_view, call.groups), call.x_view))));
  x = join_all(x, [&](float a, float b) { return joined(call.operation, a, b); });
  if (call.operation == Reduction::kMean) x /= call.members;
  if (call.operation == Reduction::kNorm2) x = sqrtf(x);
  if (threadIdx.x == 0)
    blend_into<T>(call.y, offset_of(member_of(blockIdx.x, 0, call.x_view, call.groups), call.y_view),
                  call.blend, x);
}

template <class T>
__device__ void softmax_forward(const SoftmaxCall& call) {
  const auto x = [&](uint32_t m) {
    return at<T>(call.x, offset_of(member_of(blockIdx.x, m, call.x_view, call.groups), call.x_view));
  };
  float top = 0, sum = 0;
  if (call.algorithm != Softmax::kFast) {
    top = -INFINITY;
    for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads) top = fmaxf(top, x(m));
    top = join_all(top, [](float a, float b) { return fmaxf(a, b); });
  }
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads) sum += expf(x(m) - top);
  sum = sum_all(sum);
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads) {
    const Index i = member_of(blockIdx.x, m, call.x_view, call.groups);
    const float over_top = x(m) - top;
    const float y = call.algorithm == Softmax::kLog ? over_top - logf(sum) : expf(over_top) / sum;
    blend_into<T>(call.y, offset_of(i, call.y_view), call.blend, y);
  }
}

// dx = y (dy - sum of y dy); of the logarithm dx = dy - exp(y) (sum of dy).
template <class T>
__device__ void softmax_backward(const SoftmaxCall& call) {
  const bool log = call.algorithm == Softmax::kLog;
  const auto y = [&](const Index& i) { return at<T>(call.x, offset_of(i, call.x_view)); };
  const auto dy = [&](const Index& i) { return at<T>(call.dy, offset_of(i, call.dy_view)); };
  const float sum = sum_of_group<T>(call.x_view, call.groups, call.members,
                                    [&](const Index& i) { return log ? dy(i) : y(i) * dy(i); });
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads) {
    const Index i = member_of(blockIdx.x, m, call.x_view, call.groups);
    const float dx = log ? dy(i) - expf(y(i)) * sum : y(i) * (dy(i) - sum);
    blend_into<T>(call.y, offset_of(i, call.y_view), call.blend, dx);
  }
}

// ---- pooling

struct Window {
  int32_t first[kSpace], end[kSpace];
};
// The part of output place `y`'s window that lies inside x.
__device__ Window window_of(const PoolingCall& call, const Index& y) {
  Window w;
#pragma unroll
  for (int d = 0; d < kSpace; ++d) {
    const int32_t begin = y.i[d + 2] * call.stride[d] - call.pad[d];
    w.first[d] = max(begin, 0);
    w.end[d] = min(begin + call.window[d], call.x_view.dims[d + 2]);
  }
  return w;
}
__device__ float divisor_of(const PoolingCall& call, const Window& w) {
  int32_t n = 1;
#pragma unroll
  for (int d = 0; d < kSpace; ++d)
    n *= call.mode == Pooling::kMeanWithPadding ? call.window[d] : max(w.end[d] - w.first[d], 0);
  return float(n);
}

// Calls take(value, place) for each element of the window, in their order.
template <class T, class Take>
__device__ void scan(const PoolingCall& call, const Index& y, const Window& w, const Take& take) {
  Index x = y;
  for (x.i[2] = w.first[0]; x.i[2] < w.end[0]; ++x.i[2])
    for (x.i[3] = w.first[1]; x.i[3] < w.end[1]; ++x.i[3])
      for (x.i[4] = w.first[2]; x.i[4] < w.end[2]; ++x.i[4])
        take(at<T>(call.x, offset_of(x, call.x_view)), x);
}

__device__ bool beats(float x, float best, bool any, bool propagate_nan) {
  if (!any) return true;
  if (isnan(best)) return !propagate_nan;
  return x > best || (propagate_nan && isnan(x));
}

template <class T>
__device__ void pooling_forward(const PoolingCall& call) {
  const uint64_t number = first_index();
  if (number >= call.count) return;
  const Index y = index_of(uint32_t(number), call.result_view);
  const Window w = window_of(call, y);
  float value = 0;
  if (call.mode == Pooling::kMax) {
    bool any = false;
    value = -INFINITY;
    scan<T>(call, y, w, [&](float x, const Index&) {
      if (beats(x, value, any, call.propagate_nan)) value = x;
      any = true;
    });
  } else {
    scan<T>(call, y, w, [&](float x, const Index&) { value += x; });
    value /= divisor_of(call, w);
  }
  blend_into<T>(call.result, offset_of(y, call.result_view), call.blend, value);
}

// The value that `place` gets from the window of output place `y`: its share of the mean, or all if it is the first largest.
template <class T>
__device__ float share(const PoolingCall& call, const Index& y, const Index& place) {
  const Window w = window_of(call, y);
  const float dy = at<T>(call.dy, offset_of(y, call.dy_view));
  if (call.mode != Pooling::kMax) return dy / divisor_of(call, w);
  float best = 0;
  bool any = false, mine = false;
  scan<T>(call, y, w, [&](float x, const Index& at_place) {
    if (beats(x, best, any, call.propagate_nan)) {
      best = x;
      mine = at_place.i[2] == place.i[2] && at_place.i[3] == place.i[3] && at_place.i[4] == place.i[4];
    }
    any = true;
  });
  return mine ? dy : 0;
}

template <class T>
__device__ void pooling_backward(const PoolingCall& call) {
  const uint64_t number = first_index();
  if (number >= call.count) return;
  const Index x = index_of(uint32_t(number), call.x_view);
  int32_t first[kSpace], end[kSpace];  // windows that hold x
#pragma unroll
  for (int d = 0; d < kSpace; ++d) {
    const int32_t reach = x.i[d + 2] + call.pad[d] - call.window[d] + 1;
    first[d] = reach <= 0 ? 0 : (reach + call.stride[d] - 1) / call.stride[d];
    end[d] = min((x.i[d + 2] + call.pad[d]) / call.stride[d] + 1, call.y_view.dims[d + 2]);
  }
  Index y = x;
  float sum = 0;
  for (y.i[2] = first[0]; y.i[2] < end[0]; ++y.i[2])
    for (y.i[3] = first[1]; y.i[3] < end[1]; ++y.i[3])
      for (y.i[4] = first[2]; y.i[4] < end[2]; ++y.i[4]) sum += share<T>(call, y, x);
  blend_into<T>(call.result, offset_of(x, call.result_view), call.blend, sum);
}

// ---- batch normalisation

__device__ float averaged(float old, float now, float factor) {
  return old * (1 - factor) + now * factor;
}

template <class T>
__device__ void write_normalised(const NormalisationCall& call, const Index& i, float mean, float inverse) {
  const uint32_t g = blockIdx.x;
  float y = (at<T>(call.x, offset_of(i, call.x_view)) - mean) * inverse * call.scale[g] + call.bias[g];
  if (call.z) y += at<T>(call.z, offset_of(i, call.z_view));
  if (call.rectify) y = fmaxf(y, 0.f);
  blend_into<T>(call.result, offset_of(i, call.result_view), call.blend, y);
}

// Mean and 1/deviation of this block's group.
template <class T>
__device__ void moments(const NormalisationCall& call, float* mean, float* variance) {
  const auto x = [&](const Index& i) { return at<T>(call.x, offset_of(i, call.x_view)); };
  const float m = sum_of_group<T>(call.x_view, call.groups, call.members, x) / call.members;
  *mean = m;
  *variance = sum_of_group<T>(call.x_view, call.groups, call.members,
                              [&](const Index& i) { return (x(i) - m) * (x(i) - m); }) /
              call.members;
}

template <class T>
__device__ void normalise_training(const NormalisationCall& call) {
  const uint32_t g = blockIdx.x;
  float mean, variance;
  moments<T>(call, &mean, &variance);
  const float inverse = rsqrtf(variance + float(call.epsilon));
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads)
    write_normalised<T>(call, member_of(g, m, call.x_view, call.groups), mean, inverse);
  if (threadIdx.x != 0) return;
  if (call.saved_mean) call.saved_mean[g] = mean, call.saved_inverse[g] = inverse;
  if (!call.running_mean) return;
  const float factor = float(call.average_factor), n = float(call.members);
  // The running variance is that of the population, as cuDNN has it.
  const float unbiased = call.members > 1 ? variance * n / (n - 1) : variance;
  call.running_mean[g] = averaged(call.running_mean[g], mean, factor);
  call.running_variance[g] = averaged(call.running_variance[g], unbiased, factor);
}

template <class T>
__device__ void normalise_inference(const NormalisationCall& call) {
  const uint32_t g = blockIdx.x;
  const float inverse = rsqrtf(call.running_variance[g] + float(call.epsilon));
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads)
    write_normalised<T>(call, member_of(g, m, call.x_view, call.groups), call.running_mean[g], inverse);
}

template <class T>
__device__ void normalise_backward(const NormalisationCall& call) {
  const uint32_t g = blockIdx.x;
  float mean, inverse;
  if (call.saved_mean) {
    mean = call.saved_mean[g], inverse = call.saved_inverse[g];
  } else {
    moments<T>(call, &mean, &inverse);
    inverse = rsqrtf(inverse + float(call.epsilon));
  }
  const auto centred = [&](const Index& i) {
    return (at<T>(call.x, offset_of(i, call.x_view)) - mean) * inverse;
  };
  const auto dy = [&](const Index& i) {
    const bool off = call.rectify && !(at<T>(call.y_in, offset_of(i, call.y_in_view)) > 0);
    return off ? 0.f : at<T>(call.dy, offset_of(i, call.dy_view));
  };
  const float sum = sum_of_group<T>(call.x_view, call.groups, call.members, dy);
  const float along = sum_of_group<T>(call.x_view, call.groups, call.members,
                                      [&](const Index& i) { return dy(i) * centred(i); });
  const float n = float(call.members), factor = call.scale[g] * inverse;
  for (uint32_t m = threadIdx.x; m < call.members; m += kGroupThreads) {
    const Index i = member_of(g, m, call.x_view, call.groups);
    const float d = dy(i), dx = factor * (d - sum / n - centred(i) * along / n);
    if (call.dz) store(static_cast<T*>(call.dz) + offset_of(i, call.dz_view), d);
    blend_into<T>(call.result, offset_of(i, call.result_view), call.blend, dx);
  }
  if (threadIdx.x != 0) return;
  blend_into<float>(call.scale_gradient, g, call.parameter_blend, along);
  blend_into<float>(call.bias_gradient, g, call.parameter_blend, sum);
}

}  // namespace

#define TS_KERNEL(name, Call)                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads) name##_f32(const Call call) { \
    name<float>(call);                                                                 \
  }                                                                                    \
  extern "C" __global__ void __launch_bounds__(kThreads) name##_f16(const Call call) { \
    name<__half>(call);                                                                \
  }
TS_KERNEL(convolution_forward, ConvolutionCall)
TS_KERNEL(convolution_data, ConvolutionCall)
TS_KERNEL(convolution_filter, ConvolutionCall)
TS_KERNEL(elementwise, ElementwiseCall)
TS_KERNEL(reduction, ReductionCall)
TS_KERNEL(softmax_forward, SoftmaxCall)
TS_KERNEL(softmax_backward, SoftmaxCall)
TS_KERNEL(pooling_forward, PoolingCall)
TS_KERNEL(pooling_backward, PoolingCall)
TS_KERNEL(normalise_training, NormalisationCall)
TS_KERNEL(normalise_inference, NormalisationCall)
TS_KERNEL(normalise_backward, NormalisationCall)
