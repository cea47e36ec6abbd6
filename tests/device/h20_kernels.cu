// H20's kernels, one of each kind that makes putting code in front of machine code hard. Each writes one value per thread from
// `out` on. With RANGE_CHECK the check of h20_range_check.ptx stands in the source. Own parameters come first: the four of
// PARAMETERS, then what h20_prologue.cu gives to this kind.
#include <cooperative_groups.h>
#include <cuda.h>

#include <cstdint>

#include "h20_parameters.h"

namespace groups = cooperative_groups;

#ifdef RANGE_CHECK
#define RANGE , unsigned first, unsigned end
#define RANGE_ALONE unsigned first, unsigned end
__device__ unsigned number(uint3 at, uint3 size) {
  return (at.z * size.y + at.y) * size.x + at.x;
}
#define CHECK_BLOCKS()                                                                    \
  do {                                                                                    \
    const unsigned block = number(blockIdx, {gridDim.x, gridDim.y, gridDim.z});           \
    if (block < first || block >= end) return;                                            \
  } while (0)
#define CHECK_CLUSTERS()                                                                  \
  do {                                                                                    \
    uint3 at, size;                                                                       \
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(at.x));                                       \
    asm("mov.u32 %0, %%clusterid.y;" : "=r"(at.y));                                       \
    asm("mov.u32 %0, %%clusterid.z;" : "=r"(at.z));                                       \
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(size.x));                                    \
    asm("mov.u32 %0, %%nclusterid.y;" : "=r"(size.y));                                    \
    const unsigned cluster = number(at, size);                                            \
    if (cluster < first || cluster >= end) return;                                        \
  } while (0)
#else
#define RANGE
#define RANGE_ALONE
#define CHECK_BLOCKS() ((void)0)
#define CHECK_CLUSTERS() ((void)0)
#endif
#define PARAMETERS const float *a, const float *b, float *out, int n

__device__ int thread_index() {
  return (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
}

// Loops that threads of a warp leave one by one, and a stack (of sinf).
extern "C" __global__ void looped(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i >= n) return;
  float x = a[i], y = b[i];
  for (int k = 0; k < (i & 31); ++k) {
    x = x * y + a[(i + k) % n];
    y = sinf(y + x * 1e5f);
  }
  out[i] = x + y;
}

// Shared memory, barriers, shuffles.
extern "C" __global__ void reduced(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  __shared__ float partial[256];
  const int i = thread_index();
  float value = i < n ? a[i] * b[i] : 0.0f;
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (i < n) out[i] = partial[0];
}

// Calls, of itself and of the division's slow path; returns; frames on the stack.
__device__ __noinline__ float deep(float x, int n) {
  return n <= 0 ? x : deep(x * 0.5f + 1.0f, n - 1) + x;
}
extern "C" __global__ void called(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i < n) out[i] = deep(a[i], i & 7) / b[i];
}

// Jumps through a table in constant memory.
extern "C" __global__ void jumped(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i >= n) return;
  float x = a[i];
  const float y = b[i];
  switch (i % 9) {
    case 0: x = x + y; break;
    case 1: x = x * y - a[0]; break;
    case 2: x = sqrtf(x); break;
    case 3: x = x / y; break;
    case 4: x = float(__float_as_uint(x) >> 3); break;
    case 5: out[i] = b[n - 1 - i]; return;
    case 6: x = rsqrtf(y) + b[3]; break;
    case 7: x = fmodf(x, y); break;
    case 8: x = y - x * x; break;
  }
  out[i] = x;
}

// Each thread adds to what stands there: a block that runs twice is seen. Few registers.
extern "C" __global__ void added(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i < n) atomicAdd(out + i, a[i]);
}

// Threads that end before the barriers of the others, and a barrier of half of the block.
extern "C" __global__ void left(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  __shared__ float values[256];
  const int i = thread_index(), t = threadIdx.x;
  if (i >= n || t >= 192) {
    if (i < n) out[i] = b[i];
    return;
  }
  values[t] = a[i];
  __syncthreads();
  const float other = values[191 - t];
  if (t >= 128) {
    out[i] = other - 1.0f;
    return;
  }
  asm volatile("barrier.cta.sync 1, 128;" ::: "memory");
  values[t] = other * 2.0f;
  asm volatile("barrier.cta.sync 1, 128;" ::: "memory");
  out[i] = values[127 - t] + b[i];
}

