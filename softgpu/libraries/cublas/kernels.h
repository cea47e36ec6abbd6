// The interface of host and kernels in the stand-in cuBLAS: the one argument of each kernel, by value, and the list of
// kernels. Included by the host files and by kernels.cu; plain data, nothing is owned.
#pragma once

#include <cstdint>

namespace tessera::softgpu::cublas {

enum class ScalarType : uint32_t { kF16, kF32, kF64, kComplexF32, kComplexF64 };

// alpha or beta: a value, or (pointer mode DEVICE) where the kernel reads it.
struct Scalar {
  double real, imaginary;  // if `device` is null
  const void* device;
  ScalarType type;  // of what `device` points to
  uint32_t zero_;
};

enum class Activation : uint32_t { kNone, kRelu, kGelu };

// D = activation(alpha op(A) op(B) + beta C + bias), once for each product. op(A)[i, k] = a[i * a_row + k * a_column], likewise the
// others; D may be C. Products are a stride apart or, with `by_pointers`, a, b, c and d are arrays of pointers in device memory.
// Bias and activation: single precision sums only.
struct GemmCall {
  const void* a;
  const void* b;
  const void* c;
  void* d;
  const void* bias;  // one element of D's type per row; may be null
  int64_t a_row, a_column, b_row, b_column, c_row, c_column, d_row, d_column;  // elements
  int64_t a_product, b_product, c_product, d_product, bias_product;  // elements from one product to the next
  Scalar alpha, beta;
  uint32_t m, n, k;
  uint32_t tiles_down;     // rows of tiles: ceil(m / kTile)
  uint32_t first_product;  // of this launch: blockIdx.y counts from it
  uint32_t by_pointers, conjugate_a, conjugate_b;
  Activation activation;
  uint32_t zero_;
};
inline constexpr uint32_t kTile = 32;          // C goes out in tiles of kTile x kTile, one per block
inline constexpr uint32_t kGemmThreads = 256;  // each computes 2 x 2 elements of the tile

// Level 1. Element i of x is x[i * x_step] with x already moved to the first element; likewise y.
struct VectorCall {
  int64_t n;
  const void* x;
  int64_t x_step;
  void* y;
  int64_t y_step;
  Scalar alpha;
  void* result;          // of a reduction: device memory or pinned host memory
  uint32_t wide_result;  // the index that amax writes has 64 bits
  uint32_t zero_;
};

// Level 2: y = alpha op(A) x + beta y with op(A)[i, k] = a[i * a_row + k * a_column], `rows` elements of y; or the outer
// product A += alpha x y^T of `rows` x `columns`.
struct MatrixVectorCall {
  void* a;
  int64_t a_row, a_column;
  const void* x;
  int64_t x_step;
  void* y;
  int64_t y_step;
  Scalar alpha, beta;
  uint64_t rows, columns;
};
inline constexpr uint32_t kVectorThreads = 128;
inline constexpr uint32_t kReductionThreads = 256;

}  // namespace tessera::softgpu::cublas

// clang-format off
// Every kernel's name in kernels.cu.
#define TS_CUBLAS_KERNELS(X)                                                                                   \
  X(gemm_f32) X(gemm_f64) X(gemm_c32) X(gemm_c64) X(gemm_f16) X(gemm_f16_f32) X(gemm_bf16) X(gemm_bf16_f32)    \
  X(axpy_f32) X(axpy_f64) X(scal_f32) X(scal_f64) X(copy_f32) X(copy_f64) X(swap_f32) X(swap_f64)              \
  X(dot_f32) X(dot_f64) X(nrm2_f32) X(nrm2_f64) X(asum_f32) X(asum_f64) X(amax_f32) X(amax_f64)                \
  X(gemv_f32) X(gemv_f64) X(ger_f32) X(ger_f64)
// clang-format on
