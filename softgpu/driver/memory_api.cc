// Allocation of device, managed and host memory, and questions about pointers.
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"
#include "softgpu/faults/faults.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

constexpr uint64_t kPitchAlignment = 512;
constexpr unsigned kHostFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                    CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

CUresult allocate(MemoryKind kind, uint64_t bytes, unsigned flags, uint64_t* address) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  if (!address || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (tessera::softgpu::faults::on_allocation()) return CUDA_ERROR_OUT_OF_MEMORY;
  return Memory::get().allocate(kind, bytes, context.get(), flags, address);
}

// Frees wait for the work that may still use the memory and say how it ended, as on hardware: memory of a
// context that has failed is freed all the same.
// Without a current context, too: programs free memory after they popped it (numba-cuda's tests).
CUresult release(uint64_t address, bool (*accepts)(MemoryKind)) {
  Allocation allocation;
  if (!Memory::get().find(address, &allocation) || allocation.begin != address || !accepts(allocation.kind))
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  const std::shared_ptr<Context> owner = driver().contexts.find(allocation.context);
  if (owner) (void)(allocation.on_device() ? synchronize_without_launches(*owner) : synchronize(*owner));
  if (allocation.kind == MemoryKind::kImported)
    return allocation.pool && close_ticket(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!Memory::get().release(address)) return CUDA_ERROR_INVALID_VALUE;
  return owner ? sticky(*owner) : CUDA_SUCCESS;
}

bool is_device(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged || kind == MemoryKind::kImported;
}
bool is_host(MemoryKind kind) {
  return kind == MemoryKind::kHost;
}
bool is_registered(MemoryKind kind) {
  return kind == MemoryKind::kRegistered;
}

