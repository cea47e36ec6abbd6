// CUDA arrays and surface objects.

#include "softgpu/runtime/copy_params.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

CUarray as_array(cudaArray_const_t array) {
  return reinterpret_cast<CUarray>(const_cast<cudaArray*>(array));
}
CUmipmappedArray as_mipmapped(cudaMipmappedArray_const_t array) {
  return reinterpret_cast<CUmipmappedArray>(const_cast<cudaMipmappedArray*>(array));
}

struct Format {
  cudaChannelFormatKind kind;
  int bits;
  CUarray_format format;
};
constexpr Format kFormats[] = {
    {cudaChannelFormatKindUnsigned, 8, CU_AD_FORMAT_UNSIGNED_INT8},
    {cudaChannelFormatKindUnsigned, 16, CU_AD_FORMAT_UNSIGNED_INT16},
    {cudaChannelFormatKindUnsigned, 32, CU_AD_FORMAT_UNSIGNED_INT32},
    {cudaChannelFormatKindSigned, 8, CU_AD_FORMAT_SIGNED_INT8},
    {cudaChannelFormatKindSigned, 16, CU_AD_FORMAT_SIGNED_INT16},
    {cudaChannelFormatKindSigned, 32, CU_AD_FORMAT_SIGNED_INT32},
    {cudaChannelFormatKindFloat, 16, CU_AD_FORMAT_HALF},
    {cudaChannelFormatKindFloat, 32, CU_AD_FORMAT_FLOAT},
};

// Channels of equal width, from x on, as the driver has them.
cudaError_t to_driver(const cudaChannelFormatDesc& d, CUarray_format* format, unsigned* channels) {
  const int bits[4] = {d.x, d.y, d.z, d.w};
  *channels = 0;
  while (*channels < 4 && bits[*channels]) ++*channels;
  for (unsigned i = 0; i < 4; ++i)
    if (bits[i] != (i < *channels ? d.x : 0)) return cudaErrorInvalidChannelDescriptor;
  for (const Format& row : kFormats) {
    if (row.kind != d.f || row.bits != d.x) continue;
    *format = row.format;
    return *channels == 3 ? cudaErrorInvalidChannelDescriptor : cudaSuccess;
  }
  return cudaErrorInvalidChannelDescriptor;
}
cudaChannelFormatDesc to_runtime(CUarray_format format, unsigned channels) {
  cudaChannelFormatDesc d{0, 0, 0, 0, cudaChannelFormatKindNone};
  for (const Format& row : kFormats) {
    if (row.format != format) continue;
    int* bits[4] = {&d.x, &d.y, &d.z, &d.w};
    for (unsigned i = 0; i < channels && i < 4; ++i) *bits[i] = row.bits;
    d.f = row.kind;
  }
  return d;
}

cudaError_t descriptor(const cudaChannelFormatDesc* desc, cudaExtent extent, unsigned flags,
                       CUDA_ARRAY3D_DESCRIPTOR* d) {
  if (!desc) return cudaErrorInvalidValue;
  *d = {extent.width, extent.height, extent.depth, CU_AD_FORMAT_FLOAT, 1,
        flags};  // the flags are the driver's
  return to_driver(*desc, &d->Format, &d->NumChannels);
}

static_assert(sizeof(cudaArrayMemoryRequirements) == sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS));
static_assert(sizeof(cudaArraySparseProperties) == sizeof(CUDA_ARRAY_SPARSE_PROPERTIES));

}  // namespace

extern "C" {

cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* desc, cudaExtent extent,
                              unsigned flags) {
  return with_context([&]() -> cudaError_t {
    CUDA_ARRAY3D_DESCRIPTOR d{};
    if (!array) return cudaErrorInvalidValue;
    if (const cudaError_t bad = descriptor(desc, extent, flags, &d)) return bad;
    return as_error(driver().Array3DCreate(reinterpret_cast<CUarray*>(array), &d));
  });
}
cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* desc, size_t width,
                            size_t height, unsigned flags) {
  return cudaMalloc3DArray(array, desc, {width, height, 0}, flags);
}
cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* array, const cudaChannelFormatDesc* desc,
                                     cudaExtent extent, unsigned levels, unsigned flags) {
  return with_context([&]() -> cudaError_t {
    CUDA_ARRAY3D_DESCRIPTOR d{};
    if (!array) return cudaErrorInvalidValue;
    if (const cudaError_t bad = descriptor(desc, extent, flags, &d)) return bad;
    return as_error(driver().MipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(array), &d, levels));
  });
}
cudaError_t cudaFreeArray(cudaArray_t array) {
  return with_context([&] { return array ? driver().ArrayDestroy(as_array(array)) : CUDA_SUCCESS; });
}
cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
  return with_context(
      [&] { return array ? driver().MipmappedArrayDestroy(as_mipmapped(array)) : CUDA_SUCCESS; });
}
cudaError_t cudaGetMipmappedArrayLevel(cudaArray_t* level, cudaMipmappedArray_const_t array, unsigned n) {
  return with_context([&] {
    return driver().MipmappedArrayGetLevel(reinterpret_cast<CUarray*>(level), as_mipmapped(array), n);
  });
}

cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* desc, cudaExtent* extent, unsigned* flags,
                             cudaArray_t array) {
  return with_context([&]() -> cudaError_t {
    CUDA_ARRAY3D_DESCRIPTOR d{};
    if (const CUresult bad = driver().Array3DGetDescriptor(&d, as_array(array))) return as_error(bad);
    if (desc) *desc = to_runtime(d.Format, d.NumChannels);
    if (extent) *extent = {d.Width, d.Height, d.Depth};
    if (flags) *flags = d.Flags;
    return cudaSuccess;
  });
}
cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* desc, cudaArray_const_t array) {
  if (!desc) return remember(cudaErrorInvalidValue);
  return cudaArrayGetInfo(desc, nullptr, nullptr, const_cast<cudaArray_t>(array));
}
cudaError_t cudaArrayGetPlane(cudaArray_t* plane, cudaArray_t array, unsigned index) {
  return with_context(
      [&] { return driver().ArrayGetPlane(reinterpret_cast<CUarray*>(plane), as_array(array), index); });
}
cudaError_t cudaArrayGetMemoryRequirements(cudaArrayMemoryRequirements* out, cudaArray_t array, int device) {
  return with_context([&] {
    return driver().ArrayGetMemoryRequirements(reinterpret_cast<CUDA_ARRAY_MEMORY_REQUIREMENTS*>(out),
                                               as_array(array), device);
  });
}
cudaError_t cudaMipmappedArrayGetMemoryRequirements(cudaArrayMemoryRequirements* out,
                                                    cudaMipmappedArray_t array, int device) {
  return with_context([&] {
    return driver().MipmappedArrayGetMemoryRequirements(
        reinterpret_cast<CUDA_ARRAY_MEMORY_REQUIREMENTS*>(out), as_mipmapped(array), device);
  });
}
cudaError_t cudaArrayGetSparseProperties(cudaArraySparseProperties* out, cudaArray_t array) {
  return with_context([&] {
    return driver().ArrayGetSparseProperties(reinterpret_cast<CUDA_ARRAY_SPARSE_PROPERTIES*>(out),
                                             as_array(array));
  });
}
cudaError_t cudaMipmappedArrayGetSparseProperties(cudaArraySparseProperties* out,
                                                  cudaMipmappedArray_t array) {
  return with_context([&] {
    return driver().MipmappedArrayGetSparseProperties(reinterpret_cast<CUDA_ARRAY_SPARSE_PROPERTIES*>(out),
                                                      as_mipmapped(array));
  });
}
cudaError_t cudaDeviceGetTexture1DLinearMaxWidth(size_t* width, const cudaChannelFormatDesc* desc,
                                                 int device) {
  return with_driver([&]() -> cudaError_t {
    CUarray_format format;
    unsigned channels = 0;
    if (!width || !desc) return cudaErrorInvalidValue;
    if (const cudaError_t bad = to_driver(*desc, &format, &channels)) return bad;
    return as_error(driver().DeviceGetTexture1DLinearMaxWidth(width, format, channels, device));
  });
}

cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* surface, const cudaResourceDesc* resource) {
  return with_context([&]() -> cudaError_t {
    CUDA_RESOURCE_DESC r{};
    if (!surface || !resource || resource->resType != cudaResourceTypeArray) return cudaErrorInvalidValue;
    r.resType = CU_RESOURCE_TYPE_ARRAY;
    r.res.array.hArray = as_array(resource->res.array.array);
    r.flags = resource->flags;
    return as_error(driver().SurfObjectCreate(surface, &r));
  });
}
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t surface) {
  return with_context([&] { return surface ? driver().SurfObjectDestroy(surface) : CUDA_SUCCESS; });
}
cudaError_t cudaGetSurfaceObjectResourceDesc(cudaResourceDesc* out, cudaSurfaceObject_t surface) {
  return with_context([&]() -> cudaError_t {
    CUDA_RESOURCE_DESC r{};
    if (!out) return cudaErrorInvalidValue;
    if (const CUresult bad = driver().SurfObjectGetResourceDesc(&r, surface)) return as_error(bad);
    *out = {};
    out->resType = cudaResourceTypeArray;
    out->res.array.array = reinterpret_cast<cudaArray_t>(r.res.array.hArray);
    return cudaSuccess;
  });
}

}  // extern "C"
