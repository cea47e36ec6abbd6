// Level 1 and level 2: the checks of cuBLAS in its order, and the entry points.
#include <algorithm>
#include <cstring>
#include <limits>

#include "softgpu/libraries/cublas/handle.h"

namespace tessera::softgpu::cublas {
namespace {

template <class T>
constexpr ScalarType kScalar = ScalarType::kF64;
template <>
constexpr ScalarType kScalar<float> = ScalarType::kF32;

// The kernel of an operation for this type.
template <class T>
Kernel pick(Kernel single, Kernel twice) {
  return std::is_same_v<T, float> ? single : twice;
}
#define TS_PICK(operation) pick<T>(Kernel::operation##_f32, Kernel::operation##_f64)

// A vector as a kernel walks it: BLAS counts a negative step from the far end.
template <class T>
T* first_element(T* x, int64_t n, int64_t step) {
  return step < 0 ? x + (1 - n) * step : x;
}

template <class T>
VectorCall operands(int64_t n, const T* x, int64_t x_step, const T* y, int64_t y_step) {
  return {.n = n,
          .x = first_element(x, n, x_step),
          .x_step = x_step,
          .y = first_element(const_cast<T*>(y), n, y_step),
          .y_step = y_step};
}

// The most blocks of an element-wise launch: more elements than its threads are walked in strides.
constexpr int64_t kMostBlocks = 1024;

// Element by element. With a step of 0 all go to one place, in order: one thread.
cublasStatus_t elementwise(cublasHandle_t handle, Kernel kernel, const VectorCall& call) {
  if (call.x_step == 0 || call.y_step == 0) return launch(*handle, handle->stream, kernel, {1, 1, 1}, call);
  const int64_t blocks = std::min((call.n + kVectorThreads - 1) / kVectorThreads, kMostBlocks);
  return launch(*handle, handle->stream, kernel, {uint32_t(blocks), 1, kVectorThreads}, call);
}

template <class T>
cublasStatus_t axpy(cublasHandle_t handle, int64_t n, const T* alpha, const T* x, int64_t x_step, T* y,
                    int64_t y_step) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!alpha) return CUBLAS_STATUS_INVALID_VALUE;
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  VectorCall call = operands(n, x, x_step, y, y_step);
  call.alpha = scalar(handle, alpha, kScalar<T>);
  return elementwise(handle, TS_PICK(axpy), call);
}

template <class T>
cublasStatus_t scal(cublasHandle_t handle, int64_t n, const T* alpha, T* x, int64_t x_step) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!alpha) return CUBLAS_STATUS_INVALID_VALUE;
  if (n <= 0 || x_step <= 0) return CUBLAS_STATUS_SUCCESS;
  VectorCall call{.n = n, .x_step = x_step, .y = x, .y_step = x_step};
  call.alpha = scalar(handle, alpha, kScalar<T>);
  return elementwise(handle, TS_PICK(scal), call);
}

template <class T>
cublasStatus_t copy(cublasHandle_t handle, int64_t n, const T* x, int64_t x_step, T* y, int64_t y_step) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  return elementwise(handle, TS_PICK(copy), operands(n, x, x_step, y, y_step));
}

template <class T>
cublasStatus_t swap(cublasHandle_t handle, int64_t n, T* x, int64_t x_step, T* y, int64_t y_step) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (n <= 0) return CUBLAS_STATUS_SUCCESS;
  return elementwise(handle, TS_PICK(swap), operands(n, x, x_step, y, y_step));
}

// One block; in pointer mode HOST the caller waits for the result, as cuBLAS has it.
template <class Result>
cublasStatus_t reduce(cublasHandle_t handle, Kernel kernel, VectorCall call, Result* result) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!result) return CUBLAS_STATUS_INVALID_VALUE;
  const bool to_host = handle->pointer_mode == CUBLAS_POINTER_MODE_HOST;
  call.n = std::max<int64_t>(call.n, 0);  // an empty vector's result is 0, which the kernel writes
  call.result = to_host ? handle->host_result : result;
  call.wide_result = sizeof(Result) == sizeof(int64_t);
  if (to_host && call.n == 0) return *result = 0, CUBLAS_STATUS_SUCCESS;
  const cublasStatus_t status = launch(*handle, handle->stream, kernel, {1, 1, kReductionThreads}, call);
  if (status != CUBLAS_STATUS_SUCCESS || !to_host) return status;
  const CurrentContext current(handle->context);
  if (driver().StreamSynchronize(handle->stream) != CUDA_SUCCESS) return CUBLAS_STATUS_EXECUTION_FAILED;
  std::memcpy(result, handle->host_result, sizeof *result);
  return CUBLAS_STATUS_SUCCESS;
}

// nrm2, asum, amax: a step that is not positive makes the vector empty.
template <class T>
VectorCall operand(int64_t n, const T* x, int64_t x_step) {
  return {.n = x_step > 0 ? n : 0, .x = x, .x_step = x_step};
}

// Threads for `n` elements; not supported if they are more than a grid has.
template <class Call>
cublasStatus_t per_element(cublasHandle_t handle, Kernel kernel, uint64_t n, const Call& call) {
  const uint64_t blocks = (n + kVectorThreads - 1) / kVectorThreads;
  if (blocks > uint64_t(std::numeric_limits<int32_t>::max())) return CUBLAS_STATUS_NOT_SUPPORTED;
  return launch(*handle, handle->stream, kernel, {uint32_t(blocks), 1, kVectorThreads}, call);
}

