#include <cstring>

#include "support.h"

namespace softgpu_driver_test {
namespace {

class MemoryApi : public Cuda {};

TEST_F(MemoryApi, AllocationIsAlignedCountedAndFreed) {
  size_t before = 0, during = 0, after = 0;
  ASSERT_CU(cuMemGetInfo(&before, nullptr));
  CUdeviceptr p = alloc(1000);
  EXPECT_EQ(0u, p % 256);
  ASSERT_CU(cuMemGetInfo(&during, nullptr));
  EXPECT_EQ(before - 1000, during);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree(p + 4));
  EXPECT_CU(cuMemFree(p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
  EXPECT_CU(cuMemFree(0));
  ASSERT_CU(cuMemGetInfo(&after, nullptr));
  EXPECT_EQ(before, after);
}

TEST_F(MemoryApi, TooMuchIsRefused) {
  size_t total = 0;
  ASSERT_CU(cuDeviceTotalMem(&total, 0));
  CUdeviceptr p;
  EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, total + 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
  EXPECT_CU(cuCtxSynchronize());  // not sticky
}

TEST_F(MemoryApi, FreedRangesAreUsedAgain) {
  std::vector<CUdeviceptr> all;
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i <= 64; ++i) all.push_back(alloc(size_t(i) * 4097));
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]);
    for (CUdeviceptr p : all) EXPECT_CU(cuMemFree(p));
    all.clear();
  }
}

TEST_F(MemoryApi, CopiesAndFills) {
  CUdeviceptr a = alloc(4096), b = alloc(4096);
  std::vector<uint32_t> in(1024), out(1024);
  for (size_t i = 0; i < in.size(); ++i) in[i] = uint32_t(i * 2654435761u);
  EXPECT_CU(cuMemcpyHtoD(a, in.data(), 4096));
  EXPECT_CU(cuMemcpyDtoD(b, a, 4096));
  EXPECT_CU(cuMemcpyDtoH(out.data(), b, 4096));
  EXPECT_EQ(in, out);
  EXPECT_CU(cuMemsetD16(a + 8, 0xabcd, 4));
  EXPECT_CU(cuMemsetD32(a + 16, 0x01020304, 1));
  EXPECT_CU(cuMemcpy(reinterpret_cast<CUdeviceptr>(out.data()), a, 4096));
  EXPECT_EQ(0xabcdabcdu, out[2]);
  EXPECT_EQ(0xabcdabcdu, out[3]);
  EXPECT_EQ(0x01020304u, out[4]);
  EXPECT_EQ(in[5], out[5]);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(a, in.data(), 4097));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(a + 2, 0, 1));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(out.data(), 0x1000, 4));
}

TEST_F(MemoryApi, BoxesKeepWhatLiesBetweenRows) {
  CUdeviceptr p;
  size_t pitch;
  ASSERT_CU(cuMemAllocPitch(&p, &pitch, 12, 5, 4));
  ASSERT_CU(cuMemsetD8(p, 0xee, pitch * 5));
  ASSERT_CU(cuMemsetD2D8(p, pitch, 0x11, 12, 5));
  uint8_t host[3][8];
  std::memset(host, 0x22, sizeof host);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = 8;
  copy.srcXInBytes = 2;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = p;
  copy.dstPitch = pitch;
  copy.dstXInBytes = 4;
  copy.dstY = 1;
  copy.WidthInBytes = 6;
  copy.Height = 3;
  EXPECT_CU(cuMemcpy2D(&copy));
  std::vector<uint8_t> all(pitch * 5);
  ASSERT_CU(cuMemcpyDtoH(all.data(), p, all.size()));
  for (size_t y = 0; y < 5; ++y)
    for (size_t x = 0; x < pitch; ++x) {
      const bool in_box = y >= 1 && y < 4 && x >= 4 && x < 10;
      ASSERT_EQ(in_box ? 0x22 : x < 12 ? 0x11 : 0xee, all[y * pitch + x]) << x << "," << y;
    }
  CUDA_MEMCPY3D cube = {};
  cube.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  cube.srcDevice = p;
  cube.srcPitch = pitch;
  cube.srcHeight = 2;
  cube.dstMemoryType = CU_MEMORYTYPE_HOST;
  uint8_t out[2][2][4];
  cube.dstHost = out;
  cube.dstPitch = 4;
  cube.dstHeight = 2;
  cube.WidthInBytes = 4;
  cube.Height = 2;
  cube.Depth = 2;
  cube.srcXInBytes = 3;
  EXPECT_CU(cuMemcpy3D(&cube));
  EXPECT_EQ(0x11, out[0][0][1]);  // row 0
  EXPECT_EQ(0x22, out[0][1][1]);  // row 1, x = 4
  EXPECT_EQ(0x22, out[1][1][3]);  // row 3
  copy.srcPitch = 4;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
}

