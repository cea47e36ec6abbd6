// The software GPU's cuDNN beside convolutions, against the definitions on the host in double precision:
// activations, sums of tensors, reductions, softmax, pooling, batch normalisation. Gradients are differences of the definitions.
#include <cudnn.h>

#include <functional>

#include "tests/unit/softgpu_libraries/support.h"

namespace tessera::test {
namespace {

constexpr int kDims = 4;
using Index = std::array<int, kDims>;
using Numbers = std::vector<double>;  // in the order of NCHW, whatever the layout in memory

struct Tensor {
  Index dims;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  size_t count() const { return size_t(dims[0]) * dims[1] * dims[2] * dims[3]; }
  Index index(size_t number) const {
    Index i;
    for (int d = kDims - 1; d >= 0; --d) i[d] = int(number % dims[d]), number /= dims[d];
    return i;
  }
  size_t number(const Index& i) const {
    return ((size_t(i[0]) * dims[1] + i[1]) * dims[2] + i[2]) * dims[3] + i[3];
  }
  size_t place(size_t number) const {
    const Index i = index(number);
    return format == CUDNN_TENSOR_NCHW ? number
                                       : ((size_t(i[0]) * dims[2] + i[2]) * dims[3] + i[3]) * dims[1] + i[1];
  }
};

class Layers : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS); }
  void TearDown() override {
    for (cudnnTensorDescriptor_t d : descriptors_) cudnnDestroyTensorDescriptor(d);
    EXPECT_EQ(cudnnDestroy(handle_), CUDNN_STATUS_SUCCESS);
  }

  Tensor any_tensor() {
    return {{between(random_, 1, 4), between(random_, 1, 5), between(random_, 1, 7), between(random_, 1, 7)},
            cudnnTensorFormat_t(between(random_, 0, 1))};
  }
  Numbers any_numbers(size_t n) {
    Numbers out(n);
    for (double& x : out) x = float(std::uniform_real_distribution<double>(-2, 2)(random_));
    return out;
  }
  cudnnTensorDescriptor_t describe(const Tensor& t) {
    cudnnTensorDescriptor_t out;
    EXPECT_EQ(cudnnCreateTensorDescriptor(&out), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnSetTensor4dDescriptor(out, t.format, CUDNN_DATA_FLOAT, t.dims[0], t.dims[1], t.dims[2],
                                         t.dims[3]),
              CUDNN_STATUS_SUCCESS);
    descriptors_.push_back(out);
    return out;
  }
  static Device<float> on_device(const Tensor& t, const Numbers& numbers) {
    std::vector<float> out(t.count());
    for (size_t i = 0; i < out.size(); ++i) out[t.place(i)] = float(numbers[i]);
    return Device<float>(out);
  }
  static void expect(const Tensor& t, const Device<float>& got, const Numbers& wanted, double room = 2e-5) {
    const std::vector<float> numbers = got.read();
    for (size_t i = 0; i < wanted.size(); ++i)
      ASSERT_NEAR(numbers[t.place(i)], wanted[i], room * (1 + std::abs(wanted[i]))) << "at " << i;
  }
  static Numbers blend(float alpha, const Numbers& x, float beta, const Numbers& old) {
    Numbers out(x.size());
    for (size_t i = 0; i < x.size(); ++i) out[i] = alpha * x[i] + (beta != 0 ? beta * old[i] : 0);
    return out;
  }

  cudnnHandle_t handle_ = nullptr;
  std::vector<cudnnTensorDescriptor_t> descriptors_;
  Random random_{41};
  float alpha_ = 0.75f, beta_ = -0.5f;
  const float one_ = 1, zero_ = 0;
};

