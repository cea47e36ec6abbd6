// Copies and fills, synchronous and not, one to three dimensions.
//
// Pageable memory: an asynchronous copy from it takes a snapshot before it returns, one into it waits for the
// end, as the real driver does. Synchronous copies between device buffers and synchronous fills do not wait
// for the device.
#include <array>

#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/commands.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {
namespace {

enum class Place : uint8_t { kDevice, kPinned, kPageable };

Place place_of(uint64_t address) {
  Allocation found;
  if (!Memory::get().find(address, &found)) return Place::kPageable;
  return found.on_device() ? Place::kDevice : Place::kPinned;
}

int device_at(uint64_t address) {  // of device memory
  Allocation found;
  return Memory::get().find(address, &found) ? found.device : 0;
}
bool synchronous_memory(uint64_t address) {  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  Allocation found;
  return Memory::get().find(address, &found) && found.sync_memops;
}

struct Box {
  CopyCommand copy;
  Place from = Place::kDevice, to = Place::kDevice;
  bool empty() const { return !copy.width || !copy.height || !copy.depth; }
};

uint64_t span(const CopyCommand& c, uint64_t pitch, uint64_t slice) {
  return (c.depth - 1) * slice + (c.height - 1) * pitch + c.width;
}

timing::CopyDirection direction(Place from, Place to) {
  if (from != Place::kDevice && to == Place::kDevice) return timing::CopyDirection::kHostToDevice;
  if (from == Place::kDevice && to != Place::kDevice) return timing::CopyDirection::kDeviceToHost;
  return timing::CopyDirection::kDeviceToDevice;
}

enum class Side : uint8_t { kAny, kDevice };  // kDevice: must lie in memory that the driver knows

CUresult complete_box(Box* box, Side src, Side dst) {
  CopyCommand& copy = box->copy;
  if (box->empty()) return CUDA_SUCCESS;
  if (!copy.src || !copy.dst) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t src_span = span(copy, copy.src_pitch, copy.src_slice);
  const uint64_t dst_span = span(copy, copy.dst_pitch, copy.dst_slice);
  box->from = place_of(copy.src);
  box->to = place_of(copy.dst);
  if (src == Side::kDevice && box->from == Place::kPageable) return CUDA_ERROR_INVALID_VALUE;
  if (dst == Side::kDevice && box->to == Place::kPageable) return CUDA_ERROR_INVALID_VALUE;
  if (box->from != Place::kPageable && !Memory::get().contains(copy.src, src_span, Access::kRead))
    return CUDA_ERROR_INVALID_VALUE;
  if (box->to != Place::kPageable && !Memory::get().contains(copy.dst, dst_span, Access::kReadWrite))
    return CUDA_ERROR_INVALID_VALUE;
  copy.direction = direction(box->from, box->to);
  return CUDA_SUCCESS;
}

void snapshot(CopyCommand* copy) {
  copy->staging = std::make_shared<std::vector<uint8_t>>(copy->width * copy->height * copy->depth);
  CopyCommand pack = *copy;
  pack.dst = reinterpret_cast<uint64_t>(copy->staging->data());
  pack.dst_pitch = copy->width;
  pack.dst_slice = copy->width * copy->height;
  perform_copy(pack);
  copy->src = pack.dst;
  copy->src_pitch = pack.dst_pitch;
  copy->src_slice = pack.dst_slice;
}

bool capturing(Context& context, const Stream& stream) {
  std::lock_guard lock(context.mutex);
  return stream.capture != nullptr;
}

// A synchronous call on a stream that captures, or next to a capture that forbids it.
CUresult check_synchronous(Context& context, Stream& stream) {
  {
    std::lock_guard lock(context.mutex);
    if (CUresult refused = check_stream_access_locked(context, stream)) return refused;
  }
  return check_unsafe();
}

enum class Wait : uint8_t { kSync, kAsync, kDrain };  // kDrain: kSync that always waits for its end

CUresult copy_box(Box box, Side src, Side dst, CUstream handle, NullStream null_stream, Wait how) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  if (CUresult bad = complete_box(&box, src, dst)) return bad;
  if (how != Wait::kAsync)
    if (CUresult refused = check_synchronous(*context, *stream)) return refused;
  if (box.empty()) return CUDA_SUCCESS;
  const bool captured = how == Wait::kAsync && any_capture_open() && capturing(*context, *stream);
  const bool device_only = box.from == Place::kDevice && box.to == Place::kDevice;
  if (how == Wait::kAsync && !captured && box.from == Place::kPageable && box.to == Place::kDevice)
    snapshot(&box.copy);
  if (device_only) {
    // Between two devices it goes over the link: it takes the copy engine, not the memory's bandwidth.
    const int from = device_at(box.copy.src), to = device_at(box.copy.dst);
    if (from != to)
      box.copy.direction =
          to == context->device ? timing::CopyDirection::kHostToDevice : timing::CopyDirection::kDeviceToHost;
  }
  const bool waits = !device_only || synchronous_memory(box.copy.src) || synchronous_memory(box.copy.dst);
  const bool wait_for_end = how == Wait::kSync ? waits : !captured && box.to == Place::kPageable;
  return wait_for_end || how == Wait::kDrain ? run_and_wait(context, stream, std::move(box.copy))
                                             : enqueue(context, stream, std::move(box.copy));
}

