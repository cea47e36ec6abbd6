// cuBLASLt of the software GPU: products with epilogues against a reference, descriptors, refusals.
#include <cublasLt.h>

#include "tests/unit/softgpu_libraries/support.h"

namespace tessera::test {
namespace {

#define OK(call) ASSERT_EQ(call, CUBLAS_STATUS_SUCCESS)

class Lt : public testing::Test {
 protected:
  void SetUp() override {
    OK(cublasLtCreate(&handle_));
    OK(cublasLtMatmulPreferenceCreate(&preference_));
  }
  void TearDown() override {
    OK(cublasLtMatmulPreferenceDestroy(preference_));
    OK(cublasLtDestroy(handle_));
  }
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  Random random_{15};
};

// A random matrix or batch of them: rows x columns, either order.
template <class T>
struct Matrix {
  Matrix(Random& random, int rows_, int columns_, int products_)
      : rows(rows_), columns(columns_), products(products_), by_rows(between(random, 0, 1) == 1) {
    leading = (by_rows ? columns : rows) + between(random, 0, 3);
    stride = leading * (by_rows ? rows : columns) + between(random, 0, 3);
    content = any<T>(random, size_t(stride * products));
    const int32_t order = by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    const int64_t offset = stride;
    EXPECT_EQ(cublasLtMatrixLayoutInit(&layout, kType<T>, uint64_t(rows), uint64_t(columns), leading), 0);
    const auto set = [&](cublasLtMatrixLayoutAttribute_t which, const auto& value) {
      EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(&layout, which, &value, sizeof value),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATRIX_LAYOUT_ORDER, order);
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, products);
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, offset);
  }
  double at(const std::vector<T>& x, int p, int i, int j) const {
    return value(x[size_t(p * stride + (by_rows ? i * leading + j : i + j * leading))]).real();
  }
  int rows, columns, products;
  bool by_rows;
  int leading, stride;
  std::vector<T> content;
  cublasLtMatrixLayoutOpaque_t layout;
};

double activated(uint32_t epilogue, double x) {
  if (epilogue & CUBLASLT_EPILOGUE_RELU) return std::max(x, 0.);
  if (epilogue & CUBLASLT_EPILOGUE_GELU)
    return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  return x;
}

// One product by the algorithm that the heuristics find.
template <class In, class Out>
void check(Random& random, cublasLtHandle_t handle, cublasLtMatmulPreference_t preference,
           uint32_t epilogue) {
  const int m = between(random, 1, 50), n = between(random, 1, 50), k = between(random, 1, 50),
            products = between(random, 1, 3);
  const int32_t op_a = between(random, 0, 1), op_b = between(random, 0, 1);  // CUBLAS_OP_N, CUBLAS_OP_T
  Matrix<In> a(random, op_a ? k : m, op_a ? m : k, products), b(random, op_b ? n : k, op_b ? k : n, products);
  Matrix<Out> c(random, m, n, products), d(random, m, n, products);
  const std::vector<Out> bias = any<Out>(random, size_t(m));
  const float alpha = any<float>(random), beta = between(random, 0, 1) ? any<float>(random) : 0;
  const Device<In> device_a(a.content), device_b(b.content);
  const Device<Out> device_c(c.content), device_d(d.content), device_bias(bias);
  const void* bias_pointer = device_bias.get();
  cublasLtMatmulDescOpaque_t operation;
  OK(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  OK(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a));
  OK(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b));
  OK(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
  OK(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer,
                                    sizeof bias_pointer));
  cublasLtMatmulHeuristicResult_t found[2];
  int n_found = 0;
  OK(cublasLtMatmulAlgoGetHeuristic(handle, &operation, &a.layout, &b.layout, &c.layout, &d.layout,
                                    preference, 2, found, &n_found));
  ASSERT_EQ(n_found, 1);
  ASSERT_EQ(found[0].state, CUBLAS_STATUS_SUCCESS);
  OK(cublasLtMatmul(handle, &operation, &alpha, device_a.get(), &a.layout, device_b.get(), &b.layout, &beta,
                    beta == 0 ? nullptr : device_c.get(), &c.layout, device_d.get(), &d.layout,
                    &found[0].algo, nullptr, 0, nullptr));
  const std::vector<Out> got = device_d.read();
  for (int p = 0; p < products; ++p)
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        double sum = 0;
        for (int q = 0; q < k; ++q)
          sum +=
              a.at(a.content, p, op_a ? q : i, op_a ? i : q) * b.at(b.content, p, op_b ? j : q, op_b ? q : j);
        sum = alpha * sum + (beta == 0 ? 0 : beta * c.at(c.content, p, i, j));
        if (epilogue & CUBLASLT_EPILOGUE_BIAS) sum += value(bias[size_t(i)]).real();
        ASSERT_NEAR(d.at(got, p, i, j), activated(epilogue, sum), 20 * kTolerance<Out>) << epilogue;
      }
}