// d(sum of weights * f(x)) / dx, by differences.
Numbers gradient(const Numbers& x, const Numbers& weights, const std::function<Numbers(const Numbers&)>& f) {
  constexpr double kStep = 1e-6;
  Numbers out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    Numbers above = x, below = x;
    above[i] += kStep, below[i] -= kStep;
    const Numbers a = f(above), b = f(below);
    for (size_t j = 0; j < a.size(); ++j) out[i] += weights[j] * (a[j] - b[j]) / (2 * kStep);
  }
  return out;
}

double activated(cudnnActivationMode_t mode, double c, double x) {
  switch (mode) {
    case CUDNN_ACTIVATION_SIGMOID:
      return 1 / (1 + std::exp(-x));
    case CUDNN_ACTIVATION_RELU:
      return std::max(x, 0.0);
    case CUDNN_ACTIVATION_TANH:
      return std::tanh(x);
    case CUDNN_ACTIVATION_CLIPPED_RELU:
      return std::min(std::max(x, 0.0), c);
    case CUDNN_ACTIVATION_ELU:
      return x > 0 ? x : c * std::expm1(x);
    case CUDNN_ACTIVATION_SWISH:
      return x / (1 + std::exp(-c * x));
    default:
      return x;
  }
}

TEST_F(Layers, ActivationsAndTheirSlopes) {
  cudnnActivationDescriptor_t activation;
  ASSERT_EQ(cudnnCreateActivationDescriptor(&activation), CUDNN_STATUS_SUCCESS);
  for (int mode = CUDNN_ACTIVATION_SIGMOID; mode <= CUDNN_ACTIVATION_SWISH; ++mode) {
    SCOPED_TRACE(testing::Message() << "mode " << mode);
    const double c = mode == CUDNN_ACTIVATION_CLIPPED_RELU ? 1.25 : 0.75;
    ASSERT_EQ(
        cudnnSetActivationDescriptor(activation, cudnnActivationMode_t(mode), CUDNN_NOT_PROPAGATE_NAN, c),
        CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetActivationDescriptorSwishBeta(activation, c), CUDNN_STATUS_SUCCESS);
    const Tensor t = any_tensor();
    const auto f = [&](const Numbers& x) {
      Numbers y(x.size());
      std::transform(x.begin(), x.end(), y.begin(),
                     [&](double v) { return activated(cudnnActivationMode_t(mode), c, v); });
      return y;
    };
    const Numbers x = any_numbers(t.count()), old = any_numbers(t.count()), dy = any_numbers(t.count());
    const Device<float> x_on = on_device(t, x), y_on = on_device(t, old), dx_on = on_device(t, old);
    const auto d = describe(t);
    ASSERT_EQ(cudnnActivationForward(handle_, activation, &alpha_, d, x_on.get(), &beta_, d, y_on.get()),
              CUDNN_STATUS_SUCCESS);
    expect(t, y_on, blend(alpha_, f(x), beta_, old));
    const Device<float> result = on_device(t, f(x)), dy_on = on_device(t, dy);
    ASSERT_EQ(cudnnActivationBackward(handle_, activation, &alpha_, d, result.get(), d, dy_on.get(), d,
                                      x_on.get(), &beta_, d, dx_on.get()),
              CUDNN_STATUS_SUCCESS);
    expect(t, dx_on, blend(alpha_, gradient(x, dy, f), beta_, old));
  }
  cudnnDestroyActivationDescriptor(activation);
}