template <class T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  Allocation found;
  if (!Memory::get().find(pointer, &found)) {
    if (attribute == CU_POINTER_ATTRIBUTE_MAPPED) return put<bool>(data, false);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool on_device = found.on_device();
  switch (int(attribute)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put<void*>(data, found.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put<unsigned>(data, on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return put<CUdeviceptr>(data, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (found.kind == MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
      return put<void*>(data, reinterpret_cast<void*>(pointer));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put<unsigned>(data, found.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put<unsigned long long>(data, found.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put<unsigned>(data, found.kind == MemoryKind::kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return put<int>(data, found.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put<int>(data, found.kind == MemoryKind::kDevice && found.context && !found.pool);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put<CUdeviceptr>(data, found.begin);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return put<size_t>(data, found.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return put<bool>(data, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put<unsigned long long>(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put<int>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {  // as the current context's device sees it
      std::shared_ptr<Context> context;
      if (CUresult none = current(&context)) return none;
      return put<int>(data, int(flags_of(found.access[size_t(context->device)])));
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put<const void*>(data, found.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return put<size_t>(data, found.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return put<CUdeviceptr>(data, found.begin);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return put<unsigned long long>(data, found.id);
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put<int>(data, 0);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Memory that the host could give back, as caches, is not free.
uint64_t free_in_host() {
  struct sysinfo host = {};
  return sysinfo(&host) == 0 ? uint64_t(host.freeram) * host.mem_unit : UINT64_MAX;
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  TS_ENTER(cuMemAlloc_v2);
  uint64_t address = 0;
  if (!dptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult failed = allocate(MemoryKind::kDevice, bytesize, 0, &address)) return failed;
  *dptr = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  TS_ENTER(cuMemAllocPitch_v2);
  const bool element_ok = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
  if (!dptr || !pPitch || !element_ok || !WidthInBytes || !Height) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t pitch = (WidthInBytes + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  if (Height > UINT64_MAX / 2 / pitch) return CUDA_ERROR_OUT_OF_MEMORY;
  uint64_t address = 0;
  if (CUresult failed = allocate(MemoryKind::kDevice, pitch * Height, 0, &address)) return failed;
  *dptr = address;
  *pPitch = pitch;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  TS_ENTER(cuMemAllocManaged);
  if (!dptr || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  if (CUresult failed = allocate(MemoryKind::kManaged, bytesize, flags, &address)) return failed;
  *dptr = address;
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  TS_ENTER(cuMemFree_v2);
  if (!dptr) return CUDA_SUCCESS;
  return release(dptr, is_device);
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  TS_ENTER(cuMemHostAlloc);
  if (!pp || (Flags & ~kHostFlags)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t address = 0;
  if (CUresult failed = allocate(MemoryKind::kHost, bytesize, Flags, &address)) return failed;
  *pp = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}
CUresult cuMemAllocHost(void** pp, unsigned int bytesize) {
  return cuMemHostAlloc(pp, bytesize, 0);
}

CUresult cuMemFreeHost(void* p) {
  TS_ENTER(cuMemFreeHost);
  if (!p) return CUDA_SUCCESS;
  return release(reinterpret_cast<uint64_t>(p), is_host);
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  TS_CONTEXT(cuMemHostRegister_v2, context);
  if (!p || !bytesize || (Flags & ~kRegisterFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  return Memory::get().register_host(reinterpret_cast<uint64_t>(p), bytesize, context.get(), Flags);
}
CUresult cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  return cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void* p) {
  TS_ENTER(cuMemHostUnregister);
  const CUresult released = release(reinterpret_cast<uint64_t>(p), is_registered);
  return p && released == CUDA_ERROR_INVALID_VALUE ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : released;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  TS_CONTEXT(cuMemHostGetDevicePointer_v2, context);
  Allocation found;
  if (!pdptr || !p || Flags) return CUDA_ERROR_INVALID_VALUE;
  if (!Memory::get().find(reinterpret_cast<uint64_t>(p), &found) || found.kind == MemoryKind::kDevice)
    return CUDA_ERROR_INVALID_VALUE;
  *pdptr = reinterpret_cast<CUdeviceptr>(p);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  TS_CONTEXT(cuMemHostGetFlags, context);
  Allocation found;
  if (!pFlags || !Memory::get().find(reinterpret_cast<uint64_t>(p), &found) ||
      found.kind != MemoryKind::kHost)
    return CUDA_ERROR_INVALID_VALUE;
  *pFlags = found.flags | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  TS_CONTEXT(cuMemGetInfo_v2, context);
  const Device& device = device_of(*context);
  const size_t all = device.gpu.memory.bytes;
  size_t left = all - std::min<size_t>(all, Memory::get().used_bytes(context->device));
  if (device.attribute(CU_DEVICE_ATTRIBUTE_INTEGRATED) != 0) left = std::min<size_t>(left, free_in_host());
  if (free) *free = left;
  if (total) *total = all;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  TS_CONTEXT(cuMemGetAddressRange_v2, context);
  Allocation found;
  if (!Memory::get().find(dptr, &found)) return CUDA_ERROR_NOT_FOUND;
  if (pbase) *pbase = found.begin;
  if (psize) *psize = found.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  TS_ENTER(cuPointerGetAttribute);
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  return pointer_attribute(data, attribute, ptr);
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr ptr) {
  TS_ENTER(cuPointerGetAttributes);
  if (!attributes || !data || !numAttributes) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < numAttributes; ++i) {
    // Unlike the single query, a pointer that is not CUDA's gives zeros, and that is success.
    unsigned char value[16] = {};
    const CUresult got = pointer_attribute(value, attributes[i], ptr);
    if (got == CUDA_ERROR_NOT_SUPPORTED) return got;
    size_t bytes = 8;
    switch (int(attributes[i])) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        bytes = 4;
        break;
      case CU_POINTER_ATTRIBUTE_MAPPED:
        bytes = 1;
        break;
      default:
        break;
    }
    if (got && attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
      const int none = CU_DEVICE_INVALID;
      std::memcpy(value, &none, 4);
    }
    std::memcpy(data[i], value, bytes);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  TS_CONTEXT(cuPointerSetAttribute, context);
  Allocation found;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !Memory::get().find(ptr, &found))
    return CUDA_ERROR_INVALID_VALUE;
  Memory::get().set_sync_memops(found.begin, *static_cast<const unsigned*>(value) != 0);
  return CUDA_SUCCESS;
}
