// CUDA arrays, texture and surface objects.

#include <cstring>

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

cudaError_t to_driver(const cudaResourceDesc& from, CUDA_RESOURCE_DESC* to) {
  *to = {};
  to->resType = static_cast<CUresourcetype>(from.resType);
  to->flags = from.flags;
  switch (from.resType) {
    case cudaResourceTypeArray:
      to->res.array.hArray = as_array(from.res.array.array);
      return cudaSuccess;
    case cudaResourceTypeMipmappedArray:
      to->res.mipmap.hMipmappedArray = as_mipmapped(from.res.mipmap.mipmap);
      return cudaSuccess;
    case cudaResourceTypeLinear:
      to->res.linear.devPtr = device_pointer(from.res.linear.devPtr);
      to->res.linear.sizeInBytes = from.res.linear.sizeInBytes;
      return to_driver(from.res.linear.desc, &to->res.linear.format, &to->res.linear.numChannels);
    case cudaResourceTypePitch2D:
      to->res.pitch2D.devPtr = device_pointer(from.res.pitch2D.devPtr);
      to->res.pitch2D.width = from.res.pitch2D.width;
      to->res.pitch2D.height = from.res.pitch2D.height;
      to->res.pitch2D.pitchInBytes = from.res.pitch2D.pitchInBytes;
      return to_driver(from.res.pitch2D.desc, &to->res.pitch2D.format, &to->res.pitch2D.numChannels);
  }
  return cudaErrorInvalidValue;
}

void to_runtime(const CUDA_RESOURCE_DESC& from, cudaResourceDesc* to) {
  *to = {};
  to->resType = static_cast<cudaResourceType>(from.resType);
  to->flags = from.flags;
  switch (from.resType) {
    case CU_RESOURCE_TYPE_ARRAY:
      to->res.array.array = reinterpret_cast<cudaArray_t>(from.res.array.hArray);
      return;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      to->res.mipmap.mipmap = reinterpret_cast<cudaMipmappedArray_t>(from.res.mipmap.hMipmappedArray);
      return;
    case CU_RESOURCE_TYPE_LINEAR:
      to->res.linear.devPtr = reinterpret_cast<void*>(from.res.linear.devPtr);
      to->res.linear.sizeInBytes = from.res.linear.sizeInBytes;
      to->res.linear.desc = to_runtime(from.res.linear.format, from.res.linear.numChannels);
      return;
    case CU_RESOURCE_TYPE_PITCH2D:
      to->res.pitch2D.devPtr = reinterpret_cast<void*>(from.res.pitch2D.devPtr);
      to->res.pitch2D.width = from.res.pitch2D.width;
      to->res.pitch2D.height = from.res.pitch2D.height;
      to->res.pitch2D.pitchInBytes = from.res.pitch2D.pitchInBytes;
      to->res.pitch2D.desc = to_runtime(from.res.pitch2D.format, from.res.pitch2D.numChannels);
      return;
  }
}

struct Flag {
  int cudaTextureDesc::*field;
  unsigned bit;
};
constexpr Flag kTextureFlags[] = {
    {&cudaTextureDesc::normalizedCoords, CU_TRSF_NORMALIZED_COORDINATES},
    {&cudaTextureDesc::sRGB, CU_TRSF_SRGB},
    {&cudaTextureDesc::disableTrilinearOptimization, CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION},
    {&cudaTextureDesc::seamlessCubemap, CU_TRSF_SEAMLESS_CUBEMAP},
};

