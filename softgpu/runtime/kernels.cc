// Kernels and libraries: attributes, occupancy, names, loading by hand.

#include "softgpu/runtime/registry.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

template <class Body>
cudaError_t with_kernel(const void* function, Body&& body) {
  return with_context([&]() -> cudaError_t {
    CUkernel kernel = nullptr;
    if (const cudaError_t status = find_kernel(function, &kernel)) return status;
    return as_error(body(kernel));
  });
}

// Occupancy queries want a function of the current context.
template <class Body>
cudaError_t with_function(const void* function, Body&& body) {
  return with_kernel(function, [&](CUkernel kernel) {
    CUfunction handle = nullptr;
    const CUresult result = driver().KernelGetFunction(&handle, kernel);
    return result == CUDA_SUCCESS ? body(handle) : result;
  });
}

CUresult kernel_attribute(CUkernel kernel, CUfunction_attribute attribute, int* value) {
  int device = 0;
  current_device(&device);
  return driver().KernelGetAttribute(value, attribute, kernel, device);
}

CUlaunchConfig to_driver(const cudaLaunchConfig_t& config) {
  CUlaunchConfig c{};
  c.gridDimX = config.gridDim.x;
  c.gridDimY = config.gridDim.y;
  c.gridDimZ = config.gridDim.z;
  c.blockDimX = config.blockDim.x;
  c.blockDimY = config.blockDim.y;
  c.blockDimZ = config.blockDim.z;
  c.sharedMemBytes = unsigned(config.dynamicSmemBytes);
  c.hStream = config.stream;
  c.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
  c.numAttrs = config.numAttrs;
  return c;
}

}  // namespace

extern "C" {

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
  if (!out) return remember(cudaErrorInvalidValue);
  return with_kernel(function, [&](CUkernel kernel) {
    *out = {};
    int shared = 0, constants = 0, local = 0;
    const struct {
      CUfunction_attribute attribute;
      int* value;
      bool required;  // the rest reads as zero where the driver does not know it
    } rows[] = {
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &shared, true},
        {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &constants, true},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &local, true},
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &out->maxThreadsPerBlock, true},
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &out->numRegs, true},
        {CU_FUNC_ATTRIBUTE_PTX_VERSION, &out->ptxVersion, false},
        {CU_FUNC_ATTRIBUTE_BINARY_VERSION, &out->binaryVersion, false},
        {CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, &out->cacheModeCA, false},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &out->maxDynamicSharedSizeBytes, false},
        {CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, &out->preferredShmemCarveout, false},
        {CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, &out->clusterDimMustBeSet, false},
        {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, &out->requiredClusterWidth, false},
        {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, &out->requiredClusterHeight, false},
        {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, &out->requiredClusterDepth, false},
        {CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, &out->clusterSchedulingPolicyPreference,
         false},
        {CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, &out->nonPortableClusterSizeAllowed, false},
    };
    for (const auto& row : rows) {
      const CUresult result = kernel_attribute(kernel, row.attribute, row.value);
      if (result != CUDA_SUCCESS && row.required) return result;
    }
    out->sharedSizeBytes = size_t(shared);
    out->constSizeBytes = size_t(constants);
    out->localSizeBytes = size_t(local);
    return CUDA_SUCCESS;
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return with_kernel(function, [&](CUkernel kernel) {
    int device = 0;
    current_device(&device);
    return driver().KernelSetAttribute(static_cast<CUfunction_attribute>(attribute), value, kernel, device);
  });
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value,
                                            int device) {
  return with_kernel(kernel, [&](CUkernel handle) {
    return driver().KernelSetAttribute(static_cast<CUfunction_attribute>(attribute), value, handle, device);
  });
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache config) {
  return with_kernel(function, [&](CUkernel kernel) {
    int device = 0;
    current_device(&device);
    return driver().KernelSetCacheConfig(kernel, static_cast<CUfunc_cache>(config), device);
  });
}

