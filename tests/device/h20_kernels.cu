// H20's kernels: what makes putting code in front of machine code hard. All have the same 28 bytes of parameters
// and write one value per thread. With RANGE_CHECK the check of h20_range_check.ptx stands in the source.
#ifdef RANGE_CHECK
#define RANGE_PARAMETERS , unsigned first_block, unsigned end_block
#define CHECK_RANGE()                                                                                     \
  do {                                                                                                    \
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;                \
    if (block < first_block || block >= end_block) return;                                                \
  } while (0)
#else
#define RANGE_PARAMETERS
#define CHECK_RANGE() ((void)0)
#endif
#define PARAMETERS const float *a, const float *b, float *out, int n RANGE_PARAMETERS

__device__ int thread_index() {
  return (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
}

// Loops that threads of a warp leave one by one, and a stack (of sinf).
extern "C" __global__ void looped(PARAMETERS) {
  CHECK_RANGE();
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
extern "C" __global__ void reduced(PARAMETERS) {
  CHECK_RANGE();
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
extern "C" __global__ void called(PARAMETERS) {
  CHECK_RANGE();
  const int i = thread_index();
  if (i < n) out[i] = deep(a[i], i & 7) / b[i];
}

// Jumps through a table in constant memory.
extern "C" __global__ void jumped(PARAMETERS) {
  CHECK_RANGE();
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
extern "C" __global__ void added(PARAMETERS) {
  CHECK_RANGE();
  const int i = thread_index();
  if (i < n) atomicAdd(out + i, a[i]);
}
