// Streams: life, questions, synchronisation and memory operations.
#include <algorithm>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/green.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {
namespace {

CUresult create(CUstream* out, unsigned flags, int priority) {
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  if (!out || (flags & ~unsigned(CU_STREAM_NON_BLOCKING))) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream = make_stream(*context, flags, priority);
  stream->green = current_green();
  driver().streams.add(stream);
  *out = reinterpret_cast<CUstream>(stream.get());
  std::lock_guard lock(context->mutex);
  context->streams.push_back(std::move(stream));
  return CUDA_SUCCESS;
}

CUresult mem_op(CUstream handle, NullStream null_stream, const CUstreamBatchMemOpParams* ops, unsigned n) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(handle, null_stream, &context, &stream)) return bad;
  MemOpCommand command;
  if (CUresult bad = check_mem_ops(ops, n, &command)) return bad;
  return enqueue(context, stream, std::move(command));
}

CUresult wait_value(CUstream stream, NullStream null_stream, CUdeviceptr address, uint64_t value,
                    unsigned flags, CUstreamBatchMemOpType type) {
  CUstreamBatchMemOpParams op = {};
  op.waitValue.operation = type;
  op.waitValue.address = address;
  op.waitValue.value64 = value;
  op.waitValue.flags = flags;
  return mem_op(stream, null_stream, &op, 1);
}

CUresult write_value(CUstream stream, NullStream null_stream, CUdeviceptr address, uint64_t value,
                     unsigned flags, CUstreamBatchMemOpType type) {
  CUstreamBatchMemOpParams op = {};
  op.writeValue.operation = type;
  op.writeValue.address = address;
  op.writeValue.value64 = value;
  op.writeValue.flags = flags;
  return mem_op(stream, null_stream, &op, 1);
}

}  // namespace

CUresult check_mem_ops(const CUstreamBatchMemOpParams* ops, unsigned n, MemOpCommand* command) {
  if (!ops || !n || n > 256) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < n; ++i) {
    const CUstreamBatchMemOpParams& op = ops[i];
    uint64_t bytes = 0;
    switch (number_in(op.operation)) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        bytes = 4;
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        bytes = 8;
        break;
      case CU_STREAM_MEM_OP_BARRIER:
      case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        continue;
      default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t address = op.waitValue.address;
    if (!address || address % bytes || !Memory::get().contains(address, bytes))
      return CUDA_ERROR_INVALID_VALUE;
    const bool waits =
        op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || op.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    const unsigned allowed =
        waits ? 3u | CU_STREAM_WAIT_VALUE_FLUSH : unsigned(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
    if (op.waitValue.flags & ~allowed) return CUDA_ERROR_INVALID_VALUE;
  }
  command->ops.assign(ops, ops + n);
  return CUDA_SUCCESS;
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  TS_ENTER(cuStreamCreate);
  return create(phStream, Flags, 0);
}
CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  TS_ENTER(cuStreamCreateWithPriority);
  return create(phStream, flags, priority);
}

// Returns at once: work already in the stream goes on.
CUresult cuStreamDestroy_v2(CUstream hStream) {
  TS_ENTER(cuStreamDestroy_v2);
  const std::shared_ptr<Stream> stream = driver().streams.find(hStream);
  if (!stream) return hStream ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Context> context = driver().contexts.find(stream->context);
  if (!context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!driver().streams.remove(hStream)) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(context->mutex);
  abandon_capture_locked(*stream);
  // Stays in the context's list while it holds work: the legacy stream and cuCtxSynchronize wait for that.
  stream->orphan = true;
  prune_orphans_locked(*context);
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream hStream) {
  return cuStreamDestroy_v2(hStream);
}

