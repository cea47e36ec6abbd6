#include <cstring>
#include <string>

#include "support.h"

namespace softgpu_driver_test {
namespace {

class Device : public Cuda {};

TEST_F(Device, EveryAttributeAnswers) {
  for (int a = 1; a <= 147; ++a) {
    int value = 0;
    EXPECT_CU(cuDeviceGetAttribute(&value, CUdevice_attribute(a), 0)) << a;
  }
  int value = 0;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, CUdevice_attribute(100000), 0));
  EXPECT_EQ(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 7));
}

TEST_F(Device, IdentityIsConsistent) {
  int count = 0, version = 0;
  EXPECT_CU(cuDeviceGetCount(&count));
  EXPECT_EQ(1, count);
  EXPECT_CU(cuDriverGetVersion(&version));
  EXPECT_EQ(13000, version);
  char bus[32];
  EXPECT_CU(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
  CUdevice found = -1;
  EXPECT_CU(cuDeviceGetByPCIBusId(&found, bus));
  EXPECT_EQ(0, found);
  char name[6];
  EXPECT_CU(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_EQ(5u, std::strlen(name));  // cut, and terminated
  size_t total = 0, free = 0;
  EXPECT_CU(cuDeviceTotalMem(&total, 0));
  EXPECT_CU(cuMemGetInfo(&free, nullptr));
  EXPECT_LE(free, total);
  EXPECT_GT(free, 0u);
}

TEST_F(Device, ErrorNamesCoverEveryCode) {
  const char* text = nullptr;
  EXPECT_CU(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &text));
  EXPECT_STREQ("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", text);
  EXPECT_CU(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ("out of memory", text);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(CUresult(12345), &text));
  EXPECT_EQ(nullptr, text);
}

TEST_F(Device, ContextStack) {
  CUcontext other = nullptr, now = nullptr;
  ASSERT_CU(cuCtxCreate(&other, nullptr, CU_CTX_SCHED_YIELD, 0));
  EXPECT_CU(cuCtxGetCurrent(&now));
  EXPECT_EQ(other, now);
  unsigned flags = 0;
  EXPECT_CU(cuCtxGetFlags(&flags));
  EXPECT_TRUE(flags & CU_CTX_SCHED_YIELD);
  EXPECT_CU(cuCtxPopCurrent(&now));
  EXPECT_EQ(other, now);
  EXPECT_CU(cuCtxGetCurrent(&now));
  EXPECT_EQ(context, now);
  EXPECT_CU(cuCtxDestroy(other));
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(other));
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(other));
  EXPECT_CU(cuCtxSetCurrent(nullptr));
  CUdeviceptr p;
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&p, 16));
}

// Memory and modules know whose they are.
TEST_F(Device, WhatIsMadeInAContextEndsWithoutACurrentOne) {
  CUdeviceptr p = 0;
  void* host = nullptr;
  CUmodule code = nullptr;
  ASSERT_CU(cuMemAlloc(&p, 16));
  ASSERT_CU(cuMemHostAlloc(&host, 16, 0));
  ASSERT_CU(cuModuleLoadData(&code, ".version 8.0\n.target sm_70\n.address_size 64\n"));
  ASSERT_CU(cuCtxSetCurrent(nullptr));
  EXPECT_CU(cuMemFree(p));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
  EXPECT_CU(cuMemFreeHost(host));
  EXPECT_CU(cuModuleUnload(code));
  EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(code));
  ASSERT_CU(cuCtxSetCurrent(context));
}

TEST_F(Device, PrimaryContextLivesByItsCount) {
  CUcontext a = nullptr, b = nullptr;
  unsigned flags;
  int active;
  ASSERT_CU(cuDevicePrimaryCtxRetain(&a, 0));
  ASSERT_CU(cuDevicePrimaryCtxRetain(&b, 0));
  EXPECT_EQ(a, b);
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy(a));
  ASSERT_CU(cuCtxSetCurrent(a));
  EXPECT_CU(cuDevicePrimaryCtxRelease(0));
  EXPECT_CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(1, active);
  EXPECT_CU(cuDevicePrimaryCtxRelease(0));
  EXPECT_CU(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(0, active);
  EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  EXPECT_EQ(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());  // still current here
  ASSERT_CU(cuCtxSetCurrent(context));
}

TEST_F(Device, Limits) {
  size_t value = 0;
  EXPECT_CU(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 123 << 20));
  EXPECT_CU(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
  EXPECT_EQ(size_t(123 << 20), value);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(&value, CUlimit(77)));
}

TEST_F(Device, ProcAddressFollowsVersionAndFlags) {
  void *old = nullptr, *now = nullptr, *plain = nullptr, *twin = nullptr;
  CUdriverProcAddressQueryResult status;
  ASSERT_CU(cuGetProcAddress("cuMemAlloc", &now, 13000, 0, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SUCCESS, status);
  EXPECT_EQ(reinterpret_cast<void*>(&cuMemAlloc), now);  // cuda.h makes that cuMemAlloc_v2
  ASSERT_CU(cuGetProcAddress("cuMemAlloc", &old, 2000, 0, &status));
  EXPECT_NE(old, now);
  ASSERT_CU(cuGetProcAddress("cuLaunchKernel", &plain, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
  ASSERT_CU(cuGetProcAddress("cuLaunchKernel", &twin, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                             &status));
  EXPECT_EQ(reinterpret_cast<void*>(&cuLaunchKernel), plain);
  EXPECT_NE(plain, twin);
  // The twin is as old as 7000; before that there is none, and the plain one does not stand in.
  ASSERT_CU(
      cuGetProcAddress("cuLaunchKernel", &now, 6050, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
  EXPECT_EQ(nullptr, now);
  ASSERT_CU(cuGetProcAddress("cuMemAllocAsync", &now, 11010, 0, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
  EXPECT_EQ(nullptr, now);
  now = old;
  ASSERT_CU(cuGetProcAddress("cuNoSuchThing", &now, 13000, 0, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
  EXPECT_EQ(nullptr, now);
#if CUDA_VERSION < 13020  // of a driver that is newer than this one
  ASSERT_CU(cuGetProcAddress("cuMemcpyWithAttributesAsync", &now, 99000, 0, &status));
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
#endif
  ASSERT_CU(cuGetProcAddress("cuMemGetAttribute", &now, 13000, 0, &status));  // exported, but not found here
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
}

TEST_F(Device, WhatIsNotThereSaysSo) {
  CUexternalMemory memory;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC descriptor = {};
  EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalMemory(&memory, &descriptor));
  const void* table = &table;
  CUuuid id = {};
  EXPECT_NE(CUDA_SUCCESS, cuGetExportTable(&table, &id));
}

}  // namespace
}  // namespace softgpu_driver_test
