// Matrix products of cuBLAS: its checks in its order, and the entry points.
#include <cuda_fp16.h>

#include <algorithm>
#include <atomic>

#include "softgpu/libraries/cublas/handle.h"
#include "softgpu/libraries/cublas/products.h"

namespace tessera::softgpu::cublas {
namespace {

// A call's arguments, widened. Strides between products in elements; by_pointers: a, b, c are arrays of pointers.
struct Arguments {
  cublasOperation_t op_a, op_b;
  int64_t m, n, k;
  const void* alpha;
  const void* a;
  int64_t lda, stride_a;
  const void* b;
  int64_t ldb, stride_b;
  const void* beta;
  void* c;
  int64_t ldc, stride_c;
  int64_t products;
  bool by_pointers;
};

bool is_operation(cublasOperation_t op) {
  return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}

bool valid(const Arguments& x) {
  const auto at_least = [](int64_t leading, int64_t rows) { return leading >= std::max<int64_t>(1, rows); };
  return is_operation(x.op_a) && is_operation(x.op_b) && x.m >= 0 && x.n >= 0 && x.k >= 0 &&
         x.products >= 0 && at_least(x.lda, x.op_a == CUBLAS_OP_N ? x.m : x.k) &&
         at_least(x.ldb, x.op_b == CUBLAS_OP_N ? x.k : x.n) && at_least(x.ldc, x.m) && x.alpha && x.beta;
}

GemmCall gemm_call(cublasHandle_t handle, const Types& types, const Arguments& x) {
  const bool plain_a = x.op_a == CUBLAS_OP_N, plain_b = x.op_b == CUBLAS_OP_N;
  GemmCall call{};
  call.a = x.a, call.b = x.b, call.c = call.d = x.c;
  call.a_row = plain_a ? 1 : x.lda, call.a_column = plain_a ? x.lda : 1;
  call.b_row = plain_b ? 1 : x.ldb, call.b_column = plain_b ? x.ldb : 1;
  call.c_row = call.d_row = 1, call.c_column = call.d_column = x.ldc;
  call.a_product = x.stride_a, call.b_product = x.stride_b, call.c_product = call.d_product = x.stride_c;
  call.alpha = scalar(handle, x.alpha, types.scalar), call.beta = scalar(handle, x.beta, types.scalar);
  call.by_pointers = x.by_pointers;
  call.conjugate_a = x.op_a == CUBLAS_OP_C, call.conjugate_b = x.op_b == CUBLAS_OP_C;
  return call;
}

cublasStatus_t gemm(cublasHandle_t handle, const Types& types, const Arguments& x) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!valid(x)) return CUBLAS_STATUS_INVALID_VALUE;
  return launch_products(*handle, handle->stream, types.kernel, {x.m, x.n, x.k, x.products},
                         gemm_call(handle, types, x));
}

// The combination of types is looked at before the rest of the arguments.
cublasStatus_t gemm_ex(cublasHandle_t handle, const char* name, cudaDataType a, cudaDataType b,
                       cudaDataType c, cublasComputeType_t compute, const Arguments& x) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (const auto types = types_of(a, b, c, compute)) return gemm(handle, *types, x);
  static constinit std::atomic<bool> said = false;
  return cublasStatus_t(not_supported(name, " with these types", &said));
}

}  // namespace
}  // namespace tessera::softgpu::cublas

using namespace tessera::softgpu::cublas;

// Entry points: (name, suffix, integer, element, Types).
#define TS_HEAD cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb
#define TS_ONE(name, suffix, Int, T, types)                                                                  \
  cublasStatus_t name##suffix(TS_HEAD, Int m, Int n, Int k, const T* alpha, const T* a, Int lda, const T* b, \
                              Int ldb, const T* beta, T* c, Int ldc) {                                       \
    return gemm(handle, types, {ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, false});   \
  }
#define TS_STRIDED(name, suffix, Int, T, types)                                                           \
  cublasStatus_t name##suffix(TS_HEAD, Int m, Int n, Int k, const T* alpha, const T* a, Int lda,          \
                              long long stride_a, const T* b, Int ldb, long long stride_b, const T* beta, \
                              T* c, Int ldc, long long stride_c, Int products) {                          \
    return gemm(handle, types,                                                                            \
                {ta, tb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c,      \
                 products, false});                                                                       \
  }
#define TS_POINTERS(name, suffix, Int, T, types)                                                           \
  cublasStatus_t name##suffix(TS_HEAD, Int m, Int n, Int k, const T* alpha, const T* const a[], Int lda,   \
                              const T* const b[], Int ldb, const T* beta, T* const c[], Int ldc,           \
                              Int products) {                                                              \
    return gemm(                                                                                           \
        handle, types,                                                                                     \
        {ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, const_cast<T**>(c), ldc, 0, products, true}); \
  }
