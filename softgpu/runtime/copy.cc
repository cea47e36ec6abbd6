// Copies and fills of linear memory. Compiled once per default-stream flavour: with
// CUDA_API_PER_THREAD_DEFAULT_STREAM the toolkit's header renames every function here to its _ptds/_ptsz
// variant.

#include <cstring>

#include "softgpu/runtime/copy_params.h"
#include "softgpu/runtime/registry.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

CUresult copy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return driver().MemcpyHtoD(device_pointer(dst), src, count);
    case cudaMemcpyDeviceToHost:
      return driver().MemcpyDtoH(dst, device_pointer(src), count);
    case cudaMemcpyDeviceToDevice:
      return driver().MemcpyDtoD(device_pointer(dst), device_pointer(src), count);
    case cudaMemcpyHostToHost:
      std::memmove(dst, src, count);
      return CUDA_SUCCESS;
    case cudaMemcpyDefault:
      return driver().Memcpy(device_pointer(dst), device_pointer(src), count);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_async(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return driver().MemcpyHtoDAsync(device_pointer(dst), src, count, stream);
    case cudaMemcpyDeviceToHost:
      return driver().MemcpyDtoHAsync(dst, device_pointer(src), count, stream);
    case cudaMemcpyDeviceToDevice:
      return driver().MemcpyDtoDAsync(device_pointer(dst), device_pointer(src), count, stream);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
      return driver().MemcpyAsync(device_pointer(dst), device_pointer(src), count, stream);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// An unknown kind is the runtime's own error, which the driver cannot give.
cudaError_t known(cudaMemcpyKind kind) {
  return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault ? cudaSuccess
                                                                   : cudaErrorInvalidMemcpyDirection;
}

// Address `offset` bytes into a symbol, checked against its size.
cudaError_t inside_symbol(const void* symbol, size_t offset, size_t count, void** address) {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  if (const cudaError_t status = find_variable(symbol, &begin, &bytes)) return status;
  if (offset > bytes || count > bytes - offset) return cudaErrorInvalidValue;
  *address = reinterpret_cast<void*>(begin + offset);
  return cudaSuccess;
}

template <class Copy>
cudaError_t linear(cudaMemcpyKind kind, size_t count, Copy&& body) {
  return with_context([&]() -> cudaError_t {
    if (const cudaError_t status = known(kind)) return status;
    return count == 0 ? cudaSuccess : as_error(body());
  });
}

template <class Copy>
cudaError_t with_symbol(const void* symbol, size_t offset, size_t count, cudaMemcpyKind kind, Copy&& body) {
  return with_context([&]() -> cudaError_t {
    void* address = nullptr;
    if (const cudaError_t status = known(kind)) return status;
    if (const cudaError_t status = inside_symbol(symbol, offset, count, &address)) return status;
    return count == 0 ? cudaSuccess : as_error(body(address));
  });
}

CUDA_MEMCPY2D plane(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                    size_t height, cudaMemcpyKind kind) {
  CUDA_MEMCPY2D p{};
  p.srcMemoryType = source_type(kind);
  p.srcHost = src;
  p.srcDevice = device_pointer(src);
  p.srcPitch = src_pitch;
  p.dstMemoryType = target_type(kind);
  p.dstHost = dst;
  p.dstDevice = device_pointer(dst);
  p.dstPitch = dst_pitch;
  p.WidthInBytes = width;
  p.Height = height;
  return p;
}

template <class Copy>
cudaError_t planar(size_t dst_pitch, size_t src_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                   Copy&& body) {
  return with_context([&]() -> cudaError_t {
    if (const cudaError_t status = known(kind)) return status;
    if (width > dst_pitch || width > src_pitch) return cudaErrorInvalidPitchValue;
    return width == 0 || height == 0 ? cudaSuccess : as_error(body());
  });
}

template <class Copy>
cudaError_t cubic(const cudaMemcpy3DParms* p, Copy&& body) {
  return with_context([&]() -> cudaError_t {
    if (!p) return cudaErrorInvalidValue;
    if (const cudaError_t status = known(p->kind)) return status;
    CUDA_MEMCPY3D copy3d{};
    if (const cudaError_t status = to_driver(*p, &copy3d)) return status;
    if (p->extent.width == 0 || p->extent.height == 0 || p->extent.depth == 0) return cudaSuccess;
    return as_error(body(&copy3d));
  });
}

// Fills plane by plane: the driver knows only one and two dimensions.
template <class Fill>
cudaError_t fill_cube(const cudaPitchedPtr& target, const cudaExtent& extent, Fill&& body) {
  return with_context([&]() -> cudaError_t {
    if (extent.width > target.pitch || (extent.depth > 1 && extent.height > target.ysize))
      return cudaErrorInvalidValue;
    if (extent.width == 0 || extent.height == 0) return cudaSuccess;
    const CUdeviceptr base = device_pointer(target.ptr);
    for (size_t z = 0; z < extent.depth; ++z) {
      if (const CUresult result = body(base + z * target.pitch * target.ysize)) return as_error(result);
    }
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  return linear(kind, count, [&] { return copy(dst, src, count, kind); });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return linear(kind, count, [&] { return copy_async(dst, src, count, kind, stream); });
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* src, size_t count, size_t offset,
                               cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, count, kind,
                     [&](void* address) { return copy(address, src, count, kind); });
}

cudaError_t cudaMemcpyFromSymbol(void* dst, const void* symbol, size_t count, size_t offset,
                                 cudaMemcpyKind kind) {
  return with_symbol(symbol, offset, count, kind,
                     [&](void* address) { return copy(dst, address, count, kind); });
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* src, size_t count, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  return with_symbol(symbol, offset, count, kind,
                     [&](void* address) { return copy_async(address, src, count, kind, stream); });
}

cudaError_t cudaMemcpyFromSymbolAsync(void* dst, const void* symbol, size_t count, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return with_symbol(symbol, offset, count, kind,
                     [&](void* address) { return copy_async(dst, address, count, kind, stream); });
}

cudaError_t cudaMemcpy2D(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                         size_t height, cudaMemcpyKind kind) {
  return planar(dpitch, spitch, width, height, kind, [&] {
    const CUDA_MEMCPY2D p = plane(dst, dpitch, src, spitch, width, height, kind);
    return driver().Memcpy2DUnaligned(&p);
  });
}

cudaError_t cudaMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return planar(dpitch, spitch, width, height, kind, [&] {
    const CUDA_MEMCPY2D p = plane(dst, dpitch, src, spitch, width, height, kind);
    return driver().Memcpy2DAsync(&p, stream);
  });
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  return cubic(p, [&](const CUDA_MEMCPY3D* copy3d) { return driver().Memcpy3D(copy3d); });
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  return cubic(p, [&](const CUDA_MEMCPY3D* copy3d) { return driver().Memcpy3DAsync(copy3d, stream); });
}

cudaError_t cudaMemcpyBatchAsync(void* const* dsts, const void* const* srcs, const size_t* sizes,
                                 size_t count, cudaMemcpyAttributes* attrs, size_t* attr_indices,
                                 size_t n_attrs, cudaStream_t stream) {
  static_assert(sizeof(cudaMemcpyAttributes) == sizeof(CUmemcpyAttributes));
  return with_context([&] {
    return driver().MemcpyBatchAsync(
        reinterpret_cast<CUdeviceptr*>(const_cast<void**>(dsts)),
        reinterpret_cast<CUdeviceptr*>(const_cast<void**>(srcs)), const_cast<size_t*>(sizes), count,
        reinterpret_cast<CUmemcpyAttributes*>(attrs), attr_indices, n_attrs, stream);
  });
}

cudaError_t cudaMemset(void* target, int value, size_t count) {
  return linear(cudaMemcpyDefault, count, [&] {
    return driver().MemsetD8(device_pointer(target), static_cast<unsigned char>(value), count);
  });
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t count, cudaStream_t stream) {
  return linear(cudaMemcpyDefault, count, [&] {
    return driver().MemsetD8Async(device_pointer(target), static_cast<unsigned char>(value), count, stream);
  });
}

cudaError_t cudaMemset2D(void* target, size_t pitch, int value, size_t width, size_t height) {
  return planar(pitch, pitch, width, height, cudaMemcpyDefault, [&] {
    return driver().MemsetD2D8(device_pointer(target), pitch, static_cast<unsigned char>(value), width,
                               height);
  });
}

cudaError_t cudaMemset2DAsync(void* target, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  return planar(pitch, pitch, width, height, cudaMemcpyDefault, [&] {
    return driver().MemsetD2D8Async(device_pointer(target), pitch, static_cast<unsigned char>(value), width,
                                    height, stream);
  });
}

cudaError_t cudaMemset3D(cudaPitchedPtr target, int value, cudaExtent extent) {
  return fill_cube(target, extent, [&](CUdeviceptr slice) {
    return driver().MemsetD2D8(slice, target.pitch, static_cast<unsigned char>(value), extent.width,
                               extent.height);
  });
}

cudaError_t cudaMemset3DAsync(cudaPitchedPtr target, int value, cudaExtent extent, cudaStream_t stream) {
  return fill_cube(target, extent, [&](CUdeviceptr slice) {
    return driver().MemsetD2D8Async(slice, target.pitch, static_cast<unsigned char>(value), extent.width,
                                    extent.height, stream);
  });
}

}  // extern "C"