Box line(uint64_t dst, uint64_t src, uint64_t bytes) {
  Box box;
  box.copy.dst = dst;
  box.copy.src = src;
  box.copy.width = bytes;
  return box;
}

uint64_t base(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
}
Side side(CUmemorytype type) {
  return type == CU_MEMORYTYPE_DEVICE ? Side::kDevice : Side::kAny;
}
bool valid_type(CUmemorytype type) {
  return type >= CU_MEMORYTYPE_HOST && type <= CU_MEMORYTYPE_UNIFIED;
}

}  // namespace

namespace {

// Finds the place of an array's box, if the box fits into it. Offsets and widths are in bytes and must be whole elements.
CUresult inside_array(CUarray handle, std::array<uint64_t, 3> at, std::array<uint64_t, 3> extent,
                      uint64_t* address, uint64_t* pitch, uint64_t* slice) {
  const std::shared_ptr<Array> array = find_array(handle);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t most[3] = {array->row_pitch, array->height, array->depth};
  if (at[0] % array->element_bytes || extent[0] % array->element_bytes) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 3; ++i)
    if (at[size_t(i)] > most[i] || extent[size_t(i)] > most[i] - at[size_t(i)])
      return CUDA_ERROR_INVALID_VALUE;
  *address = array->begin;
  *pitch = array->row_pitch;
  *slice = array->slice_pitch;
  return CUDA_SUCCESS;
}

template <class T>
CUresult make_box(const T& p, uint64_t height, uint64_t depth, uint64_t src_z, uint64_t dst_z,
                  uint64_t src_rows, uint64_t dst_rows, Box* box) {
  if (!valid_type(p.srcMemoryType) || !valid_type(p.dstMemoryType)) return CUDA_ERROR_INVALID_VALUE;
  CopyCommand& c = box->copy;
  c.width = p.WidthInBytes;
  c.height = height;
  c.depth = depth;
  c.src_pitch = p.srcPitch ? p.srcPitch : p.WidthInBytes + p.srcXInBytes;
  c.dst_pitch = p.dstPitch ? p.dstPitch : p.WidthInBytes + p.dstXInBytes;
  if (p.srcMemoryType != CU_MEMORYTYPE_ARRAY && c.src_pitch < p.WidthInBytes + p.srcXInBytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (p.dstMemoryType != CU_MEMORYTYPE_ARRAY && c.dst_pitch < p.WidthInBytes + p.dstXInBytes)
    return CUDA_ERROR_INVALID_VALUE;
  c.src_slice = c.src_pitch * (src_rows ? src_rows : height + p.srcY);
  c.dst_slice = c.dst_pitch * (dst_rows ? dst_rows : height + p.dstY);
  c.src = base(p.srcMemoryType, p.srcHost, p.srcDevice);
  c.dst = base(p.dstMemoryType, p.dstHost, p.dstDevice);
  if (p.srcMemoryType == CU_MEMORYTYPE_ARRAY)
    if (CUresult bad = inside_array(p.srcArray, {p.srcXInBytes, p.srcY, src_z},
                                    {p.WidthInBytes, height, depth}, &c.src, &c.src_pitch, &c.src_slice))
      return bad;
  if (p.dstMemoryType == CU_MEMORYTYPE_ARRAY)
    if (CUresult bad = inside_array(p.dstArray, {p.dstXInBytes, p.dstY, dst_z},
                                    {p.WidthInBytes, height, depth}, &c.dst, &c.dst_pitch, &c.dst_slice))
      return bad;
  if (!box->empty() && (!c.src || !c.dst)) return CUDA_ERROR_INVALID_VALUE;
  c.src += src_z * c.src_slice + p.srcY * c.src_pitch + p.srcXInBytes;
  c.dst += dst_z * c.dst_slice + p.dstY * c.dst_pitch + p.dstXInBytes;
  return CUDA_SUCCESS;
}

CUresult copy_2d(const CUDA_MEMCPY2D* p, CUstream stream, NullStream null_stream, Wait how) {
  Box box;
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = make_box(*p, p->Height, 1, 0, 0, 0, 0, &box)) return bad;
  return copy_box(std::move(box), side(p->srcMemoryType), side(p->dstMemoryType), stream, null_stream, how);
}