TEST_F(MemoryApi, PageableSourceMayChangeAfterAnAsynchronousCopy) {
  CUdeviceptr p = alloc(4096);
  CUstream stream;
  ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Gate gate;
  ASSERT_CU(gate.hold(stream));
  std::vector<uint32_t> host(1024, 1);
  EXPECT_CU(cuMemcpyHtoDAsync(p, host.data(), 4096, stream));
  host.assign(1024, 2);
  gate.open();
  EXPECT_CU(cuStreamSynchronize(stream));
  EXPECT_EQ(1u, read(p, 1)[0]);
}

TEST_F(MemoryApi, PointersSayWhatTheyAre) {
  CUdeviceptr device = alloc(100), managed = 0;
  void* host = nullptr;
  ASSERT_CU(cuMemAllocManaged(&managed, 100, CU_MEM_ATTACH_GLOBAL));
  ASSERT_CU(cuMemHostAlloc(&host, 100, CU_MEMHOSTALLOC_DEVICEMAP));
  auto type = [](CUdeviceptr p) {
    unsigned value = 0;
    return cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) == CUDA_SUCCESS ? value : 0;
  };
  int local = 0;
  EXPECT_EQ(unsigned(CU_MEMORYTYPE_DEVICE), type(device + 99));
  EXPECT_EQ(unsigned(CU_MEMORYTYPE_DEVICE), type(managed));
  EXPECT_EQ(unsigned(CU_MEMORYTYPE_HOST), type(reinterpret_cast<CUdeviceptr>(host)));
  EXPECT_EQ(0u, type(device + 100));
  EXPECT_EQ(0u, type(reinterpret_cast<CUdeviceptr>(&local)));
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_CU(cuMemGetAddressRange(&base, &size, device + 50));
  EXPECT_EQ(device, base);
  EXPECT_EQ(100u, size);
  std::vector<uint32_t> mine(64);
  EXPECT_EQ(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(mine.data()));
  EXPECT_CU(cuMemHostRegister(mine.data(), 256, CU_MEMHOSTREGISTER_DEVICEMAP));
  EXPECT_EQ(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(mine.data() + 1, 16, 0));
  CUdeviceptr mapped = 0;
  EXPECT_CU(cuMemHostGetDevicePointer(&mapped, mine.data(), 0));
  EXPECT_CU(cuMemsetD32(mapped, 9, 64));
  EXPECT_EQ(9u, mine[63]);
  EXPECT_CU(cuMemHostUnregister(mine.data()));
  EXPECT_CU(cuMemFreeHost(host));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(host));
  EXPECT_CU(cuMemFree(managed));
}

TEST_F(MemoryApi, HostPools) {
  CUmemPoolProps props = {};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  CUmemoryPool pool, standard, now;
  ASSERT_CU(cuMemPoolCreate(&pool, &props));
  CUstream s;
  ASSERT_CU(cuStreamCreate(&s, 0));
  CUdeviceptr p = 0;
  ASSERT_CU(cuMemAllocFromPoolAsync(&p, 4096, pool, s));
  EXPECT_CU(cuMemsetD32Async(p, 6, 1024, s));
  EXPECT_CU(launch(function("add"), 4, 256, s, p, 1u, 1024u));
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(7u, reinterpret_cast<const uint32_t*>(p)[1023]);  // the host's own
  cuuint64_t used = 0;
  EXPECT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(4096u, used);
  unsigned type = 0;
  EXPECT_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  EXPECT_EQ(unsigned(CU_MEMORYTYPE_HOST), type);
  CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, host = {CU_MEM_LOCATION_TYPE_HOST, 0};
  EXPECT_CU(cuMemPoolGetAccess(&access, pool, &device));
  EXPECT_EQ(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, access);
  CUmemAccessDesc wanted = {device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_CU(cuMemPoolSetAccess(pool, &wanted, 1));
  EXPECT_CU(cuMemFreeAsync(p, s));
  EXPECT_CU(cuStreamSynchronize(s));
  EXPECT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(0u, used);
  ASSERT_CU(cuMemGetDefaultMemPool(&standard, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_CU(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  EXPECT_CU(cuMemGetMemPool(&now, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(pool, now);
  EXPECT_CU(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, standard));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  EXPECT_CU(cuMemPoolDestroy(pool));
}

TEST_F(MemoryApi, StreamOrderedAllocation) {
  CUstream stream;
  ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  CUmemoryPool pool;
  ASSERT_CU(cuDeviceGetDefaultMemPool(&pool, 0));
  auto used = [&] {
    cuuint64_t bytes = 0;
    EXPECT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
  };
  CUdeviceptr p = 0;
  EXPECT_CU(cuMemAllocAsync(&p, 4096, stream));
  EXPECT_EQ(4096u, used());
  Gate gate;
  ASSERT_CU(gate.hold(stream));
  EXPECT_CU(cuMemsetD32Async(p, 5, 1024, stream));
  EXPECT_CU(cuMemFreeAsync(p, stream));
  EXPECT_EQ(4096u, used());  // the stream has not come that far
  gate.open();
  EXPECT_CU(cuStreamSynchronize(stream));
  EXPECT_EQ(0u, used());
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, stream));
}

}  // namespace
}  // namespace softgpu_driver_test
