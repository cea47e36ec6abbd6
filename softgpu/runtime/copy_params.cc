#include "softgpu/runtime/copy_params.h"

#include <iterator>

namespace tessera::softgpu::runtime {
namespace {

struct Sides {
  CUmemorytype source, target;
};
constexpr Sides kSides[] = {
    {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST},        // cudaMemcpyHostToHost
    {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE},      // cudaMemcpyHostToDevice
    {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST},      // cudaMemcpyDeviceToHost
    {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE},    // cudaMemcpyDeviceToDevice
    {CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED},  // cudaMemcpyDefault
};

cudaMemcpyKind kind_of(CUmemorytype source, CUmemorytype target) {
  for (int kind = 0; kind < int(std::size(kSides)); ++kind) {
    if (kSides[kind].source == source && kSides[kind].target == target)
      return static_cast<cudaMemcpyKind>(kind);
  }
  return cudaMemcpyDefault;
}

}  // namespace

CUmemorytype source_type(cudaMemcpyKind kind) {
  return kSides[kind].source;
}
CUmemorytype target_type(cudaMemcpyKind kind) {
  return kSides[kind].target;
}

size_t element_bytes(CUarray array) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  if (!array || driver().Array3DGetDescriptor(&d, array) != CUDA_SUCCESS) return 0;
  switch (d.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return d.NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return size_t(2) * d.NumChannels;
    default:
      return size_t(4) * d.NumChannels;
  }
}

cudaError_t to_driver(const cudaMemcpy3DParms& from, CUDA_MEMCPY3D* to) {
  // Exactly one of array and pointer on each side.
  if (!from.srcArray == !from.srcPtr.ptr || !from.dstArray == !from.dstPtr.ptr) return cudaErrorInvalidValue;
  const auto source = reinterpret_cast<CUarray>(from.srcArray),
             target = reinterpret_cast<CUarray>(from.dstArray);
  const size_t source_bytes = element_bytes(source), target_bytes = element_bytes(target);
  if ((source && !source_bytes) || (target && !target_bytes)) return cudaErrorInvalidResourceHandle;
  if (source && target && source_bytes != target_bytes) return cudaErrorInvalidValue;
  const size_t element = source ? source_bytes : target ? target_bytes : 1;
  *to = {};
  to->srcXInBytes = from.srcPos.x * (source ? element : 1);
  to->srcY = from.srcPos.y;
  to->srcZ = from.srcPos.z;
  to->srcMemoryType = source_type(from.kind);
  to->srcHost = from.srcPtr.ptr;
  to->srcDevice = device_pointer(from.srcPtr.ptr);
  to->srcPitch = from.srcPtr.pitch;
  to->srcHeight = from.srcPtr.ysize;
  to->dstXInBytes = from.dstPos.x * (target ? element : 1);
  to->dstY = from.dstPos.y;
  to->dstZ = from.dstPos.z;
  to->dstMemoryType = target_type(from.kind);
  to->dstHost = from.dstPtr.ptr;
  to->dstDevice = device_pointer(from.dstPtr.ptr);
  to->dstPitch = from.dstPtr.pitch;
  to->dstHeight = from.dstPtr.ysize;
  to->WidthInBytes = from.extent.width * element;
  if (source) to->srcMemoryType = CU_MEMORYTYPE_ARRAY, to->srcArray = source;
  if (target) to->dstMemoryType = CU_MEMORYTYPE_ARRAY, to->dstArray = target;
  to->Height = from.extent.height;
  to->Depth = from.extent.depth;
  return cudaSuccess;
}

void to_runtime(const CUDA_MEMCPY3D& from, cudaMemcpy3DParms* to) {
  const auto pointer = [](CUmemorytype type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : reinterpret_cast<void*>(device);
  };
  *to = {};
  to->srcPos = {from.srcXInBytes, from.srcY, from.srcZ};
  to->srcPtr = {pointer(from.srcMemoryType, from.srcHost, from.srcDevice), from.srcPitch, from.WidthInBytes,
                from.srcHeight};
  to->dstPos = {from.dstXInBytes, from.dstY, from.dstZ};
  to->dstPtr = {pointer(from.dstMemoryType, from.dstHost, from.dstDevice), from.dstPitch, from.WidthInBytes,
                from.dstHeight};
  to->extent = {from.WidthInBytes, from.Height, from.Depth};
  to->kind = kind_of(from.srcMemoryType == CU_MEMORYTYPE_ARRAY ? CU_MEMORYTYPE_DEVICE : from.srcMemoryType,
                     from.dstMemoryType == CU_MEMORYTYPE_ARRAY ? CU_MEMORYTYPE_DEVICE : from.dstMemoryType);
  size_t element = 0;
  if (from.srcMemoryType == CU_MEMORYTYPE_ARRAY) {
    element = element_bytes(from.srcArray);
    to->srcPtr = {};
    to->srcArray = reinterpret_cast<cudaArray_t>(from.srcArray);
    if (element) to->srcPos.x /= element;
  }
  if (from.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    element = element_bytes(from.dstArray);
    to->dstPtr = {};
    to->dstArray = reinterpret_cast<cudaArray_t>(from.dstArray);
    if (element) to->dstPos.x /= element;
  }
  if (element) to->extent.width /= element;
}

cudaMemcpy3DParms linear_copy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  cudaMemcpy3DParms p{};
  p.srcPtr = {const_cast<void*>(src), count, count, 1};
  p.dstPtr = {dst, count, count, 1};
  p.extent = {count, 1, 1};
  p.kind = kind;
  return p;
}

}  // namespace tessera::softgpu::runtime
