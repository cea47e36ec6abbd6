// The tiled matrix product that both samples use: C[m][n] = sum over k of A[m][k] * B[k][n], row-major. 64
// threads make one 32x16 tile of C, eight results each; a block is short on purpose: what is already running
// when somebody more important arrives should end soon. No atomics, fixed order of summation: deterministic.
#pragma once

#include "device.cuh"
#include "support.h"

namespace samples {

constexpr int kTileRows = 32, kTileColumns = 16;  // of C, per block
constexpr int kTileDepth = 16;                    // k must be a multiple of it
constexpr int kGemmThreads = 64;                  // 16 pairs of rows x 4 quads of columns
constexpr int kRowStride = kTileRows + 2;  // floats; the padding spreads the transposed stores over the banks

// Shared memory holds `panel` steps of k of both inputs at once, A transposed.
inline size_t gemm_shared_bytes(int panel) {
  return size_t(panel) * (kRowStride + kTileColumns) * sizeof(float);
}

__global__ void __launch_bounds__(kGemmThreads) gemm(const float* __restrict__ a, const float* __restrict__ b,
                                                     float* __restrict__ c, int n, int k, int panel) {
  extern __shared__ float4 shared[];
  float* panel_b = reinterpret_cast<float*>(shared);
  float* panel_a = panel_b + panel * kTileColumns;
  const int m_base = blockIdx.y * kTileRows, n_base = blockIdx.x * kTileColumns;
  const int row = threadIdx.x / 4 * 2, column = threadIdx.x % 4 * 4;

  float4 top = {0, 0, 0, 0}, bottom = {0, 0, 0, 0};
  for (int k_base = 0; k_base < k; k_base += panel) {
    const int depth = min(panel, k - k_base);
    const float* row_a = a + (m_base + threadIdx.x / 2) * k + k_base;
#pragma unroll 1
    for (int i = threadIdx.x % 2 * 4; i < depth; i += 8) {  // two threads per row of A
      const float4 v = *reinterpret_cast<const float4*>(row_a + i);
      float* to = panel_a + i * kRowStride + threadIdx.x / 2;
      to[0] = v.x;
      to[kRowStride] = v.y;
      to[2 * kRowStride] = v.z;
      to[3 * kRowStride] = v.w;
    }
#pragma unroll 1
    for (int i = threadIdx.x / 4; i < depth; i += kGemmThreads / 4) {  // four threads per row of B
      *reinterpret_cast<float4*>(panel_b + i * kTileColumns + column) =
          *reinterpret_cast<const float4*>(b + (k_base + i) * n + n_base + column);
    }
    __syncthreads();
    for (int i0 = 0; i0 < depth; i0 += kTileDepth) {
#pragma unroll
      for (int i = i0; i < i0 + kTileDepth; ++i) {
        const float2 left = *reinterpret_cast<const float2*>(panel_a + i * kRowStride + row);
        const float4 right = *reinterpret_cast<const float4*>(panel_b + i * kTileColumns + column);
        top.x += left.x * right.x;
        top.y += left.x * right.y;
        top.z += left.x * right.z;
        top.w += left.x * right.w;
        bottom.x += left.y * right.x;
        bottom.y += left.y * right.y;
        bottom.z += left.y * right.z;
        bottom.w += left.y * right.w;
      }
    }
    __syncthreads();
  }
  float* out = c + (m_base + row) * n + n_base + column;
  *reinterpret_cast<float4*>(out) = top;
  *reinterpret_cast<float4*>(out + n) = bottom;
}

// `panel` is a multiple of kTileDepth. A long one means fewer blocks per multiprocessor, each of them faster.
inline void launch_gemm(const float* a, const float* b, float* c, int m, int n, int k, int panel,
                        cudaStream_t stream) {
  gemm<<<dim3(n / kTileColumns, m / kTileRows), kGemmThreads, gemm_shared_bytes(panel), stream>>>(a, b, c, n,
                                                                                                  k, panel);
}

}  // namespace samples
