// Compiled with several sets of -gencode: what can be cut depends on what the file holds for a GPU.
extern "C" __global__ void copies(const int* from, int* to) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i] + 1;
}

// An approximation: another compiler may give other last bits.
extern "C" __global__ void exponents(const float* from, float* to) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = __expf(from[i]);
}

// Constant memory belongs to the module.
__constant__ int c_table[64];
extern "C" __global__ void looks_up(const int* from, int* to) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = c_table[from[i] & 63];
}

// A block may wait for one of another slice.
extern "C" __global__ void waits(volatile int* flag) {
  while (*flag == 0) {
  }
}

extern "C" __global__ void sums(const float* from, float* total) {
  atomicAdd(total, from[blockIdx.x * blockDim.x + threadIdx.x]);
}
