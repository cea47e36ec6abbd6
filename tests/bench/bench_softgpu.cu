// The device side of bench_softgpu.cc; bench_softgpu_opencl.cc has the same algorithms for PoCL.
extern "C" __global__ void saxpy(float a, const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = a * x[i] + y[i];
}

extern "C" __global__ void sgemm_naive(const float* a, const float* b, float* c, int n) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
  c[row * n + column] = sum;
}

extern "C" __global__ void sgemm_tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float as[16][16], bs[16][16];
  const int x = threadIdx.x, y = threadIdx.y, column = blockIdx.x * 16 + x, row = blockIdx.y * 16 + y;
  float sum = 0;
  for (int t = 0; t < n; t += 16) {
    as[y][x] = a[row * n + t + x];
    bs[y][x] = b[(t + y) * n + column];
    __syncthreads();
    for (int k = 0; k < 16; ++k) sum += as[y][k] * bs[k][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

extern "C" __global__ void reduction(const float* x, float* sums) {
  __shared__ float part[256];
  const int t = threadIdx.x;
  part[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int d = 128; d > 0; d /= 2) {
    if (t < d) part[t] += part[t + d];
    __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = part[0];
}

extern "C" __global__ void mandelbrot(int* out, int width, int height, int most) {
  const int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  const float cx = -2.0f + 3.0f * px / width, cy = -1.5f + 3.0f * py / height;
  float x = 0, y = 0;
  int n = 0;
  while (n < most && x * x + y * y < 4.0f) {
    const float next = x * x - y * y + cx;
    y = 2 * x * y + cy;
    x = next;
    ++n;
  }
  out[py * width + px] = n;
}

extern "C" __global__ void nothing() {}
