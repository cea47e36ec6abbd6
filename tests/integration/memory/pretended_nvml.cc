// libnvidia-ml.so.1 of a GPU of 2 GiB, on which the process that asks has 303 MiB, contexts and code included, and another one
// 500 MiB: NVIDIA's figures as the software GPU never has them. The GPU has the UUID that the test names.
#include <stdio.h>
#include <unistd.h>

#include "softgpu/libraries/nvml.h"

namespace {

constexpr unsigned long long kMiB = 1 << 20, kTotal = 2048 * kMiB, kOwn = 303 * kMiB, kOther = 500 * kMiB;
char g_uuid[48] = "GPU-00000000-0000-0000-0000-000000000000";

struct OldProcessInfo {
  unsigned pid;
  unsigned long long usedGpuMemory;
};
template <class Info>
nvmlReturn_t processes(unsigned* count, Info* infos) {
  if (*count < 2) return NVML_ERROR_INSUFFICIENT_SIZE;
  *count = 2;
  infos[0].pid = 1;
  infos[0].usedGpuMemory = kOther;
  infos[1].pid = unsigned(getpid());
  infos[1].usedGpuMemory = kOwn;
  return NVML_SUCCESS;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" void pretend_uuid(const unsigned char* b) {
  int n = snprintf(g_uuid, sizeof g_uuid, "GPU-");
  for (int i = 0; i < 16; ++i)
    n += snprintf(g_uuid + n, sizeof g_uuid - size_t(n),
                  i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
}
nvmlReturn_t nvmlInit_v2() {
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(g_uuid);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned length) {
  snprintf(uuid, length, "%s", g_uuid);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  *memory = {kTotal, kTotal - kOwn - kOther, kOwn + kOther};
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  *memory = {memory->version, kTotal, 0, kTotal - kOwn - kOther, kOwn + kOther};
  return NVML_SUCCESS;
}
extern "C" nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t, unsigned* count,
                                                             OldProcessInfo* infos) {
  return processes(count, infos);
}
extern "C" nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t, unsigned* count,
                                                                nvmlProcessInfo_t* infos) {
  return processes(count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  return processes(count, infos);
}
extern "C" nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t, unsigned* count,
                                                                   nvmlProcessInfo_t* infos) {
  return processes(count, infos);
}
#pragma GCC visibility pop
