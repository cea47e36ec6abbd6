// A program whose kernel reads and writes variables of its module that the host sets and asks by name. Built
// with machine code and PTX, as most programs are, so that what is cut of it lives in another module. Each
// step is checked: the exit status is 0 only if all were right. Runs until SIGTERM.
//
//   globals STEPS_FILE    a byte is appended per step
#include <csignal>
#include <cstdio>

#include "kernels/samples/support.h"

constexpr unsigned kBlocks = 1024, kThreads = 64;
constexpr int kRounds = 200;

__device__ unsigned g_scale = 1;
__device__ unsigned g_offsets[kThreads];
__device__ unsigned long long g_blocks;

__global__ void scaled(unsigned* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned x = i * g_scale + g_offsets[threadIdx.x];
  for (int k = 0; k < kRounds; ++k) x = x * 1664525u + 1013904223u;
  out[i] = x;
  if (threadIdx.x == 0) atomicAdd(&g_blocks, 1ull);
}

volatile std::sig_atomic_t g_stop = 0;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::signal(SIGTERM, [](int) { g_stop = 1; });
  std::FILE* steps = std::fopen(argv[1], "w");
  if (!steps) return 2;
  constexpr unsigned n = kBlocks * kThreads;
  unsigned* out;
  CUDA_CHECK(cudaMalloc(&out, n * sizeof *out));
  static unsigned got[n];
  unsigned offsets[kThreads];
  for (unsigned step = 1; !g_stop; ++step) {
    for (unsigned t = 0; t < kThreads; ++t) offsets[t] = step * 7 + t * t;
    const unsigned long long none = 0;
    CUDA_CHECK(cudaMemcpyToSymbol(g_scale, &step, sizeof step));
    CUDA_CHECK(cudaMemcpyToSymbol(g_offsets, offsets, sizeof offsets));
    CUDA_CHECK(cudaMemcpyToSymbol(g_blocks, &none, sizeof none));
    scaled<<<kBlocks, kThreads>>>(out);
    CUDA_CHECK(cudaGetLastError());
    unsigned long long blocks = 0;
    CUDA_CHECK(cudaMemcpyFromSymbol(&blocks, g_blocks, sizeof blocks));
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    if (blocks != kBlocks) return std::fprintf(stderr, "step %u: %llu blocks\n", step, blocks), 1;
    for (unsigned i = 0; i < n; ++i) {
      unsigned x = i * step + offsets[i % kThreads];
      for (int k = 0; k < kRounds; ++k) x = x * 1664525u + 1013904223u;
      if (got[i] != x) return std::fprintf(stderr, "step %u: element %u differs\n", step, i), 1;
    }
    std::fputc('.', steps);
    std::fflush(steps);
  }
  CUDA_CHECK(cudaFree(out));
}
