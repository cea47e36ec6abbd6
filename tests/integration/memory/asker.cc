// Prints what CUDA and NVML say of the memory of GPU 0, after an allocation, as frameworks ask: both libraries by dlopen, all
// functions by dlsym. usage: memory_asker BYTES_TO_ALLOCATE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

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

}  // namespace

int main(int, char** argv) {
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
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
  print_nvml(nvml, "after");
  return 0;
}
