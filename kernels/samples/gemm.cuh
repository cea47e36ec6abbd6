// The tiled matrix product that both samples use: C[m][n] = sum over k of A[m][k] * B[k][n], row-major, all
// sizes multiples of the tile. 64 threads make one 16x16 tile of C, four results each; a block is short on
// purpose: what is already running when somebody more important arrives should end soon. No atomics, fixed
// order: deterministic.
#pragma once

namespace samples {

constexpr int kTile = 16;          // edge of the tile of C that one block computes
constexpr int kGemmThreads = 64;   // kTile columns x 4 rows of threads
constexpr int kRowsPerThread = 4;  // kTile rows / 4

__global__ void __launch_bounds__(kGemmThreads)
    gemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int k) {
  __shared__ float tile_a[kTile][kTile + 1];
  __shared__ float tile_b[kTile][kTile + 1];
  const int column = threadIdx.x % kTile, row0 = threadIdx.x / kTile * kRowsPerThread;
  const int m_base = blockIdx.y * kTile, n_base = blockIdx.x * kTile;

  float sum[kRowsPerThread] = {};
  for (int k_base = 0; k_base < k; k_base += kTile) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      tile_a[row0 + r][column] = a[(m_base + row0 + r) * k + k_base + column];
      tile_b[row0 + r][column] = b[(k_base + row0 + r) * n + n_base + column];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const float right = tile_b[i][column];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) sum[r] += tile_a[row0 + r][i] * right;
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) c[(m_base + row0 + r) * n + n_base + column] = sum[r];
}

inline void launch_gemm(const float* a, const float* b, float* c, int m, int n, int k, cudaStream_t stream) {
  gemm<<<dim3(n / kTile, m / kTile), kGemmThreads, 0, stream>>>(a, b, c, n, k);
}

__device__ inline float gelu(float x) {
  return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// Sum over the warp, the same in every lane; a fixed tree, so the result does not depend on timing.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

}  // namespace samples
