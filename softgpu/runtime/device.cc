// Devices: choice, attributes, limits, properties, reset.

#include <cstring>

#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

// cudaDeviceProp from device attributes, one row per field.
struct IntField {
  size_t offset;
  CUdevice_attribute attribute;
};
#define TS_FIELD(field, attribute) \
  { offsetof(cudaDeviceProp, field), CU_DEVICE_ATTRIBUTE_##attribute }
constexpr IntField kIntFields[] = {
    TS_FIELD(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    TS_FIELD(warpSize, WARP_SIZE),
    TS_FIELD(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    TS_FIELD(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    TS_FIELD(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    TS_FIELD(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    TS_FIELD(maxGridSize[0], MAX_GRID_DIM_X),
    TS_FIELD(maxGridSize[1], MAX_GRID_DIM_Y),
    TS_FIELD(maxGridSize[2], MAX_GRID_DIM_Z),
    TS_FIELD(major, COMPUTE_CAPABILITY_MAJOR),
    TS_FIELD(minor, COMPUTE_CAPABILITY_MINOR),
    TS_FIELD(multiProcessorCount, MULTIPROCESSOR_COUNT),
    TS_FIELD(integrated, INTEGRATED),
    TS_FIELD(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    TS_FIELD(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH),
    TS_FIELD(maxTexture2D[0], MAXIMUM_TEXTURE2D_WIDTH),
    TS_FIELD(maxTexture2D[1], MAXIMUM_TEXTURE2D_HEIGHT),
    TS_FIELD(maxTexture3D[0], MAXIMUM_TEXTURE3D_WIDTH),
    TS_FIELD(maxTexture3D[1], MAXIMUM_TEXTURE3D_HEIGHT),
    TS_FIELD(maxTexture3D[2], MAXIMUM_TEXTURE3D_DEPTH),
    TS_FIELD(concurrentKernels, CONCURRENT_KERNELS),
    TS_FIELD(ECCEnabled, ECC_ENABLED),
    TS_FIELD(pciBusID, PCI_BUS_ID),
    TS_FIELD(pciDeviceID, PCI_DEVICE_ID),
    TS_FIELD(pciDomainID, PCI_DOMAIN_ID),
    TS_FIELD(tccDriver, TCC_DRIVER),
    TS_FIELD(asyncEngineCount, ASYNC_ENGINE_COUNT),
    TS_FIELD(unifiedAddressing, UNIFIED_ADDRESSING),
    TS_FIELD(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH),
    TS_FIELD(l2CacheSize, L2_CACHE_SIZE),
    TS_FIELD(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE),
    TS_FIELD(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    TS_FIELD(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    TS_FIELD(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED),
    TS_FIELD(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED),
    TS_FIELD(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    TS_FIELD(managedMemory, MANAGED_MEMORY),
    TS_FIELD(isMultiGpuBoard, MULTI_GPU_BOARD),
    TS_FIELD(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID),
    TS_FIELD(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED),
    TS_FIELD(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    TS_FIELD(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    TS_FIELD(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED),
    TS_FIELD(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM),
    TS_FIELD(cooperativeLaunch, COOPERATIVE_LAUNCH),
    TS_FIELD(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES),
    TS_FIELD(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST),
    TS_FIELD(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    TS_FIELD(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE),
    TS_FIELD(hostRegisterSupported, HOST_REGISTER_SUPPORTED),
    TS_FIELD(sparseCudaArraySupported, SPARSE_CUDA_ARRAY_SUPPORTED),
    TS_FIELD(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED),
    TS_FIELD(timelineSemaphoreInteropSupported, TIMELINE_SEMAPHORE_INTEROP_SUPPORTED),
    TS_FIELD(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    TS_FIELD(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
    TS_FIELD(gpuDirectRDMAFlushWritesOptions, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
    TS_FIELD(gpuDirectRDMAWritesOrdering, GPU_DIRECT_RDMA_WRITES_ORDERING),
    TS_FIELD(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES),
    TS_FIELD(deferredMappingCudaArraySupported, DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED),
    TS_FIELD(ipcEventSupported, IPC_EVENT_SUPPORTED),
    TS_FIELD(clusterLaunch, CLUSTER_LAUNCH),
    TS_FIELD(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS),
    TS_FIELD(deviceNumaConfig, NUMA_CONFIG),
    TS_FIELD(deviceNumaId, NUMA_ID),
    TS_FIELD(mpsEnabled, MPS_ENABLED),
    TS_FIELD(hostNumaId, HOST_NUMA_ID),
    TS_FIELD(gpuPciDeviceID, GPU_PCI_DEVICE_ID),
    TS_FIELD(gpuPciSubsystemID, GPU_PCI_SUBSYSTEM_ID),
};
constexpr IntField kSizeFields[] = {
    // size_t in the structure, int as attribute
    TS_FIELD(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    TS_FIELD(memPitch, MAX_PITCH),
    TS_FIELD(totalConstMem, TOTAL_CONSTANT_MEMORY),
    TS_FIELD(textureAlignment, TEXTURE_ALIGNMENT),
    TS_FIELD(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT),
    TS_FIELD(surfaceAlignment, SURFACE_ALIGNMENT),
    TS_FIELD(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    TS_FIELD(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    TS_FIELD(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
};
#undef TS_FIELD

// An attribute that the driver does not know reads as zero: the structure has no way to say "unknown".
int attribute_or_zero(CUdevice_attribute attribute, CUdevice device) {
  int value = 0;
  return driver().DeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

CUresult fill_properties(cudaDeviceProp* prop, int ordinal) {
  CUdevice device{};
  if (const CUresult result = driver().DeviceGet(&device, ordinal)) return result;
  *prop = {};
  if (const CUresult result = driver().DeviceGetName(prop->name, sizeof prop->name, device)) return result;
  if (const CUresult result = driver().DeviceTotalMem(&prop->totalGlobalMem, device)) return result;
  driver().DeviceGetUuid(&prop->uuid, device);
  driver().DeviceGetLuid(prop->luid, &prop->luidDeviceNodeMask, device);
  char* base = reinterpret_cast<char*>(prop);
  for (const IntField& field : kIntFields) {
    const int value = attribute_or_zero(field.attribute, device);
    std::memcpy(base + field.offset, &value, sizeof value);
  }
  for (const IntField& field : kSizeFields) {
    const size_t value = size_t(unsigned(attribute_or_zero(field.attribute, device)));
    std::memcpy(base + field.offset, &value, sizeof value);
  }
  return CUDA_SUCCESS;
}

cudaError_t on_device(int ordinal, auto&& body) {
  return with_driver([&]() -> cudaError_t {
    CUdevice device{};
    if (const CUresult result = driver().DeviceGet(&device, ordinal)) return as_error(result);
    return as_error(body(device));
  });
}

}  // namespace

extern "C" {

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return remember(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return remember(cudaErrorInvalidValue);
  *version = 0;  // no driver: an answer, not an error
  if (load_driver()) driver().DriverGetVersion(version);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return remember(cudaErrorInvalidValue);
  *count = 0;
  return with_driver([&]() -> cudaError_t {
    const CUresult result = driver().DeviceGetCount(count);
    return result == CUDA_SUCCESS && *count == 0 ? cudaErrorNoDevice : as_error(result);
  });
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return remember(cudaErrorInvalidValue);
  return with_driver([&] { return current_device(device); });
}

cudaError_t cudaSetDevice(int device) {
  return with_driver([&] { return use_device(device); });
}

cudaError_t cudaInitDevice(int device, unsigned flags, unsigned) {
  return on_device(device, [&](CUdevice handle) -> cudaError_t {
    if (flags != 0) {
      if (const CUresult result = driver().DevicePrimaryCtxSetFlags(handle, flags)) return as_error(result);
    }
    CUcontext context = nullptr;
    return as_error(primary_context(device, &context));
  });
}

// The first of the list that the driver has; the list itself is not kept.
cudaError_t cudaSetValidDevices(int* devices, int count) {
  return with_driver([&]() -> cudaError_t {
    if (count < 0 || (count > 0 && !devices)) return cudaErrorInvalidValue;
    return count == 0 ? cudaSuccess : use_device(devices[0]);
  });
}

cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* wanted) {
  return with_driver([&]() -> cudaError_t {
    if (!device || !wanted) return cudaErrorInvalidValue;
    int count = 0;
    if (const CUresult result = driver().DeviceGetCount(&count)) return as_error(result);
    *device = 0;
    for (int i = 0; i < count; ++i) {
      cudaDeviceProp prop;
      if (fill_properties(&prop, i) != CUDA_SUCCESS) continue;
      if (prop.major * 10 + prop.minor >= wanted->major * 10 + wanted->minor &&
          prop.totalGlobalMem >= wanted->totalGlobalMem) {
        *device = i;
        break;
      }
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (!prop) return remember(cudaErrorInvalidValue);
  return with_driver([&] { return fill_properties(prop, device); });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return on_device(device, [&](CUdevice handle) {
    return driver().DeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), handle);
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  return with_driver([&] {
    return driver().DeviceGetP2PAttribute(value, static_cast<CUdevice_P2PAttribute>(attribute), from, to);
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return on_device(device, [&](CUdevice handle) { return driver().DeviceGetPCIBusId(id, length, handle); });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
  return with_driver([&] { return driver().DeviceGetByPCIBusId(device, id); });
}

cudaError_t cudaDeviceSynchronize() {
  return with_context([&] { return driver().CtxSynchronize(); });
}

cudaError_t cudaDeviceReset() {
  return with_driver([&]() -> cudaError_t {
    int device = 0;
    current_device(&device);
    const CUresult result = driver().DevicePrimaryCtxReset(device);
    if (result == CUDA_SUCCESS) forget_context(device);
    return as_error(result);
  });
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return with_driver([&] {
    int device = 0;
    current_device(&device);
    return driver().DevicePrimaryCtxSetFlags(device, flags);
  });
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return with_driver([&] {
    int device = 0, active = 0;
    current_device(&device);
    return driver().DevicePrimaryCtxGetState(device, flags, &active);
  });
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return with_context([&] { return driver().CtxSetLimit(static_cast<CUlimit>(limit), value); });
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return with_context([&] { return driver().CtxGetLimit(value, static_cast<CUlimit>(limit)); });
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  return with_context([&] { return driver().CtxGetCacheConfig(reinterpret_cast<CUfunc_cache*>(config)); });
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache config) {
  return with_context([&] { return driver().CtxSetCacheConfig(static_cast<CUfunc_cache>(config)); });
}

cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
  return with_context(
      [&] { return driver().CtxGetSharedMemConfig(reinterpret_cast<CUsharedconfig*>(config)); });
}
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig config) {
  return with_context([&] { return driver().CtxSetSharedMemConfig(static_cast<CUsharedconfig>(config)); });
}

cudaError_t cudaDeviceGetHostAtomicCapabilities(unsigned* capabilities, const cudaAtomicOperation* operations,
                                                unsigned count, int device) {
  return with_driver([&] {
    return driver().DeviceGetHostAtomicCapabilities(
        capabilities, reinterpret_cast<const CUatomicOperation*>(operations), count, device);
  });
}
cudaError_t cudaDeviceGetP2PAtomicCapabilities(unsigned* capabilities, const cudaAtomicOperation* operations,
                                               unsigned count, int from, int to) {
  return with_driver([&] {
    return driver().DeviceGetP2PAtomicCapabilities(
        capabilities, reinterpret_cast<const CUatomicOperation*>(operations), count, from, to);
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&] { return driver().CtxGetStreamPriorityRange(least, greatest); });
}

cudaError_t cudaCtxResetPersistingL2Cache() {
  return with_context([&] { return driver().CtxResetPersistingL2Cache(); });
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget target,
                                               cudaFlushGPUDirectRDMAWritesScope scope) {
  return with_context([&] {
    return driver().FlushGPUDirectRDMAWrites(static_cast<CUflushGPUDirectRDMAWritesTarget>(target),
                                             static_cast<CUflushGPUDirectRDMAWritesScope>(scope));
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return with_driver([&] { return driver().DeviceCanAccessPeer(can, device, peer); });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return with_context([&]() -> cudaError_t {
    CUcontext context = nullptr;
    if (const CUresult result = primary_context(peer, &context)) return as_error(result);
    return as_error(driver().CtxEnablePeerAccess(context, flags));
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return with_context([&]() -> cudaError_t {
    CUcontext context = nullptr;
    if (const CUresult result = primary_context(peer, &context)) return as_error(result);
    return as_error(driver().CtxDisablePeerAccess(context));
  });
}

cudaError_t cudaProfilerStart() {
  return with_context([&] { return driver().ProfilerStart(); });
}
cudaError_t cudaProfilerStop() {
  return with_context([&] { return driver().ProfilerStop(); });
}

}  // extern "C"
