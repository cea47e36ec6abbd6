// A GPU that shares the host's memory: the driver says how much the host has, the management library nothing. One that has memory
// of its own, and reaches the host's (Grace Hopper): both say what it has itself.
#include <gtest/gtest.h>
#include <sys/sysinfo.h>

#include "driver_api/cuda.h"
#include "softgpu/libraries/nvml.h"

namespace {

TEST(UnifiedMemory, TheDriverCountsWhatTheHostHas) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int integrated = 0;
  ASSERT_EQ(cuDeviceGetAttribute(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), CUDA_SUCCESS);
  EXPECT_EQ(integrated, 1);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  size_t free = 0, total = 0, of_device = 0;
  ASSERT_EQ(cuMemGetInfo_v2(&free, &total), CUDA_SUCCESS);
  ASSERT_EQ(cuDeviceTotalMem_v2(&of_device, 0), CUDA_SUCCESS);
  EXPECT_EQ(total, of_device);
  struct sysinfo host = {};
  ASSERT_EQ(sysinfo(&host), 0);
  EXPECT_LE(free, uint64_t(host.totalram) * host.mem_unit);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

TEST(UnifiedMemory, TheManagementLibraryHasNoFigure) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  nvmlMemory_t memory = {};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_NOT_SUPPORTED);
  nvmlMemory_v2_t second = {};
  second.version = sizeof second | 2 << 24;
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &second), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
}

TEST(CoherentMemory, BothCountTheGpusOwn) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int integrated = 1, page_tables = 0;
  ASSERT_EQ(cuDeviceGetAttribute(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), CUDA_SUCCESS);
  EXPECT_EQ(integrated, 0);
  ASSERT_EQ(
      cuDeviceGetAttribute(&page_tables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(page_tables, 1);
  size_t of_device = 0;
  ASSERT_EQ(cuDeviceTotalMem_v2(&of_device, 0), CUDA_SUCCESS);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  nvmlMemory_t memory = {};
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total, of_device);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
}

}  // namespace