TEST_F(Layers, OperationsOnTensors) {
  using Of = double (*)(double, double);
  static constexpr Of kOperations[] = {
      [](double a, double b) { return a + b; },          [](double a, double b) { return a * b; },
      [](double a, double b) { return std::min(a, b); }, [](double a, double b) { return std::max(a, b); },
      [](double a, double) { return std::sqrt(a); },     [](double a, double) { return 1 - a; }};
  cudnnOpTensorDescriptor_t operation;
  ASSERT_EQ(cudnnCreateOpTensorDescriptor(&operation), CUDNN_STATUS_SUCCESS);
  for (int kind = CUDNN_OP_TENSOR_ADD; kind <= CUDNN_OP_TENSOR_NOT; ++kind) {
    SCOPED_TRACE(testing::Message() << "operation " << kind);
    ASSERT_EQ(cudnnSetOpTensorDescriptor(operation, cudnnOpTensorOp_t(kind), CUDNN_DATA_FLOAT,
                                         CUDNN_NOT_PROPAGATE_NAN),
              CUDNN_STATUS_SUCCESS);
    const Tensor t = any_tensor();
    Tensor small = any_tensor();  // b: some of its dimensions are one
    for (int d = 0; d < kDims; ++d) small.dims[d] = between(random_, 0, 1) ? 1 : t.dims[d];
    Numbers a = any_numbers(t.count());
    if (kind == CUDNN_OP_TENSOR_SQRT)
      std::transform(a.begin(), a.end(), a.begin(), [](double x) { return std::abs(x); });
    const Numbers b = any_numbers(small.count()), old = any_numbers(t.count());
    const float scale_a = 1.5f, scale_b = -0.25f;
    Numbers wanted(t.count());
    for (size_t i = 0; i < wanted.size(); ++i) {
      Index at = t.index(i);
      for (int d = 0; d < kDims; ++d) at[d] = small.dims[d] == 1 ? 0 : at[d];
      wanted[i] = kOperations[kind](scale_a * a[i], scale_b * b[small.number(at)]) + beta_ * old[i];
    }
    const Device<float> a_on = on_device(t, a), b_on = on_device(small, b), c_on = on_device(t, old);
    const auto d = describe(t);
    ASSERT_EQ(cudnnOpTensor(handle_, operation, &scale_a, d, a_on.get(), &scale_b, describe(small),
                            b_on.get(), &beta_, d, c_on.get()),
              CUDNN_STATUS_SUCCESS);
    expect(t, c_on, wanted);
  }
  cudnnDestroyOpTensorDescriptor(operation);
}

TEST_F(Layers, CopiesConstantsAndBiases) {
  const Tensor t{{2, 3, 4, 5}, CUDNN_TENSOR_NCHW}, other{t.dims, CUDNN_TENSOR_NHWC}, bias{{1, 3, 1, 1}};
  const Numbers x = any_numbers(t.count()), b = any_numbers(3);
  const Device<float> x_on = on_device(t, x), y_on = on_device(other, x), b_on = on_device(bias, b);
  const auto d = describe(t), d_other = describe(other);
  ASSERT_EQ(cudnnTransformTensor(handle_, &alpha_, d, x_on.get(), &zero_, d_other, y_on.get()),
            CUDNN_STATUS_SUCCESS);
  expect(other, y_on, blend(alpha_, x, 0, x));
  ASSERT_EQ(cudnnScaleTensor(handle_, d, x_on.get(), &beta_), CUDNN_STATUS_SUCCESS);
  expect(t, x_on, blend(beta_, x, 0, x));
  ASSERT_EQ(cudnnSetTensor(handle_, d, x_on.get(), &alpha_), CUDNN_STATUS_SUCCESS);
  expect(t, x_on, Numbers(t.count(), alpha_));
  ASSERT_EQ(cudnnAddTensor(handle_, &one_, describe(bias), b_on.get(), &one_, d, x_on.get()),
            CUDNN_STATUS_SUCCESS);
  Numbers wanted(t.count());
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = alpha_ + b[t.index(i)[1]];
  expect(t, x_on, wanted);
}

