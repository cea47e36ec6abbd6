// Kernels whose bits depend on how they were compiled: contracted multiply-adds, approximations, a reduction,
// integer work. Built twice, as PTX and as machine code; h11_jit.cu compares the results.
extern "C" __global__ void contracted(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = a[i], y = b[i];
  for (int k = 0; k < 50; ++k) {
    x = x * y + a[(i + k) % n];
    y = y * 0.75f + x * 0.125f - b[(i + 3 * k) % n];
  }
  out[i] = x + y;
}

extern "C" __global__ void approximate(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = __sinf(a[i]) / (1.0f + expf(-b[i])) + rsqrtf(fabsf(a[i]) + 1e-3f) + tanhf(b[i]);
}

extern "C" __global__ void reduced(const float* a, const float* b, float* out, int n) {
  __shared__ float partial[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  partial[threadIdx.x] = i < n ? a[i] * b[i] : 0.0f;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (i < n) out[i] = partial[0];
}

extern "C" __global__ void integers(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned h = __float_as_uint(a[i]) ^ 0x9e3779b9u;
  for (int k = 0; k < 20; ++k) h = (h ^ (h >> 15)) * 0x2c1b3c6du + __float_as_uint(b[i]);
  out[i] = __uint_as_float(h & 0x3fffffffu);
}
