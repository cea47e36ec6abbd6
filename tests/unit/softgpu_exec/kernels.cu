// Kernels compiled by nvcc for algorithms_test.cc.
#include <cassert>
#include <cstdio>

extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

template <int T>
__device__ void matmul_tile(const float* a, const float* b, float* c, int n) {
  __shared__ float as[T][T], bs[T][T];
  int row = blockIdx.y * T + threadIdx.y, col = blockIdx.x * T + threadIdx.x;
  float sum = 0;
  for (int t = 0; t < n; t += T) {
    as[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
    bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < T; ++k) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + col] = sum;
}
extern "C" __global__ void matmul16(const float* a, const float* b, float* c, int n) {
  matmul_tile<16>(a, b, c, n);
}
extern "C" __global__ void matmul32(const float* a, const float* b, float* c, int n) {
  matmul_tile<32>(a, b, c, n);
}

extern "C" __global__ void block_sum(const float* x, float* out, int n) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
    for (int d = 16; d; d /= 2) sum += __shfl_down_sync(~0u, sum, d);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}

extern "C" __global__ void softmax_rows(const float* x, float* y, int columns) {
  extern __shared__ float buffer[];
  const float* row = x + blockIdx.x * columns;
  float top = -1e30f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) top = fmaxf(top, row[i]);
  buffer[threadIdx.x] = top;
  __syncthreads();
  for (int d = blockDim.x / 2; d; d /= 2) {
    if (threadIdx.x < d) buffer[threadIdx.x] = fmaxf(buffer[threadIdx.x], buffer[threadIdx.x + d]);
    __syncthreads();
  }
  top = buffer[0];
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += expf(row[i] - top);
  buffer[threadIdx.x] = sum;
  __syncthreads();
  for (int d = blockDim.x / 2; d; d /= 2) {
    if (threadIdx.x < d) buffer[threadIdx.x] += buffer[threadIdx.x + d];
    __syncthreads();
  }
  sum = buffer[0];
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    y[blockIdx.x * columns + i] = expf(row[i] - top) / sum;
}

extern "C" __global__ void scan_block(const int* x, int* y, int n) {
  __shared__ int warp_sums[32];
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int v = i < n ? x[i] : 0;
  for (int d = 1; d < 32; d *= 2) {
    int other = __shfl_up_sync(~0u, v, d);
    if (lane >= d) v += other;
  }
  if (lane == 31) warp_sums[warp] = v;
  __syncthreads();
  if (warp == 0) {
    int s = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
    for (int d = 1; d < 32; d *= 2) {
      int other = __shfl_up_sync(~0u, s, d);
      if (lane >= d) s += other;
    }
    warp_sums[lane] = s;
  }
  __syncthreads();
  if (warp) v += warp_sums[warp - 1];
  if (i < n) y[i] = v;
}

extern "C" __global__ void mandelbrot(int* out, int width, int height, int limit) {
  int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  if (px >= width || py >= height) return;
  float cx = -2.0f + 3.0f * px / width, cy = -1.0f + 2.0f * py / height, x = 0, y = 0;
  int k = 0;
  while (k < limit && x * x + y * y < 4.0f) {
    float t = x * x - y * y + cx;
    y = 2 * x * y + cy;
    x = t;
    ++k;
  }
  out[py * width + px] = k;
}

__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
extern "C" __global__ void recursive(int* out) {
  out[threadIdx.x] = fibonacci(threadIdx.x % 12);
}

typedef int (*Function)(int);
__device__ __noinline__ int twice(int x) {
  return 2 * x;
}
__device__ __noinline__ int square(int x) {
  return x * x;
}
__device__ Function functions[2] = {twice, square};
extern "C" __global__ void indirect(int* out) {
  out[threadIdx.x] = functions[threadIdx.x % 2](threadIdx.x);
}

__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter;
extern "C" __global__ void constants(float* out) {
  out[threadIdx.x] = coefficients[threadIdx.x % 4];
  atomicAdd(&counter, 1);
}

extern "C" __global__ void asserts(int n) {
  assert(n < 5);
}

// Every thread takes a lock in turn: needs progress between divergent lanes.
__device__ int lock_word;
extern "C" __global__ void locked(int* total) {
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock_word, 0, 1) == 0) {
      *(volatile int*)total = *(volatile int*)total + 1;
      __threadfence();
      atomicExch(&lock_word, 0);
      done = true;
    }
  }
}

