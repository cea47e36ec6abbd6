// Copies to, from and between CUDA arrays, and of boxes between devices. Compiled once per default-stream
// flavour, see copy.cc.

#include "softgpu/runtime/copy_params.h"
#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

namespace {

CUarray as_array(cudaArray_const_t array) {
  return reinterpret_cast<CUarray>(const_cast<cudaArray*>(array));
}

// A plane between an array and linear memory; offsets and width in bytes.
CUDA_MEMCPY3D into(cudaArray_const_t array, size_t x, size_t y, size_t width, size_t height) {
  CUDA_MEMCPY3D p{};
  p.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  p.dstArray = as_array(array);
  p.dstXInBytes = x, p.dstY = y;
  p.WidthInBytes = width, p.Height = height, p.Depth = 1;
  return p;
}
void source(CUDA_MEMCPY3D* p, cudaArray_const_t array, size_t x, size_t y) {
  p->srcMemoryType = CU_MEMORYTYPE_ARRAY;
  p->srcArray = as_array(array);
  p->srcXInBytes = x, p->srcY = y;
}

template <class Use>
cudaError_t to_plane(cudaArray_t dst, size_t x, size_t y, const void* src, size_t pitch, size_t width,
                     size_t height, cudaMemcpyKind kind, Use&& use) {
  return with_context([&]() -> cudaError_t {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (pitch < width) return cudaErrorInvalidPitchValue;
    CUDA_MEMCPY3D p = into(dst, x, y, width, height);
    p.srcMemoryType = source_type(kind);
    p.srcHost = src, p.srcDevice = device_pointer(src), p.srcPitch = pitch;
    return as_error(use(&p));
  });
}
template <class Use>
cudaError_t from_plane(void* dst, size_t pitch, cudaArray_const_t src, size_t x, size_t y, size_t width,
                       size_t height, cudaMemcpyKind kind, Use&& use) {
  return with_context([&]() -> cudaError_t {
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (pitch < width) return cudaErrorInvalidPitchValue;
    CUDA_MEMCPY3D p{};
    source(&p, src, x, y);
    p.dstMemoryType = target_type(kind);
    p.dstHost = dst, p.dstDevice = device_pointer(dst), p.dstPitch = pitch;
    p.WidthInBytes = width, p.Height = height, p.Depth = 1;
    return as_error(use(&p));
  });
}

// Byte offset of a position, for the copies that run on over the ends of rows.
cudaError_t offset_in(cudaArray_const_t array, size_t x, size_t y, size_t* offset) {
  CUDA_ARRAY3D_DESCRIPTOR d{};
  if (const CUresult bad = driver().Array3DGetDescriptor(&d, as_array(array))) return as_error(bad);
  *offset = y * d.Width * element_bytes(as_array(array)) + x;
  return cudaSuccess;
}

// Peers are named by device, and by their primary contexts then.
template <class Use>
cudaError_t between_devices(const cudaMemcpy3DPeerParms* from, Use&& use) {
  return with_context([&]() -> cudaError_t {
    if (!from) return cudaErrorInvalidValue;
    cudaMemcpy3DParms same{};
    same.srcArray = from->srcArray, same.srcPos = from->srcPos, same.srcPtr = from->srcPtr;
    same.dstArray = from->dstArray, same.dstPos = from->dstPos, same.dstPtr = from->dstPtr;
    same.extent = from->extent, same.kind = cudaMemcpyDefault;
    CUDA_MEMCPY3D box{};
    if (const cudaError_t bad = to_driver(same, &box)) return bad;
    CUDA_MEMCPY3D_PEER p{};
    p.srcXInBytes = box.srcXInBytes, p.srcY = box.srcY, p.srcZ = box.srcZ;
    p.srcMemoryType = box.srcMemoryType, p.srcDevice = box.srcDevice, p.srcArray = box.srcArray;
    p.srcPitch = box.srcPitch, p.srcHeight = box.srcHeight;
    p.dstXInBytes = box.dstXInBytes, p.dstY = box.dstY, p.dstZ = box.dstZ;
    p.dstMemoryType = box.dstMemoryType, p.dstDevice = box.dstDevice, p.dstArray = box.dstArray;
    p.dstPitch = box.dstPitch, p.dstHeight = box.dstHeight;
    p.WidthInBytes = box.WidthInBytes, p.Height = box.Height, p.Depth = box.Depth;
    if (const CUresult bad = primary_context(from->srcDevice, &p.srcContext)) return as_error(bad);
    if (const CUresult bad = primary_context(from->dstDevice, &p.dstContext)) return as_error(bad);
    return as_error(use(&p));
  });
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpy2DToArray(cudaArray_t dst, size_t x, size_t y, const void* src, size_t pitch,
                                size_t width, size_t height, cudaMemcpyKind kind) {
  return to_plane(dst, x, y, src, pitch, width, height, kind,
                  [](const CUDA_MEMCPY3D* p) { return driver().Memcpy3D(p); });
}
cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t dst, size_t x, size_t y, const void* src, size_t pitch,
                                     size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return to_plane(dst, x, y, src, pitch, width, height, kind,
                  [&](const CUDA_MEMCPY3D* p) { return driver().Memcpy3DAsync(p, stream); });
}
cudaError_t cudaMemcpy2DFromArray(void* dst, size_t pitch, cudaArray_const_t src, size_t x, size_t y,
                                  size_t width, size_t height, cudaMemcpyKind kind) {
  return from_plane(dst, pitch, src, x, y, width, height, kind,
                    [](const CUDA_MEMCPY3D* p) { return driver().Memcpy3D(p); });
}
cudaError_t cudaMemcpy2DFromArrayAsync(void* dst, size_t pitch, cudaArray_const_t src, size_t x, size_t y,
                                       size_t width, size_t height, cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  return from_plane(dst, pitch, src, x, y, width, height, kind,
                    [&](const CUDA_MEMCPY3D* p) { return driver().Memcpy3DAsync(p, stream); });
}
cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t dst, size_t to_x, size_t to_y, cudaArray_const_t src,
                                     size_t from_x, size_t from_y, size_t width, size_t height,
                                     cudaMemcpyKind) {
  return with_context([&] {
    CUDA_MEMCPY3D p = into(dst, to_x, to_y, width, height);
    source(&p, src, from_x, from_y);
    return driver().Memcpy3D(&p);
  });
}

