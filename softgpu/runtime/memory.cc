// Allocation, host memory, pointers, memory pools, inter-process handles.

#include "softgpu/runtime/registry.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

CUmemLocation to_driver(const cudaMemLocation& location) {
  return {static_cast<CUmemLocationType>(location.type), location.id};
}

// Allocating nothing succeeds with a null pointer, in the runtime only.
template <class Allocate>
cudaError_t allocate(void** pointer, size_t size, Allocate&& body) {
  return with_context([&]() -> cudaError_t {
    if (!pointer) return cudaErrorInvalidValue;
    *pointer = nullptr;
    return size == 0 ? cudaSuccess : as_error(body());
  });
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t size) {
  return allocate(pointer, size, [&] {
    CUdeviceptr address = 0;
    const CUresult result = driver().MemAlloc(&address, size);
    *pointer = reinterpret_cast<void*>(address);
    return result;
  });
}

cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned flags) {
  if (size == 0) return remember(cudaErrorInvalidValue);
  return allocate(pointer, size, [&] {
    CUdeviceptr address = 0;
    const CUresult result = driver().MemAllocManaged(&address, size, flags);
    *pointer = reinterpret_cast<void*>(address);
    return result;
  });
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  if (!pitch) return remember(cudaErrorInvalidValue);
  *pitch = 0;
  return allocate(pointer, width * height, [&] {
    CUdeviceptr address = 0;
    const CUresult result = driver().MemAllocPitch(&address, pitch, width, height, 16);
    *pointer = reinterpret_cast<void*>(address);
    return result;
  });
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
  if (!pointer) return remember(cudaErrorInvalidValue);
  *pointer = {nullptr, 0, extent.width, extent.height};
  return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth);
}

cudaError_t cudaFree(void* pointer) {
  return with_context([&]() -> cudaError_t {
    return pointer ? as_error(driver().MemFree(device_pointer(pointer))) : cudaSuccess;
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned flags) {
  return allocate(pointer, size, [&] { return driver().MemHostAlloc(pointer, size, flags); });
}

cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return allocate(pointer, size, [&] { return driver().MemHostAlloc(pointer, size, 0); });
}

cudaError_t cudaFreeHost(void* pointer) {
  return with_context(
      [&]() -> cudaError_t { return pointer ? as_error(driver().MemFreeHost(pointer)) : cudaSuccess; });
}

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned flags) {
  return with_context([&] { return driver().MemHostRegister(pointer, size, flags); });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return with_context([&] { return driver().MemHostUnregister(pointer); });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    if (!device) return cudaErrorInvalidValue;
    const CUresult result = driver().MemHostGetDevicePointer(&address, host, flags);
    if (result == CUDA_SUCCESS) *device = reinterpret_cast<void*>(address);
    return as_error(result);
  });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* pointer) {
  return with_context([&] { return driver().MemHostGetFlags(flags, pointer); });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return with_context([&] { return driver().MemGetInfo(free, total); });
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    size_t bytes = 0;
    if (!pointer) return cudaErrorInvalidValue;
    const cudaError_t status = find_variable(symbol, &address, &bytes);
    if (status == cudaSuccess) *pointer = reinterpret_cast<void*>(address);
    return status;
  });
}

cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    return size ? find_variable(symbol, &address, size) : cudaErrorInvalidValue;
  });
}

// Host memory that the driver has never seen is "unregistered", which is an answer.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  return with_context([&]() -> cudaError_t {
    if (!out) return cudaErrorInvalidValue;
    CUmemorytype type{};
    int managed = 0, device = cudaInvalidDeviceId;
    CUdeviceptr device_address = 0;
    void* host_address = nullptr;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* values[] = {&type, &managed, &device, &device_address, &host_address};
    if (const CUresult result =
            driver().PointerGetAttributes(5, attributes, values, device_pointer(pointer))) {
      return as_error(result);
    }
    *out = {};
    if (type == 0) {
      out->type = cudaMemoryTypeUnregistered;
      out->device = cudaInvalidDeviceId;
      out->hostPointer = const_cast<void*>(pointer);
      return cudaSuccess;
    }
    out->type = managed                        ? cudaMemoryTypeManaged
                : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                               : cudaMemoryTypeHost;
    out->device = device;
    out->devicePointer = reinterpret_cast<void*>(device_address);
    out->hostPointer = host_address;
    return cudaSuccess;
  });
}

cudaError_t cudaMemAdvise(const void* pointer, size_t count, cudaMemoryAdvise advice,
                          cudaMemLocation location) {
  return with_context([&] {
    return driver().MemAdvise(device_pointer(pointer), count, static_cast<CUmem_advise>(advice),
                              to_driver(location));
  });
}

cudaError_t cudaMemRangeGetAttribute(void* data, size_t size, cudaMemRangeAttribute attribute,
                                     const void* pointer, size_t count) {
  return with_context([&] {
    return driver().MemRangeGetAttribute(data, size, static_cast<CUmem_range_attribute>(attribute),
                                         device_pointer(pointer), count);
  });
}

cudaError_t cudaMemRangeGetAttributes(void** data, size_t* sizes, cudaMemRangeAttribute* attributes, size_t n,
                                      const void* pointer, size_t count) {
  return with_context([&] {
    return driver().MemRangeGetAttributes(data, sizes, reinterpret_cast<CUmem_range_attribute*>(attributes),
                                          n, device_pointer(pointer), count);
  });
}

