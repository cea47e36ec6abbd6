// Advice about managed memory: remembered and told, but it changes nothing, since managed memory is host
// memory here. Kept for each allocation as a whole, not for parts of it.
#include <cstring>

#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

CUresult check_range(CUdeviceptr pointer, size_t count) {
  if (!count || !Memory::get().contains(pointer, count)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult check_location(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    return find_device(location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                 location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult advise(CUdeviceptr pointer, size_t count, CUmem_advise what, CUmemLocation location) {
  if (CUresult bad = check_range(pointer, count)) return bad;
  const bool placed = what == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || what == CU_MEM_ADVISE_SET_ACCESSED_BY ||
                      what == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (placed)
    if (CUresult bad = check_location(location)) return bad;
  // Bit 0 is the host, bit n + 1 device n.
  const uint32_t bit = location.type == CU_MEM_LOCATION_TYPE_DEVICE && placed ? 2u << location.id : 1u;
  Memory::get().advise(pointer, [&](Advice& advice) {
    switch (what) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        advice.read_mostly = what == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        advice.preferred = location;
        break;
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        advice.preferred = {};
        break;
      case CU_MEM_ADVISE_SET_ACCESSED_BY:
        advice.accessed_by |= bit;
        break;
      case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        advice.accessed_by &= ~bit;
        break;
    }
  });
  return unsigned(what) - 1 < CU_MEM_ADVISE_UNSET_ACCESSED_BY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult prefetch(CUdeviceptr pointer, size_t count, CUmemLocation location, CUstream handle,
                  NullStream null_stream) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  if (CUresult bad = check_location(location)) return bad;
  if (CUresult bad = check_range(pointer, count)) return bad;
  Memory::get().advise(pointer, [&](Advice& advice) { advice.prefetched = location; });
  return CUDA_SUCCESS;
}

// A location as the older attributes say it: device number, host, or none.
int as_device(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE    ? location.id
         : location.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID
                                                         : CU_DEVICE_CPU;
}

CUresult range_attribute(void* data, size_t bytes, CUmem_range_attribute attribute, CUdeviceptr pointer,
                         size_t count) {
  Allocation found;
  if (!data || !count || !Memory::get().find(pointer, &found) || found.kind != MemoryKind::kManaged ||
      count > found.begin + found.bytes - pointer)
    return CUDA_ERROR_INVALID_VALUE;
  const Advice& advice = found.advice;
  auto put = [&](int value) {
    if (bytes != sizeof value) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (int(attribute)) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      return put(advice.read_mostly);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      return put(as_device(advice.preferred));
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      return put(as_device(advice.prefetched));
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      return put(advice.preferred.type);
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      return put(advice.preferred.id);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      return put(advice.prefetched.type);
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      return put(advice.prefetched.id);
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      if (!bytes || bytes % sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
      int* list = static_cast<int*>(data);
      const size_t room = bytes / sizeof(int);
      size_t n = 0;
      for (int bit = 0; bit <= kMaxDevices && n < room; ++bit)
        if (advice.accessed_by >> bit & 1) list[n++] = bit ? bit - 1 : CU_DEVICE_CPU;
      while (n < room) list[n++] = CU_DEVICE_INVALID;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise what, CUdevice device) {
  TS_CONTEXT(cuMemAdvise, context);
  return advise(devPtr, count, what, location_of(device));
}
CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise what, CUmemLocation location) {
  TS_CONTEXT(cuMemAdvise_v2, context);
  return advise(devPtr, count, what, location);
}
TS_PAIR(cuMemPrefetchAsync, _ptsz, (CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream),
        (devPtr, count, dstDevice, hStream)) {
  TS_ENTER(cuMemPrefetchAsync);
  return prefetch(devPtr, count, location_of(dstDevice), hStream, null_stream);
}
TS_PAIR(cuMemPrefetchAsync_v2, _ptsz,
        (CUdeviceptr devPtr, size_t count, CUmemLocation location, unsigned int flags, CUstream hStream),
        (devPtr, count, location, flags, hStream)) {
  TS_ENTER(cuMemPrefetchAsync_v2);
  return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(devPtr, count, location, hStream, null_stream);
}
CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  TS_ENTER(cuMemRangeGetAttribute);
  return range_attribute(data, dataSize, attribute, devPtr, count);
}
CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  TS_ENTER(cuMemRangeGetAttributes);
  if (!data || !dataSizes || !attributes || !numAttributes) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < numAttributes; ++i)
    if (CUresult bad = range_attribute(data[i], dataSizes[i], attributes[i], devPtr, count)) return bad;
  return CUDA_SUCCESS;
}
