// Handles, vectors and refusals of the software GPU's cuBLAS.
#include "tests/unit/softgpu_libraries/support.h"

#include <cuda.h>

namespace tessera::test {
namespace {

using Handle = Cublas;

TEST_F(Handle, KeepsSettings) {
  int version = 0;
  EXPECT_EQ(cublasGetVersion(handle_, &version), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(version, CUBLAS_VERSION);
  EXPECT_EQ(cublasGetProperty(MAJOR_VERSION, &version), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(version, CUBLAS_VER_MAJOR);

  cublasPointerMode_t pointer_mode;
  EXPECT_EQ(cublasGetPointerMode(handle_, &pointer_mode), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(pointer_mode, CUBLAS_POINTER_MODE_HOST);
  EXPECT_EQ(cublasSetPointerMode(handle_, cublasPointerMode_t(9)), CUBLAS_STATUS_INVALID_VALUE);

  cublasMath_t math;
  EXPECT_EQ(cublasSetMathMode(handle_, CUBLAS_TF32_TENSOR_OP_MATH), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasGetMathMode(handle_, &math), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(math, CUBLAS_TF32_TENSOR_OP_MATH);

  const Device<double> workspace(std::vector<double>(64));
  EXPECT_EQ(cublasSetWorkspace(handle_, workspace.get(), 512), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasSetWorkspace(handle_, workspace.get() + 1, 256), CUBLAS_STATUS_INVALID_VALUE);

  cudaStream_t stream, kept;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cublasSetStream(handle_, stream), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasGetStream(handle_, &kept), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(kept, stream);
  EXPECT_EQ(cublasSetStream(handle_, nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Handle, RefusesNull) {
  int version;
  EXPECT_EQ(cublasCreate(nullptr), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasDestroy(nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasGetVersion(handle_, nullptr), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasSetStream(nullptr, nullptr), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasGetProperty(libraryPropertyType(7), &version), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_STREQ(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
}

// A handle works with its own context, whichever is current.
TEST_F(Handle, BelongsToItsContext) {
  CUcontext mine, other;
  ASSERT_EQ(cuCtxGetCurrent(&mine), CUDA_SUCCESS);
  const Device<float> x(std::vector<float>(4, 3));
  ASSERT_EQ(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  cublasHandle_t second;
  EXPECT_EQ(cublasCreate(&second), CUBLAS_STATUS_SUCCESS);
  float sum = 0;
  EXPECT_EQ(cublasSasum(handle_, 4, x.get(), 1, &sum), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(sum, 12);
  CUcontext current;
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, other);
  EXPECT_EQ(cuCtxSetCurrent(mine), CUDA_SUCCESS);
  EXPECT_EQ(cublasDestroy(second), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cuCtxDestroy(other), CUDA_SUCCESS);
}

// A call while a stream captures is a node of its graph: one kernel per product.
TEST_F(Handle, LaunchesOnItsStream) {
  const Device<float> a({2}), b({3}), c({0});
  const float one = 1, zero = 0;
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cublasSetStream(handle_, stream), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a.get(), 1, b.get(), 1, &zero,
                        c.get(), 1),
            CUBLAS_STATUS_SUCCESS);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t nodes = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 1u);
  EXPECT_EQ(c.read()[0], 0);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(c.read()[0], 6);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cublasSetStream(handle_, nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(Handle, CopiesVectorsAndMatrices) {
  const std::vector<float> from = any<float>(random_, 12);
  const Device<float> device(std::vector<float>(20, 0));
  EXPECT_EQ(cublasSetMatrix(3, 4, sizeof(float), from.data(), 3, device.get(), 5), CUBLAS_STATUS_SUCCESS);
  std::vector<float> back(12);
  EXPECT_EQ(cublasGetMatrix(3, 4, sizeof(float), device.get(), 5, back.data(), 3), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(back, from);
  EXPECT_EQ(cublasSetVector(4, sizeof(float), from.data(), 3, device.get(), 2), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(device.read()[6], from[9]);
  EXPECT_EQ(cublasSetMatrix(3, 4, sizeof(float), from.data(), 2, device.get(), 5),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasGetVector(4, 0, device.get(), 1, back.data(), 1), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(Handle, TellsOnceWhatIsNotComputed) {
  const Device<float> x(std::vector<float>(4, 0));
  const float one = 1;
  const auto call = [&] {
    return cublasStrsm(handle_, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, 2, 2,
                       &one, x.get(), 2, x.get(), 2);
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(call(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "softgpu: cublasStrsm_v2 is not computed by the software GPU's cuBLAS\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(call(), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, x.get(), CUDA_R_8I, 1, x.get(),
                         CUDA_R_8I, 1, &one, x.get(), CUDA_R_32I, 1, CUBLAS_COMPUTE_32I, CUBLAS_GEMM_DEFAULT),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "softgpu: cublasGemmEx with these types is not computed by the software GPU's cuBLAS\n");
}

// Overloads by precision, so that one test serves both.
#define TS_BOTH(operation)                      \
  template <class T, class... Args>             \
  cublasStatus_t operation(Args... args) {      \
    if constexpr (std::is_same_v<T, float>)     \
      return cublasS##operation(args...);       \
    else                                        \
      return cublasD##operation(args...);       \
  }                                             \
  template <class T, class... Args>             \
  cublasStatus_t operation##_64(Args... args) { \
    if constexpr (std::is_same_v<T, float>)     \
      return cublasS##operation##_64(args...);  \
    else                                        \
      return cublasD##operation##_64(args...);  \
  }
TS_BOTH(axpy)
TS_BOTH(scal)
TS_BOTH(copy)
TS_BOTH(swap)
TS_BOTH(dot)
TS_BOTH(nrm2)
TS_BOTH(asum)
TS_BOTH(gemv)
TS_BOTH(ger)

// Place of element i: BLAS counts a negative step from the far end.
size_t place(int i, int n, int step) {
  return size_t(step < 0 ? (i - (n - 1)) * step : i * step);
}
size_t span(int n, int step) {
  return size_t(1 + (n - 1) * std::abs(step));
}

template <class T>
class Vectors : public Cublas {
 protected:
  // One random n, steps and vectors for each turn.
  void SetUp() override {
    Cublas::SetUp();
    next();
  }
  void next() {
    constexpr int kSteps[] = {1, 2, 5, -1, -3};
    n_ = between(random_, 1, 700);
    x_step_ = kSteps[between(random_, 0, 4)], y_step_ = kSteps[between(random_, 0, 4)];
    x_ = any<T>(random_, span(n_, x_step_)), y_ = any<T>(random_, span(n_, y_step_));
    alpha_ = any<T>(random_);
  }
  T& x(int i) { return x_[place(i, n_, x_step_)]; }
  T& y(int i) { return y_[place(i, n_, y_step_)]; }

  void near(const std::vector<T>& got, const std::vector<T>& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 100 * kTolerance<T>) << i;
  }
  // `call` writes a result where it is told; once to the host, once to the device.
  template <class Result, class Call>
  void gives(Result wanted, double tolerance, Call call) {
    Result on_host{};
    ASSERT_EQ(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_HOST), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(call(&on_host), CUBLAS_STATUS_SUCCESS);
    ASSERT_NEAR(double(on_host), double(wanted), tolerance);
    const Device<Result> on_device(std::vector<Result>(1, Result(77)));
    ASSERT_EQ(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_DEVICE), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(call(on_device.get()), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(on_device.read()[0], on_host);
    ASSERT_EQ(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_HOST), CUBLAS_STATUS_SUCCESS);
  }

  int n_, x_step_, y_step_;
  std::vector<T> x_, y_;
  T alpha_;
};
using Precisions = testing::Types<float, double>;
TYPED_TEST_SUITE(Vectors, Precisions);

constexpr int kTurns = 12;

TYPED_TEST(Vectors, ElementByElement) {
  using T = TypeParam;
  for (int turn = 0; turn < kTurns && !this->HasFatalFailure(); ++turn, this->next()) {
    const Device<T> x(this->x_), y(this->y_), factor({this->alpha_});
    const int n = this->n_, x_step = this->x_step_, y_step = this->y_step_;
    const bool by_device = turn % 2;
    cublasSetPointerMode(this->handle_, by_device ? CUBLAS_POINTER_MODE_DEVICE : CUBLAS_POINTER_MODE_HOST);
    const T* alpha = by_device ? factor.get() : &this->alpha_;
    ASSERT_EQ(axpy<T>(this->handle_, n, alpha, x.get(), x_step, y.get(), y_step), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < n; ++i) this->y(i) += this->alpha_ * this->x(i);
    this->near(y.read(), this->y_);
    ASSERT_EQ(swap<T>(this->handle_, n, x.get(), x_step, y.get(), y_step), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < n; ++i) std::swap(this->x(i), this->y(i));
    this->near(x.read(), this->x_), this->near(y.read(), this->y_);
    ASSERT_EQ(scal_64<T>(this->handle_, n, alpha, x.get(), std::abs(x_step)), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < n; ++i) this->x(i) *= this->alpha_;
    this->near(x.read(), this->x_);
    ASSERT_EQ(copy_64<T>(this->handle_, n, x.get(), x_step, y.get(), y_step), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < n; ++i) this->y(i) = this->x(i);
    this->near(y.read(), this->y_);
  }
}

TYPED_TEST(Vectors, Reductions) {
  using T = TypeParam;
  for (int turn = 0; turn < kTurns && !this->HasFatalFailure(); ++turn, this->next()) {
    const Device<T> x(this->x_), y(this->y_);
    const int n = this->n_, x_step = this->x_step_, y_step = this->y_step_, step = std::abs(x_step);
    double dot_wanted = 0, squares = 0, sizes = 0;
    int largest = 0;
    for (int i = 0; i < n; ++i) {
      dot_wanted += double(this->x(i)) * double(this->y(i));
      const double element = this->x_[size_t(i * step)];
      squares += element * element, sizes += std::abs(element);
      if (std::abs(element) > std::abs(double(this->x_[size_t(largest * step)]))) largest = i;
    }
    const double tolerance = kTolerance<T> * n;
    this->template gives<T>(T(dot_wanted), tolerance, [&](T* to) {
      return dot<T>(this->handle_, n, x.get(), x_step, y.get(), y_step, to);
    });
    this->template gives<T>(T(std::sqrt(squares)), tolerance,
                            [&](T* to) { return nrm2<T>(this->handle_, n, x.get(), step, to); });
    this->template gives<T>(T(sizes), tolerance,
                            [&](T* to) { return asum_64<T>(this->handle_, n, x.get(), step, to); });
    this->template gives<int>(largest + 1, 0, [&](int* to) {
      if constexpr (std::is_same_v<T, float>)
        return cublasIsamax(this->handle_, n, x.get(), step, to);
      else
        return cublasIdamax(this->handle_, n, x.get(), step, to);
    });
    this->template gives<int64_t>(largest + 1, 0, [&](int64_t* to) {
      if constexpr (std::is_same_v<T, float>)
        return cublasIsamax_64(this->handle_, n, x.get(), step, to);
      else
        return cublasIdamax_64(this->handle_, n, x.get(), step, to);
    });
  }
  const Device<T> nothing(std::vector<T>(1));
  this->template gives<T>(0, 0, [&](T* to) { return nrm2<T>(this->handle_, 0, nothing.get(), 1, to); });
}

// Squares of these overflow, the norm does not.
TYPED_TEST(Vectors, NormOfLargeElements) {
  using T = TypeParam;
  const T large = std::numeric_limits<T>::max() / 8;
  const Device<T> x(std::vector<T>(16, large));
  T norm = 0;
  ASSERT_EQ(nrm2<T>(this->handle_, 16, x.get(), 1, &norm), CUBLAS_STATUS_SUCCESS);
  EXPECT_NEAR(norm / large, 4, 1e-5);
}

TYPED_TEST(Vectors, MatrixTimesVectorAndOuterProduct) {
  using T = TypeParam;
  for (int turn = 0; turn < kTurns && !this->HasFatalFailure(); ++turn, this->next()) {
    const bool plain = turn % 2 == 0;
    const int columns = between(this->random_, 1, 40), n = this->n_,
              lda = n + turn;  // y has n elements: op(A) is n x columns
    const int rows_a = plain ? n : columns, columns_a = plain ? columns : n,
              leading = plain ? lda : columns + turn;
    std::vector<T> a = any<T>(this->random_, size_t(leading * columns_a));
    std::vector<T> v = any<T>(this->random_, span(columns, this->x_step_));
    const Device<T> device_a(a), device_v(v), y(this->y_);
    cublasSetPointerMode(this->handle_, CUBLAS_POINTER_MODE_HOST);
    const T beta = turn % 3 ? any<T>(this->random_) : T(0);
    ASSERT_EQ(gemv<T>(this->handle_, plain ? CUBLAS_OP_N : CUBLAS_OP_T, rows_a, columns_a, &this->alpha_,
                      device_a.get(), leading, device_v.get(), this->x_step_, &beta, y.get(), this->y_step_),
              CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < n; ++i) {
      double sum = 0;
      for (int k = 0; k < columns; ++k)
        sum += double(a[size_t(plain ? i + k * leading : k + i * leading)]) *
               v[place(k, columns, this->x_step_)];
      this->y(i) = T(this->alpha_ * sum + beta * this->y(i));
    }
    this->near(y.read(), this->y_);
    const Device<T> x(this->x_), b(std::vector<T>(size_t(lda * columns), 0));
    ASSERT_EQ(ger_64<T>(this->handle_, n, columns, &this->alpha_, x.get(), this->x_step_, device_v.get(),
                        this->x_step_, b.get(), lda),
              CUBLAS_STATUS_SUCCESS);
    const std::vector<T> outer = b.read();
    for (int j = 0; j < columns; ++j)
      for (int i = 0; i < n; ++i)
        ASSERT_NEAR(outer[size_t(i + j * lda)],
                    this->alpha_ * this->x(i) * v[place(j, columns, this->x_step_)], kTolerance<T>);
  }
}

TYPED_TEST(Vectors, InvalidArguments) {
  using T = TypeParam;
  const Device<T> x(std::vector<T>(16));
  const T one = 1;
  T* at = x.get();
  EXPECT_EQ(axpy<T>(this->handle_, 4, static_cast<T*>(nullptr), at, 1, at, 1), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(axpy<T>(cublasHandle_t(nullptr), 4, &one, at, 1, at, 1), CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(dot<T>(this->handle_, 4, at, 1, at, 1, static_cast<T*>(nullptr)), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(gemv<T>(this->handle_, CUBLAS_OP_N, 4, 4, &one, at, 3, at, 1, &one, at, 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(gemv<T>(this->handle_, CUBLAS_OP_N, 4, 4, &one, at, 4, at, 0, &one, at, 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(gemv<T>(this->handle_, CUBLAS_OP_N, -1, 4, &one, at, 4, at, 1, &one, at, 1),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(ger<T>(this->handle_, 4, 4, &one, at, 1, at, 1, at, 3), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace tessera::test
