// Kernels for compute capability 9.0: tensor maps as parameters, boxes that arrive at barriers, products of warpgroups,
// results stored as boxes. Compiled by nvcc for tensor_map_test.cc.
#include <cuda.h>

#include <cstdint>

namespace {

constexpr int kTile = 64, kStages = 2, kBytes = kTile * kTile * 2;  // of a tile of 16-bit elements

__device__ uint32_t address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void load(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(address(to)),
      "l"(map), "r"(x), "r"(y), "r"(address(barrier))
      : "memory");
}
__device__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra OVER;\nbra "
      "AGAIN;\n"
      "OVER:\n}" ::"r"(address(barrier)),
      "r"(parity)
      : "memory");
}
// Rows of 128 bytes, swizzled; groups of eight rows are 1024 bytes apart.
__device__ uint64_t descriptor(const void* p) {
  return (address(p) & 0x3ffff) >> 4 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
__device__ void multiply(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "{ .reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, "
      "%33, p, 1, "
      "1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

}  // namespace

// c[m][n] = sum over k of a[m][k] * b[n][k]: a tile of 64 x 64 per block, two boxes in flight.
extern "C" __global__ void __launch_bounds__(128)
    product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
            const __grid_constant__ CUtensorMap c, int k) {
  __shared__ alignas(1024) uint8_t tiles[kStages][2][kBytes];
  __shared__ uint64_t full[kStages];
  const int n_steps = (k + kTile - 1) / kTile, thread = threadIdx.x;
  const auto fetch = [&](int step) {
    uint64_t* barrier = &full[step % kStages];
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)),
                 "r"(2 * kBytes)
                 : "memory");
    load(tiles[step % kStages][0], &a, step * kTile, blockIdx.x * kTile, barrier);
    load(tiles[step % kStages][1], &b, step * kTile, blockIdx.y * kTile, barrier);
  };
  if (thread == 0) {
    for (uint64_t& barrier : full)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int step = 0; step < kStages && step < n_steps; ++step) fetch(step);
  }
  __syncthreads();
  float d[32] = {};
  for (int step = 0; step < n_steps; ++step) {
    const int stage = step % kStages;
    wait(&full[stage], step / kStages % 2);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < kTile / 16; ++i)
      multiply(d, descriptor(tiles[stage][0] + 32 * i), descriptor(tiles[stage][1] + 32 * i));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    __syncthreads();
    if (thread == 0 && step + kStages < n_steps) fetch(step + kStages);
  }
  float* out = reinterpret_cast<float*>(&tiles[0][0][0]);
  for (int i = 0; i < 32; ++i)
    out[(thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8) * kTile + i / 4 * 8 + thread % 4 * 2 + i % 2] =
        d[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (thread == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&c),
                 "r"(blockIdx.y * kTile), "r"(blockIdx.x * kTile), "r"(address(out))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// The same with roles: in each block one thread fetches and two warpgroups multiply; the two blocks of a
// cluster need the same rows of b, so each fetches half of them for both. A tile of 128 x 64 per block, three
// boxes in flight.
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384)
    product_of_cluster(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap half_b,
                       float* c, int m, int n, int k) {
  constexpr int kDepth = 3;
  extern __shared__ __align__(1024) uint8_t memory[];  // kDepth times two tiles of a and one of b
  __shared__ uint64_t full[kDepth], empty[kDepth];
  const int thread = threadIdx.x, group = thread / 128, n_steps = (k + kTile - 1) / kTile;
  uint32_t rank;
  asm volatile("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  if (thread == 0) {
    for (int i = 0; i < kDepth; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[i])));
      asm volatile(
          "mbarrier.init.shared::cta.b64 [%0], 4;" ::"r"(address(&empty[i])));  // two groups of two blocks
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 0)
      for (int step = 0; step < n_steps; ++step) {
        const int stage = step % kDepth;
        uint8_t* to = memory + stage * 3 * kBytes;
        wait(&empty[stage], step / kDepth % 2 ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[stage])),
                     "r"(3 * kBytes)
                     : "memory");
        load(to, &a, step * kTile, blockIdx.x * 2 * kTile, &full[stage]);
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, "
            "{%2, %3}], [%4], %5;" ::"r"(address(to + 2 * kBytes + rank * (kBytes / 2))),
            "l"(&half_b), "r"(step * kTile), "r"(int(blockIdx.y * kTile + rank * (kTile / 2))),
            "r"(address(&full[stage])), "h"(uint16_t(3))
            : "memory");
      }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[32] = {};
    for (int step = 0; step < n_steps; ++step) {
      const int stage = step % kDepth;
      const uint8_t* from = memory + stage * 3 * kBytes;
      wait(&full[stage], step / kDepth % 2);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int i = 0; i < kTile / 16; ++i)
        multiply(d, descriptor(from + (group - 1) * kBytes + 32 * i), descriptor(from + 2 * kBytes + 32 * i));
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (thread % 128 < 2)
        asm volatile(
            "{ .reg .b32 other;\nmapa.shared::cluster.u32 other, %0, %1;\n"
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [other];\n}" ::"r"(
                address(&empty[stage])),
            "r"(thread % 128)
            : "memory");
    }
    const int lane = thread % 32,
              first = blockIdx.x * 2 * kTile + (group - 1) * kTile + thread % 128 / 32 * 16;
    for (int i = 0; i < 32; ++i) {
      const int row = first + lane / 4 + i / 2 % 2 * 8,
                column = blockIdx.y * kTile + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row < m && column < n) c[row * n + column] = d[i];
    }
  }
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::
                   : "memory");  // no block leaves while it is written to
}

struct Matrix {
  const float* data;
  uint32_t columns, rows;
  uint64_t stride;  // bytes from row to row
};

// Each block makes a map of a matrix of its own from a pattern, as grouped products do, publishes it, loads
// the first box of 32 x 8 through it and adds that to the sum; elements that a matrix does not have count as
// zeros.
extern "C" __global__ void __launch_bounds__(32)
    sum_of_boxes(const __grid_constant__ CUtensorMap pattern, const Matrix* matrices, CUtensorMap* maps,
                 const __grid_constant__ CUtensorMap sum) {
  __shared__ alignas(128) CUtensorMap map;
  __shared__ alignas(1024) float box[8 * 32];
  __shared__ uint64_t full;
  const int lane = threadIdx.x;
  reinterpret_cast<uint32_t*>(&map)[lane] = reinterpret_cast<const uint32_t*>(&pattern)[lane];
  __syncwarp();
  if (lane == 0) {
    const Matrix mine = matrices[blockIdx.x];
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(address(&map)),
                 "l"(mine.data)
                 : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(address(&map)),
                 "r"(mine.columns)
                 : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(address(&map)),
                 "r"(mine.rows)
                 : "memory");
    asm volatile(
        "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"r"(address(&map)),
        "l"(mine.stride)
        : "memory");
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(address(&full))
        : "memory");
  }
  __syncwarp();
  CUtensorMap* published = &maps[blockIdx.x];
  asm volatile(
      "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], "
      "128;" ::"l"(published),
      "r"(address(&map))
      : "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(published) : "memory");
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full)),
                 "n"(sizeof box)
                 : "memory");
    load(box, published, 0, 0, &full);
    wait(&full, 0);
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            &sum),
        "r"(0), "r"(0), "r"(address(box))
        : "memory");
    asm volatile(
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\ncp.async.bulk.wait_group 0;" ::
            : "memory");
  }
}