// Threads part and meet before anything else is done.
extern "C" __global__ void parted(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  unsigned steps = 0;
  for (unsigned k = threadIdx.x + 1; k != 1; k = k & 1 ? 3 * k + 1 : k >> 1) ++steps;
  __syncwarp();
  const int i = thread_index();
  if (i < n) out[i] = a[i] + float(steps);
}

// Shared memory of a size that the launch says.
extern "C" __global__ void dynamic(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  extern __shared__ float values[];
  const int i = thread_index(), last = blockDim.x - 1;
  values[threadIdx.x] = i < n ? a[i] : 0.0f;
  values[blockDim.x + threadIdx.x] = i < n ? b[i] : 0.0f;
  __syncthreads();
  if (i < n) out[i] = values[last - threadIdx.x] - values[blockDim.x + (threadIdx.x ^ 1)];
}

// Cooperative groups within a block.
extern "C" __global__ void grouped(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  const auto block = groups::this_thread_block();
  const auto tile = groups::tiled_partition<8>(block);
  const int i = thread_index();
  float value = i < n ? a[i] : 0.0f;
  for (int distance = 4; distance > 0; distance /= 2) value += tile.shfl_xor(value, distance);
  block.sync();
  if (value > 2.0f) {
    const auto together = groups::coalesced_threads();
    value += float(together.size());
  }
  if (i < n) out[i] = value + float(tile.meta_group_rank());
}

// Clusters, and shared memory of the other blocks.
extern "C" __global__ void __cluster_dims__(2, 2, 1) clustered(PARAMETERS RANGE) {
  CHECK_CLUSTERS();
  __shared__ float values[256];
  const auto cluster = groups::this_cluster();
  const int i = thread_index();
  values[threadIdx.x] = i < n ? a[i] : 0.0f;
  cluster.sync();
  const float* theirs = cluster.map_shared_rank(values, (cluster.block_rank() + 1) % cluster.num_blocks());
  const float value = theirs[threadIdx.x ^ 3];
  cluster.sync();
  if (i < n) out[i] = value + b[i];
}

// A tensor map among the parameters, a box that arrives at a barrier.
extern "C" __global__ void mapped(PARAMETERS, const __grid_constant__ CUtensorMap map RANGE) {
  CHECK_BLOCKS();
  __shared__ alignas(128) float row[256];
  __shared__ alignas(8) uint64_t barrier;
  const auto address = [](const void* p) { return uint32_t(__cvta_generic_to_shared(p)); };
  const int block = blockIdx.y * gridDim.x + blockIdx.x, i = thread_index();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&barrier)),
                 "r"(uint32_t(sizeof row))
                 : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(address(row)),
        "l"(&map), "r"(0), "r"(block), "r"(address(&barrier))
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{ .reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@p bra OVER;\nbra "
      "AGAIN;\nOVER:\n}" ::"r"(address(&barrier))
      : "memory");
  if (i < n) out[i] = row[255 - threadIdx.x] + b[i];
}

// Warps that hand registers to others.
extern "C" __global__ void __launch_bounds__(256, 1) handed(PARAMETERS RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (i < n) out[i] = a[i] - b[i];
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    if (i < n) out[i] = a[i] / b[i];
  }
}

// Parameters of a size that is not whole words, and more than the first 4096 bytes.
extern "C" __global__ void odd(PARAMETERS, const OddParameter more RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i < n) out[i] = a[i] + float(more.bytes[i % sizeof more.bytes]);
}
extern "C" __global__ void large(PARAMETERS, const LargeParameter more RANGE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i < n) out[i] = a[i] + more.values[i % kLargeValues];
}

// No parameters.
extern "C" __device__ BareArguments bare_arguments;
__device__ BareArguments bare_arguments;
extern "C" __global__ void bare(RANGE_ALONE) {
  CHECK_BLOCKS();
  const int i = thread_index();
  if (i < bare_arguments.n) bare_arguments.out[i] = bare_arguments.a[i] * 3.0f;
}
