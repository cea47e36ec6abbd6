// Random convolutions of cuDNN, in all three directions, each three times with a wait in between; prints status and bits of all that
// they may write.
//   program_cudnn SEED CONVOLUTIONS    results on standard output, how often the library was asked on standard error
//   program_cudnn uncut                convolutions that must stay whole
#include <cudnn.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <optional>

#include "tests/loader/split/program.h"

extern "C" int cudnnFakeCalls();

namespace {

int g_handle = 0;
cudnnHandle_t handle() {
  return reinterpret_cast<cudnnHandle_t>(&g_handle);
}
bool coin() {
  return in(0, 1) == 1;
}

enum class Order { kChannelsFirst, kChannelsLast, kRowsApart };

// Images in memory of their own, maybe with something between them.
struct Images {
  Images(int n, int c, int h, int w, Order order, int between) : dims{n, c, h, w} {
    const int apart = order == Order::kRowsApart ? w + 3 : w;
    strides = order == Order::kChannelsLast ? std::array{0, 1, w * c, c} : std::array{0, h * apart, apart, 1};
    strides[0] = c * h * apart + between;
    cudnnCreateTensorDescriptor(&tensor);
    if (cudnnSetTensorNdDescriptor(tensor, CUDNN_DATA_FLOAT, 4, dims.data(), strides.data()) != 0) abort();
    memory.emplace(int64_t(n) * strides[0]);
  }
  ~Images() { cudnnDestroyTensorDescriptor(tensor); }
  Images(const Images&) = delete;
  float* data() const { return memory->data(); }
  std::array<int, 4> dims, strides;
  cudnnTensorDescriptor_t tensor = nullptr;
  std::optional<Memory<float>> memory;
};

struct Sizes {
  int n, in, out, size, window, groups, stride;
  int result() const { return (size + 2 * (window / 2) - window) / stride + 1; }
};
Sizes random_sizes() {
  Sizes s{int(in(1, 20)), int(in(1, 3)), int(in(1, 3)), int(in(3, 8)),
          int(in(1, 3)),  int(in(1, 2)), int(in(1, 2))};
  s.in *= s.groups, s.out *= s.groups;
  return s;
}

struct Layer {
  explicit Layer(const Sizes& s)
      : filter_elements(s.out * s.in / s.groups * s.window * s.window), w(filter_elements), bias(s.out) {
    cudnnCreateFilterDescriptor(&filter);
    cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, s.out, s.in / s.groups, s.window,
                               s.window);
    cudnnCreateConvolutionDescriptor(&convolution);
    const int pad = s.window / 2;
    cudnnSetConvolution2dDescriptor(convolution, pad, pad, s.stride, s.stride, 1, 1, CUDNN_CROSS_CORRELATION,
                                    CUDNN_DATA_FLOAT);
    cudnnSetConvolutionGroupCount(convolution, s.groups);
    cudnnCreateActivationDescriptor(&activation);
    cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0);
    cudnnCreateTensorDescriptor(&bias_tensor);
    cudnnSetTensor4dDescriptor(bias_tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, s.out, 1, 1);
  }
  ~Layer() {
    cudnnDestroyFilterDescriptor(filter);
    cudnnDestroyConvolutionDescriptor(convolution);
    cudnnDestroyActivationDescriptor(activation);
    cudnnDestroyTensorDescriptor(bias_tensor);
  }
  Layer(const Layer&) = delete;

  int forward(const Images& x, const Images& y, float alpha, float beta) const {
    return cudnnConvolutionForward(handle(), &alpha, x.tensor, x.data(), filter, w.data(), convolution,
                                   CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &beta, y.tensor,
                                   y.data());
  }
  int data_gradient(const Images& dy, const Images& dx, float alpha, float beta) const {
    return cudnnConvolutionBackwardData(handle(), &alpha, filter, w.data(), dy.tensor, dy.data(), convolution,
                                        CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, nullptr, 0, &beta, dx.tensor,
                                        dx.data());
  }
  int filter_gradient(const Images& x, const Images& dy) const {
    const float one = 1, zero = 0;
    return cudnnConvolutionBackwardFilter(handle(), &one, x.tensor, x.data(), dy.tensor, dy.data(),
                                          convolution, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, nullptr, 0, &zero,
                                          filter, w.data());
  }
  int activated(const Images& x, const Images& z, const float* z_data, const Images& y, float alpha,
                float factor) const {
    return cudnnConvolutionBiasActivationForward(
        handle(), &alpha, x.tensor, x.data(), filter, w.data(), convolution,
        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, nullptr, 0, &factor, z.tensor, z_data, bias_tensor,
        bias.data(), activation, y.tensor, y.data());
  }

  int64_t filter_elements;
  Memory<float> w, bias;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  cudnnActivationDescriptor_t activation = nullptr;
  cudnnTensorDescriptor_t bias_tensor = nullptr;
};

