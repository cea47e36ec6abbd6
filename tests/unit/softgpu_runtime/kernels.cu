// Launches, kernel attributes, occupancy, device queries, errors.
#include <cuda.h>

#include <cstring>
#include <vector>

#include "checks.h"

namespace checks {
namespace {

struct Large {
  int words[100];
};

__global__ void saxpy(float a, const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
__global__ void by_value(Large large, int* sum) {
  int s = 0;
  for (int w : large.words) s += w;
  *sum = s;
}
__global__ void coordinates(int* out) {
  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = block * 1000 + thread;
}
__global__ void __launch_bounds__(256) reverse_in_shared(int* data) {
  extern __shared__ int tile[];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
__global__ void meet(int* arrived, int* late) {
  // Every block waits for all others, which only a cooperative launch may do.
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1);
    while (atomicAdd(arrived, 0) < int(gridDim.x)) {
    }
    atomicAdd(late, 1);
  }
}
__global__ void write_through(int* p) {
  *p = 1;
}

void launches() {
  std::vector<float> x(1000), y(1000, 1.0f);
  for (int i = 0; i < 1000; ++i) x[i] = float(i);
  float *dx = nullptr, *dy = nullptr;
  OK(cudaMalloc(&dx, 4000));
  OK(cudaMalloc(&dy, 4000));
  OK(cudaMemcpy(dx, x.data(), 4000, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(dy, y.data(), 4000, cudaMemcpyHostToDevice));
  saxpy<<<8, 128>>>(2.0f, dx, dy, 1000);
  OK(cudaGetLastError());

  float a = 3.0f;
  int n = 1000;
  void* args[] = {&a, &dx, &dy, &n};
  OK(cudaLaunchKernel(saxpy, dim3(8), dim3(128), args, 0, 0));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(8);
  config.blockDim = dim3(128);
  OK(cudaLaunchKernelEx(&config, saxpy, 4.0f, static_cast<const float*>(dx), dy, n));
  OK(cudaMemcpy(y.data(), dy, 4000, cudaMemcpyDeviceToHost));
  EXPECT_EQ(y[999], 9.0f * 999 + 1);

  Large large;
  for (int i = 0; i < 100; ++i) large.words[i] = i;
  int* sum = reinterpret_cast<int*>(dx);
  by_value<<<1, 1>>>(large, sum);
  int host = 0;
  OK(cudaMemcpy(&host, sum, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host, 4950);

  int *grid = nullptr, cells[2 * 3 * 2 * 24];
  OK(cudaMalloc(&grid, sizeof cells));
  coordinates<<<dim3(2, 3, 2), dim3(4, 3, 2)>>>(grid);
  OK(cudaMemcpy(cells, grid, sizeof cells, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 12 * 24; ++i) EXPECT_EQ(cells[i], i / 24 * 1000 + i % 24);
  OK(cudaFree(grid));
  OK(cudaFree(dx));
  OK(cudaFree(dy));
}

void bad_configurations() {
  write_through<<<0, 32>>>(nullptr);
  EXPECT_CUDA(cudaErrorInvalidConfiguration, cudaGetLastError());
  write_through<<<1, 4096>>>(nullptr);
  EXPECT_CUDA(cudaErrorInvalidConfiguration, cudaGetLastError());
  EXPECT_CUDA(cudaErrorInvalidDeviceFunction, cudaLaunchKernel(reinterpret_cast<void*>(&bad_configurations),
                                                               dim3(1), dim3(1), nullptr, 0, 0));
  (void)cudaGetLastError();
  OK(cudaDeviceSynchronize());
}

void attributes_and_occupancy() {
  cudaFuncAttributes attributes{};
  OK(cudaFuncGetAttributes(&attributes, reverse_in_shared));
  EXPECT(attributes.numRegs > 0);
  EXPECT_EQ(attributes.maxThreadsPerBlock, 256);
  EXPECT_EQ(attributes.sharedSizeBytes, 0u);
  int blocks = 0, min_grid = 0, block_size = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reverse_in_shared, 256, 1024));
  EXPECT(blocks >= 1);
  int fewer = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fewer, reverse_in_shared, 256, 40 * 1024));
  EXPECT(fewer <= blocks);
  OK(cudaOccupancyMaxPotentialBlockSize(&min_grid, &block_size, reverse_in_shared));
  EXPECT(block_size > 0 && block_size <= 256 && min_grid > 0);
  const char* name = nullptr;
  OK(cudaFuncGetName(&name, reinterpret_cast<const void*>(reverse_in_shared)));
  EXPECT(name && std::strstr(name, "reverse_in_shared"));

