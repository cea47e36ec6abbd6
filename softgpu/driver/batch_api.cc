// Batches: copies, prefetches, discards. A batch is checked as a whole before any of it is enqueued.
#include <cstdint>
#include <vector>

#include "softgpu/driver/array.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

struct BatchCopy {
  CUDA_MEMCPY3D box = {};
  bool source_now = false;  // read before the call returns
};

// Not the legacy stream, as documented; the default one of the per-thread flavour is allowed.
CUresult check_stream(CUstream stream, NullStream null_stream) {
  const bool legacy = stream == CU_STREAM_LEGACY || (!stream && null_stream == NullStream::kLegacy);
  return legacy ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

bool valid_order(CUmemcpySrcAccessOrder order) {
  return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

CUresult run(const std::vector<BatchCopy>& copies, size_t* fail, CUstream stream, NullStream null_stream) {
  for (size_t i = 0; i < copies.size(); ++i) {
    CopyCommand checked;
    if (fail) *fail = i;
    if (CUresult bad = box_of(copies[i].box, &checked)) return bad;
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    if (fail) *fail = i;
    if (CUresult failed = copy_async(copies[i].box, copies[i].source_now, stream, null_stream)) return failed;
  }
  return CUDA_SUCCESS;
}

CUresult copy_batch(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                    CUmemcpyAttributes* attrs, size_t* attrs_idxs, size_t n_attrs, size_t* fail,
                    CUstream stream, NullStream null_stream) {
  if (fail) *fail = SIZE_MAX;
  if (!dsts || !srcs || !sizes || !count || !attrs || !attrs_idxs || !n_attrs || n_attrs > count)
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_stream(stream, null_stream)) return bad;
  for (size_t k = 0; k < n_attrs; ++k) {
    const bool ascending = k == 0 ? attrs_idxs[0] == 0 : attrs_idxs[k] > attrs_idxs[k - 1];
    if (!ascending || attrs_idxs[k] >= count || !valid_order(attrs[k].srcAccessOrder) ||
        attrs[k].flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::vector<BatchCopy> copies(count);
  size_t k = 0;
  for (size_t i = 0; i < count; ++i) {
    if (k + 1 < n_attrs && attrs_idxs[k + 1] == i) ++k;
    CUDA_MEMCPY3D& box = copies[i].box;
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    box.srcDevice = srcs[i], box.dstDevice = dsts[i];
    box.WidthInBytes = sizes[i], box.Height = box.Depth = 1;
    copies[i].source_now = attrs[k].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  }
  return run(copies, fail, stream, null_stream);
}

// Elements of a 3D operand: 1 byte, or the array's.
CUresult element_bytes(const CUmemcpy3DOperand& operand, size_t* bytes) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_SUCCESS;
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Array> array = find_array(operand.op.array.array);
  if (!array) return CUDA_ERROR_INVALID_HANDLE;
  if (*bytes && *bytes != array->element_bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = array->element_bytes;
  return CUDA_SUCCESS;
}

CUresult box_of_op(const CUDA_MEMCPY3D_BATCH_OP& op, BatchCopy* copy) {
  const CUextent3D& e = op.extent;
  if (!e.width || !e.height || !e.depth || !valid_order(op.srcAccessOrder) ||
      op.flags > CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
    return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = 0;
  if (CUresult bad = element_bytes(op.src, &bytes)) return bad;
  if (CUresult bad = element_bytes(op.dst, &bytes)) return bad;
  if (!bytes) bytes = 1;
  for (const CUmemcpy3DOperand* operand : {&op.src, &op.dst}) {
    const auto& p = operand->op.ptr;
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
        ((p.rowLength && p.rowLength < e.width) || (p.layerHeight && p.layerHeight < e.height)))
      return CUDA_ERROR_INVALID_VALUE;
  }
  CUDA_MEMCPY3D& box = copy->box;
  box.WidthInBytes = e.width * bytes, box.Height = e.height, box.Depth = e.depth;
  if (op.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& at = op.src.op.array.offset;
    box.srcMemoryType = CU_MEMORYTYPE_ARRAY, box.srcArray = op.src.op.array.array;
    box.srcXInBytes = at.x * bytes, box.srcY = at.y, box.srcZ = at.z;
  } else {
    box.srcMemoryType = CU_MEMORYTYPE_UNIFIED, box.srcDevice = op.src.op.ptr.ptr;
    box.srcPitch = op.src.op.ptr.rowLength * bytes, box.srcHeight = op.src.op.ptr.layerHeight;
  }
  if (op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& at = op.dst.op.array.offset;
    box.dstMemoryType = CU_MEMORYTYPE_ARRAY, box.dstArray = op.dst.op.array.array;
    box.dstXInBytes = at.x * bytes, box.dstY = at.y, box.dstZ = at.z;
  } else {
    box.dstMemoryType = CU_MEMORYTYPE_UNIFIED, box.dstDevice = op.dst.op.ptr.ptr;
    box.dstPitch = op.dst.op.ptr.rowLength * bytes, box.dstHeight = op.dst.op.ptr.layerHeight;
  }
  copy->source_now = op.srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  return CUDA_SUCCESS;
}

CUresult copy_3d_batch(size_t n, CUDA_MEMCPY3D_BATCH_OP* ops, size_t* fail, unsigned long long flags,
                       CUstream stream, NullStream null_stream) {
  if (fail) *fail = SIZE_MAX;
  if (!n || !ops || flags) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_stream(stream, null_stream)) return bad;
  std::vector<BatchCopy> copies(n);
  for (size_t i = 0; i < n; ++i) {
    if (fail) *fail = i;
    if (CUresult bad = box_of_op(ops[i], &copies[i])) return bad;
  }
  return run(copies, fail, stream, null_stream);
}

// Managed ranges, checked; what is remembered is where they were prefetched to.
CUresult prefetch_batch(CUdeviceptr* pointers, size_t* sizes, size_t count, const CUmemLocation* locations,
                        const size_t* location_idxs, size_t n_locations, unsigned long long flags,
                        CUstream stream, NullStream null_stream) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  std::shared_ptr<Stream> resolved;
  if (CUresult bad = check_stream(stream, null_stream)) return bad;
  if (CUresult bad = resolve(*context, stream, null_stream, &resolved)) return bad;
  if (!pointers || !sizes || !count || flags ||
      (locations && (!location_idxs || !n_locations || n_locations > count)))
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t k = 0; locations && k < n_locations; ++k) {
    if (k == 0 ? location_idxs[0] != 0 : location_idxs[k] <= location_idxs[k - 1])
      return CUDA_ERROR_INVALID_VALUE;
    if (locations[k].type == CU_MEM_LOCATION_TYPE_DEVICE && !find_device(locations[k].id))
      return CUDA_ERROR_INVALID_DEVICE;
  }
  for (size_t i = 0; i < count; ++i) {
    Allocation found;
    if (!sizes[i] || !Memory::get().find(pointers[i], &found) || found.kind != MemoryKind::kManaged ||
        sizes[i] > found.begin + found.bytes - pointers[i])
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0, k = 0; locations && i < count; ++i) {
    if (k + 1 < n_locations && location_idxs[k + 1] == i) ++k;
    Memory::get().advise(pointers[i], [&](Advice& advice) { advice.prefetched = locations[k]; });
  }
  return CUDA_SUCCESS;
}

}  // namespace