#define TS_BOTH(kind, name, T, types) kind(name, , int, T, types) kind(name, _64, int64_t, T, types)

TS_BOTH(TS_ONE, cublasSgemm_v2, float, kSingle)
TS_BOTH(TS_ONE, cublasDgemm_v2, double, kDouble)
TS_BOTH(TS_ONE, cublasCgemm_v2, cuComplex, kComplex)
TS_BOTH(TS_ONE, cublasZgemm_v2, cuDoubleComplex, kDoubleComplex)
TS_BOTH(TS_ONE, cublasCgemm3m, cuComplex, kComplex)
TS_BOTH(TS_ONE, cublasZgemm3m, cuDoubleComplex, kDoubleComplex)
TS_BOTH(TS_ONE, cublasHgemm, __half, kHalf)
TS_BOTH(TS_STRIDED, cublasSgemmStridedBatched, float, kSingle)
TS_BOTH(TS_STRIDED, cublasDgemmStridedBatched, double, kDouble)
TS_BOTH(TS_STRIDED, cublasCgemmStridedBatched, cuComplex, kComplex)
TS_BOTH(TS_STRIDED, cublasZgemmStridedBatched, cuDoubleComplex, kDoubleComplex)
TS_BOTH(TS_STRIDED, cublasCgemm3mStridedBatched, cuComplex, kComplex)
TS_BOTH(TS_STRIDED, cublasHgemmStridedBatched, __half, kHalf)
TS_BOTH(TS_POINTERS, cublasSgemmBatched, float, kSingle)
TS_BOTH(TS_POINTERS, cublasDgemmBatched, double, kDouble)
TS_BOTH(TS_POINTERS, cublasCgemmBatched, cuComplex, kComplex)
TS_BOTH(TS_POINTERS, cublasZgemmBatched, cuDoubleComplex, kDoubleComplex)
TS_BOTH(TS_POINTERS, cublasCgemm3mBatched, cuComplex, kComplex)
TS_BOTH(TS_POINTERS, cublasHgemmBatched, __half, kHalf)

#define TS_EX(suffix, Int)                                                                                   \
  cublasStatus_t cublasGemmEx##suffix(TS_HEAD, Int m, Int n, Int k, const void* alpha, const void* a,        \
                                      cudaDataType type_a, Int lda, const void* b, cudaDataType type_b,      \
                                      Int ldb, const void* beta, void* c, cudaDataType type_c, Int ldc,      \
                                      cublasComputeType_t compute, cublasGemmAlgo_t) {                       \
    return gemm_ex(handle, __func__, type_a, type_b, type_c, compute,                                        \
                   {ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, false});               \
  }                                                                                                          \
  cublasStatus_t cublasGemmStridedBatchedEx##suffix(                                                         \
      TS_HEAD, Int m, Int n, Int k, const void* alpha, const void* a, cudaDataType type_a, Int lda,          \
      long long stride_a, const void* b, cudaDataType type_b, Int ldb, long long stride_b, const void* beta, \
      void* c, cudaDataType type_c, Int ldc, long long stride_c, Int products, cublasComputeType_t compute,  \
      cublasGemmAlgo_t) {                                                                                    \
    return gemm_ex(handle, __func__, type_a, type_b, type_c, compute,                                        \
                   {ta, tb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c,      \
                    products, false});                                                                       \
  }                                                                                                          \
  cublasStatus_t cublasGemmBatchedEx##suffix(                                                                \
      TS_HEAD, Int m, Int n, Int k, const void* alpha, const void* const a[], cudaDataType type_a, Int lda,  \
      const void* const b[], cudaDataType type_b, Int ldb, const void* beta, void* const c[],                \
      cudaDataType type_c, Int ldc, Int products, cublasComputeType_t compute, cublasGemmAlgo_t) {           \
    return gemm_ex(handle, __func__, type_a, type_b, type_c, compute,                                        \
                   {ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, const_cast<void**>(c), ldc, 0,       \
                    products, true});                                                                        \
  }                                                                                                          \
  cublasStatus_t cublasSgemmEx##suffix(TS_HEAD, Int m, Int n, Int k, const float* alpha, const void* a,      \
                                       cudaDataType type_a, Int lda, const void* b, cudaDataType type_b,     \
                                       Int ldb, const float* beta, void* c, cudaDataType type_c, Int ldc) {  \
    return gemm_ex(handle, __func__, type_a, type_b, type_c, CUBLAS_COMPUTE_32F,                             \
                   {ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1, false});               \
  }
TS_EX(, int)
TS_EX(_64, int64_t)
