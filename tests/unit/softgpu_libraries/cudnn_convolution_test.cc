// Convolutions of the software GPU's cuDNN against direct loops on the host: random shapes, paddings, strides, dilations, groups,
// layouts, modes and factors, forward and both ways back.
#include <cudnn.h>

#include "tests/unit/softgpu_libraries/support.h"

namespace tessera::test {
namespace {

constexpr int kSpace = 2, kCases = 60;

struct Case {
  int n, c, k, groups, in[kSpace], window[kSpace], pad[kSpace], stride[kSpace], dilation[kSpace], out[kSpace];
  cudnnTensorFormat_t x_format, w_format, y_format;
  cudnnConvolutionMode_t mode;
  float alpha, beta;
};

Case any_case(Random& random) {
  Case s{};
  s.groups = between(random, 1, 3);
  s.n = between(random, 1, 3), s.c = s.groups * between(random, 1, 3), s.k = s.groups * between(random, 1, 3);
  for (int d = 0; d < kSpace; ++d) {
    s.window[d] = between(random, 1, 3), s.dilation[d] = between(random, 1, 2);
    s.pad[d] = between(random, 0, 2), s.stride[d] = between(random, 1, 3);
    s.in[d] = (s.window[d] - 1) * s.dilation[d] + 1 + between(random, 0, 6);
    s.out[d] = (s.in[d] + 2 * s.pad[d] - (s.window[d] - 1) * s.dilation[d] - 1) / s.stride[d] + 1;
  }
  const auto format = [&] { return cudnnTensorFormat_t(between(random, 0, 1)); };
  s.x_format = format(), s.w_format = format(), s.y_format = format();
  s.mode = cudnnConvolutionMode_t(between(random, 0, 1));
  s.alpha = any<float>(random), s.beta = between(random, 0, 1) ? any<float>(random) : 0;
  return s;
}

size_t place(cudnnTensorFormat_t format, int channels, const int* size, int n, int c, int i, int j) {
  return format == CUDNN_TENSOR_NCHW ? size_t(((n * channels + c) * size[0] + i) * size[1] + j)
                                     : size_t(((n * size[0] + i) * size[1] + j) * channels + c);
}

// Calls at(x, w, y) for each product of the convolution.
template <class At>
void each_product(const Case& s, const At& at) {
  const int inputs = s.c / s.groups, outputs = s.k / s.groups;
  for (int n = 0; n < s.n; ++n)
    for (int k = 0; k < s.k; ++k)
      for (int c = 0; c < inputs; ++c)
        for (int p = 0; p < s.out[0]; ++p)
          for (int q = 0; q < s.out[1]; ++q)
            for (int r = 0; r < s.window[0]; ++r)
              for (int t = 0; t < s.window[1]; ++t) {
                const int i = p * s.stride[0] - s.pad[0] + r * s.dilation[0];
                const int j = q * s.stride[1] - s.pad[1] + t * s.dilation[1];
                if (i < 0 || j < 0 || i >= s.in[0] || j >= s.in[1]) continue;
                const bool flipped = s.mode == CUDNN_CONVOLUTION;
                at(place(s.x_format, s.c, s.in, n, k / outputs * inputs + c, i, j),
                   place(s.w_format, inputs, s.window, k, c, flipped ? s.window[0] - 1 - r : r,
                         flipped ? s.window[1] - 1 - t : t),
                   place(s.y_format, s.k, s.out, n, k, p, q));
              }
}

class Cudnn : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
    cudnnCreateTensorDescriptor(&x_), cudnnCreateTensorDescriptor(&y_);
    cudnnCreateFilterDescriptor(&w_), cudnnCreateConvolutionDescriptor(&convolution_);
  }
  void TearDown() override {
    cudnnDestroyTensorDescriptor(x_), cudnnDestroyTensorDescriptor(y_);
    cudnnDestroyFilterDescriptor(w_), cudnnDestroyConvolutionDescriptor(convolution_);
    EXPECT_EQ(cudnnDestroy(handle_), CUDNN_STATUS_SUCCESS);
  }
  template <class T>
  void describe(const Case& s) {
    const auto type = std::is_same_v<T, float> ? CUDNN_DATA_FLOAT : CUDNN_DATA_HALF;
    ASSERT_EQ(cudnnSetTensor4dDescriptor(x_, s.x_format, type, s.n, s.c, s.in[0], s.in[1]),
              CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetFilter4dDescriptor(w_, type, s.w_format, s.k, s.c / s.groups, s.window[0], s.window[1]),
              CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetTensor4dDescriptor(y_, s.y_format, type, s.n, s.k, s.out[0], s.out[1]),
              CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetConvolution2dDescriptor(convolution_, s.pad[0], s.pad[1], s.stride[0], s.stride[1],
                                              s.dilation[0], s.dilation[1], s.mode, CUDNN_DATA_FLOAT),
              CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetConvolutionGroupCount(convolution_, s.groups), CUDNN_STATUS_SUCCESS);
    int n = 0, c = 0, h = 0, w = 0;
    ASSERT_EQ(cudnnGetConvolution2dForwardOutputDim(convolution_, x_, w_, &n, &c, &h, &w),
              CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(std::vector<int>({n, c, h, w}), std::vector<int>({s.n, s.k, s.out[0], s.out[1]}));
  }

  // `which` of x, w, y is computed from the other two.
  template <class T>
  void compare(const Case& s, int which) {
    const size_t sizes[] = {size_t(s.n * s.c * s.in[0] * s.in[1]),
                            size_t(s.k * s.c / s.groups * s.window[0] * s.window[1]),
                            size_t(s.n * s.k * s.out[0] * s.out[1])};
    std::vector<T> host[3];
    for (int i = 0; i < 3; ++i) host[i] = any<T>(random_, sizes[i]);
    std::vector<double> sums(sizes[which]), sizes_of_terms(sizes[which]);
    each_product(s, [&](size_t x, size_t w, size_t y) {
      const size_t at[] = {x, w, y};
      const int a = which == 0 ? 1 : 0, b = which == 2 ? 1 : 2;
      const double term = value(host[a][at[a]]).real() * value(host[b][at[b]]).real();
      sums[at[which]] += term, sizes_of_terms[at[which]] += std::abs(term);
    });
    const Device<T> x(host[0]), w(host[1]), y(host[2]);
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    if (which == 2)
      status =
          cudnnConvolutionForward(handle_, &s.alpha, x_, x.get(), w_, w.get(), convolution_,
                                  CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0, &s.beta, y_, y.get());
    if (which == 0)
      status =
          cudnnConvolutionBackwardData(handle_, &s.alpha, w_, w.get(), y_, y.get(), convolution_,
                                       CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, nullptr, 0, &s.beta, x_, x.get());
    if (which == 1)
      status = cudnnConvolutionBackwardFilter(handle_, &s.alpha, x_, x.get(), y_, y.get(), convolution_,
                                              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, nullptr, 0, &s.beta, w_,
                                              w.get());
    ASSERT_EQ(status, CUDNN_STATUS_SUCCESS);
    const std::vector<T> got = which == 0 ? x.read() : which == 1 ? w.read() : y.read();
    for (size_t i = 0; i < got.size(); ++i) {
      const double old = s.beta * value(host[which][i]).real(), wanted = s.alpha * sums[i] + old;
      const double room = std::abs(s.alpha) * sizes_of_terms[i] + std::abs(old) + 1e-6;
      ASSERT_NEAR(value(got[i]).real(), wanted, kTolerance<T> * room) << "of " << which << " at " << i;
    }
  }

  cudnnHandle_t handle_ = nullptr;
  cudnnTensorDescriptor_t x_ = nullptr, y_ = nullptr;
  cudnnFilterDescriptor_t w_ = nullptr;
  cudnnConvolutionDescriptor_t convolution_ = nullptr;
  Random random_{14};
};

TEST_F(Cudnn, ConvolutionsAreThoseOfDirectLoops) {
  for (int i = 0; i < kCases; ++i) {
    const Case s = any_case(random_);
    SCOPED_TRACE(testing::Message() << "case " << i);
    if (i % 4 == 3) {
      ASSERT_NO_FATAL_FAILURE(describe<__half>(s));
      for (int which = 0; which < 3; ++which) ASSERT_NO_FATAL_FAILURE(compare<__half>(s, which));
    } else {
      ASSERT_NO_FATAL_FAILURE(describe<float>(s));
      for (int which = 0; which < 3; ++which) ASSERT_NO_FATAL_FAILURE(compare<float>(s, which));
    }
  }
}

}  // namespace
}  // namespace tessera::test
