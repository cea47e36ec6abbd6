// Relocatable device code: this file and rdc_other.cu share device functions and variables.
#include <cstdio>

#include "rdc.h"

extern __device__ int shared_counter;
static __device__ int table[4] = {1, 2, 3, 4};
__constant__ int offset;

static __device__ __noinline__ int mine(int x) {
  return x + table[x & 3];
}

__global__ void both(int* out) {
  out[threadIdx.x] = helper(int(threadIdx.x)) + mine(int(threadIdx.x)) + offset;
  atomicAdd(&shared_counter, 1);
}

int main() {
  int *out = nullptr, value = 1000, counter = 0;
  if (cudaMallocManaged(&out, 4 * sizeof(int)) || cudaMemcpyToSymbol(offset, &value, sizeof value)) return 1;
  both<<<1, 4>>>(out);
  if (cudaDeviceSynchronize()) return 2;
  for (int i = 0; i < 4; ++i) {
    const int expected = i * (i % 2 ? 20 : 10) + i + i + 1 + 1000;
    if (out[i] != expected) return std::printf("out[%d] = %d, not %d\n", i, out[i], expected), 3;
  }
  if (read_counter(&counter) || counter != 9) return std::printf("counter %d\n", counter), 4;
  return launch_other(out) || out[0] != 77 ? 5 : 0;
}
