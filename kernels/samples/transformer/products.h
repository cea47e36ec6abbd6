// Row-major matrix products on cuBLAS and cuBLASLt, which think in columns: a row-major matrix is, to them, its transpose.
// One stream, single-threaded; everything lives as long as the process.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include "../support.h"

namespace samples::transformer {

#define CUBLAS_CHECK(call)                                                                      \
  do {                                                                                          \
    const cublasStatus_t status_ = (call);                                                      \
    if (status_ != CUBLAS_STATUS_SUCCESS) samples::fail(#call, cublasGetStatusString(status_)); \
  } while (0)

// An operand of a product C[m][n] = factor op(A)[m][k] op(B)[k][n]; each row of a matrix starts `row` elements after
// the previous one.
struct Operand {
  const float* data;
  int row;
  bool transposed = false;
  long long next = 0;  // elements to the next product's matrix
};

class Products {
 public:
  explicit Products(cudaStream_t stream) : stream_(stream) {
    CUBLAS_CHECK(cublasCreate(&handle_));
    CUBLAS_CHECK(cublasLtCreate(&lt_));
    CUBLAS_CHECK(cublasSetStream(handle_, stream));
    CUDA_CHECK(cudaMalloc(&workspace_, kWorkspaceBytes));
  }

  void multiply(Operand a, Operand b, float* c, int m, int n, int k) {
    const float one = 1, zero = 0;
    CUBLAS_CHECK(cublasSgemm(handle_, operation(b), operation(a), n, m, k, &one, b.data, b.row, a.data, a.row,
                             &zero, c, n));
  }
  // `count` products; C's follow each other.
  void multiply_batch(Operand a, Operand b, float* c, int m, int n, int k, float factor, int count) {
    const float zero = 0;
    CUBLAS_CHECK(cublasSgemmStridedBatched(handle_, operation(b), operation(a), n, m, k, &factor, b.data,
                                           b.row, b.next, a.data, a.row, a.next, &zero, c, n,
                                           (long long)m * n, count));
  }

  cublasLtHandle_t lt() const { return lt_; }
  void* workspace() const { return workspace_; }
  cudaStream_t stream() const { return stream_; }
  static constexpr size_t kWorkspaceBytes = size_t(4) << 20;

 private:
  static cublasOperation_t operation(const Operand& x) { return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

  cublasHandle_t handle_ = nullptr;
  cublasLtHandle_t lt_ = nullptr;
  cudaStream_t stream_;
  void* workspace_ = nullptr;
};

// y[rows][out] = epilogue(x[rows][in] w[in][out] + bias) + residual, as one matmul of cuBLASLt.
class Linear {
 public:
  Linear(Products& products, int rows, int in, int out, cublasLtEpilogue_t epilogue, const float* w,
         const float* bias)
      : products_(products), w_(w) {
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&w_layout_, CUDA_R_32F, out, in, out));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&x_layout_, CUDA_R_32F, in, rows, in));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&y_layout_, CUDA_R_32F, out, rows, out));
    choose_algorithm();
  }

  void run(const float* x, const float* residual, float* y) {
    const float one = 1, beta = residual ? 1 : 0;
    CUBLAS_CHECK(cublasLtMatmul(products_.lt(), operation_, &one, w_, w_layout_, x, x_layout_, &beta,
                                residual ? residual : y, y_layout_, y, y_layout_, &algorithm_,
                                products_.workspace(), Products::kWorkspaceBytes, products_.stream()));
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
  }
  void choose_algorithm() {
    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const size_t bytes = Products::kWorkspaceBytes;
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t found{};
    int n_found = 0;
    CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(products_.lt(), operation_, w_layout_, x_layout_, y_layout_,
                                                y_layout_, preference, 1, &found, &n_found));
    if (n_found == 0) fail("cublasLtMatmulAlgoGetHeuristic", "found no algorithm");
    algorithm_ = found.algo;
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
  }

  Products& products_;
  const float* w_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_layout_ = nullptr, x_layout_ = nullptr, y_layout_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace samples::transformer
