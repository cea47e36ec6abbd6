// Events. A record is a join operation: complete when all before it in the stream is; its modelled end is its
// time.
#include "softgpu/driver/capture.h"
#include "softgpu/driver/ipc.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

using namespace tessera::softgpu::driver;  // entry points are global by nature

namespace {

constexpr unsigned kEventFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult record(CUevent handle, CUstream stream_handle, NullStream null_stream, unsigned flags) {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = open(stream_handle, null_stream, &context, &stream)) return bad;
  if (flags & ~unsigned(CU_EVENT_RECORD_EXTERNAL)) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Event> event = driver().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->context != context.get()) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(context->mutex);
  if (stream->capture) return capture_event_record_locked(*stream, event, flags & CU_EVENT_RECORD_EXTERNAL);
  if (flags & CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult implicit = check_implicit_locked(*context, *stream)) return implicit;
  stream->marker = submit_record(context, *event, dependencies_locked(*context, *stream), *stream);
  return CUDA_SUCCESS;
}

// The event's context, which need not be current, and the operation of its last record; or why it cannot be
// asked.
CUresult recorded_op(CUevent handle, std::shared_ptr<Context>* context, std::shared_ptr<Event>* event,
                     OpRef* op, bool* recorded) {
  *event = driver().events.find(handle);
  if (!*event) {
    if (CUresult none = current(context)) return none;
    return handle ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
  }
  *context = driver().contexts.find((*event)->context);
  if (!*context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (CUresult failed = sticky(**context)) return failed;
  std::lock_guard lock((*event)->mutex);
  if ((*event)->capture) {
    invalidate(*(*event)->capture);
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  *op = (*event)->op;
  *recorded = (*event)->recorded;
  return CUDA_SUCCESS;
}

CUresult elapsed(float* ms, CUevent start, CUevent end) {
  std::shared_ptr<Event> events[2];
  OpRef ops[2];
  if (!ms) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 2; ++i) {
    bool recorded = false;
    std::shared_ptr<Context> context;
    if (CUresult bad = recorded_op(i ? end : start, &context, &events[i], &ops[i], &recorded)) return bad;
    if (!recorded || (events[i]->flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (events[0]->context->device != events[1]->context->device) return CUDA_ERROR_INVALID_HANDLE;
  for (const OpRef& op : ops)
    if (!driver().engine().complete(op)) return CUDA_ERROR_NOT_READY;
  const int64_t from = int64_t(driver().engine().times(ops[0]).end_ns);
  const int64_t to = int64_t(driver().engine().times(ops[1]).end_ns);
  *ms = float(double(to - from) * 1e-6);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  TS_CONTEXT(cuEventCreate, context);
  if (!phEvent || (Flags & ~kEventFlags)) return CUDA_ERROR_INVALID_VALUE;
  if ((Flags & CU_EVENT_INTERPROCESS) && !(Flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_shared<Event>();
  event->context = context.get();
  event->flags = Flags;
  if ((Flags & CU_EVENT_INTERPROCESS) && !(event->shared = SharedEvent::create()))
    return CUDA_ERROR_OUT_OF_MEMORY;
  driver().events.add(event);
  *phEvent = reinterpret_cast<CUevent>(event.get());
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  TS_ENTER(cuEventDestroy_v2);
  return driver().events.remove(hEvent) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuEventDestroy(CUevent hEvent) {
  return cuEventDestroy_v2(hEvent);
}

TS_PAIR(cuEventRecord, _ptsz, (CUevent hEvent, CUstream hStream), (hEvent, hStream)) {
  TS_ENTER(cuEventRecord);
  return record(hEvent, hStream, null_stream, 0);
}
TS_PAIR(cuEventRecordWithFlags, _ptsz, (CUevent hEvent, CUstream hStream, unsigned int flags),
        (hEvent, hStream, flags)) {
  TS_ENTER(cuEventRecordWithFlags);
  return record(hEvent, hStream, null_stream, flags);
}

// The last record of an interprocess event if it is another process's, else 0.
static uint64_t foreign_record(Event& event) {
  if (!event.shared) return 0;
  const uint64_t last = event.shared->last();
  std::lock_guard lock(event.mutex);
  return event.op && event.number == last ? 0 : last;
}

CUresult cuEventQuery(CUevent hEvent) {
  TS_ENTER(cuEventQuery);
  std::shared_ptr<Context> context;
  std::shared_ptr<Event> event;
  OpRef op;
  bool recorded = false;
  if (CUresult bad = recorded_op(hEvent, &context, &event, &op, &recorded)) return bad;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (const uint64_t foreign = foreign_record(*event))
    return event->shared->over(foreign) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  if (!op) return CUDA_SUCCESS;
  if (!driver().engine().complete(op)) return CUDA_ERROR_NOT_READY;
  return wait(*context, op);  // complete: only collects the code
}

CUresult cuEventSynchronize(CUevent hEvent) {
  TS_ENTER(cuEventSynchronize);
  std::shared_ptr<Context> context;
  std::shared_ptr<Event> event;
  OpRef op;
  bool recorded = false;
  if (CUresult bad = recorded_op(hEvent, &context, &event, &op, &recorded)) return bad;
  if (CUresult unsafe = check_unsafe()) return unsafe;
  if (const uint64_t foreign = foreign_record(*event)) {
    while (!event->shared->wait_some(foreign))
      if (CUresult failed = sticky(*context)) return failed;
    return CUDA_SUCCESS;
  }
  return wait(*context, op);
}

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  TS_ENTER(cuEventElapsedTime);
  return elapsed(pMilliseconds, hStart, hEnd);
}
CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  TS_ENTER(cuEventElapsedTime_v2);
  return elapsed(pMilliseconds, hStart, hEnd);
}