TS_PAIR(cuMemcpyBatchAsync_v2, _ptsz,
        (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
         size_t* attrsIdxs, size_t numAttrs, CUstream hStream),
        (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream)) {
  TS_ENTER(cuMemcpyBatchAsync_v2);
  return copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, nullptr, hStream, null_stream);
}
TS_PAIR(cuMemcpyBatchAsync, _ptsz,
        (CUdeviceptr * dsts, CUdeviceptr* srcs, size_t* sizes, size_t count, CUmemcpyAttributes* attrs,
         size_t* attrsIdxs, size_t numAttrs, size_t* failIdx, CUstream hStream),
        (dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream)) {
  TS_ENTER(cuMemcpyBatchAsync);
  return copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream, null_stream);
}
TS_PAIR(cuMemcpy3DBatchAsync_v2, _ptsz,
        (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, unsigned long long flags, CUstream hStream),
        (numOps, opList, flags, hStream)) {
  TS_ENTER(cuMemcpy3DBatchAsync_v2);
  return copy_3d_batch(numOps, opList, nullptr, flags, hStream, null_stream);
}
TS_PAIR(cuMemcpy3DBatchAsync, _ptsz,
        (size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx, unsigned long long flags,
         CUstream hStream),
        (numOps, opList, failIdx, flags, hStream)) {
  TS_ENTER(cuMemcpy3DBatchAsync);
  return copy_3d_batch(numOps, opList, failIdx, flags, hStream, null_stream);
}

TS_PAIR(cuMemPrefetchBatchAsync, _ptsz,
        (CUdeviceptr * dptrs, size_t* sizes, size_t count, CUmemLocation* locs, size_t* locIdxs,
         size_t numLocs, unsigned long long flags, CUstream hStream),
        (dptrs, sizes, count, locs, locIdxs, numLocs, flags, hStream)) {
  TS_ENTER(cuMemPrefetchBatchAsync);
  return locs ? prefetch_batch(dptrs, sizes, count, locs, locIdxs, numLocs, flags, hStream, null_stream)
              : CUDA_ERROR_INVALID_VALUE;
}
// The contents may be anything after a discard: they stay as they are.
TS_PAIR(cuMemDiscardBatchAsync, _ptsz,
        (CUdeviceptr * dptrs, size_t* sizes, size_t count, unsigned long long flags, CUstream hStream),
        (dptrs, sizes, count, flags, hStream)) {
  TS_ENTER(cuMemDiscardBatchAsync);
  return prefetch_batch(dptrs, sizes, count, nullptr, nullptr, 0, flags, hStream, null_stream);
}
TS_PAIR(cuMemDiscardAndPrefetchBatchAsync, _ptsz,
        (CUdeviceptr * dptrs, size_t* sizes, size_t count, CUmemLocation* locs, size_t* locIdxs,
         size_t numLocs, unsigned long long flags, CUstream hStream),
        (dptrs, sizes, count, locs, locIdxs, numLocs, flags, hStream)) {
  TS_ENTER(cuMemDiscardAndPrefetchBatchAsync);
  return locs ? prefetch_batch(dptrs, sizes, count, locs, locIdxs, numLocs, flags, hStream, null_stream)
              : CUDA_ERROR_INVALID_VALUE;
}