cudaError_t cudaMemcpyPeer(void* dst, int dst_device, const void* src, int src_device, size_t count) {
  return with_context([&]() -> cudaError_t {
    CUcontext to = nullptr, from = nullptr;
    if (const CUresult result = primary_context(dst_device, &to)) return as_error(result);
    if (const CUresult result = primary_context(src_device, &from)) return as_error(result);
    return as_error(driver().MemcpyPeer(device_pointer(dst), to, device_pointer(src), from, count));
  });
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t count,
                                cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    CUcontext to = nullptr, from = nullptr;
    if (const CUresult result = primary_context(dst_device, &to)) return as_error(result);
    if (const CUresult result = primary_context(src_device, &from)) return as_error(result);
    return as_error(
        driver().MemcpyPeerAsync(device_pointer(dst), to, device_pointer(src), from, count, stream));
  });
}

// Memory pools. The structures of runtime and driver are the same words under two names.
static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
static_assert(sizeof(cudaMemPoolPtrExportData) == sizeof(CUmemPoolPtrExportData));

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return with_driver([&] { return driver().DeviceGetDefaultMemPool(pool, device); });
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return with_driver([&] { return driver().DeviceGetMemPool(pool, device); });
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return with_driver([&] { return driver().DeviceSetMemPool(device, pool); });
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* props) {
  return with_driver(
      [&] { return driver().MemPoolCreate(pool, reinterpret_cast<const CUmemPoolProps*>(props)); });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return with_driver([&] { return driver().MemPoolDestroy(pool); });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  return with_driver([&] { return driver().MemPoolTrimTo(pool, bytes); });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return with_driver(
      [&] { return driver().MemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value); });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return with_driver(
      [&] { return driver().MemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value); });
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  return with_driver(
      [&] { return driver().MemPoolSetAccess(pool, reinterpret_cast<const CUmemAccessDesc*>(list), count); });
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool, cudaMemLocation* location) {
  return with_driver([&] {
    return driver().MemPoolGetAccess(reinterpret_cast<CUmemAccess_flags*>(flags), pool,
                                     reinterpret_cast<CUmemLocation*>(location));
  });
}
cudaError_t cudaMemPoolExportToShareableHandle(void* handle, cudaMemPool_t pool,
                                               cudaMemAllocationHandleType type, unsigned flags) {
  return with_driver([&] {
    return driver().MemPoolExportToShareableHandle(handle, pool, static_cast<CUmemAllocationHandleType>(type),
                                                   flags);
  });
}
cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t* pool, void* handle,
                                                 cudaMemAllocationHandleType type, unsigned flags) {
  return with_driver([&] {
    return driver().MemPoolImportFromShareableHandle(pool, handle,
                                                     static_cast<CUmemAllocationHandleType>(type), flags);
  });
}
cudaError_t cudaMemPoolExportPointer(cudaMemPoolPtrExportData* data, void* pointer) {
  return with_driver([&] {
    return driver().MemPoolExportPointer(reinterpret_cast<CUmemPoolPtrExportData*>(data),
                                         device_pointer(pointer));
  });
}
cudaError_t cudaMemPoolImportPointer(void** pointer, cudaMemPool_t pool, cudaMemPoolPtrExportData* data) {
  return with_driver([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    if (!pointer) return cudaErrorInvalidValue;
    const CUresult result =
        driver().MemPoolImportPointer(&address, pool, reinterpret_cast<CUmemPoolPtrExportData*>(data));
    if (result == CUDA_SUCCESS) *pointer = reinterpret_cast<void*>(address);
    return as_error(result);
  });
}

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return with_context([&] {
    return driver().IpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), device_pointer(pointer));
  });
}
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  return with_context([&]() -> cudaError_t {
    CUdeviceptr address = 0;
    if (!pointer) return cudaErrorInvalidValue;
    const CUresult result =
        driver().IpcOpenMemHandle(&address, reinterpret_cast<const CUipcMemHandle&>(handle), flags);
    if (result == CUDA_SUCCESS) *pointer = reinterpret_cast<void*>(address);
    return as_error(result);
  });
}
cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return with_context([&] { return driver().IpcCloseMemHandle(device_pointer(pointer)); });
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return with_context(
      [&] { return driver().IpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event); });
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return with_context(
      [&] { return driver().IpcOpenEventHandle(event, reinterpret_cast<const CUipcEventHandle&>(handle)); });
}

static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
cudaError_t cudaMemGetDefaultMemPool(cudaMemPool_t* pool, cudaMemLocation* location,
                                     cudaMemAllocationType type) {
  return with_driver([&] {
    return driver().MemGetDefaultMemPool(pool, reinterpret_cast<CUmemLocation*>(location),
                                         static_cast<CUmemAllocationType>(type));
  });
}
cudaError_t cudaMemGetMemPool(cudaMemPool_t* pool, cudaMemLocation* location, cudaMemAllocationType type) {
  return with_driver([&] {
    return driver().MemGetMemPool(pool, reinterpret_cast<CUmemLocation*>(location),
                                  static_cast<CUmemAllocationType>(type));
  });
}
cudaError_t cudaMemSetMemPool(cudaMemLocation* location, cudaMemAllocationType type, cudaMemPool_t pool) {
  return with_driver([&] {
    return driver().MemSetMemPool(reinterpret_cast<CUmemLocation*>(location),
                                  static_cast<CUmemAllocationType>(type), pool);
  });
}

}  // extern "C"