template <class Call>
void three_times(const char* name, const Sizes& s, const Memory<float>& result, Call&& call) {
  for (int i = 0; i < 3; i++) {
    const int status = call();
    wait_for_gpu();
    printf("%s %d of %dx%dx%d -> %d %d %016lx\n", name, s.n, s.in, s.size, s.size, s.out, status,
           result.bits());
  }
}

void one_of_each() {
  const Sizes s = random_sizes();
  const Layer layer(s);
  const auto order = [] { return Order(in(0, 2)); };
  const auto packed = [] { return Order(in(0, 1)); };
  float alpha, beta = 0;
  random_value(alpha);
  if (coin()) random_value(beta);
  const auto between = [] { return coin() ? int(in(0, 9)) : 0; };
  const int out = s.result();
  // Braces: random numbers are drawn in this order by every compiler.
  const Images x{s.n, s.in, s.size, s.size, order(), between()}, y{s.n, s.out, out, out, packed(), between()},
      z{s.n, s.out, out, out, order(), between()};
  three_times("forward", s, *y.memory, [&] { return layer.forward(x, y, alpha, beta); });
  const bool in_place = coin();
  three_times("activated", s, *y.memory, [&] {
    return layer.activated(x, in_place ? y : z, in_place ? y.data() : z.data(), y, alpha, beta);
  });
  const Images dx{s.n, s.in, s.size, s.size, packed(), between()};
  three_times("data", s, *dx.memory, [&] { return layer.data_gradient(z, dx, alpha, beta); });
  three_times("filter", s, layer.w, [&] { return layer.filter_gradient(x, z); });
}

template <class Call>
void whole(Call&& call) {
  const int before = cudnnFakeCalls();
  call();
  wait_for_gpu();
  printf("%d\n", cudnnFakeCalls() - before);
}

void uncut() {
  const Sizes s{16, 2, 2, 8, 3, 1, 1};
  const Layer layer(s);
  const Images x(s.n, s.in, 8, 8, Order::kChannelsFirst, 0), apart(s.n, s.out, 8, 8, Order::kRowsApart, 0),
      y(s.n, s.out, 8, 8, Order::kChannelsFirst, 0), z(s.n, s.out, 8, 8, Order::kChannelsLast, 0),
      x1(1, s.in, 8, 8, Order::kChannelsFirst, 0), y1(1, s.out, 8, 8, Order::kChannelsFirst, 0);
  whole([&] { layer.filter_gradient(x, y); });               // a sum over images
  whole([&] { layer.forward(x, apart, 1, 0); });             // something lies between elements of the result
  whole([&] { layer.forward(x1, y1, 1, 0); });               // one image
  whole([&] { layer.activated(x, z, y.data(), y, 1, 1); });  // z is y in another order
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "uncut") == 0) {
    uncut();
  } else if (argc == 3) {
    g_random.seed(strtoull(argv[1], nullptr, 10));
    for (int i = 0; i < atoi(argv[2]); i++) one_of_each();
  } else {
    return 2;
  }
  report(cudnnFakeCalls());
}
