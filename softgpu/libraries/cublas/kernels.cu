// The kernels of the stand-in cuBLAS: simple and deterministic. Every element of a result is summed by one thread in the order
// of k, reductions by one block in a fixed order, so results do not depend on how a launch is cut. Compiled to PTX and embedded
// (driver.cc).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "softgpu/libraries/cublas/kernels.h"

using namespace tessera::softgpu::cublas;

namespace {

template <class T>
struct Complex {
  T real, imaginary;
};

// How an element in memory becomes a number to compute with, and back.
__device__ void load(float& to, float from) {
  to = from;
}
__device__ void load(double& to, double from) {
  to = from;
}
__device__ void load(float& to, __half from) {
  to = __half2float(from);
}
__device__ void load(float& to, __nv_bfloat16 from) {
  to = __bfloat162float(from);
}
template <class T>
__device__ void load(Complex<T>& to, Complex<T> from) {
  to = from;
}
__device__ void store(float* to, float from) {
  *to = from;
}
__device__ void store(double* to, double from) {
  *to = from;
}
__device__ void store(__half* to, float from) {
  *to = __float2half_rn(from);
}
__device__ void store(__nv_bfloat16* to, float from) {
  *to = __float2bfloat16_rn(from);
}
template <class T>
__device__ void store(Complex<T>* to, Complex<T> from) {
  *to = from;
}

__device__ void set(float& to, double real, double) {
  to = float(real);
}
__device__ void set(double& to, double real, double) {
  to = real;
}
template <class T>
__device__ void set(Complex<T>& to, double real, double imaginary) {
  to = {T(real), T(imaginary)};
}

__device__ bool is_zero(float x) {
  return x == 0;
}
__device__ bool is_zero(double x) {
  return x == 0;
}
template <class T>
__device__ bool is_zero(Complex<T> x) {
  return x.real == 0 && x.imaginary == 0;
}

__device__ float conjugate(float x) {
  return x;
}
__device__ double conjugate(double x) {
  return x;
}
template <class T>
__device__ Complex<T> conjugate(Complex<T> x) {
  return {x.real, -x.imaginary};
}

__device__ void add_product(float& sum, float a, float b) {
  sum = fmaf(a, b, sum);
}
__device__ void add_product(double& sum, double a, double b) {
  sum = fma(a, b, sum);
}
template <class T>
__device__ void add_product(Complex<T>& sum, Complex<T> a, Complex<T> b) {
  add_product(sum.real, a.real, b.real);
  add_product(sum.real, -a.imaginary, b.imaginary);
  add_product(sum.imaginary, a.real, b.imaginary);
  add_product(sum.imaginary, a.imaginary, b.real);
}

template <class Number>
__device__ Number zero() {
  Number x;
  set(x, 0, 0);
  return x;
}

template <class Number>
__device__ Number value_of(const Scalar& scalar) {
  Number x;
  if (!scalar.device)
    set(x, scalar.real, scalar.imaginary);
  else if (scalar.type == ScalarType::kF16)
    set(x, __half2float(*static_cast<const __half*>(scalar.device)), 0);
  else
    x = *static_cast<const Number*>(scalar.device);
  return x;
}

template <class T>
__device__ T* product(T* base, int64_t stride, uint32_t by_pointers, uint64_t which) {
  return by_pointers ? reinterpret_cast<T* const*>(base)[which] : base + int64_t(which) * stride;
}

constexpr uint32_t kDepth = 16;  // of op(A)'s columns that a block holds in shared memory at a time

// kTile rows (of op(A)) or columns (of op(B)), kDepth deep, to shared memory; outside the matrix there are zeros.
template <class Element, class Number>
__device__ void load_tile(Number (*to)[kTile + 1], const Element* from, int64_t along, int64_t deep,
                          uint32_t first, uint32_t n, uint32_t depth, uint32_t n_deep, bool conjugated) {
  for (uint32_t e = threadIdx.x; e < kTile * kDepth; e += kGemmThreads) {
    const uint32_t i = e % kTile, k = e / kTile;
    Number x = zero<Number>();
    if (first + i < n && depth + k < n_deep) {
      load(x, from[int64_t(first + i) * along + int64_t(depth + k) * deep]);
      if (conjugated) x = conjugate(x);
    }
    to[k][i] = x;
  }
}

// Bias and activation; GELU by its approximation with tanh, as cuBLASLt has it.
template <class Out, class Number>
__device__ void finish(Number&, const Out*, Activation) {}
template <class Out>
__device__ void finish(float& x, const Out* bias, Activation activation) {
  if (bias) {
    float more;
    load(more, *bias);
    x += more;
  }
  if (activation == Activation::kRelu) x = fmaxf(x, 0.f);
  if (activation == Activation::kGelu)
    x = 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// The factors of a launch, and where this block's product lies.
template <class Out, class Number>
struct Output {
  Number alpha, beta;
  const Out* c;
  Out* d;
  const Out* bias;
};

template <class Out, class Number>
__device__ void write(const Output<Out, Number>& output, const GemmCall& call, uint32_t i, uint32_t j,
                      Number sum) {
  if (i >= call.m || j >= call.n) return;
  Number x = zero<Number>();
  add_product(x, output.alpha, sum);
  if (!is_zero(output.beta)) {  // beta 0: C is not read, and may hold anything
    Number old;
    load(old, output.c[int64_t(i) * call.c_row + int64_t(j) * call.c_column]);
    add_product(x, output.beta, old);
  }
  finish(x, output.bias ? output.bias + i : nullptr, call.activation);
  store(output.d + int64_t(i) * call.d_row + int64_t(j) * call.d_column, x);
}

template <class In, class Out, class Number>
__device__ void gemm(const GemmCall& call) {
  __shared__ Number tile_a[kDepth][kTile + 1], tile_b[kDepth][kTile + 1];
  const uint64_t which = uint64_t(call.first_product) + blockIdx.y;
  const uint32_t row = blockIdx.x % call.tiles_down * kTile, column = blockIdx.x / call.tiles_down * kTile;
  const uint32_t i = threadIdx.x % (kTile / 2), j = threadIdx.x / (kTile / 2);
  Output<Out, Number> output;
  output.alpha = call.k > 0 ? value_of<Number>(call.alpha) : zero<Number>();
  output.beta = value_of<Number>(call.beta);
  output.c = is_zero(output.beta)
                 ? nullptr
                 : product(static_cast<const Out*>(call.c), call.c_product, call.by_pointers, which);
  output.d = product(static_cast<Out*>(call.d), call.d_product, call.by_pointers, which);
  output.bias = call.bias ? static_cast<const Out*>(call.bias) + int64_t(which) * call.bias_product : nullptr;
  Number sum[2][2] = {{zero<Number>(), zero<Number>()}, {zero<Number>(), zero<Number>()}};
  if (!is_zero(output.alpha)) {  // otherwise A and B are not read
    const In* a = product(static_cast<const In*>(call.a), call.a_product, call.by_pointers, which);
    const In* b = product(static_cast<const In*>(call.b), call.b_product, call.by_pointers, which);
    for (uint32_t depth = 0; depth < call.k; depth += kDepth) {
      load_tile(tile_a, a, call.a_row, call.a_column, row, call.m, depth, call.k, call.conjugate_a);
      load_tile(tile_b, b, call.b_column, call.b_row, column, call.n, depth, call.k, call.conjugate_b);
      __syncthreads();
      const uint32_t deep = min(kDepth, call.k - depth);
      for (uint32_t k = 0; k < deep; ++k) {
        const Number a0 = tile_a[k][i], a1 = tile_a[k][i + kTile / 2];
        const Number b0 = tile_b[k][j], b1 = tile_b[k][j + kTile / 2];
        add_product(sum[0][0], a0, b0);
        add_product(sum[0][1], a0, b1);
        add_product(sum[1][0], a1, b0);
        add_product(sum[1][1], a1, b1);
      }
      __syncthreads();
    }
  }
  for (uint32_t p = 0; p < 2; ++p)
    for (uint32_t q = 0; q < 2; ++q)
      write(output, call, row + i + p * (kTile / 2), column + j + q * (kTile / 2), sum[p][q]);
}

__device__ int64_t first_index() {
  return int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ int64_t all_threads() {
  return int64_t(gridDim.x) * blockDim.x;
}

template <class T>
__device__ void axpy(const VectorCall& call) {
  const T* x = static_cast<const T*>(call.x);
  T* y = static_cast<T*>(call.y);
  const T alpha = value_of<T>(call.alpha);
  if (alpha == 0) return;
  for (int64_t i = first_index(); i < call.n; i += all_threads())
    add_product(y[i * call.y_step], alpha, x[i * call.x_step]);
}

template <class T>
__device__ void scal(const VectorCall& call) {
  T* y = static_cast<T*>(call.y);
  const T alpha = value_of<T>(call.alpha);
  for (int64_t i = first_index(); i < call.n; i += all_threads()) y[i * call.y_step] *= alpha;
}

template <class T>
__device__ void copy(const VectorCall& call) {
  const T* x = static_cast<const T*>(call.x);
  T* y = static_cast<T*>(call.y);
  for (int64_t i = first_index(); i < call.n; i += all_threads()) y[i * call.y_step] = x[i * call.x_step];
}

template <class T>
__device__ void swap(const VectorCall& call) {
  T* x = static_cast<T*>(const_cast<void*>(call.x));
  T* y = static_cast<T*>(call.y);
  for (int64_t i = first_index(); i < call.n; i += all_threads()) {
    const T kept = x[i * call.x_step];
    x[i * call.x_step] = y[i * call.y_step];
    y[i * call.y_step] = kept;
  }
}

// All threads' values joined pairwise; thread 0 (and every other) returns the whole.
template <class T, class Join>
__device__ T join_all(T mine, Join join) {
  __shared__ T values[kReductionThreads];
  __syncthreads();  // the values of the join before are read
  values[threadIdx.x] = mine;
  for (uint32_t half = kReductionThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] = join(values[threadIdx.x], values[threadIdx.x + half]);
  }
  __syncthreads();
  return values[0];
}

template <class T>
struct Sum {
  __device__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Larger {
  __device__ T operator()(T a, T b) const { return b > a ? b : a; }
};

template <class T>
__device__ void dot(const VectorCall& call) {
  const T* x = static_cast<const T*>(call.x);
  const T* y = static_cast<const T*>(call.y);
  T sum = 0;
  for (int64_t i = threadIdx.x; i < call.n; i += kReductionThreads)
    add_product(sum, x[i * call.x_step], y[i * call.y_step]);
  sum = join_all(sum, Sum<T>());
  if (threadIdx.x == 0) *static_cast<T*>(call.result) = sum;
}

template <class T>
__device__ void asum(const VectorCall& call) {
  const T* x = static_cast<const T*>(call.x);
  T sum = 0;
  for (int64_t i = threadIdx.x; i < call.n; i += kReductionThreads) sum += fabs(x[i * call.x_step]);
  sum = join_all(sum, Sum<T>());
  if (threadIdx.x == 0) *static_cast<T*>(call.result) = sum;
}

// Scaled by the largest element, so that no square overflows or vanishes.
template <class T>
__device__ void nrm2(const VectorCall& call) {
  const T* x = static_cast<const T*>(call.x);
  T largest = 0;
  for (int64_t i = threadIdx.x; i < call.n; i += kReductionThreads)
    largest = Larger<T>()(largest, fabs(x[i * call.x_step]));
  largest = join_all(largest, Larger<T>());
  const T scale = largest > 0 && !isinf(largest) ? largest : T(1);
  T sum = 0;
  for (int64_t i = threadIdx.x; i < call.n; i += kReductionThreads) {
    const T element = x[i * call.x_step] / scale;
    add_product(sum, element, element);
  }
  sum = join_all(sum, Sum<T>());
  if (threadIdx.x == 0) *static_cast<T*>(call.result) = scale * sqrt(sum);
}

template <class T>
struct Place {
  T size;
  int64_t index;  // from 1; 0: none
};
template <class T>
struct FirstLargest {
  __device__ Place<T> operator()(Place<T> a, Place<T> b) const {
    if (b.index == 0) return a;
    if (a.index == 0 || b.size > a.size || (b.size == a.size && b.index < a.index)) return b;
    return a;
  }
};

template <class T>
__device__ void amax(const VectorCall& call) {
  const T* x = static_cast<const T*>(call.x);
  Place<T> best{0, 0};
  for (int64_t i = threadIdx.x; i < call.n; i += kReductionThreads)
    best = FirstLargest<T>()(best, Place<T>{T(fabs(x[i * call.x_step])), i + 1});
  best = join_all(best, FirstLargest<T>());
  if (threadIdx.x != 0) return;
  if (call.wide_result)
    *static_cast<int64_t*>(call.result) = best.index;
  else
    *static_cast<int32_t*>(call.result) = int32_t(best.index);
}

template <class T>
__device__ void gemv(const MatrixVectorCall& call) {
  const uint64_t i = first_index();
  if (i >= call.rows) return;
  const T alpha = value_of<T>(call.alpha), beta = value_of<T>(call.beta);
  T sum = 0;
  if (alpha != 0) {
    const T* a = static_cast<const T*>(call.a) + int64_t(i) * call.a_row;
    const T* x = static_cast<const T*>(call.x);
    for (uint64_t k = 0; k < call.columns; ++k)
      add_product(sum, a[int64_t(k) * call.a_column], x[int64_t(k) * call.x_step]);
  }
  T* y = static_cast<T*>(call.y) + int64_t(i) * call.y_step;
  T result = alpha * sum;
  if (beta != 0) add_product(result, beta, *y);
  *y = result;
}

template <class T>
__device__ void ger(const MatrixVectorCall& call) {
  const uint64_t element = first_index();
  const uint64_t i = element % call.rows, j = element / call.rows;
  const T alpha = value_of<T>(call.alpha);
  if (j >= call.columns || alpha == 0) return;
  const T x = static_cast<const T*>(call.x)[int64_t(i) * call.x_step];
  const T y = static_cast<const T*>(call.y)[int64_t(j) * call.y_step];
  add_product(static_cast<T*>(call.a)[int64_t(i) * call.a_row + int64_t(j) * call.a_column], alpha * x, y);
}

}  // namespace

#define TS_GEMM_KERNEL(name, in, out, number)                                            \
  extern "C" __global__ void __launch_bounds__(kGemmThreads) name(const GemmCall call) { \
    gemm<in, out, number>(call);                                                         \
  }
TS_GEMM_KERNEL(gemm_f32, float, float, float)
TS_GEMM_KERNEL(gemm_f64, double, double, double)
TS_GEMM_KERNEL(gemm_c32, Complex<float>, Complex<float>, Complex<float>)
TS_GEMM_KERNEL(gemm_c64, Complex<double>, Complex<double>, Complex<double>)
TS_GEMM_KERNEL(gemm_f16, __half, __half, float)
TS_GEMM_KERNEL(gemm_f16_f32, __half, float, float)
TS_GEMM_KERNEL(gemm_bf16, __nv_bfloat16, __nv_bfloat16, float)
TS_GEMM_KERNEL(gemm_bf16_f32, __nv_bfloat16, float, float)

#define TS_KERNELS(operation, Call)                             \
  extern "C" __global__ void operation##_f32(const Call call) { \
    operation<float>(call);                                     \
  }                                                             \
  extern "C" __global__ void operation##_f64(const Call call) { \
    operation<double>(call);                                    \
  }
TS_KERNELS(axpy, VectorCall)
TS_KERNELS(scal, VectorCall)
TS_KERNELS(copy, VectorCall)
TS_KERNELS(swap, VectorCall)
TS_KERNELS(dot, VectorCall)
TS_KERNELS(nrm2, VectorCall)
TS_KERNELS(asum, VectorCall)
TS_KERNELS(amax, VectorCall)
TS_KERNELS(gemv, MatrixVectorCall)
TS_KERNELS(ger, MatrixVectorCall)