template <class T>
CUresult copy_3d(const T* p, CUstream stream, NullStream null_stream, Wait how) {
  Box box;
  if (!p || p->srcLOD || p->dstLOD) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = make_box(*p, p->Height, p->Depth, p->srcZ, p->dstZ, p->srcHeight, p->dstHeight, &box))
    return bad;
  return copy_box(std::move(box), side(p->srcMemoryType), side(p->dstMemoryType), stream, null_stream, how);
}

CUresult fill(CUdeviceptr dst, uint64_t pitch, uint32_t value, uint32_t element, uint64_t width,
              uint64_t height, CUstream handle, NullStream null_stream, Wait how) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, handle, null_stream, &stream)) return bad;
  MemsetCommand set{dst, pitch, value, element, width, height};
  if (CUresult bad = check_memset(set)) return bad;
  if (how == Wait::kSync)
    if (CUresult refused = check_synchronous(*context, *stream)) return refused;
  if (!width || !height) return CUDA_SUCCESS;
  // Fills of host memory are synchronous, of device memory not.
  if (how == Wait::kSync && place_of(dst) == Place::kPinned) return run_and_wait(context, stream, set);
  return enqueue(context, stream, set);
}

}  // namespace

CUresult copy_async(const CUDA_MEMCPY3D& p, bool source_now, CUstream stream, NullStream null_stream) {
  Box box;
  if (CUresult bad = make_box(p, p.Height, p.Depth, p.srcZ, p.dstZ, p.srcHeight, p.dstHeight, &box))
    return bad;
  if (!source_now)
    return copy_box(std::move(box), side(p.srcMemoryType), side(p.dstMemoryType), stream, null_stream,
                    Wait::kAsync);
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> on;
  if (CUresult bad = resolve(*context, stream, null_stream, &on)) return bad;
  if (CUresult bad = complete_box(&box, side(p.srcMemoryType), side(p.dstMemoryType))) return bad;
  if (box.empty()) return CUDA_SUCCESS;
  snapshot(&box.copy);  // keeps the direction, and with it the modelled length
  return enqueue(context, on, std::move(box.copy));
}

CUresult box_of(const CUDA_MEMCPY3D& p, CopyCommand* copy) {
  Box box;
  if (CUresult bad = make_box(p, p.Height, p.Depth, p.srcZ, p.dstZ, p.srcHeight, p.dstHeight, &box))
    return bad;
  if (CUresult bad = complete_box(&box, side(p.srcMemoryType), side(p.dstMemoryType))) return bad;
  *copy = std::move(box.copy);
  copy->given = std::make_shared<const CUDA_MEMCPY3D>(p);
  return CUDA_SUCCESS;
}

