// Test kernels as nvcc makes them: what the parser, the image reader and the slicing rewrite are tried on.
// (kernel names say what the default rules must answer)
#include <cassert>
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_fp16.h>
#include <mma.h>

__constant__ float coefficients[4] = {1.f, 2.f, 3.f, 4.f};
__device__ int counter = 5;
struct Mixed {
  int a;
  double b;
  char c[9];
};

__device__ __noinline__ int cell(int scale) { return static_cast<int>(blockIdx.x * scale + gridDim.y * blockIdx.z); }
__device__ __noinline__ int twice(int value) { return cell(value) + cell(value + 1); }

extern "C" {
__global__ void accepted_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i] * coefficients[i & 3];
}
__global__ void __launch_bounds__(256, 2) accepted_block_sum(const float* in, float* out) {
  __shared__ float partial[256];
  extern __shared__ float extra[];
  int t = threadIdx.x;
  partial[t] = in[(blockIdx.y * gridDim.x + blockIdx.x) * 256 + t];
  __syncthreads();
  for (int k = 128; k; k >>= 1) {
    if (t < k) partial[t] += partial[t + k];
    __syncthreads();
  }
  if (!t) out[blockIdx.y * gridDim.x + blockIdx.x] = partial[0] + extra[1];
}
__global__ void accepted_callees(int* out) { out[cell(3)] = twice(5); }
__global__ void accepted_printf(int* data) {
  if (data[0] == 12345) printf("block %d %d\n", blockIdx.x, data[1]);
  assert(data[2] >= 0);
}
__global__ void accepted_count(int* data) { atomicAdd(data, 1); }
__global__ void accepted_half(__half2* data) { data[blockIdx.x] = __hadd2(data[blockIdx.x], data[1]); }
__global__ void accepted_struct(Mixed s, int* out) {
  out[blockIdx.z] = s.a + s.c[out[0]] + static_cast<int>(s.b);
  asm volatile(
      "{ .reg .pred p; .reg .b32 q; setp.ne.b32 p, %0, 0; @p mov.b32 q, 1; @!p mov.b32 q,2; st.global.b32 [%1], q; }" ::
          "r"(out[3]),
      "l"(out));
}
__global__ void accepted_global(int* out) { out[blockIdx.x] = counter; }
__global__ void accepted_switch(int* out, int what) {
  int v = out[blockIdx.x];
  switch (what) {
    case 0: v += 3; break;
    case 1: v *= 7; break;
    case 2: v ^= 0x55; break;
    case 3: v = v / 3; break;
    case 4: v = __popc(v); break;
    case 5: v = __brev(v); break;
    default: v = -v;
  }
  out[blockIdx.x] = v;
}
__global__ void accepted_wmma(const __half* a, const __half* b, float* c) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, __half, col_major> fb;
  fragment<accumulator, 16, 16, 16, float> fc;
  fill_fragment(fc, 0.f);
  load_matrix_sync(fa, a + blockIdx.x * 256, 16);
  load_matrix_sync(fb, b, 16);
  mma_sync(fc, fa, fb, fc);
  store_matrix_sync(c + blockIdx.x * 256, fc, 16, mem_row_major);
}
__global__ void refused_grid_sync(int* out) {
  cooperative_groups::this_grid().sync();
  out[0] = 1;
}
__global__ void refused_float_sum(float* data) {
  float v = data[threadIdx.x];
  for (int i = 16; i; i >>= 1) v += __shfl_down_sync(~0u, v, i);
  if (!threadIdx.x) atomicAdd(data, v);
}
__global__ void refused_append(int* n, int* queue) { queue[atomicAdd(n, 1)] = threadIdx.x; }
__global__ void refused_spin(volatile int* flag) {
  while (!flag[0]) {
  }
  flag[1] = 1;
}
__global__ void refused_lock(int* lock) {
  while (atomicCAS(lock, 0, 1)) {
  }
  lock[1]++;
  atomicExch(lock, 0);
}
typedef int (*Pointer)(int);
__device__ Pointer table[2] = {cell, twice};
__global__ void refused_pointer(int* out) { out[0] = table[out[1]](4); }
}
