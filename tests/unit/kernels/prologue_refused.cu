// Kernels that a range check in front of machine code does not suit, or not as it is. For prologue_test.cc.
#include <cooperative_groups.h>

#include <cstdio>

extern "C" __global__ void whole_grid(float* out) {
  out[blockIdx.x] = 1.0f;
  cooperative_groups::this_grid().sync();
  out[blockIdx.x] += out[blockIdx.x ^ 1];
}

extern "C" __global__ void prints(const int* in) {
  printf("%d\n", *in);
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) in_clusters(float* out) {
  cooperative_groups::this_cluster().sync();
  out[blockIdx.x] = float(cooperative_groups::this_cluster().block_rank());
}

template <int bytes>
struct Parameter {
  float values[bytes / sizeof(float)];
};
extern "C" __global__ void full(const Parameter<4092> p) {
  if (p.values[blockIdx.x] == 0.0f) __trap();
}
extern "C" __global__ void full_of_second_form(const Parameter<32760> p) {
  if (p.values[blockIdx.x] == 0.0f) __trap();
}

extern "C" __global__ void __launch_bounds__(256, 1) shares_registers(float* out) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
  }
  out[threadIdx.x] = 1.0f;
}