TEST_F(Layers, Reductions) {
  cudnnReduceTensorDescriptor_t reduction;
  ASSERT_EQ(cudnnCreateReduceTensorDescriptor(&reduction), CUDNN_STATUS_SUCCESS);
  for (int kind = CUDNN_REDUCE_TENSOR_ADD; kind <= CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS; ++kind) {
    SCOPED_TRACE(testing::Message() << "reduction " << kind);
    ASSERT_EQ(cudnnSetReduceTensorDescriptor(reduction, cudnnReduceTensorOp_t(kind), CUDNN_DATA_FLOAT,
                                             CUDNN_NOT_PROPAGATE_NAN, CUDNN_REDUCE_TENSOR_NO_INDICES,
                                             CUDNN_32BIT_INDICES),
              CUDNN_STATUS_SUCCESS);
    const Tensor t = any_tensor();
    Tensor c = t;
    for (int d = 0; d < kDims; ++d) c.dims[d] = between(random_, 0, 1) ? 1 : t.dims[d];
    Numbers a = any_numbers(t.count());
    a[a.size() / 2] = 0;
    std::vector<Numbers> groups(c.count());
    for (size_t i = 0; i < a.size(); ++i) {
      Index at = t.index(i);
      for (int d = 0; d < kDims; ++d) at[d] = c.dims[d] == 1 ? 0 : at[d];
      groups[c.number(at)].push_back(a[i]);
    }
    Numbers wanted;
    for (const Numbers& g : groups) {
      double sum = 0, product = 1, product_not_zero = 1, sizes = 0, squares = 0, largest_size = 0;
      for (double x : g) {
        sum += x, product *= x, product_not_zero *= x == 0 ? 1 : x;
        sizes += std::abs(x), squares += x * x, largest_size = std::max(largest_size, std::abs(x));
      }
      const double results[] = {sum,
                                product,
                                *std::min_element(g.begin(), g.end()),
                                *std::max_element(g.begin(), g.end()),
                                largest_size,
                                sum / double(g.size()),
                                sizes,
                                std::sqrt(squares),
                                product_not_zero};
      wanted.push_back(results[kind]);
    }
    const Numbers old = any_numbers(c.count());
    const Device<float> a_on = on_device(t, a), c_on = on_device(c, old);
    ASSERT_EQ(cudnnReduceTensor(handle_, reduction, nullptr, 0, nullptr, 0, &alpha_, describe(t), a_on.get(),
                                &beta_, describe(c), c_on.get()),
              CUDNN_STATUS_SUCCESS);
    expect(c, c_on, blend(alpha_, wanted, beta_, old), 1e-4);
  }
  cudnnDestroyReduceTensorDescriptor(reduction);
}

Numbers softmax(const Tensor& t, bool by_channel, bool log, const Numbers& x) {
  const auto group = [&](size_t i) {
    Index at = t.index(i);
    if (!by_channel) return size_t(at[0]);
    at[1] = 0;
    return t.number(at);
  };
  Numbers sums(t.count()), out(x.size());
  for (size_t i = 0; i < x.size(); ++i) sums[group(i)] += std::exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i)
    out[i] = log ? x[i] - std::log(sums[group(i)]) : std::exp(x[i]) / sums[group(i)];
  return out;
}

TEST_F(Layers, Softmax) {
  for (int algorithm = CUDNN_SOFTMAX_FAST; algorithm <= CUDNN_SOFTMAX_LOG; ++algorithm)
    for (int mode = CUDNN_SOFTMAX_MODE_INSTANCE; mode <= CUDNN_SOFTMAX_MODE_CHANNEL; ++mode) {
      SCOPED_TRACE(testing::Message() << "algorithm " << algorithm << " mode " << mode);
      const Tensor t = any_tensor();
      const auto f = [&](const Numbers& x) {
        return softmax(t, mode == CUDNN_SOFTMAX_MODE_CHANNEL, algorithm == CUDNN_SOFTMAX_LOG, x);
      };
      const Numbers x = any_numbers(t.count()), old = any_numbers(t.count()), dy = any_numbers(t.count());
      const Device<float> x_on = on_device(t, x), y_on = on_device(t, old), dx_on = on_device(t, old);
      const auto d = describe(t);
      const auto a = cudnnSoftmaxAlgorithm_t(algorithm);
      const auto m = cudnnSoftmaxMode_t(mode);
      ASSERT_EQ(cudnnSoftmaxForward(handle_, a, m, &alpha_, d, x_on.get(), &beta_, d, y_on.get()),
                CUDNN_STATUS_SUCCESS);
      expect(t, y_on, blend(alpha_, f(x), beta_, old));
      const Device<float> result = on_device(t, f(x)), dy_on = on_device(t, dy);
      ASSERT_EQ(cudnnSoftmaxBackward(handle_, a, m, &alpha_, d, result.get(), d, dy_on.get(), &beta_, d,
                                     dx_on.get()),
                CUDNN_STATUS_SUCCESS);
      expect(t, dx_on, blend(alpha_, gradient(x, dy, f), beta_, old), 1e-4);
    }
}