CUDA_TEXTURE_DESC to_driver(const cudaTextureDesc& from) {
  CUDA_TEXTURE_DESC to{};
  for (int i = 0; i < 3; ++i) to.addressMode[i] = static_cast<CUaddress_mode>(from.addressMode[i]);
  to.filterMode = static_cast<CUfilter_mode>(from.filterMode);
  for (const Flag& flag : kTextureFlags)
    if (from.*flag.field) to.flags |= flag.bit;
  if (from.readMode == cudaReadModeElementType) to.flags |= CU_TRSF_READ_AS_INTEGER;
  to.maxAnisotropy = from.maxAnisotropy;
  to.mipmapFilterMode = static_cast<CUfilter_mode>(from.mipmapFilterMode);
  to.mipmapLevelBias = from.mipmapLevelBias;
  to.minMipmapLevelClamp = from.minMipmapLevelClamp;
  to.maxMipmapLevelClamp = from.maxMipmapLevelClamp;
  std::memcpy(to.borderColor, from.borderColor, sizeof to.borderColor);
  return to;
}
void to_runtime(const CUDA_TEXTURE_DESC& from, cudaTextureDesc* to) {
  *to = {};
  for (int i = 0; i < 3; ++i) to->addressMode[i] = static_cast<cudaTextureAddressMode>(from.addressMode[i]);
  to->filterMode = static_cast<cudaTextureFilterMode>(from.filterMode);
  for (const Flag& flag : kTextureFlags) to->*flag.field = (from.flags & flag.bit) != 0;
  to->readMode = from.flags & CU_TRSF_READ_AS_INTEGER ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
  to->maxAnisotropy = from.maxAnisotropy;
  to->mipmapFilterMode = static_cast<cudaTextureFilterMode>(from.mipmapFilterMode);
  to->mipmapLevelBias = from.mipmapLevelBias;
  to->minMipmapLevelClamp = from.minMipmapLevelClamp;
  to->maxMipmapLevelClamp = from.maxMipmapLevelClamp;
  std::memcpy(to->borderColor, from.borderColor, sizeof to->borderColor);
}

static_assert(sizeof(cudaResourceViewDesc) == sizeof(CUDA_RESOURCE_VIEW_DESC));
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

cudaError_t cudaCreateTextureObject(cudaTextureObject_t* texture, const cudaResourceDesc* resource,
                                    const cudaTextureDesc* desc, const cudaResourceViewDesc* view) {
  return with_context([&]() -> cudaError_t {
    CUDA_RESOURCE_DESC r{};
    if (!texture || !resource || !desc) return cudaErrorInvalidValue;
    if (const cudaError_t bad = to_driver(*resource, &r)) return bad;
    const CUDA_TEXTURE_DESC t = to_driver(*desc);
    return as_error(
        driver().TexObjectCreate(texture, &r, &t, reinterpret_cast<const CUDA_RESOURCE_VIEW_DESC*>(view)));
  });
}
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t texture) {
  return with_context([&] { return texture ? driver().TexObjectDestroy(texture) : CUDA_SUCCESS; });
}
cudaError_t cudaGetTextureObjectResourceDesc(cudaResourceDesc* out, cudaTextureObject_t texture) {
  return with_context([&]() -> cudaError_t {
    CUDA_RESOURCE_DESC r{};
    if (!out) return cudaErrorInvalidValue;
    if (const CUresult bad = driver().TexObjectGetResourceDesc(&r, texture)) return as_error(bad);
    to_runtime(r, out);
    return cudaSuccess;
  });
}
cudaError_t cudaGetTextureObjectTextureDesc(cudaTextureDesc* out, cudaTextureObject_t texture) {
  return with_context([&]() -> cudaError_t {
    CUDA_TEXTURE_DESC t{};
    if (!out) return cudaErrorInvalidValue;
    if (const CUresult bad = driver().TexObjectGetTextureDesc(&t, texture)) return as_error(bad);
    to_runtime(t, out);
    return cudaSuccess;
  });
}
cudaError_t cudaGetTextureObjectResourceViewDesc(cudaResourceViewDesc* out, cudaTextureObject_t texture) {
  return with_context([&] {
    return driver().TexObjectGetResourceViewDesc(reinterpret_cast<CUDA_RESOURCE_VIEW_DESC*>(out), texture);
  });
}

cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* surface, const cudaResourceDesc* resource) {
  return with_context([&]() -> cudaError_t {
    CUDA_RESOURCE_DESC r{};
    if (!surface || !resource) return cudaErrorInvalidValue;
    if (const cudaError_t bad = to_driver(*resource, &r)) return bad;
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
    to_runtime(r, out);
    return cudaSuccess;
  });
}

}  // extern "C"
