#include "rdc.h"

__device__ int shared_counter = 5;
static __device__ int table[2] = {10, 20};

static __device__ __noinline__ int mine(int x) {
  return x * table[x & 1];
}
__device__ int helper(int x) {
  return mine(x);
}
static __global__ void other(int* out) {
  *out = 77;
}

cudaError_t read_counter(int* value) {
  return cudaMemcpyFromSymbol(value, shared_counter, sizeof *value);
}
cudaError_t launch_other(int* out) {
  other<<<1, 1>>>(out);
  return cudaDeviceSynchronize();
}
