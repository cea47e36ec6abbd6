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