// The deprecated linear ones: `count` bytes from a position on, over the ends of rows.
cudaError_t cudaMemcpyToArray(cudaArray_t dst, size_t x, size_t y, const void* src, size_t count,
                              cudaMemcpyKind) {
  return with_context([&]() -> cudaError_t {
    size_t offset = 0;
    if (const cudaError_t bad = offset_in(dst, x, y, &offset)) return bad;
    return as_error(driver().MemcpyHtoA(as_array(dst), offset, src, count));
  });
}
cudaError_t cudaMemcpyToArrayAsync(cudaArray_t dst, size_t x, size_t y, const void* src, size_t count,
                                   cudaMemcpyKind, cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    size_t offset = 0;
    if (const cudaError_t bad = offset_in(dst, x, y, &offset)) return bad;
    return as_error(driver().MemcpyHtoAAsync(as_array(dst), offset, src, count, stream));
  });
}
cudaError_t cudaMemcpyFromArray(void* dst, cudaArray_const_t src, size_t x, size_t y, size_t count,
                                cudaMemcpyKind) {
  return with_context([&]() -> cudaError_t {
    size_t offset = 0;
    if (const cudaError_t bad = offset_in(src, x, y, &offset)) return bad;
    return as_error(driver().MemcpyAtoH(dst, as_array(src), offset, count));
  });
}
cudaError_t cudaMemcpyFromArrayAsync(void* dst, cudaArray_const_t src, size_t x, size_t y, size_t count,
                                     cudaMemcpyKind, cudaStream_t stream) {
  return with_context([&]() -> cudaError_t {
    size_t offset = 0;
    if (const cudaError_t bad = offset_in(src, x, y, &offset)) return bad;
    return as_error(driver().MemcpyAtoHAsync(dst, as_array(src), offset, count, stream));
  });
}
cudaError_t cudaMemcpyArrayToArray(cudaArray_t dst, size_t to_x, size_t to_y, cudaArray_const_t src,
                                   size_t from_x, size_t from_y, size_t count, cudaMemcpyKind) {
  return with_context([&]() -> cudaError_t {
    size_t to = 0, from = 0;
    if (const cudaError_t bad = offset_in(dst, to_x, to_y, &to)) return bad;
    if (const cudaError_t bad = offset_in(src, from_x, from_y, &from)) return bad;
    return as_error(driver().MemcpyAtoA(as_array(dst), to, as_array(src), from, count));
  });
}

cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* p) {
  return between_devices(p, [](const CUDA_MEMCPY3D_PEER* box) { return driver().Memcpy3DPeer(box); });
}
cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* p, cudaStream_t stream) {
  return between_devices(
      p, [&](const CUDA_MEMCPY3D_PEER* box) { return driver().Memcpy3DPeerAsync(box, stream); });
}

cudaError_t cudaMemcpy3DBatchAsync(size_t n, cudaMemcpy3DBatchOp* ops, unsigned long long flags,
                                   cudaStream_t stream) {
  static_assert(sizeof(cudaMemcpy3DBatchOp) == sizeof(CUDA_MEMCPY3D_BATCH_OP));
  return with_context([&] {
    return driver().Memcpy3DBatchAsync(n, reinterpret_cast<CUDA_MEMCPY3D_BATCH_OP*>(ops), flags, stream);
  });
}

cudaError_t cudaMemPrefetchBatchAsync(void** pointers, size_t* sizes, size_t count,
                                      cudaMemLocation* locations, size_t* indices, size_t n_locations,
                                      unsigned long long flags, cudaStream_t stream) {
  return with_context([&] {
    return driver().MemPrefetchBatchAsync(reinterpret_cast<CUdeviceptr*>(pointers), sizes, count,
                                          reinterpret_cast<CUmemLocation*>(locations), indices, n_locations,
                                          flags, stream);
  });
}
cudaError_t cudaMemDiscardBatchAsync(void** pointers, size_t* sizes, size_t count, unsigned long long flags,
                                     cudaStream_t stream) {
  return with_context([&] {
    return driver().MemDiscardBatchAsync(reinterpret_cast<CUdeviceptr*>(pointers), sizes, count, flags,
                                         stream);
  });
}
cudaError_t cudaMemDiscardAndPrefetchBatchAsync(void** pointers, size_t* sizes, size_t count,
                                                cudaMemLocation* locations, size_t* indices,
                                                size_t n_locations, unsigned long long flags,
                                                cudaStream_t stream) {
  return with_context([&] {
    return driver().MemDiscardAndPrefetchBatchAsync(reinterpret_cast<CUdeviceptr*>(pointers), sizes, count,
                                                    reinterpret_cast<CUmemLocation*>(locations), indices,
                                                    n_locations, flags, stream);
  });
}

}  // extern "C"