constexpr uint32_t kEpilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                   CUBLASLT_EPILOGUE_RELU,    CUBLASLT_EPILOGUE_RELU_BIAS,
                                   CUBLASLT_EPILOGUE_GELU,    CUBLASLT_EPILOGUE_GELU_BIAS};

TEST_F(Lt, ProductsWithEpilogues) {
  for (const uint32_t epilogue : kEpilogues)
    for (int turn = 0; turn < 4 && !HasFatalFailure(); ++turn) {
      check<float, float>(random_, handle_, preference_, epilogue);
      check<__half, __half>(random_, handle_, preference_, epilogue);
      check<__half, float>(random_, handle_, preference_, epilogue);
      check<__nv_bfloat16, __nv_bfloat16>(random_, handle_, preference_, epilogue);
    }
}

TEST_F(Lt, TakesAHandleOfCublas) {
  cublasHandle_t handle;
  OK(cublasCreate(&handle));
  check<float, float>(random_, reinterpret_cast<cublasLtHandle_t>(handle), preference_,
                      CUBLASLT_EPILOGUE_BIAS);
  OK(cublasDestroy(handle));
}

TEST_F(Lt, AttributesHaveSizes) {
  cublasLtMatmulDesc_t operation;
  OK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  int32_t value = 0;
  size_t written = 0;
  const auto get = [&](void* to, size_t bytes, size_t* size) {
    return cublasLtMatmulDescGetAttribute(operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, to, bytes, size);
  };
  EXPECT_EQ(get(nullptr, 0, &written), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, 4u);
  EXPECT_EQ(get(&value, 4, nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(value, CUBLAS_COMPUTE_32F);
  EXPECT_EQ(get(&value, 2, &written), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(get(nullptr, 0, nullptr), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &value, 8),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtMatmulDescInit_internal(operation, 8, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_ALLOC_FAILED);
  OK(cublasLtMatmulDescDestroy(operation));
}

TEST_F(Lt, InvalidAndNotComputed) {
  const Matrix<float> a(random_, 4, 5, 1), b(random_, 5, 6, 1), d(random_, 4, 6, 1);
  const auto heuristic = [&](uint32_t epilogue, const Matrix<float>& second, int requested) {
    cublasLtMatmulDescOpaque_t operation;
    EXPECT_EQ(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(
        cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue),
        0);
    auto la = a.layout, lb = second.layout, ld = d.layout;
    cublasLtMatmulHeuristicResult_t found;
    int n_found;
    return cublasLtMatmulAlgoGetHeuristic(handle_, &operation, &la, &lb, &ld, &ld, preference_, requested,
                                          &found, &n_found);
  };
  EXPECT_EQ(heuristic(CUBLASLT_EPILOGUE_DEFAULT, b, 1), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(heuristic(CUBLASLT_EPILOGUE_DEFAULT, b, 0), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(heuristic(CUBLASLT_EPILOGUE_DEFAULT, d, 1), CUBLAS_STATUS_INVALID_VALUE);  // shapes do not fit
  testing::internal::CaptureStderr();
  EXPECT_EQ(heuristic(CUBLASLT_EPILOGUE_BGRADB, b, 1), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(heuristic(CUBLASLT_EPILOGUE_BGRADB, b, 1), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "softgpu: cublasLtMatmulAlgoGetHeuristic with these descriptors is not computed by the software "
            "GPU's cuBLAS\n");
}

}  // namespace
}  // namespace tessera::test