TEST_F(Layers, Pooling) {
  cudnnPoolingDescriptor_t pooling;
  ASSERT_EQ(cudnnCreatePoolingDescriptor(&pooling), CUDNN_STATUS_SUCCESS);
  for (int i = 0; i < 24; ++i) {
    const auto mode = cudnnPoolingMode_t(i % 4);
    SCOPED_TRACE(testing::Message() << "case " << i);
    Tensor t = any_tensor();
    int window[2], pad[2], stride[2];
    for (int d = 0; d < 2; ++d) {
      window[d] = between(random_, 1, 3), pad[d] = between(random_, 0, window[d] - 1);
      stride[d] = between(random_, 1, 3);
      t.dims[d + 2] = window[d] + between(random_, 0, 4);
    }
    ASSERT_EQ(cudnnSetPooling2dDescriptor(pooling, mode, CUDNN_NOT_PROPAGATE_NAN, window[0], window[1],
                                          pad[0], pad[1], stride[0], stride[1]),
              CUDNN_STATUS_SUCCESS);
    const auto d = describe(t);
    Tensor out{{}, cudnnTensorFormat_t(between(random_, 0, 1))};
    ASSERT_EQ(
        cudnnGetPooling2dForwardOutputDim(pooling, d, &out.dims[0], &out.dims[1], &out.dims[2], &out.dims[3]),
        CUDNN_STATUS_SUCCESS);
    const auto f = [&](const Numbers& x) {
      Numbers y(out.count());
      for (size_t o = 0; o < y.size(); ++o) {
        const Index at = out.index(o);
        double sum = 0, largest = -INFINITY;
        int inside = 0;
        for (int p = 0; p < window[0]; ++p)
          for (int q = 0; q < window[1]; ++q) {
            const Index from{at[0], at[1], at[2] * stride[0] - pad[0] + p, at[3] * stride[1] - pad[1] + q};
            if (from[2] < 0 || from[3] < 0 || from[2] >= t.dims[2] || from[3] >= t.dims[3]) continue;
            ++inside, sum += x[t.number(from)], largest = std::max(largest, x[t.number(from)]);
          }
        const int divisor =
            mode == CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING ? window[0] * window[1] : inside;
        y[o] = mode == CUDNN_POOLING_MAX || mode == CUDNN_POOLING_MAX_DETERMINISTIC ? largest : sum / divisor;
      }
      return y;
    };
    const Numbers x = any_numbers(t.count()), old = any_numbers(t.count()), old_y = any_numbers(out.count());
    const Numbers dy = any_numbers(out.count());
    const Device<float> x_on = on_device(t, x), dx_on = on_device(t, old), y_on = on_device(out, old_y);
    const auto d_out = describe(out);
    ASSERT_EQ(cudnnPoolingForward(handle_, pooling, &alpha_, d, x_on.get(), &beta_, d_out, y_on.get()),
              CUDNN_STATUS_SUCCESS);
    ASSERT_NO_FATAL_FAILURE(expect(out, y_on, blend(alpha_, f(x), beta_, old_y)));
    const Device<float> result = on_device(out, f(x)), dy_on = on_device(out, dy);
    ASSERT_EQ(cudnnPoolingBackward(handle_, pooling, &alpha_, d_out, result.get(), d_out, dy_on.get(), d,
                                   x_on.get(), &beta_, d, dx_on.get()),
              CUDNN_STATUS_SUCCESS);
    ASSERT_NO_FATAL_FAILURE(expect(t, dx_on, blend(alpha_, gradient(x, dy, f), beta_, old)));
  }
  cudnnDestroyPoolingDescriptor(pooling);
}

