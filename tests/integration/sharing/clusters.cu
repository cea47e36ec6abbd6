// A program whose kernels run in clusters: of a shape that the kernel has, and of one that the launch asks for.
// Blocks exchange numbers through each other's shared memory. Each step is checked: the exit status is 0 only if
// all were right. Runs until SIGTERM.
//
//   clusters kernel|launch STEPS_FILE    which of the two; a byte is appended per step
#include <cooperative_groups.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "kernels/samples/support.h"

namespace cg = cooperative_groups;

constexpr unsigned kBlocks = 1024, kThreads = 64;
constexpr unsigned kOfKernel = 2, kOfLaunch = 4;  // blocks of a cluster
constexpr int kRounds = 200;

__device__ unsigned mixed(unsigned x) {
  for (int k = 0; k < kRounds; ++k) x = x * 1664525u + 1013904223u;
  return x;
}

// Clusters are of compute capability 9.0; the build makes code for 8.0, too.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
__global__ void exchange_of_kernel(unsigned*, unsigned) {}
__global__ void exchange_of_launch(unsigned*, unsigned) {}
#else
// Each thread gets what the same thread of the next block of its cluster has, and the number of the cluster.
__device__ void exchange(unsigned* out, unsigned step) {
  __shared__ unsigned own[kThreads];
  cg::cluster_group cluster = cg::this_cluster();
  own[threadIdx.x] = mixed(blockIdx.x * kThreads + threadIdx.x + step);
  cluster.sync();
  const unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
  const unsigned number = unsigned(cg::this_grid().cluster_rank());
  out[blockIdx.x * kThreads + threadIdx.x] = cluster.map_shared_rank(own, next)[threadIdx.x] + number;
  cluster.sync();
}
__global__ void __cluster_dims__(kOfKernel, 1, 1) exchange_of_kernel(unsigned* out, unsigned step) {
  exchange(out, step);
}
__global__ void exchange_of_launch(unsigned* out, unsigned step) {
  exchange(out, step);
}
#endif

unsigned mixed_on_host(unsigned x) {
  for (int k = 0; k < kRounds; ++k) x = x * 1664525u + 1013904223u;
  return x;
}

volatile std::sig_atomic_t g_stop = 0;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool by_launch = std::strcmp(argv[1], "launch") == 0;
  const unsigned ranks = by_launch ? kOfLaunch : kOfKernel;
  std::signal(SIGTERM, [](int) { g_stop = 1; });
  std::FILE* steps = std::fopen(argv[2], "w");
  if (!steps) return 2;
  constexpr unsigned n = kBlocks * kThreads;
  unsigned* out;
  CUDA_CHECK(cudaMalloc(&out, n * sizeof *out));
  static unsigned got[n];
  for (unsigned step = 1; !g_stop; ++step) {
    if (by_launch) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = ranks, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = kBlocks, config.blockDim = kThreads;
      config.attrs = &attribute;
      config.numAttrs = 1;
      CUDA_CHECK(cudaLaunchKernelEx(&config, exchange_of_launch, out, step));
    } else {
      exchange_of_kernel<<<kBlocks, kThreads>>>(out, step);
      CUDA_CHECK(cudaGetLastError());
    }
    CUDA_CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; ++i) {
      const unsigned block = i / kThreads, cluster = block / ranks;
      const unsigned next = cluster * ranks + (block + 1) % ranks;
      if (got[i] != mixed_on_host(next * kThreads + i % kThreads + step) + cluster)
        return std::fprintf(stderr, "step %u: element %u differs\n", step, i), 1;
    }
    std::fputc('.', steps);
    std::fflush(steps);
  }
  CUDA_CHECK(cudaFree(out));
}