template <class T>
cublasStatus_t gemv(cublasHandle_t handle, cublasOperation_t op, int64_t m, int64_t n, const T* alpha,
                    const T* a, int64_t lda, const T* x, int64_t x_step, const T* beta, T* y,
                    int64_t y_step) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool known = op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
  if (!known || m < 0 || n < 0 || lda < std::max<int64_t>(1, m) || x_step == 0 || y_step == 0 || !alpha ||
      !beta)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const bool plain = op == CUBLAS_OP_N;
  const int64_t rows = plain ? m : n, columns = plain ? n : m;
  MatrixVectorCall call{.a = const_cast<T*>(a), .a_row = plain ? 1 : lda, .a_column = plain ? lda : 1};
  call.x = first_element(x, columns, x_step), call.x_step = x_step;
  call.y = first_element(y, rows, y_step), call.y_step = y_step;
  call.alpha = scalar(handle, alpha, kScalar<T>), call.beta = scalar(handle, beta, kScalar<T>);
  call.rows = uint64_t(rows), call.columns = uint64_t(columns);
  return per_element(handle, TS_PICK(gemv), call.rows, call);
}

template <class T>
cublasStatus_t ger(cublasHandle_t handle, int64_t m, int64_t n, const T* alpha, const T* x, int64_t x_step,
                   const T* y, int64_t y_step, T* a, int64_t lda) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || x_step == 0 || y_step == 0 || lda < std::max<int64_t>(1, m) || !alpha)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  MatrixVectorCall call{.a = a, .a_row = 1, .a_column = lda};
  call.x = first_element(x, m, x_step), call.x_step = x_step;
  call.y = first_element(const_cast<T*>(y), n, y_step), call.y_step = y_step;
  call.alpha = scalar(handle, alpha, kScalar<T>);
  call.rows = uint64_t(m), call.columns = uint64_t(n);
  return per_element(handle, TS_PICK(ger), call.rows * call.columns, call);
}

}  // namespace
}  // namespace tessera::softgpu::cublas

using namespace tessera::softgpu::cublas;

// Entry points of one precision and one width of integers.
#define TS_VECTORS(L, f, suffix, Int, T)                                                                     \
  cublasStatus_t cublas##L##axpy_v2##suffix(cublasHandle_t handle, Int n, const T* alpha, const T* x,        \
                                            Int incx, T* y, Int incy) {                                      \
    return axpy(handle, n, alpha, x, incx, y, incy);                                                         \
  }                                                                                                          \
  cublasStatus_t cublas##L##scal_v2##suffix(cublasHandle_t handle, Int n, const T* alpha, T* x, Int incx) {  \
    return scal(handle, n, alpha, x, incx);                                                                  \
  }                                                                                                          \
  cublasStatus_t cublas##L##copy_v2##suffix(cublasHandle_t handle, Int n, const T* x, Int incx, T* y,        \
                                            Int incy) {                                                      \
    return copy(handle, n, x, incx, y, incy);                                                                \
  }                                                                                                          \
  cublasStatus_t cublas##L##swap_v2##suffix(cublasHandle_t handle, Int n, T* x, Int incx, T* y, Int incy) {  \
    return swap(handle, n, x, incx, y, incy);                                                                \
  }                                                                                                          \
  cublasStatus_t cublas##L##dot_v2##suffix(cublasHandle_t handle, Int n, const T* x, Int incx, const T* y,   \
                                           Int incy, T* result) {                                            \
    return reduce(handle, Kernel::dot_##f, operands<T>(n, x, incx, y, incy), result);                        \
  }                                                                                                          \
  cublasStatus_t cublas##L##nrm2_v2##suffix(cublasHandle_t handle, Int n, const T* x, Int incx, T* result) { \
    return reduce(handle, Kernel::nrm2_##f, operand(n, x, incx), result);                                    \
  }                                                                                                          \
  cublasStatus_t cublas##L##asum_v2##suffix(cublasHandle_t handle, Int n, const T* x, Int incx, T* result) { \
    return reduce(handle, Kernel::asum_##f, operand(n, x, incx), result);                                    \
  }                                                                                                          \
  cublasStatus_t cublas##L##gemv_v2##suffix(cublasHandle_t handle, cublasOperation_t op, Int m, Int n,       \
                                            const T* alpha, const T* a, Int lda, const T* x, Int incx,       \
                                            const T* beta, T* y, Int incy) {                                 \
    return gemv(handle, op, m, n, alpha, a, lda, x, incx, beta, y, incy);                                    \
  }                                                                                                          \
  cublasStatus_t cublas##L##ger_v2##suffix(cublasHandle_t handle, Int m, Int n, const T* alpha, const T* x,  \
                                           Int incx, const T* y, Int incy, T* a, Int lda) {                  \
    return ger(handle, m, n, alpha, x, incx, y, incy, a, lda);                                               \
  }
TS_VECTORS(S, f32, , int, float)
TS_VECTORS(S, f32, _64, int64_t, float)
TS_VECTORS(D, f64, , int, double)
TS_VECTORS(D, f64, _64, int64_t, double)

#define TS_AMAX(name, kernel, Int, T)                                                    \
  cublasStatus_t name(cublasHandle_t handle, Int n, const T* x, Int incx, Int* result) { \
    return reduce(handle, Kernel::kernel, operand(n, x, incx), result);                  \
  }
TS_AMAX(cublasIsamax_v2, amax_f32, int, float)
TS_AMAX(cublasIsamax_v2_64, amax_f32, int64_t, float)
TS_AMAX(cublasIdamax_v2, amax_f64, int, double)
TS_AMAX(cublasIdamax_v2_64, amax_f64, int64_t, double)
