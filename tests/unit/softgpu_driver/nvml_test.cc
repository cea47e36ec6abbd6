// The management library agrees with the driver, and with the memory that processes hold.
#include "softgpu/libraries/nvml.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "driver_api/cuda.h"

namespace {

class Nvml : public testing::Test {
 public:
  void SetUp() override {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  }
  void TearDown() override { EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS); }
  unsigned long long held_by(pid_t pid) {
    unsigned n = 0;
    if (nvmlDeviceGetComputeRunningProcesses_v3(device, &n, nullptr) == NVML_SUCCESS) return 0;
    std::vector<nvmlProcessInfo_t> infos(n += 16);
    EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &n, infos.data()), NVML_SUCCESS);
    for (unsigned i = 0; i < n; i++)
      if (pid_t(infos[i].pid) == pid) return infos[i].usedGpuMemory;
    return 0;
  }
  nvmlDevice_t device = nullptr;
};

TEST(NvmlLife, NothingIsAnsweredOutsideOfIt) {
  unsigned n = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&n), NVML_SUCCESS);
  EXPECT_EQ(n, 1u);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&n), NVML_ERROR_UNINITIALIZED);
  EXPECT_STREQ(nvmlErrorString(NVML_ERROR_NOT_SUPPORTED), "Not Supported");
}

// First: later ones initialise the driver, and what is forked from then on has none.
TEST_F(Nvml, MemoryIsWhatProcessesHold) {
  constexpr size_t kBytes = 24 << 20, kUntouched = 8 << 20;
  char folder[] = "/tmp/tessera-nvml-XXXXXX";
  ASSERT_TRUE(mkdtemp(folder));
  setenv("TESSERA_SOFTGPU_DIR", folder, 1);
  setenv("TESSERA_SOFTGPU_LINGER_MS", "50", 1);
  const std::string local = std::getenv("TESSERA_SOFTGPU_LOCAL");
  unsetenv("TESSERA_SOFTGPU_LOCAL");  // a device that processes share
  int wakes[2], ends[2];
  ASSERT_EQ(pipe(wakes), 0);
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();  // NVML was started before: a fork behind it is fine
  if (child == 0) {
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    const bool ok = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                    cuCtxSetCurrent(context) == CUDA_SUCCESS &&
                    cuMemAlloc_v2(&memory, kUntouched) == CUDA_SUCCESS &&
                    cuMemAlloc_v2(&memory, kBytes) == CUDA_SUCCESS &&
                    cuMemsetD8_v2(memory, 1, kBytes) == CUDA_SUCCESS && cuCtxSynchronize() == CUDA_SUCCESS;
    char c = ok ? 'y' : 'n';
    if (write(wakes[1], &c, 1) != 1 || read(ends[0], &c, 1) != 1) _exit(1);
    _exit(0);
  }
  char answer = 0;
  ASSERT_EQ(read(wakes[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_GE(held_by(child), kBytes);
  EXPECT_LT(held_by(child), 2 * kBytes);
  nvmlMemory_t memory{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, kBytes + kUntouched);
  EXPECT_EQ(memory.used + memory.free, memory.total);
  nvmlMemory_v2_t second{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &second), NVML_ERROR_INVALID_ARGUMENT);  // says no version
  second.version = sizeof second | 2 << 24;
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &second), NVML_SUCCESS);
  EXPECT_EQ(second.total, memory.total);
  ASSERT_EQ(write(ends[1], "e", 1), 1);
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(held_by(child), 0u);
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, 0u);
  setenv("TESSERA_SOFTGPU_LOCAL", local.c_str(), 1);
  std::filesystem::remove_all(folder);
}

TEST_F(Nvml, NamesAreTheDrivers) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  char name[96] = {}, mine[96] = {};
  ASSERT_EQ(cuDeviceGetName(name, sizeof name, 0), CUDA_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetName(device, mine, sizeof mine), NVML_SUCCESS);
  EXPECT_STREQ(mine, name);
  char bus[32] = {};
  ASSERT_EQ(cuDeviceGetPCIBusId(bus, sizeof bus, 0), CUDA_SUCCESS);
  nvmlDevice_t same = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(bus, &same), NVML_SUCCESS);
  EXPECT_EQ(same, device);
  CUuuid uuid{};
  ASSERT_EQ(cuDeviceGetUuid_v2(&uuid, 0), CUDA_SUCCESS);
  char first[16] = {};
  snprintf(first, sizeof first, "GPU-%02x%02x%02x%02x-", uint8_t(uuid.bytes[0]), uint8_t(uuid.bytes[1]),
           uint8_t(uuid.bytes[2]), uint8_t(uuid.bytes[3]));
  EXPECT_EQ(nvmlDeviceGetUUID(device, mine, sizeof mine), NVML_SUCCESS);
  EXPECT_TRUE(std::string(mine).starts_with(first)) << mine;
  EXPECT_EQ(nvmlDeviceGetHandleByUUID(mine, &same), NVML_SUCCESS);
  EXPECT_EQ(same, device);
  int major = 0, minor = -1, version = 0;
  EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(device, &major, &minor), NVML_SUCCESS);
  EXPECT_EQ(major * 10 + minor, 90);
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion_v2(&version), NVML_SUCCESS);
  int driver = 0;
  ASSERT_EQ(cuDriverGetVersion(&driver), CUDA_SUCCESS);
  EXPECT_EQ(version, driver);
}

TEST_F(Nvml, WrongArgumentsAreNamed) {
  char text[4];
  unsigned n = 0;
  nvmlDevice_t none = nullptr;
  EXPECT_EQ(nvmlDeviceGetName(device, text, sizeof text), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(nvmlDeviceGetName(reinterpret_cast<nvmlDevice_t>(8), text, sizeof text),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(7, &none), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-none", &none), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetCount_v2(nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetNumGpuCores(device, &n), NVML_ERROR_NOT_SUPPORTED);
}

}  // namespace
