// Streams, events, capture, graphs, stream writes, launches.
#include <cstdlib>

#include "tests/null_driver/internal.h"

#define TS_EXPORT extern "C" __attribute__((visibility("default")))

namespace tessera::null_driver {
namespace {

std::atomic<uint64_t> g_next_id{16};
Stream g_special[3] = {{1, 0, 0, false}, {2, 0, 0, false}, {3, 0, 0, false}};  // default, legacy, per thread

struct Event {
  std::atomic<bool> recorded_while_held{false};
};
const float g_elapsed_ms = [] {  // null_driver.h
  const char* ns = getenv("TESSERA_NULL_ELAPSED_NS");
  return float((ns ? atof(ns) : 1'000) * 1e-6);
}();
struct Graph {
  uint64_t id;
};

CUresult create_stream(CUstream* out, unsigned flags, int priority) {
  if (out == nullptr || (flags & ~unsigned(CU_STREAM_NON_BLOCKING)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = reinterpret_cast<CUstream>(new Stream{g_next_id.fetch_add(1), flags, priority, false});
  return CUDA_SUCCESS;
}
CUresult destroy_stream(CUstream s) {
  if (reinterpret_cast<uintptr_t>(s) <= 2) return CUDA_ERROR_INVALID_HANDLE;
  delete stream_of(s);
  return CUDA_SUCCESS;
}
Event* event_of(CUevent e) {
  return reinterpret_cast<Event*>(e);
}
CUresult record(CUevent e) {
  if (e == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  event_of(e)->recorded_while_held.store(held(), std::memory_order_release);
  return CUDA_SUCCESS;
}
CUresult begin(CUstream s) {
  stream_of(s)->capturing = true;
  return CUDA_SUCCESS;
}
CUresult end(CUstream s) {
  if (!stream_of(s)->capturing) return CUDA_ERROR_ILLEGAL_STATE;
  stream_of(s)->capturing = false;
  return CUDA_SUCCESS;
}
CUresult end(CUstream s, CUgraph* out) {
  if (const CUresult bad = end(s)) return bad;
  *out = reinterpret_cast<CUgraph>(new Graph{g_next_id.fetch_add(1)});
  return CUDA_SUCCESS;
}
CUresult capture_status(CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool on = stream_of(s)->capturing;
  *status = on ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  if (id != nullptr) *id = on ? stream_of(s)->id : 0;
  return CUDA_SUCCESS;
}
CUresult instantiate(CUgraphExec* out) {
  *out = reinterpret_cast<CUgraphExec>(new Graph{g_next_id.fetch_add(1)});
  return CUDA_SUCCESS;
}
CUresult nothing_of(size_t* n) {
  if (n == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *n = 0;
  return CUDA_SUCCESS;
}
bool is_word(CUdeviceptr address, unsigned bytes) {
  return address != 0 && address % bytes == 0;
}
CUresult write(CUdeviceptr address, uint64_t value, unsigned bytes, unsigned flags) {
  if (!is_word(address, bytes) || (flags & ~unsigned(CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  write_word(address, value, bytes);
  return CUDA_SUCCESS;
}
CUresult query() {
  return held() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

std::atomic<bool> g_record_launches{false};
float g_last_float = 0;
TesseraNullLaunch g_last_launch{};  // written by launching threads while recording; tests launch from one

void note_launch(CUfunction f, const uint32_t (&grid)[3], const uint32_t (&block)[3], uint32_t shared,
                 CUstream s, void** params) {
  if (!g_record_launches.load(std::memory_order_relaxed)) return;
  g_last_launch = {g_last_launch.number + 1,
                   {grid[0], grid[1], grid[2]},
                   {block[0], block[1], block[2]},
                   shared,
                   f,
                   s,
                   params};
}

}  // namespace

Stream* stream_of(CUstream handle) {
  const auto value = reinterpret_cast<uintptr_t>(handle);
  return value <= 2 ? &g_special[value] : reinterpret_cast<Stream*>(handle);
}

}  // namespace tessera::null_driver

using namespace tessera::null_driver;  // NOLINT: this file is the C surface

TS_EXPORT void tessera_null_record_launches(int on) {
  g_record_launches.store(on != 0, std::memory_order_relaxed);
}
TS_EXPORT TesseraNullLaunch tessera_null_last_launch() {
  return g_last_launch;
}

TS_EXPORT float tessera_null_last_float() {
  return g_last_float;
}
TS_NULL(cuParamSetf, CUfunction, int, float value) {
  TS_NULL_COUNT(cuParamSetf);
  g_last_float = value;
  return CUDA_SUCCESS;
}

// One definition for a symbol and its per-thread twin.
#define TS_NULL_BOTH(name, suffix, params, body)                                   \
  extern "C" __attribute__((visibility("default"))) CUresult name params {         \
    TS_NULL_COUNT(name);                                                           \
    body;                                                                          \
  }                                                                                \
  extern "C" __attribute__((visibility("default"))) CUresult name##suffix params { \
    TS_NULL_COUNT(name##suffix);                                                   \
    body;                                                                          \
  }

TS_NULL_BOTH(cuLaunchKernel, _ptsz,
             (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
              unsigned shared, CUstream s, void** params, void**),
             note_launch(f, {gx, gy, gz}, {bx, by, bz}, shared, s, params);
             return CUDA_SUCCESS)
TS_NULL_BOTH(cuLaunchKernelEx, _ptsz, (const CUlaunchConfig* c, CUfunction f, void** params, void**),
             note_launch(f, {c->gridDimX, c->gridDimY, c->gridDimZ},
                         {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, c->hStream, params);
             return CUDA_SUCCESS)

TS_NULL(cuStreamCreate, CUstream* stream, unsigned flags) {
  TS_NULL_COUNT(cuStreamCreate);
  return create_stream(stream, flags, 0);
}
TS_NULL(cuStreamCreateWithPriority, CUstream* stream, unsigned flags, int priority) {
  TS_NULL_COUNT(cuStreamCreateWithPriority);
  return create_stream(stream, flags, priority);
}
TS_NULL(cuStreamDestroy, CUstream stream) {
  TS_NULL_COUNT(cuStreamDestroy);
  return destroy_stream(stream);
}
TS_NULL(cuStreamDestroy_v2, CUstream stream) {
  TS_NULL_COUNT(cuStreamDestroy_v2);
  return destroy_stream(stream);
}
TS_NULL_BOTH(cuStreamGetId, _ptsz, (CUstream s, unsigned long long* id), *id = stream_of(s)->id;
             return CUDA_SUCCESS)
TS_NULL_BOTH(cuStreamGetFlags, _ptsz, (CUstream s, unsigned* flags), *flags = stream_of(s)->flags;
             return CUDA_SUCCESS)
TS_NULL_BOTH(cuStreamGetPriority, _ptsz, (CUstream s, int* p), *p = stream_of(s)->priority;
             return CUDA_SUCCESS)
TS_NULL_BOTH(cuStreamGetCtx, _ptsz, (CUstream, CUcontext* c), return cuCtxGetCurrent(c))
TS_NULL_BOTH(cuStreamQuery, _ptsz, (CUstream), return query())

TS_NULL(cuEventCreate, CUevent* event, unsigned flags) {
  TS_NULL_COUNT(cuEventCreate);
  constexpr unsigned kFlags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  const bool alone = (flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0;
  if (event == nullptr || (flags & ~kFlags) != 0 || alone) return CUDA_ERROR_INVALID_VALUE;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  *event = reinterpret_cast<CUevent>(new Event);
  return CUDA_SUCCESS;
}
TS_NULL(cuEventDestroy, CUevent event) {
  TS_NULL_COUNT(cuEventDestroy);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  delete event_of(event);
  return CUDA_SUCCESS;
}
TS_NULL(cuEventDestroy_v2, CUevent event) {
  TS_NULL_COUNT(cuEventDestroy_v2);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  delete event_of(event);
  return CUDA_SUCCESS;
}
TS_NULL(cuEventQuery, CUevent event) {
  TS_NULL_COUNT(cuEventQuery);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return held() && event_of(event)->recorded_while_held.load(std::memory_order_acquire) ? CUDA_ERROR_NOT_READY
                                                                                        : CUDA_SUCCESS;
}
TS_NULL(cuEventElapsedTime, float* ms, CUevent, CUevent) {
  TS_NULL_COUNT(cuEventElapsedTime);
  *ms = g_elapsed_ms;
  return CUDA_SUCCESS;
}
TS_NULL(cuEventElapsedTime_v2, float* ms, CUevent, CUevent) {
  TS_NULL_COUNT(cuEventElapsedTime_v2);
  *ms = g_elapsed_ms;
  return CUDA_SUCCESS;
}
TS_NULL_BOTH(cuEventRecord, _ptsz, (CUevent e, CUstream), return record(e))
TS_NULL_BOTH(cuEventRecordWithFlags, _ptsz, (CUevent e, CUstream, unsigned), return record(e))

TS_NULL_BOTH(cuStreamBeginCapture, _ptsz, (CUstream s), return begin(s))
TS_NULL_BOTH(cuStreamBeginCapture_v2, _ptsz, (CUstream s, CUstreamCaptureMode), return begin(s))
TS_NULL_BOTH(cuStreamBeginCaptureToGraph, _ptsz,
             (CUstream s, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t, CUstreamCaptureMode),
             return begin(s))
TS_NULL_BOTH(cuStreamBeginRecaptureToGraph, _ptsz,
             (CUstream s, CUstreamCaptureMode, CUgraph, CUgraphRecaptureCallback, void*), return begin(s))
TS_NULL_BOTH(cuStreamBeginCaptureToCig, _ptsz, (CUstream s, CUstreamCigCaptureParams*), return begin(s))
TS_NULL_BOTH(cuStreamEndCaptureToCig, _ptsz, (CUstream s), return end(s))
TS_NULL_BOTH(cuStreamEndCapture, _ptsz, (CUstream s, CUgraph* g), return end(s, g))
TS_NULL_BOTH(cuStreamIsCapturing, _ptsz, (CUstream s, CUstreamCaptureStatus* status),
             return capture_status(s, status, nullptr))
TS_NULL_BOTH(cuStreamGetCaptureInfo, _ptsz, (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id),
             return capture_status(s, status, id))
TS_NULL_BOTH(cuStreamGetCaptureInfo_v2, _ptsz,
             (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph*, const CUgraphNode**,
              size_t*),
             return capture_status(s, status, id))
TS_NULL(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode* mode) {
  TS_NULL_COUNT(cuThreadExchangeStreamCaptureMode);
  if (mode == nullptr || unsigned(*mode) > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  static thread_local CUstreamCaptureMode t_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const CUstreamCaptureMode before = t_mode;
  t_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

TS_NULL(cuGraphCreate, CUgraph* graph, unsigned) {
  TS_NULL_COUNT(cuGraphCreate);
  *graph = reinterpret_cast<CUgraph>(new Graph{g_next_id.fetch_add(1)});
  return CUDA_SUCCESS;
}
TS_NULL(cuGraphDestroy, CUgraph graph) {
  TS_NULL_COUNT(cuGraphDestroy);
  delete reinterpret_cast<Graph*>(graph);
  return CUDA_SUCCESS;
}
// Captured work is not kept.
TS_NULL(cuGraphGetNodes, CUgraph, CUgraphNode*, size_t* n) {
  TS_NULL_COUNT(cuGraphGetNodes);
  return nothing_of(n);
}
TS_NULL(cuGraphGetEdges, CUgraph, CUgraphNode*, CUgraphNode*, size_t* n) {
  TS_NULL_COUNT(cuGraphGetEdges);
  return nothing_of(n);
}
TS_NULL(cuGraphGetEdges_v2, CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t* n) {
  TS_NULL_COUNT(cuGraphGetEdges_v2);
  return nothing_of(n);
}
TS_NULL(cuGraphInstantiate, CUgraphExec* exec, CUgraph, CUgraphNode*, char*, size_t) {
  TS_NULL_COUNT(cuGraphInstantiate);
  return instantiate(exec);
}
TS_NULL(cuGraphInstantiate_v2, CUgraphExec* exec, CUgraph, CUgraphNode*, char*, size_t) {
  TS_NULL_COUNT(cuGraphInstantiate_v2);
  return instantiate(exec);
}
TS_NULL(cuGraphInstantiateWithFlags, CUgraphExec* exec, CUgraph, unsigned long long) {
  TS_NULL_COUNT(cuGraphInstantiateWithFlags);
  return instantiate(exec);
}
TS_NULL_BOTH(cuGraphInstantiateWithParams, _ptsz,
             (CUgraphExec * exec, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS*), return instantiate(exec))
TS_NULL(cuGraphExecDestroy, CUgraphExec exec) {
  TS_NULL_COUNT(cuGraphExecDestroy);
  delete reinterpret_cast<Graph*>(exec);
  return CUDA_SUCCESS;
}

TS_NULL_BOTH(cuStreamWriteValue32, _ptsz, (CUstream, CUdeviceptr a, cuuint32_t v, unsigned flags),
             return write(a, v, 4, flags))
TS_NULL_BOTH(cuStreamWriteValue32_v2, _ptsz, (CUstream, CUdeviceptr a, cuuint32_t v, unsigned flags),
             return write(a, v, 4, flags))
TS_NULL_BOTH(cuStreamWriteValue64, _ptsz, (CUstream, CUdeviceptr a, cuuint64_t v, unsigned flags),
             return write(a, v, 8, flags))
TS_NULL_BOTH(cuStreamWriteValue64_v2, _ptsz, (CUstream, CUdeviceptr a, cuuint64_t v, unsigned flags),
             return write(a, v, 8, flags))
TS_NULL_BOTH(cuStreamWaitEvent, _ptsz, (CUstream, CUevent e, unsigned),
             return e != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE)
TS_NULL_BOTH(cuStreamWaitValue64_v2, _ptsz, (CUstream, CUdeviceptr a, cuuint64_t, unsigned flags),
             constexpr unsigned kFlags = CU_STREAM_WAIT_VALUE_NOR | CU_STREAM_WAIT_VALUE_FLUSH;
             return is_word(a, 8) && (flags & ~kFlags) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
TS_NULL_BOTH(cuLaunchHostFunc, _ptsz, (CUstream, CUhostFn fn, void* data), fn(data); return CUDA_SUCCESS)
TS_NULL_BOTH(cuLaunchHostFunc_v2, _ptsz, (CUstream, CUhostFn fn, void* data, unsigned), fn(data);
             return CUDA_SUCCESS)
