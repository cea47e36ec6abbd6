// Prints what CUDA and NVML say of the memory of GPU 0, after an allocation, as frameworks ask: both libraries by dlopen, all
// functions by dlsym. usage: memory_asker BYTES_TO_ALLOCATE [NVML]
// Of NVML a pretended one may be named, which is told the GPU's UUID; then what it says of processes is printed, too.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <initializer_list>

#include "driver_api/cuda.h"
#include "softgpu/libraries/nvml.h"

namespace {

template <class F>
F* find(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

void print_nvml(void* nvml, const char* when) {
  nvmlDevice_t device = nullptr;
  nvmlMemory_t v1{};
  nvmlMemory_v2_t v2{};
  v2.version = sizeof v2 | 2u << 24;
  if (find<decltype(nvmlDeviceGetHandleByIndex_v2)>(nvml, "nvmlDeviceGetHandleByIndex_v2")(0, &device) != 0 ||
      find<decltype(nvmlDeviceGetMemoryInfo)>(nvml, "nvmlDeviceGetMemoryInfo")(device, &v1) != 0 ||
      find<decltype(nvmlDeviceGetMemoryInfo_v2)>(nvml, "nvmlDeviceGetMemoryInfo_v2")(device, &v2) != 0)
    exit(3);
  printf("%s_nvml %llu %llu %llu\n", when, v1.total, v1.free, v1.used);
  printf("%s_nvml_v2 %llu %llu %llu\n", when, v2.total, v2.free, v2.used + v2.reserved);
}

// KEY OWN OTHER: bytes of this process, and of all others together.
template <class Info>
void print_processes(void* nvml, const char* name) {
  nvmlDevice_t device = nullptr;
  Info infos[8] = {};
  unsigned count = 8;
  find<decltype(nvmlDeviceGetHandleByIndex_v2)>(nvml, "nvmlDeviceGetHandleByIndex_v2")(0, &device);
  const auto ask = find<int(nvmlDevice_t, unsigned*, Info*)>(nvml, name);
  if (!ask || ask(device, &count, infos) != 0) exit(5);
  unsigned long long bytes[2] = {};
  for (unsigned i = 0; i < count; ++i)
    bytes[infos[i].pid == unsigned(getpid()) ? 0 : 1] += infos[i].usedGpuMemory;
  printf("%s %llu %llu\n", name, bytes[0], bytes[1]);
}
struct OldProcessInfo {  // before instances of MIG
  unsigned pid;
  unsigned long long usedGpuMemory;
};

}  // namespace

int main(int argc, char** argv) {
  void* nvml = dlopen(argc > 2 ? argv[2] : "libnvidia-ml.so.1", RTLD_NOW);
  if (!nvml || find<decltype(nvmlInit_v2)>(nvml, "nvmlInit_v2")() != 0) return 2;
  print_nvml(nvml, "before");
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  CUcontext context = nullptr;
  CUdeviceptr p = 0;
  size_t free = 0, total = 0, device = 0;
  if (!cuda || find<decltype(cuInit)>(cuda, "cuInit")(0) != CUDA_SUCCESS ||
      find<decltype(cuDevicePrimaryCtxRetain)>(cuda, "cuDevicePrimaryCtxRetain")(&context, 0) !=
          CUDA_SUCCESS ||
      find<decltype(cuCtxSetCurrent)>(cuda, "cuCtxSetCurrent")(context) != CUDA_SUCCESS ||
      find<decltype(cuMemAlloc_v2)>(cuda, "cuMemAlloc_v2")(&p, strtoull(argv[1], nullptr, 10)) !=
          CUDA_SUCCESS ||
      find<decltype(cuMemGetInfo_v2)>(cuda, "cuMemGetInfo_v2")(&free, &total) != CUDA_SUCCESS ||
      find<decltype(cuDeviceTotalMem_v2)>(cuda, "cuDeviceTotalMem_v2")(&device, 0) != CUDA_SUCCESS)
    return 4;
  printf("cuda %zu %zu %zu\n", total, free, total - free);
  printf("device %zu\n", device);
  if (argc > 2) {
    CUuuid uuid{};
    if (find<decltype(cuDeviceGetUuid_v2)>(cuda, "cuDeviceGetUuid_v2")(&uuid, 0) != CUDA_SUCCESS) return 4;
    find<void(const void*)>(nvml, "pretend_uuid")(uuid.bytes);
  }
  print_nvml(nvml, "after");
  if (argc <= 2) return 0;
  print_processes<OldProcessInfo>(nvml, "nvmlDeviceGetComputeRunningProcesses");
  for (const char* name :
       {"nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3"})
    print_processes<nvmlProcessInfo_t>(nvml, name);
  return 0;
}
