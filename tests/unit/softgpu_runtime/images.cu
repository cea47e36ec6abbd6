// One kernel, one variable, built in several ways (machine code beside PTX, other compressions): whatever the
// container looks like, the driver must find the PTX in it.
#include "checks.h"

__device__ int d_offset = 5;
__global__ void fill(int* p) {
  p[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x * 1000 + threadIdx.x + d_offset;
}

int main() {
  int *device = nullptr, host[256] = {};
  OK(cudaMalloc(&device, sizeof host));
  fill<<<4, 64>>>(device);
  OK(cudaGetLastError());
  OK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host[255], 3068);
  std::printf("%d failures\n", checks::g_failures);
  return checks::g_failures == 0 ? 0 : 1;
}