  int limit = 0;
  OK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  int* data = nullptr;
  std::vector<int> host(256);
  for (int i = 0; i < 256; ++i) host[i] = i;
  OK(cudaMalloc(&data, 1024));
  OK(cudaMemcpy(data, host.data(), 1024, cudaMemcpyHostToDevice));
  if (limit > 48 * 1024) {
    reverse_in_shared<<<1, 256, limit>>>(data);
    EXPECT(cudaSuccess != cudaGetLastError());
    OK(cudaFuncSetAttribute(reverse_in_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, limit));
    reverse_in_shared<<<1, 256, limit>>>(data);
  } else {
    reverse_in_shared<<<1, 256, 1024>>>(data);
  }
  OK(cudaGetLastError());
  OK(cudaMemcpy(host.data(), data, 1024, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host[0], 255);
  OK(cudaFree(data));
}

void cooperative() {
  int *counters = nullptr, host[2] = {};
  OK(cudaMalloc(&counters, 8));
  OK(cudaMemset(counters, 0, 8));
  int* late = counters + 1;
  void* args[] = {&counters, &late};
  OK(cudaLaunchCooperativeKernel(meet, dim3(4), dim3(32), args, 0, 0));
  OK(cudaMemcpy(host, counters, 8, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host[0], 4);
  EXPECT_EQ(host[1], 4);
  EXPECT_CUDA(cudaErrorCooperativeLaunchTooLarge,
              cudaLaunchCooperativeKernel(meet, dim3(1000000), dim3(32), args, 0, 0));
  (void)cudaGetLastError();
  OK(cudaFree(counters));
}

void device_queries() {
  int count = 0, device = -1, value = 0;
  OK(cudaGetDeviceCount(&count));
  EXPECT(count >= 1);
  OK(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  OK(cudaSetDevice(0));
  EXPECT_CUDA(cudaErrorInvalidDevice, cudaSetDevice(count));
  (void)cudaGetLastError();
  cudaDeviceProp prop{};
  OK(cudaGetDeviceProperties(&prop, 0));
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  EXPECT_EQ(value, prop.multiProcessorCount);
  EXPECT(value > 0 && prop.name[0] != 0 && prop.warpSize == 32 && prop.totalGlobalMem > 0);
  EXPECT(prop.sharedMemPerBlock >= 48 * 1024);
  char id[32];
  OK(cudaDeviceGetPCIBusId(id, sizeof id, 0));
  OK(cudaDeviceGetByPCIBusId(&device, id));
  EXPECT_EQ(device, 0);
  int runtime = 0, driver = 0;
  OK(cudaRuntimeGetVersion(&runtime));
  OK(cudaDriverGetVersion(&driver));
  EXPECT(runtime >= 13000 && driver >= 13000);
  size_t stack = 0;
  OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  EXPECT(stack > 0);
}

void reset() {
  int* p = nullptr;
  OK(cudaMalloc(&p, 4));
  write_through<<<1, 1>>>(p);
  OK(cudaDeviceSynchronize());
  OK(cudaDeviceReset());
  OK(cudaMalloc(&p, 4));
  OK(cudaMemset(p, 0, 4));
  write_through<<<1, 1>>>(p);  // kernels outlive the context
  int host = 0;
  OK(cudaMemcpy(&host, p, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host, 1);
}

void error_texts() {
  EXPECT(!std::strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress"));
  EXPECT(!std::strcmp(cudaGetErrorString(cudaSuccess), "no error"));
  EXPECT(std::strlen(cudaGetErrorString(cudaErrorInvalidConfiguration)) > 5);
  EXPECT(!std::strcmp(cudaGetErrorString(static_cast<cudaError_t>(54321)), "unrecognized error code"));
  // Graphics interoperation: there is no display behind this GPU.
  EXPECT_CUDA(cudaErrorNotSupported, cudaGraphicsUnregisterResource(nullptr));
  EXPECT_CUDA(cudaErrorNotSupported, cudaGetLastError());
}

void sticky_error() {
  write_through<<<1, 1>>>(reinterpret_cast<int*>(64));
  EXPECT_CUDA(cudaErrorIllegalAddress, cudaDeviceSynchronize());
  EXPECT_CUDA(cudaErrorIllegalAddress, cudaGetLastError());
  void* p = nullptr;
  EXPECT_CUDA(cudaErrorIllegalAddress, cudaMalloc(&p, 4));  // the context is lost for good
}

void entry_points() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  OK(cudaGetDriverEntryPointByVersion("cuDeviceGetCount", &function, 13000, cudaEnableDefault, &found));
  EXPECT_EQ(int(found), int(cudaDriverEntryPointSuccess));
  void* encode = nullptr;  // how programs reach what the runtime has no name for
  OK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found));
  EXPECT_EQ(int(found), int(cudaDriverEntryPointSuccess));
  int count = 0;
  if (function) EXPECT_EQ(int(reinterpret_cast<CUresult (*)(int*)>(function)(&count)), int(CUDA_SUCCESS));
  EXPECT(count >= 1);
  OK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 13000, cudaEnableDefault, &found));
  EXPECT(function == nullptr);
  EXPECT_EQ(int(found), int(cudaDriverEntryPointSymbolNotFound));
}

}  // namespace

const Case kKernelCases[] = {{"launches", launches},
                             {"bad_configurations", bad_configurations},
                             {"attributes_and_occupancy", attributes_and_occupancy},
                             {"cooperative", cooperative},
                             {"device_queries", device_queries},
                             {"reset", reset},
                             {"error_texts", error_texts},
                             {"sticky_error", sticky_error},
                             {"entry_points", entry_points},
                             {nullptr, nullptr}};

}  // namespace checks