constexpr double kEpsilon = 1e-3;

struct Statistics {
  Numbers mean, variance;
  double members;
};
struct Normalisation {
  Tensor t, parameters;
  size_t group(size_t i) const {
    Index at = t.index(i);
    for (int d = 0; d < kDims; ++d) at[d] = parameters.dims[d] == 1 ? 0 : at[d];
    return parameters.number(at);
  }
  Statistics statistics(const Numbers& x) const {
    const size_t n = parameters.count();
    Statistics s{Numbers(n), Numbers(n), double(t.count() / n)};
    for (size_t i = 0; i < x.size(); ++i) s.mean[group(i)] += x[i] / s.members;
    for (size_t i = 0; i < x.size(); ++i) {
      const double distance = x[i] - s.mean[group(i)];
      s.variance[group(i)] += distance * distance / s.members;
    }
    return s;
  }
  Numbers operator()(const Statistics& s, const Numbers& x, const Numbers& scale, const Numbers& bias) const {
    Numbers y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t g = group(i);
      y[i] = (x[i] - s.mean[g]) / std::sqrt(s.variance[g] + kEpsilon) * scale[g] + bias[g];
    }
    return y;
  }
};

Numbers rectified(Numbers x, const Numbers& z) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::max(x[i] + z[i], 0.0);
  return x;
}

