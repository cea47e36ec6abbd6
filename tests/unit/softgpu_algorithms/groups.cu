// Cooperative groups: tiles, partitions, what happens to be together, and the whole grid.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/softgpu_algorithms/checks.h"

namespace cg = cooperative_groups;

namespace {

__global__ void tile_sums(const int* in, int* out) {
  const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = cg::reduce(tile, in[i], cg::plus<int>()) * 8 + cg::exclusive_scan(tile, 1, cg::plus<int>());
}
void tiles() {
  std::vector<int> in(192), want;
  std::iota(in.begin(), in.end(), 5);
  Device<int> d(in), out(in.size());
  tile_sums<<<2, 96>>>(d.data(), out.data());
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < 192; ++i) want.push_back((8 * (i / 8 * 8 + 5) + 28) * 8 + i % 8);
  expect_equal(out.get(), want, "tile sums");
}

// Lanes that take a branch count themselves and elect one to add for all.
__global__ void aggregate(const int* in, int* count, int* leaders) {
  if (in[threadIdx.x] % 3) return;
  const cg::coalesced_group together = cg::coalesced_threads();
  if (together.thread_rank() == 0) {
    atomicAdd(count, int(together.size()));
    atomicAdd(leaders, 1);
  }
  together.sync();
}
__global__ void by_label(const int* labels, int* sizes) {
  const auto same =
      cg::labeled_partition(cg::tiled_partition<32>(cg::this_thread_block()), labels[threadIdx.x]);
  sizes[threadIdx.x] = int(same.size());
}
void coalesced() {
  std::vector<int> in(128), want;
  std::iota(in.begin(), in.end(), 0);
  Device<int> d(in), count(1), leaders(1);
  aggregate<<<1, 128>>>(d.data(), count.data(), leaders.data());
  CHECK_CUDA(cudaDeviceSynchronize());
  expect_equal(count.get(), {43}, "aggregated count");
  expect_equal(leaders.get(), {4}, "leaders");
  std::vector<int> labels(32);
  for (int i = 0; i < 32; ++i) labels[i] = i * i % 5;
  for (int x : labels) want.push_back(int(std::count(labels.begin(), labels.end(), x)));
  Device<int> dl(labels), sizes(32);
  by_label<<<1, 32>>>(dl.data(), sizes.data());
  CHECK_CUDA(cudaDeviceSynchronize());
  expect_equal(sizes.get(), want, "sizes of labelled groups");
}

// Each step reads what other blocks wrote in the step before.
__global__ void grid_steps(int* a, int* b, int steps) {
  const cg::grid_group grid = cg::this_grid();
  const int i = int(grid.thread_rank()), n = int(grid.size());
  for (int s = 0; s < steps; ++s) {
    b[i] = a[i] + a[(i + n / 2 + 1) % n];
    grid.sync();
    int* t = a;
    a = b, b = t;
  }
}
void grid() {
  const int n = 3 * 64;
  int steps = 6;
  std::vector<int> want(n);
  std::iota(want.begin(), want.end(), 1);
  Device<int> a(want), b(n);
  int *pa = a.data(), *pb = b.data();
  void* arguments[] = {&pa, &pb, &steps};
  CHECK_CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(grid_steps), 3, 64, arguments, 0, nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int s = 0; s < steps; ++s) {
    const std::vector<int> old = want;
    for (int i = 0; i < n; ++i) want[i] = old[i] + old[(i + n / 2 + 1) % n];
  }
  expect_equal(a.get(), want, "grid steps");
}

}  // namespace

std::vector<Algorithm> group_algorithms() {
  return {{"tiles", tiles}, {"coalesced", coalesced}, {"grid", grid}};
}