CUresult check_memset(const MemsetCommand& set) {
  if (set.element_bytes != 1 && set.element_bytes != 2 && set.element_bytes != 4)
    return CUDA_ERROR_INVALID_VALUE;
  if (!set.width || !set.height) return CUDA_SUCCESS;
  if (!set.dst || set.dst % set.element_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (set.height > 1 && (set.pitch < set.width * set.element_bytes || set.pitch % set.element_bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const uint64_t bytes = (set.height - 1) * set.pitch + set.width * set.element_bytes;
  return Memory::get().contains(set.dst, bytes, Access::kReadWrite) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

uint64_t host(const void* p) {
  return reinterpret_cast<uint64_t>(p);
}

// Both contexts must be alive, and what is copied must lie on their devices.
CUresult check_peers(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context) {
  const auto to = driver().contexts.find(dst_context), from = driver().contexts.find(src_context);
  if (!to || !from) return CUDA_ERROR_INVALID_CONTEXT;
  if (device_at(dst) != to->device || device_at(src) != from->device) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// A synchronous peer copy is ordered with the work of both contexts.
CUresult drain(CUcontext dst_context, CUcontext src_context) {
  if (CUresult unsafe = check_unsafe()) return unsafe;
  for (CUcontext handle : {dst_context, src_context})
    if (const auto context = driver().contexts.find(handle))
      if (CUresult failed = synchronize(*context)) return failed;
  return CUDA_SUCCESS;
}

}  // namespace

TS_PAIR(cuMemcpy, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount)) {
  TS_ENTER(cuMemcpy);
  return copy_box(line(dst, src, ByteCount), Side::kAny, Side::kAny, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpyAsync, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
        (dst, src, ByteCount, hStream)) {
  TS_ENTER(cuMemcpyAsync);
  return copy_box(line(dst, src, ByteCount), Side::kAny, Side::kAny, hStream, null_stream, Wait::kAsync);
}
TS_PAIR(cuMemcpyHtoD_v2, _ptds, (CUdeviceptr dst, const void* src, size_t ByteCount), (dst, src, ByteCount)) {
  TS_ENTER(cuMemcpyHtoD_v2);
  return copy_box(line(dst, host(src), ByteCount), Side::kAny, Side::kDevice, nullptr, null_stream,
                  Wait::kSync);
}
TS_PAIR(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr dst, const void* src, size_t ByteCount, CUstream hStream),
        (dst, src, ByteCount, hStream)) {
  TS_ENTER(cuMemcpyHtoDAsync_v2);
  return copy_box(line(dst, host(src), ByteCount), Side::kAny, Side::kDevice, hStream, null_stream,
                  Wait::kAsync);
}
TS_PAIR(cuMemcpyDtoH_v2, _ptds, (void* dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount)) {
  TS_ENTER(cuMemcpyDtoH_v2);
  return copy_box(line(host(dst), src, ByteCount), Side::kDevice, Side::kAny, nullptr, null_stream,
                  Wait::kSync);
}
TS_PAIR(cuMemcpyDtoHAsync_v2, _ptsz, (void* dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
        (dst, src, ByteCount, hStream)) {
  TS_ENTER(cuMemcpyDtoHAsync_v2);
  return copy_box(line(host(dst), src, ByteCount), Side::kDevice, Side::kAny, hStream, null_stream,
                  Wait::kAsync);
}
TS_PAIR(cuMemcpyDtoD_v2, _ptds, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), (dst, src, ByteCount)) {
  TS_ENTER(cuMemcpyDtoD_v2);
  return copy_box(line(dst, src, ByteCount), Side::kDevice, Side::kDevice, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpyDtoDAsync_v2, _ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream),
        (dst, src, ByteCount, hStream)) {
  TS_ENTER(cuMemcpyDtoDAsync_v2);
  return copy_box(line(dst, src, ByteCount), Side::kDevice, Side::kDevice, hStream, null_stream,
                  Wait::kAsync);
}
TS_PAIR(cuMemcpyPeer, _ptds,
        (CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src, CUcontext srcContext, size_t ByteCount),
        (dst, dstContext, src, srcContext, ByteCount)) {
  TS_ENTER(cuMemcpyPeer);
  if (CUresult bad = check_peers(dst, dstContext, src, srcContext)) return bad;
  if (CUresult failed = drain(dstContext, srcContext)) return failed;
  return copy_box(line(dst, src, ByteCount), Side::kDevice, Side::kDevice, nullptr, null_stream,
                  Wait::kDrain);
}
TS_PAIR(cuMemcpyPeerAsync, _ptsz,
        (CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src, CUcontext srcContext, size_t ByteCount,
         CUstream hStream),
        (dst, dstContext, src, srcContext, ByteCount, hStream)) {
  TS_ENTER(cuMemcpyPeerAsync);
  if (CUresult bad = check_peers(dst, dstContext, src, srcContext)) return bad;
  return copy_box(line(dst, src, ByteCount), Side::kDevice, Side::kDevice, hStream, null_stream,
                  Wait::kAsync);
}

TS_PAIR(cuMemcpy2D_v2, _ptds, (const CUDA_MEMCPY2D* pCopy), (pCopy)) {
  TS_ENTER(cuMemcpy2D_v2);
  return copy_2d(pCopy, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpy2DUnaligned_v2, _ptds, (const CUDA_MEMCPY2D* pCopy), (pCopy)) {
  TS_ENTER(cuMemcpy2DUnaligned_v2);
  return copy_2d(pCopy, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpy2DAsync_v2, _ptsz, (const CUDA_MEMCPY2D* pCopy, CUstream hStream), (pCopy, hStream)) {
  TS_ENTER(cuMemcpy2DAsync_v2);
  return copy_2d(pCopy, hStream, null_stream, Wait::kAsync);
}
TS_PAIR(cuMemcpy3D_v2, _ptds, (const CUDA_MEMCPY3D* pCopy), (pCopy)) {
  TS_ENTER(cuMemcpy3D_v2);
  return copy_3d(pCopy, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpy3DAsync_v2, _ptsz, (const CUDA_MEMCPY3D* pCopy, CUstream hStream), (pCopy, hStream)) {
  TS_ENTER(cuMemcpy3DAsync_v2);
  return copy_3d(pCopy, hStream, null_stream, Wait::kAsync);
}
TS_PAIR(cuMemcpy3DPeer, _ptds, (const CUDA_MEMCPY3D_PEER* pCopy), (pCopy)) {
  TS_ENTER(cuMemcpy3DPeer);
  if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
  if (!driver().contexts.find(pCopy->dstContext) || !driver().contexts.find(pCopy->srcContext))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult failed = drain(pCopy->dstContext, pCopy->srcContext)) return failed;
  return copy_3d(pCopy, nullptr, null_stream, Wait::kDrain);
}
TS_PAIR(cuMemcpy3DPeerAsync, _ptsz, (const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream), (pCopy, hStream)) {
  TS_ENTER(cuMemcpy3DPeerAsync);
  return copy_3d(pCopy, hStream, null_stream, Wait::kAsync);
}

// Between arrays and linear memory, by byte offset; with their entry points of before 3.2, which differ in
// the width of numbers.
namespace {
// A range of a whole array, 0 if it does not fit.
uint64_t in_array(CUarray handle, size_t offset, size_t bytes, CUresult* bad) {
  const std::shared_ptr<Array> array = find_array(handle);
  *bad = !array                                                       ? CUDA_ERROR_INVALID_HANDLE
         : offset > array->bytes() || bytes > array->bytes() - offset ? CUDA_ERROR_INVALID_VALUE
                                                                      : CUDA_SUCCESS;
  return *bad ? 0 : array->begin + offset;
}
CUresult to_array(CUarray array, size_t offset, uint64_t src, Side side, size_t n, CUstream stream,
                  NullStream null_stream, Wait how) {
  CUresult bad;
  const uint64_t dst = in_array(array, offset, n, &bad);
  return bad ? bad : copy_box(line(dst, src, n), side, Side::kDevice, stream, null_stream, how);
}
CUresult from_array(uint64_t dst, Side side, CUarray array, size_t offset, size_t n, CUstream stream,
                    NullStream null_stream, Wait how) {
  CUresult bad;
  const uint64_t src = in_array(array, offset, n, &bad);
  return bad ? bad : copy_box(line(dst, src, n), Side::kDevice, side, stream, null_stream, how);
}
CUresult between_arrays(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t n,
                        NullStream null_stream) {
  CUresult bad;
  const uint64_t src = in_array(from, from_offset, n, &bad);
  return bad ? bad : to_array(to, to_offset, src, Side::kDevice, n, nullptr, null_stream, Wait::kSync);
}
}  // namespace

TS_PAIR(cuMemcpyDtoA_v2, _ptds, (CUarray a, size_t at, CUdeviceptr src, size_t n), (a, at, src, n)) {
  TS_ENTER(cuMemcpyDtoA_v2);
  return to_array(a, at, src, Side::kDevice, n, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpyAtoD_v2, _ptds, (CUdeviceptr dst, CUarray a, size_t at, size_t n), (dst, a, at, n)) {
  TS_ENTER(cuMemcpyAtoD_v2);
  return from_array(dst, Side::kDevice, a, at, n, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpyHtoA_v2, _ptds, (CUarray a, size_t at, const void* src, size_t n), (a, at, src, n)) {
  TS_ENTER(cuMemcpyHtoA_v2);
  return to_array(a, at, host(src), Side::kAny, n, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpyHtoAAsync_v2, _ptsz, (CUarray a, size_t at, const void* src, size_t n, CUstream stream),
        (a, at, src, n, stream)) {
  TS_ENTER(cuMemcpyHtoAAsync_v2);
  return to_array(a, at, host(src), Side::kAny, n, stream, null_stream, Wait::kAsync);
}
TS_PAIR(cuMemcpyAtoH_v2, _ptds, (void* dst, CUarray a, size_t at, size_t n), (dst, a, at, n)) {
  TS_ENTER(cuMemcpyAtoH_v2);
  return from_array(host(dst), Side::kAny, a, at, n, nullptr, null_stream, Wait::kSync);
}
TS_PAIR(cuMemcpyAtoHAsync_v2, _ptsz, (void* dst, CUarray a, size_t at, size_t n, CUstream stream),
        (dst, a, at, n, stream)) {
  TS_ENTER(cuMemcpyAtoHAsync_v2);
  return from_array(host(dst), Side::kAny, a, at, n, stream, null_stream, Wait::kAsync);
}
TS_PAIR(cuMemcpyAtoA_v2, _ptds, (CUarray to, size_t to_at, CUarray from, size_t from_at, size_t n),
        (to, to_at, from, from_at, n)) {
  TS_ENTER(cuMemcpyAtoA_v2);
  return between_arrays(to, to_at, from, from_at, n, null_stream);
}
CUresult cuMemcpyHtoA(CUarray a, unsigned at, const void* src, unsigned n) {
  return cuMemcpyHtoA_v2(a, at, src, n);
}
CUresult cuMemcpyHtoAAsync(CUarray a, unsigned at, const void* src, unsigned n, CUstream stream) {
  return cuMemcpyHtoAAsync_v2(a, at, src, n, stream);
}
CUresult cuMemcpyAtoH(void* dst, CUarray a, unsigned at, unsigned n) {
  return cuMemcpyAtoH_v2(dst, a, at, n);
}
CUresult cuMemcpyAtoHAsync(void* dst, CUarray a, unsigned at, unsigned n, CUstream stream) {
  return cuMemcpyAtoHAsync_v2(dst, a, at, n, stream);
}
CUresult cuMemcpyAtoA(CUarray to, unsigned to_at, CUarray from, unsigned from_at, unsigned n) {
  return cuMemcpyAtoA_v2(to, to_at, from, from_at, n);
}

// Fills: element size and name vary, nothing else.
#define TS_FILL(bits, type, bytes)                                                                   \
  TS_PAIR(cuMemsetD##bits##_v2, _ptds, (CUdeviceptr dst, type value, size_t n), (dst, value, n)) {   \
    TS_ENTER(cuMemsetD##bits##_v2);                                                                  \
    return fill(dst, 0, value, bytes, n, 1, nullptr, null_stream, Wait::kSync);                      \
  }                                                                                                  \
  TS_PAIR(cuMemsetD##bits##Async, _ptsz, (CUdeviceptr dst, type value, size_t n, CUstream stream),   \
          (dst, value, n, stream)) {                                                                 \
    TS_ENTER(cuMemsetD##bits##Async);                                                                \
    return fill(dst, 0, value, bytes, n, 1, stream, null_stream, Wait::kAsync);                      \
  }                                                                                                  \
  TS_PAIR(cuMemsetD2D##bits##_v2, _ptds,                                                             \
          (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height),                  \
          (dst, pitch, value, width, height)) {                                                      \
    TS_ENTER(cuMemsetD2D##bits##_v2);                                                                \
    return fill(dst, pitch, value, bytes, width, height, nullptr, null_stream, Wait::kSync);         \
  }                                                                                                  \
  TS_PAIR(cuMemsetD2D##bits##Async, _ptsz,                                                           \
          (CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream stream), \
          (dst, pitch, value, width, height, stream)) {                                              \
    TS_ENTER(cuMemsetD2D##bits##Async);                                                              \
    return fill(dst, pitch, value, bytes, width, height, stream, null_stream, Wait::kAsync);         \
  }
TS_FILL(8, unsigned char, 1)
TS_FILL(16, unsigned short, 2)
TS_FILL(32, unsigned int, 4)
