// Allocation, copies, fills, symbols, host and managed memory, pools, pointer attributes.
#include <cstring>
#include <vector>

#include "checks.h"

namespace checks {
namespace {

__constant__ float k_table[16];
__device__ int d_counter = 41;
__device__ int d_array[8];
__managed__ int m_value = 7;

__global__ void read_table(float* out) {
  out[threadIdx.x] = k_table[threadIdx.x] * 2;
}
__global__ void bump() {
  d_counter += 1;
}
__global__ void bump_managed() {
  m_value += 5;
}
__global__ void double_it(int* p, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] *= 2;
}

void linear() {
  std::vector<int> in(1000), out(1000, -1);
  for (int i = 0; i < 1000; ++i) in[i] = i * 3;
  int *a = nullptr, *b = nullptr;
  OK(cudaMalloc(&a, 4000));
  OK(cudaMalloc(&b, 4000));
  OK(cudaMemcpy(a, in.data(), 4000, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(b, a, 4000, cudaMemcpyDeviceToDevice));
  OK(cudaMemcpy(out.data(), b, 4000, cudaMemcpyDefault));
  EXPECT(in == out);
  OK(cudaMemset(b, 0xff, 2000));
  OK(cudaMemcpy(out.data(), b, 4000, cudaMemcpyDeviceToHost));
  EXPECT_EQ(out[499], -1);
  EXPECT_EQ(out[500], 1500);
  EXPECT_CUDA(cudaErrorInvalidMemcpyDirection, cudaMemcpy(a, b, 4, static_cast<cudaMemcpyKind>(9)));
  OK(cudaMemcpy(a, nullptr, 0, cudaMemcpyHostToDevice));
  std::vector<int> copy(4);
  OK(cudaMemcpy(copy.data(), in.data(), 16, cudaMemcpyHostToHost));
  EXPECT_EQ(copy[3], 9);
  OK(cudaFree(a));
  OK(cudaFree(b));
  OK(cudaFree(nullptr));
}

void allocation_errors() {
  void* p = &p;
  OK(cudaMalloc(&p, 0));
  EXPECT(p == nullptr);
  EXPECT_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&p, size_t(1) << 60));
  EXPECT_CUDA(cudaErrorMemoryAllocation, cudaPeekAtLastError());
  EXPECT_CUDA(cudaErrorMemoryAllocation, cudaGetLastError());
  EXPECT_CUDA(cudaSuccess, cudaGetLastError());
  OK(cudaMalloc(&p, 256));
  OK(cudaFree(p));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaFree(p));
  size_t free = 0, total = 0;
  OK(cudaMemGetInfo(&free, &total));
  EXPECT(total > 0 && free <= total);
}

void two_and_three_dimensions() {
  char *p = nullptr, host[6 * 10], back[6 * 10];
  size_t pitch = 0;
  OK(cudaMallocPitch(&p, &pitch, 10, 6));
  EXPECT(pitch >= 10);
  for (int i = 0; i < 60; ++i) host[i] = char(i);
  OK(cudaMemcpy2D(p, pitch, host, 10, 10, 6, cudaMemcpyHostToDevice));
  OK(cudaMemset2D(p + 2 * pitch, pitch, 99, 4, 2));  // rows 2 and 3, columns 0..3
  OK(cudaMemcpy2D(back, 10, p, pitch, 10, 6, cudaMemcpyDeviceToHost));
  EXPECT_EQ(int(back[19]), 19);
  EXPECT_EQ(int(back[23]), 99);
  EXPECT_EQ(int(back[24]), 24);
  EXPECT_EQ(int(back[33]), 99);
  EXPECT_EQ(int(back[40]), 40);
  EXPECT_CUDA(cudaErrorInvalidPitchValue, cudaMemcpy2D(p, 4, host, 10, 10, 6, cudaMemcpyHostToDevice));
  OK(cudaFree(p));

  cudaPitchedPtr cube{};
  OK(cudaMalloc3D(&cube, make_cudaExtent(8, 4, 3)));
  OK(cudaMemset3D(cube, 5, make_cudaExtent(8, 4, 3)));
  char volume[8 * 4 * 3] = {};
  cudaMemcpy3DParms copy{};
  copy.srcPtr = cube;
  copy.dstPtr = make_cudaPitchedPtr(volume, 8, 8, 4);
  copy.extent = make_cudaExtent(8, 4, 3);
  copy.kind = cudaMemcpyDeviceToHost;
  OK(cudaMemcpy3D(&copy));
  int sum = 0;
  for (char c : volume) sum += c;
  EXPECT_EQ(sum, 8 * 4 * 3 * 5);
  OK(cudaFree(cube.ptr));
}

