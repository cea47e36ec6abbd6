// Kernels for tests of cutting with the software GPU. Built as PTX, as machine code, and as both in one
// image.
#include <cstdint>

__device__ uint32_t counter = 7;
__constant__ uint32_t table[4] = {10, 20, 30, 40};
__device__ uint32_t handed[64];

// Every thread writes down who it is: a block in the wrong place or a block that is missing shows.
extern "C" __global__ void stamp(uint32_t* out, uint32_t salt) {
  const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  out[block * blockDim.x + threadIdx.x] += block * 1000 + threadIdx.x + salt + gridDim.x * 7 + gridDim.y * 3;
}

#if __CUDA_ARCH__ >= 900
// Identifies a block among blocks and clusters, and the next block of its cluster by that one's shared memory.
__device__ void stamp_of_cluster(uint32_t* out) {
  __shared__ uint32_t word;
  uint32_t rank, ranks, cluster, clusters, peer;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
  asm("{.reg .b32 a, b, c;\nmov.u32 %0, %%clusterid.x;\nmov.u32 a, %%clusterid.y;\nmov.u32 b, %%clusterid.z;\n"
      "mov.u32 %1, %%nclusterid.x;\nmov.u32 c, %%nclusterid.y;\nmad.lo.u32 a, b, c, a;\n"
      "mad.lo.u32 %0, a, %1, %0;}"
      : "=&r"(cluster), "=&r"(clusters));
  const uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x == 0) word = block * 1000 + cluster;
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("{.reg .b32 a;\nmapa.shared::cluster.u32 a, %1, %2;\nld.shared::cluster.u32 %0, [a];}"
               : "=r"(peer)
               : "r"(uint32_t(__cvta_generic_to_shared(&word))), "r"((rank + 1) % ranks));
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  uint32_t* at = out + (block * blockDim.x + threadIdx.x) * 4;
  at[0] += cluster, at[1] += clusters, at[2] += rank, at[3] += peer;
}
extern "C" __global__ void cluster_stamp(uint32_t* out) {
  stamp_of_cluster(out);
}
extern "C" __global__ void __cluster_dims__(2, 2, 1) cluster_stamp_2x2(uint32_t* out) {
  stamp_of_cluster(out);
}
#endif

// Asks for dynamic shared memory.
extern "C" __global__ void shared_stamp(uint32_t* out) {
  extern __shared__ uint32_t memory[];
  memory[threadIdx.x] = blockIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] += memory[blockDim.x - 1 - threadIdx.x] + gridDim.x;
}

// An approximation, of which only the largest error is specified.
extern "C" __global__ void approximate(float* out, float a, float b) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = __expf(a * float(i)) + b;
}

extern "C" __global__ void reads_global(uint32_t* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = counter + blockIdx.x;
}
// Reads and writes variables of the module, also through a function that it calls.
__device__ uint32_t sums[4];
__device__ __noinline__ void add_up(uint32_t n) {
  atomicAdd(&sums[blockIdx.x & 3], n);
}
extern "C" __global__ void uses_globals(uint32_t* out) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  handed[i & 63] = (i & 63) * 3;
  add_up(counter);
  out[i] = counter + blockIdx.x;
}
extern "C" __global__ void reads_const(uint32_t* out) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = table[threadIdx.x & 3] + blockIdx.x;
}

struct Big {
  uint32_t words[1000];
};
extern "C" __global__ void big(uint32_t* out, Big b) {
  out[blockIdx.x * blockDim.x + threadIdx.x] += b.words[(blockIdx.x * 31 + threadIdx.x) % 1000] + gridDim.x;
}
struct Huge {
  uint32_t words[1018];
};
extern "C" __global__ void huge(uint32_t* out, Huge b) {  // 4,080 bytes: no room for the origin below 4,096
  out[blockIdx.x * blockDim.x + threadIdx.x] += b.words[(blockIdx.x * 31 + threadIdx.x) % 1018];
}

// Every block waits for the last one: the analysis refuses it. Its variant is written by hand, as if the
// analysis had not seen it, to see what happens when a slice never ends.
struct Origin {
  uint32_t at[3], grid[3];
};
__device__ void wait_for_last(volatile uint32_t* flag, uint32_t* out, uint32_t block, uint32_t grid) {
  if (block == grid - 1) *flag = 1;
  while (*flag == 0) __nanosleep(100000);
  out[block * blockDim.x + threadIdx.x] += block + 1;
}
extern "C" __global__ void waiter(uint32_t* flag, uint32_t* out) {
  wait_for_last(flag, out, blockIdx.x, gridDim.x);
}
extern "C" __global__ void waiter__tessera_slice(uint32_t* flag, uint32_t* out, Origin o) {
  wait_for_last(flag, out, o.at[0] + blockIdx.x, o.grid[0]);
}

// Each block waits for the word of the one below, as a scan does. The first word is set by the program, or,
// which the analysis does not see, by the last block through another pointer: then no slice but the last ends
// by itself.
extern "C" __global__ void chain(volatile uint32_t* words, uint32_t* first, uint32_t* out) {
  const uint32_t block = blockIdx.x;
  if (block == gridDim.x - 1) {
    *first = 1;
    __threadfence();
  }
  while (words[block] == 0) __nanosleep(1000);
  const uint32_t sum = words[block];
  words[block + 1] = sum + block;
  out[block * blockDim.x + threadIdx.x] = sum;
}