TS_PAIR(cuStreamQuery, _ptsz, (CUstream hStream), (hStream)) {
  TS_ENTER(cuStreamQuery);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  std::vector<OpRef> pending;
  {
    std::lock_guard lock(context->mutex);
    if (CUresult refused = check_stream_access_locked(*context, *stream)) return refused;
    pending = pending_locked(*context, *stream);
  }
  if (CUresult unsafe = check_unsafe()) return unsafe;
  for (const OpRef& op : pending)
    if (op && !driver().engine().complete(op)) return CUDA_ERROR_NOT_READY;
  return wait_all(*context, pending);  // all complete: only collects their codes
}

TS_PAIR(cuStreamSynchronize, _ptsz, (CUstream hStream), (hStream)) {
  TS_ENTER(cuStreamSynchronize);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  std::vector<OpRef> pending;
  {
    std::lock_guard lock(context->mutex);
    if (CUresult refused = check_stream_access_locked(*context, *stream)) return refused;
    pending = pending_locked(*context, *stream);
  }
  if (CUresult unsafe = check_unsafe()) return unsafe;
  return wait_all(*context, pending);
}

TS_PAIR(cuStreamWaitEvent, _ptsz, (CUstream hStream, CUevent hEvent, unsigned int Flags),
        (hStream, hEvent, Flags)) {
  TS_ENTER(cuStreamWaitEvent);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  if (Flags & ~unsigned(CU_EVENT_WAIT_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Event> event = driver().events.find(hEvent);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(context->mutex);
  bool captured;
  {
    std::lock_guard event_lock(event->mutex);
    captured = event->capture != nullptr;
  }
  if (stream->capture || captured)
    return capture_event_wait_locked(stream, event, Flags & CU_EVENT_WAIT_EXTERNAL);
  if (Flags & CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
  OpRef op = wait_for_event(context, *event, *stream);
  if (!op || driver().engine().complete(op)) return CUDA_SUCCESS;
  std::vector<OpRef> deps = dependencies_locked(*context, *stream);
  deps.push_back(std::move(op));
  stream->tail = submit_join(context, std::move(deps), *stream);
  return CUDA_SUCCESS;
}

TS_PAIR(cuStreamGetCtx, _ptsz, (CUstream hStream, CUcontext* pctx), (hStream, pctx)) {
  TS_ENTER(cuStreamGetCtx);
  if (!pctx) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (const auto named = driver().streams.find(hStream)) {
    *pctx = reinterpret_cast<CUcontext>(named->context);
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  *pctx = reinterpret_cast<CUcontext>(context.get());
  return CUDA_SUCCESS;
}
TS_PAIR(cuStreamGetCtx_v2, _ptsz, (CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx),
        (hStream, pCtx, pGreenCtx)) {
  const CUresult got =
      null_stream == NullStream::kLegacy ? cuStreamGetCtx(hStream, pCtx) : cuStreamGetCtx_ptsz(hStream, pCtx);
  if (got == CUDA_SUCCESS && pGreenCtx) *pGreenCtx = nullptr;
  return got;
}

// One value of a stream.
#define TS_STREAM_VALUE(name, type, expression)                                   \
  TS_PAIR(name, _ptsz, (CUstream hStream, type * out), (hStream, out)) {          \
    TS_ENTER(name);                                                               \
    if (!out) return CUDA_ERROR_INVALID_VALUE;                                    \
    std::shared_ptr<Context> context;                                             \
    std::shared_ptr<Stream> stream;                                               \
    if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad; \
    *out = expression;                                                            \
    return CUDA_SUCCESS;                                                          \
  }
TS_STREAM_VALUE(cuStreamGetFlags, unsigned int, stream->flags)
TS_STREAM_VALUE(cuStreamGetPriority, int, stream->priority)
TS_STREAM_VALUE(cuStreamGetId, unsigned long long, stream->id)
TS_STREAM_VALUE(cuStreamGetDevice, CUdevice, context->device)

TS_PAIR(cuStreamCopyAttributes, _ptsz, (CUstream dst, CUstream src), (dst, src)) {
  TS_ENTER(cuStreamCopyAttributes);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> to, from;
  if (CUresult bad = open(dst, null_stream, &context, &to)) return bad;
  if (CUresult bad = open(src, null_stream, &context, &from)) return bad;
  return CUDA_SUCCESS;
}
TS_PAIR(cuStreamGetAttribute, _ptsz, (CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value_out),
        (hStream, attr, value_out)) {
  TS_ENTER(cuStreamGetAttribute);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (!value_out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  *value_out = {};
  switch (int(attr)) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      value_out->priority = stream->priority;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
      value_out->syncPolicy = CU_SYNC_POLICY_AUTO;
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
TS_PAIR(cuStreamSetAttribute, _ptsz, (CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value),
        (hStream, attr, value)) {
  TS_ENTER(cuStreamSetAttribute);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  switch (int(attr)) {
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: {
      std::lock_guard lock(context->mutex);
      stream->priority = std::clamp(value->priority, kGreatestPriority, kLeastPriority);
      return CUDA_SUCCESS;
    }
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}
TS_PAIR(cuStreamAttachMemAsync, _ptsz,
        (CUstream hStream, CUdeviceptr dptr, size_t length, unsigned int flags),
        (hStream, dptr, length, flags)) {
  TS_ENTER(cuStreamAttachMemAsync);
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(hStream, null_stream, &context, &stream)) return bad;
  std::lock_guard lock(context->mutex);
  if (stream->capture) return check_stream_access_locked(*context, *stream);  // not capturable
  Allocation found;
  (void)length;
  if (!flags || !Memory::get().find(dptr, &found) || found.kind != MemoryKind::kManaged)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;  // the host always sees managed memory
}

// Stream memory operations; first and second version of the interface differ in name only.
#define TS_VALUE_OPS(version)                                                                              \
  TS_PAIR(cuStreamWaitValue32##version, _ptsz,                                                             \
          (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),                       \
          (stream, addr, value, flags)) {                                                                  \
    TS_ENTER(cuStreamWaitValue32##version);                                                                \
    return wait_value(stream, null_stream, addr, value, flags, CU_STREAM_MEM_OP_WAIT_VALUE_32);            \
  }                                                                                                        \
  TS_PAIR(cuStreamWaitValue64##version, _ptsz,                                                             \
          (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),                       \
          (stream, addr, value, flags)) {                                                                  \
    TS_ENTER(cuStreamWaitValue64##version);                                                                \
    return wait_value(stream, null_stream, addr, value, flags, CU_STREAM_MEM_OP_WAIT_VALUE_64);            \
  }                                                                                                        \
  TS_PAIR(cuStreamWriteValue32##version, _ptsz,                                                            \
          (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags),                       \
          (stream, addr, value, flags)) {                                                                  \
    TS_ENTER(cuStreamWriteValue32##version);                                                               \
    return write_value(stream, null_stream, addr, value, flags, CU_STREAM_MEM_OP_WRITE_VALUE_32);          \
  }                                                                                                        \
  TS_PAIR(cuStreamWriteValue64##version, _ptsz,                                                            \
          (CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags),                       \
          (stream, addr, value, flags)) {                                                                  \
    TS_ENTER(cuStreamWriteValue64##version);                                                               \
    return write_value(stream, null_stream, addr, value, flags, CU_STREAM_MEM_OP_WRITE_VALUE_64);          \
  }                                                                                                        \
  TS_PAIR(cuStreamBatchMemOp##version, _ptsz,                                                              \
          (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray, unsigned int flags), \
          (stream, count, paramArray, flags)) {                                                            \
    TS_ENTER(cuStreamBatchMemOp##version);                                                                 \
    if (flags) return CUDA_ERROR_INVALID_VALUE;                                                            \
    return mem_op(stream, null_stream, paramArray, count);                                                 \
  }
TS_VALUE_OPS()
TS_VALUE_OPS(_v2)