TEST_F(Layers, BatchNormalisation) {
  cudnnActivationDescriptor_t relu;
  ASSERT_EQ(cudnnCreateActivationDescriptor(&relu), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0),
            CUDNN_STATUS_SUCCESS);
  for (int i = 0; i < 12; ++i) {
    SCOPED_TRACE(testing::Message() << "case " << i);
    const auto mode = cudnnBatchNormMode_t(i % 2);
    const bool adds = i % 3 == 2;  // y = max(0, normalised + z)
    const auto operations = adds ? CUDNN_BATCHNORM_OPS_BN_ADD_ACTIVATION : CUDNN_BATCHNORM_OPS_BN;
    Normalisation f{any_tensor(), {}};
    f.t.dims[0] = std::max(f.t.dims[0], 2);
    f.parameters.dims = {1, f.t.dims[1], 1, 1};
    if (mode == CUDNN_BATCHNORM_PER_ACTIVATION)
      f.parameters.dims[2] = f.t.dims[2], f.parameters.dims[3] = f.t.dims[3];
    const size_t n = f.t.count(), groups = f.parameters.count();
    const Numbers x = any_numbers(n), z = adds ? any_numbers(n) : Numbers(n), dy = any_numbers(n);
    const Numbers scale = any_numbers(groups), bias = any_numbers(groups), old = any_numbers(groups);
    const auto whole = [&](const Numbers& x_in, const Numbers& z_in, const Numbers& s, const Numbers& b) {
      const Numbers y = f(f.statistics(x_in), x_in, s, b);
      return adds ? rectified(y, z_in) : y;
    };
    const auto d = describe(f.t), d_parameters = describe(f.parameters);
    const Device<float> x_on = on_device(f.t, x), z_on = on_device(f.t, z), y_on = on_device(f.t, x),
                        scale_on = on_device(f.parameters, scale), bias_on = on_device(f.parameters, bias),
                        mean_on = on_device(f.parameters, old), variance_on = on_device(f.parameters, old),
                        saved_mean = on_device(f.parameters, old),
                        saved_inverse = on_device(f.parameters, old);
    const double average = 0.3;
    ASSERT_EQ(cudnnBatchNormalizationForwardTrainingEx(
                  handle_, mode, operations, &one_, &zero_, d, x_on.get(), d, z_on.get(), d, y_on.get(),
                  d_parameters, scale_on.get(), bias_on.get(), average, mean_on.get(), variance_on.get(),
                  kEpsilon, saved_mean.get(), saved_inverse.get(), relu, nullptr, 0, nullptr, 0),
              CUDNN_STATUS_SUCCESS);
    ASSERT_NO_FATAL_FAILURE(expect(f.t, y_on, whole(x, z, scale, bias), 1e-4));
    const Statistics s = f.statistics(x);
    Numbers mean(groups), variance(groups);
    for (size_t g = 0; g < groups; ++g) {
      mean[g] = old[g] * (1 - average) + s.mean[g] * average;
      variance[g] = old[g] * (1 - average) + s.variance[g] * s.members / (s.members - 1) * average;
    }
    ASSERT_NO_FATAL_FAILURE(expect(f.parameters, mean_on, mean));
    ASSERT_NO_FATAL_FAILURE(expect(f.parameters, variance_on, variance));

    const Device<float> dy_on = on_device(f.t, dy), dx_on = on_device(f.t, x), dz_on = on_device(f.t, x),
                        dscale = on_device(f.parameters, old), dbias = on_device(f.parameters, old);
    const bool saved = i % 4 < 2;  // or computed once more
    ASSERT_EQ(cudnnBatchNormalizationBackwardEx(
                  handle_, mode, operations, &one_, &zero_, &alpha_, &beta_, d, x_on.get(), d, y_on.get(), d,
                  dy_on.get(), d, dz_on.get(), d, dx_on.get(), d_parameters, scale_on.get(), bias_on.get(),
                  dscale.get(), dbias.get(), kEpsilon, saved ? saved_mean.get() : nullptr,
                  saved ? saved_inverse.get() : nullptr, relu, nullptr, 0, nullptr, 0),
              CUDNN_STATUS_SUCCESS);
    const auto by = [&](const Numbers& at, const auto& g) { return gradient(at, dy, g); };
    ASSERT_NO_FATAL_FAILURE(
        expect(f.t, dx_on, by(x, [&](const Numbers& v) { return whole(v, z, scale, bias); }), 1e-3));
    ASSERT_NO_FATAL_FAILURE(expect(
        f.parameters, dscale,
        blend(alpha_, by(scale, [&](const Numbers& v) { return whole(x, z, v, bias); }), beta_, old), 1e-3));
    ASSERT_NO_FATAL_FAILURE(expect(
        f.parameters, dbias,
        blend(alpha_, by(bias, [&](const Numbers& v) { return whole(x, z, scale, v); }), beta_, old), 1e-3));
    if (adds) {
      ASSERT_NO_FATAL_FAILURE(
          expect(f.t, dz_on, by(z, [&](const Numbers& v) { return whole(x, v, scale, bias); }), 1e-3));
    }

    Numbers positive = old;
    for (double& v : positive) v = std::abs(v);
    const Device<float> known_variance = on_device(f.parameters, positive),
                        known_mean = on_device(f.parameters, old);
    ASSERT_EQ(cudnnBatchNormalizationForwardInference(handle_, mode, &one_, &zero_, d, x_on.get(), d,
                                                      y_on.get(), d_parameters, scale_on.get(), bias_on.get(),
                                                      known_mean.get(), known_variance.get(), kEpsilon),
              CUDNN_STATUS_SUCCESS);
    ASSERT_NO_FATAL_FAILURE(expect(f.t, y_on, f({old, positive, 0}, x, scale, bias), 1e-4));
  }
  cudnnDestroyActivationDescriptor(relu);
}