void symbols() {
  float table[16], out[16];
  for (int i = 0; i < 16; ++i) table[i] = float(i);
  OK(cudaMemcpyToSymbol(k_table, table, sizeof table));
  float* device = nullptr;
  OK(cudaMalloc(&device, sizeof out));
  read_table<<<1, 16>>>(device);
  OK(cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost));
  EXPECT_EQ(int(out[15]), 30);

  int value = 0;
  bump<<<1, 1>>>();
  OK(cudaMemcpyFromSymbol(&value, d_counter, sizeof value));
  EXPECT_EQ(value, 42);
  void* address = nullptr;
  size_t size = 0;
  OK(cudaGetSymbolAddress(&address, d_array));
  OK(cudaGetSymbolSize(&size, d_array));
  EXPECT_EQ(size, 32u);
  OK(cudaMemset(address, 1, 32));
  OK(cudaMemcpyFromSymbol(&value, d_array, 4, 28));
  EXPECT_EQ(value, 0x01010101);
  EXPECT_CUDA(cudaErrorInvalidValue, cudaMemcpyFromSymbol(&value, d_array, 4, 30));
  EXPECT_CUDA(cudaErrorInvalidSymbol, cudaGetSymbolAddress(&address, out));
  OK(cudaFree(device));
}

void managed() {
  EXPECT_EQ(m_value, 7);
  bump_managed<<<1, 1>>>();
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(m_value, 12);
  int* p = nullptr;
  OK(cudaMallocManaged(&p, 64 * sizeof(int)));
  for (int i = 0; i < 64; ++i) p[i] = i;
  double_it<<<2, 32>>>(p, 64);
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(p[63], 126);
  cudaPointerAttributes attributes{};
  OK(cudaPointerGetAttributes(&attributes, p));
  EXPECT_EQ(int(attributes.type), int(cudaMemoryTypeManaged));
  OK(cudaFree(p));
}

void host_memory() {
  int *host = nullptr, *device = nullptr;
  OK(cudaHostAlloc(&host, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
  for (int i = 0; i < 100; ++i) host[i] = i;
  OK(cudaHostGetDevicePointer(&device, host, 0));
  double_it<<<1, 128>>>(device, 100);
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(host[99], 198);
  unsigned flags = 0;
  OK(cudaHostGetFlags(&flags, host));
  EXPECT((flags & cudaHostAllocMapped) != 0);
  cudaPointerAttributes attributes{};
  OK(cudaPointerGetAttributes(&attributes, host));
  EXPECT_EQ(int(attributes.type), int(cudaMemoryTypeHost));
  OK(cudaFreeHost(host));

  std::vector<int> plain(5000, 3);
  OK(cudaPointerGetAttributes(&attributes, plain.data()));
  EXPECT_EQ(int(attributes.type), int(cudaMemoryTypeUnregistered));
  OK(cudaHostRegister(plain.data(), plain.size() * sizeof(int), cudaHostRegisterMapped));
  OK(cudaHostGetDevicePointer(&device, plain.data(), 0));
  double_it<<<40, 128>>>(device, 5000);
  OK(cudaDeviceSynchronize());
  EXPECT_EQ(plain[4999], 6);
  OK(cudaHostUnregister(plain.data()));
  EXPECT(cudaSuccess != cudaHostUnregister(plain.data()));
}

void pools() {
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  int* p = nullptr;
  OK(cudaMallocAsync(&p, 4096, stream));
  OK(cudaMemsetAsync(p, 0, 4096, stream));
  int value = -1;
  OK(cudaMemcpyAsync(&value, p + 7, 4, cudaMemcpyDeviceToHost, stream));
  OK(cudaFreeAsync(p, stream));
  OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(value, 0);

  cudaMemPool_t pool;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  uint64_t threshold = 1 << 20, read = 0;
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
  EXPECT_EQ(read, threshold);
  OK(cudaMallocFromPoolAsync(&p, 128, pool, stream));
  OK(cudaFreeAsync(p, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMemPoolTrimTo(pool, 0));
  OK(cudaStreamDestroy(stream));
}

void pointer_kinds() {
  void* p = nullptr;
  OK(cudaMalloc(&p, 1024));
  cudaPointerAttributes a{};
  OK(cudaPointerGetAttributes(&a, static_cast<char*>(p) + 100));
  EXPECT_EQ(int(a.type), int(cudaMemoryTypeDevice));
  EXPECT_EQ(a.device, 0);
  EXPECT(a.devicePointer == static_cast<char*>(p) + 100);
  OK(cudaFree(p));
}

}  // namespace

const Case kMemoryCases[] = {{"linear", linear},
                             {"allocation_errors", allocation_errors},
                             {"two_and_three_dimensions", two_and_three_dimensions},
                             {"symbols", symbols},
                             {"managed", managed},
                             {"host_memory", host_memory},
                             {"pools", pools},
                             {"pointer_kinds", pointer_kinds},
                             {nullptr, nullptr}};

}  // namespace checks