// Block i waits for block i + 1: needs several resident blocks.
extern "C" __global__ void chain(volatile int* flags, int n) {
  if (threadIdx.x == 0) {
    if ((int)blockIdx.x + 1 < n)
      while (flags[blockIdx.x + 1] == 0) {
      }
    __threadfence();
    flags[blockIdx.x] = 1;
  }
}

extern "C" __global__ void local_array(int* out, int n) {
  int a[16];
  for (int i = 0; i < 16; ++i) a[i] = i * i + threadIdx.x;
  int s = 0;
  for (int i = 0; i < n; ++i) s += a[(i * 7 + threadIdx.x) & 15];
  out[threadIdx.x] = s;
}

extern "C" __global__ void early_return_barrier(int* out, int n) {
  __shared__ int s;
  if (threadIdx.x == 0) s = 0;
  __syncthreads();
  if ((int)threadIdx.x >= n) return;
  atomicAdd(&s, 1);
  __syncthreads();
  out[threadIdx.x] = s;
}

extern "C" __global__ void dispatch(int* out, int which) {
  int v = threadIdx.x;
  switch ((threadIdx.x + which) % 8) {
    case 0:
      v += 1;
      break;
    case 1:
      v *= 3;
      break;
    case 2:
      v -= 7;
      break;
    case 3:
      v ^= 0x55;
      break;
    case 4:
      v = v << 3;
      break;
    case 5:
      v = ~v;
      break;
    case 6:
      v = v * v;
      break;
    default:
      v = -v;
      break;
  }
  out[threadIdx.x] = v;
}

extern "C" __global__ void histogram(const unsigned char* x, unsigned* bins, int n) {
  __shared__ unsigned part[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) part[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&part[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], part[i]);
}

extern "C" __global__ void print(int n) {
  if (threadIdx.x == 0) printf("value %d %s %.2f %lld\n", n, "text", 1.5, 1LL << 40);
}

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void grid_sync(int* x, int n) {
  auto grid = cg::this_grid();
  int i = grid.thread_rank();
  x[i] = i;
  grid.sync();
  int v = x[n - 1 - i];
  grid.sync();
  x[i] = v;
}

extern "C" __global__ void tile_sums(int* x) {
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  int i = threadIdx.x;
  x[i] = cg::reduce(tile, x[i], cg::plus<int>());
}

struct Base {
  virtual __device__ int f(int x) = 0;
};
struct Increment : Base {
  __device__ int f(int x) override { return x + 1; }
};
struct Double : Base {
  __device__ int f(int x) override { return 2 * x; }
};
extern "C" __global__ void virtual_calls(int* x) {
  Increment a;
  Double b;
  Base* p = threadIdx.x & 1 ? static_cast<Base*>(&a) : static_cast<Base*>(&b);
  x[threadIdx.x] = p->f(x[threadIdx.x]);
}

extern "C" __global__ void mathematics(double* x, float* y) {
  int i = threadIdx.x;
  double v = x[i];
  x[i] = sin(v) + exp(-v) * log(v + 1) + pow(v, 1.5) + erf(v) + fmod(v, 0.7) + cbrt(v);
  float s = y[i];
  y[i] = sinf(s) + powf(s, 1.5f) + tanhf(s) + fmodf(s, 0.7f) + rsqrtf(s) + logf(s) + atanf(s);
}

extern "C" __global__ void heap(int** x, int* out) {
  x[threadIdx.x] = new int(threadIdx.x * 3);
  __syncthreads();
  int* other = x[threadIdx.x ^ 1];
  out[threadIdx.x] = *other;
  __syncthreads();
  delete other;
}

// Bytes of 32-bit words, counted in shared memory by each of six warps and added up in the end.
extern "C" __global__ void byte_histogram(const unsigned* words, unsigned* counts, int n) {
  __shared__ unsigned own[6 * 256];
  for (int i = threadIdx.x; i < 6 * 256; i += blockDim.x) own[i] = 0;
  __syncthreads();
  unsigned* mine = own + threadIdx.x / 32 * 256;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    for (int byte = 0; byte < 4; ++byte) atomicAdd(mine + (words[i] >> 8 * byte & 255), 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    unsigned sum = 0;
    for (int warp = 0; warp < 6; ++warp) sum += own[warp * 256 + i];
    atomicAdd(counts + i, sum);
  }
}