TEST_F(Layers, ConvolutionWithBiasAndActivationIsItsParts) {
  const Tensor x{{2, 3, 6, 5}, CUDNN_TENSOR_NCHW}, y{{2, 4, 4, 3}, CUDNN_TENSOR_NHWC}, bias{{1, 4, 1, 1}};
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t convolution;
  cudnnActivationDescriptor_t activation;
  cudnnCreateFilterDescriptor(&filter), cudnnCreateConvolutionDescriptor(&convolution);
  cudnnCreateActivationDescriptor(&activation);
  ASSERT_EQ(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 4, 3, 3, 3),
            CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT),
            CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0),
            CUDNN_STATUS_SUCCESS);
  const Device<float> x_on = on_device(x, any_numbers(x.count())),
                      w_on = on_device({{4, 3, 3, 3}}, any_numbers(108)),
                      z_on = on_device(y, any_numbers(y.count())), bias_on = on_device(bias, any_numbers(4)),
                      parts = on_device(y, Numbers(y.count())), whole = on_device(y, Numbers(y.count()));
  const auto dx = describe(x), dy = describe(y), db = describe(bias);
  const auto algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
  ASSERT_EQ(cudnnConvolutionBiasActivationForward(handle_, &alpha_, dx, x_on.get(), filter, w_on.get(),
                                                  convolution, algorithm, nullptr, 0, &beta_, dy, z_on.get(),
                                                  db, bias_on.get(), activation, dy, whole.get()),
            CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnConvolutionForward(handle_, &alpha_, dx, x_on.get(), filter, w_on.get(), convolution,
                                    algorithm, nullptr, 0, &zero_, dy, parts.get()),
            CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnAddTensor(handle_, &beta_, dy, z_on.get(), &one_, dy, parts.get()), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnAddTensor(handle_, &one_, db, bias_on.get(), &one_, dy, parts.get()), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnActivationForward(handle_, activation, &one_, dy, parts.get(), &zero_, dy, parts.get()),
            CUDNN_STATUS_SUCCESS);
  const std::vector<float> a = parts.read(), b = whole.read();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-5) << i;
  cudnnDestroyFilterDescriptor(filter), cudnnDestroyConvolutionDescriptor(convolution);
  cudnnDestroyActivationDescriptor(activation);
}

TEST_F(Layers, WhatIsNotComputedOrNotRightIsSaid) {
  const Tensor t{{1, 2, 3, 4}};
  const auto d = describe(t);
  const Device<float> x = on_device(t, Numbers(t.count()));
  EXPECT_EQ(cudnnSetTensor(handle_, d, nullptr, &one_), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnSetTensor(nullptr, d, x.get(), &one_), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnAddTensor(handle_, &one_, describe({{1, 2, 2, 4}}), x.get(), &one_, d, x.get()),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnSoftmaxForward(handle_, cudnnSoftmaxAlgorithm_t(7), CUDNN_SOFTMAX_MODE_CHANNEL, &one_, d,
                                x.get(), &zero_, d, x.get()),
            CUDNN_STATUS_BAD_PARAM);
  cudnnTensorDescriptor_t doubles = describe(t);
  ASSERT_EQ(cudnnSetTensor4dDescriptor(doubles, CUDNN_TENSOR_NCHW, CUDNN_DATA_DOUBLE, 1, 2, 3, 2),
            CUDNN_STATUS_SUCCESS);
  testing::internal::CaptureStderr();
  EXPECT_EQ(cudnnSetTensor(handle_, doubles, x.get(), &one_), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cudnnDropoutForward(handle_, nullptr, d, x.get(), d, x.get(), nullptr, 0),
            CUDNN_STATUS_NOT_SUPPORTED);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("cudnnSetTensor with these descriptors is not computed"), std::string::npos) << said;
  EXPECT_NE(said.find("cudnnDropoutForward is not computed by the software GPU's cuDNN"), std::string::npos)
      << said;
}

}  // namespace
}  // namespace tessera::test