cudaError_t cudaFuncSetSharedMemConfig(const void* function, cudaSharedMemConfig config) {
  return with_context([&]() -> cudaError_t {
    CUkernel kernel = nullptr;
    if (const cudaError_t status = find_kernel(function, &kernel)) return status;
    return as_error(driver().FuncSetSharedMemConfig(reinterpret_cast<CUfunction>(kernel),
                                                    static_cast<CUsharedconfig>(config)));
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
  return with_kernel(function, [&](CUkernel kernel) { return driver().KernelGetName(name, kernel); });
}

cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset, size_t* size) {
  return with_kernel(
      function, [&](CUkernel kernel) { return driver().KernelGetParamInfo(kernel, index, offset, size); });
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return with_kernel(symbol, [&](CUkernel kernel) { return driver().KernelGetFunction(function, kernel); });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                   int block_size, size_t shared_bytes,
                                                                   unsigned flags) {
  return with_function(function, [&](CUfunction handle) {
    return driver().OccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block_size,
                                                                       shared_bytes, flags);
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes,
                                                                cudaOccupancyDefault);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks,
                                                      int block_size) {
  return with_function(function, [&](CUfunction handle) {
    return driver().OccupancyAvailableDynamicSMemPerBlock(bytes, handle, blocks, block_size);
  });
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                 const cudaLaunchConfig_t* config) {
  if (!config) return remember(cudaErrorInvalidValue);
  return with_function(function, [&](CUfunction handle) {
    const CUlaunchConfig c = to_driver(*config);
    return driver().OccupancyMaxPotentialClusterSize(size, handle, &c);
  });
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  if (!config) return remember(cudaErrorInvalidValue);
  return with_function(function, [&](CUfunction handle) {
    const CUlaunchConfig c = to_driver(*config);
    return driver().OccupancyMaxActiveClusters(clusters, handle, &c);
  });
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption* jit,
                                void** jit_values, unsigned n_jit, cudaLibraryOption* options, void** values,
                                unsigned n_options) {
  return with_driver([&] {
    return driver().LibraryLoadData(library, code, reinterpret_cast<CUjit_option*>(jit), jit_values, n_jit,
                                    reinterpret_cast<CUlibraryOption*>(options), values, n_options);
  });
}

cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* path, cudaJitOption* jit,
                                    void** jit_values, unsigned n_jit, cudaLibraryOption* options,
                                    void** values, unsigned n_options) {
  return with_driver([&] {
    return driver().LibraryLoadFromFile(library, path, reinterpret_cast<CUjit_option*>(jit), jit_values,
                                        n_jit, reinterpret_cast<CUlibraryOption*>(options), values,
                                        n_options);
  });
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  return with_driver([&] { return driver().LibraryUnload(library); });
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  return with_driver([&] {
    const CUresult result = driver().LibraryGetKernel(kernel, library, name);
    if (result == CUDA_SUCCESS) remember_kernel(*kernel);
    return result;
  });
}

cudaError_t cudaLibraryGetKernelCount(unsigned* count, cudaLibrary_t library) {
  return with_driver([&] { return driver().LibraryGetKernelCount(count, library); });
}

cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t* kernels, unsigned count, cudaLibrary_t library) {
  return with_driver([&] {
    const CUresult result = driver().LibraryEnumerateKernels(kernels, count, library);
    if (result != CUDA_SUCCESS) return result;
    unsigned available = 0;
    driver().LibraryGetKernelCount(&available, library);
    for (unsigned i = 0; i < count && i < available; ++i) remember_kernel(kernels[i]);
    return result;
  });
}

cudaError_t cudaLibraryGetGlobal(void** pointer, size_t* bytes, cudaLibrary_t library, const char* name) {
  return with_context([&] {
    return driver().LibraryGetGlobal(reinterpret_cast<CUdeviceptr*>(pointer), bytes, library, name);
  });
}

cudaError_t cudaLibraryGetManaged(void** pointer, size_t* bytes, cudaLibrary_t library, const char* name) {
  return with_context([&] {
    return driver().LibraryGetManaged(reinterpret_cast<CUdeviceptr*>(pointer), bytes, library, name);
  });
}

cudaError_t cudaLibraryGetUnifiedFunction(void** function, cudaLibrary_t library, const char* name) {
  return with_driver([&] { return driver().LibraryGetUnifiedFunction(function, library, name); });
}

}  // extern "C"
