// Hooks of slow calls: life of contexts and streams, captures, graphs (those of images: interpose/track).
// They keep interpose/track's books around the driver's own call, whose result is always what the program
// gets. Not part of the hot path.
#include "base/errno_guard.h"
#include "interpose/entry/hooks.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "interpose/gate/window.h"
#include "interpose/lifecycle/config.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/track/track.h"

namespace {

using namespace tessera;
using driver_api::Flavour;
using driver_api::real;
using driver_api::StreamArg;

bool live() {
  return lifecycle::g_phase.load(std::memory_order_relaxed) == lifecycle::Phase::kLive;
}

// Contexts. Whatever makes one current is a chance to prepare it; whatever may end one must find the helper
// outside.
template <class F>
CUresult current_changes(F&& call) {
  const CUresult result = call();
  if (result == CUDA_SUCCESS && live()) {
    const base::ErrnoGuard keep_errno;
    track::prepare_context();
  }
  return result;
}

template <class F>
CUresult context_ends(CUcontext context, F&& call) {
  if (!live()) return call();
  track::siblings_pause(context);
  lifecycle::enter_exclusive();
  const CUresult result = call();
  if (result == CUDA_SUCCESS) track::context_ended(context);  // nobody may ask about its events any more
  lifecycle::leave_exclusive();
  track::siblings_resume(context, result == CUDA_SUCCESS);
  return result;
}

// Primary contexts by device: released ones end with their last reference, which only the driver counts.
constexpr int kDevices = 64;
constinit std::atomic<CUcontext> g_primary[kDevices] = {};

template <class F>
CUresult primary_ends(CUdevice device, bool always, F&& call) {
  if (!live()) return call();
  const CUcontext context = device >= 0 && device < kDevices ? g_primary[device].load() : nullptr;
  track::siblings_pause(context);
  lifecycle::enter_exclusive();
  const CUresult result = call();
  unsigned flags = 0;
  int active = 0;
  if (result == CUDA_SUCCESS && !always) real().cuDevicePrimaryCtxGetState(device, &flags, &active);
  if (result == CUDA_SUCCESS && !active) track::context_ended(context);
  lifecycle::leave_exclusive();
  track::siblings_resume(context, result == CUDA_SUCCESS && !active);
  return result;
}

template <class F>
CUresult stream_ends(CUstream stream, F&& call) {
  if (!live()) return call();
  lifecycle::enter_exclusive();
  const CUresult result = call();
  lifecycle::leave_exclusive();
  if (result == CUDA_SUCCESS) track::stream_gone(stream);
  return result;
}

template <class F>
CUresult capture_opens(StreamArg stream, F&& call) {
  if (!live()) return call();
  track::capture_begins();
  const CUresult result = call();
  track::capture_began(stream, result);
  return result;
}

// The result of the last load of a graph's shape says nothing about the new one.
void forget_timing(CUgraphExec graph) {
  gate::Timing* t = gate::timing_of(gate::timing_key({reinterpret_cast<uint64_t>(graph), 1, 0, 0}));
  if (!t) return;
  t->block_ps.store(0, std::memory_order_relaxed);
  t->samples.store(0, std::memory_order_relaxed);
  t->launches.store(0, std::memory_order_relaxed);
}

}  // namespace

#define TS_AROUND(wrapper, symbol, params, args)        \
  extern "C" CUresult hook_##symbol params noexcept {   \
    return wrapper([&] { return real().symbol args; }); \
  }
#define TS_AROUND_1(wrapper, first, symbol, params, args)      \
  extern "C" CUresult hook_##symbol params noexcept {          \
    return wrapper(first, [&] { return real().symbol args; }); \
  }

TS_AROUND(current_changes, cuCtxCreate, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
TS_AROUND(current_changes, cuCtxCreate_v2, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
TS_AROUND(current_changes, cuCtxCreate_v3,
          (CUcontext * c, CUexecAffinityParam* p, int n, unsigned f, CUdevice d), (c, p, n, f, d))
TS_AROUND(current_changes, cuCtxCreate_v4, (CUcontext * c, CUctxCreateParams* p, unsigned f, CUdevice d),
          (c, p, f, d))
TS_AROUND(current_changes, cuCtxSetCurrent, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPushCurrent, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPushCurrent_v2, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPopCurrent, (CUcontext * c), (c))
TS_AROUND(current_changes, cuCtxPopCurrent_v2, (CUcontext * c), (c))
TS_AROUND(current_changes, cuStreamCreate, (CUstream * s, unsigned flags), (s, flags))
TS_AROUND(current_changes, cuStreamCreateWithPriority, (CUstream * s, unsigned f, int priority),
          (s, f, priority))

TS_AROUND_1(context_ends, ctx, cuCtxDestroy, (CUcontext ctx), (ctx))
TS_AROUND_1(context_ends, ctx, cuCtxDestroy_v2, (CUcontext ctx), (ctx))
TS_AROUND_1(context_ends, ctx, cuCtxDetach, (CUcontext ctx), (ctx))
TS_AROUND_1(stream_ends, stream, cuStreamDestroy, (CUstream stream), (stream))
TS_AROUND_1(stream_ends, stream, cuStreamDestroy_v2, (CUstream stream), (stream))

extern "C" CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice device) noexcept {
  const CUresult result = real().cuDevicePrimaryCtxRetain(c, device);
  if (result == CUDA_SUCCESS && live() && c && device >= 0 && device < kDevices) {
    g_primary[device].store(*c);
    lifecycle::device_seen(device);
  }
  return result;
}
#define TS_PRIMARY(symbol, always)                                              \
  extern "C" CUresult hook_##symbol(CUdevice device) noexcept {                 \
    return primary_ends(device, always, [&] { return real().symbol(device); }); \
  }
TS_PRIMARY(cuDevicePrimaryCtxRelease, false)
TS_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
TS_PRIMARY(cuDevicePrimaryCtxReset, true)
TS_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

#define TS_BEGIN(symbol, family, params, args)                                           \
  extern "C" CUresult hook_##symbol params noexcept {                                    \
    return capture_opens({stream, Flavour::family}, [&] { return real().symbol args; }); \
  }
TS_BEGIN(cuStreamBeginCapture, kLegacy, (CUstream stream), (stream))
TS_BEGIN(cuStreamBeginCapture_ptsz, kPerThread, (CUstream stream), (stream))
TS_BEGIN(cuStreamBeginCapture_v2, kLegacy, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
TS_BEGIN(cuStreamBeginCapture_v2_ptsz, kPerThread, (CUstream stream, CUstreamCaptureMode mode),
         (stream, mode))
TS_BEGIN(cuStreamBeginCaptureToGraph, kLegacy,
         (CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges, size_t n,
          CUstreamCaptureMode mode),
         (stream, graph, from, edges, n, mode))
TS_BEGIN(cuStreamBeginCaptureToGraph_ptsz, kPerThread,
         (CUstream stream, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges, size_t n,
          CUstreamCaptureMode mode),
         (stream, graph, from, edges, n, mode))
#define TS_END(symbol, family)                                                  \
  extern "C" CUresult hook_##symbol(CUstream stream, CUgraph* graph) noexcept { \
    const CUresult result = real().symbol(stream, graph);                       \
    if (live()) track::capture_ended({stream, Flavour::family}, result);        \
    return result;                                                              \
  }
TS_END(cuStreamEndCapture, kLegacy)
TS_END(cuStreamEndCapture_ptsz, kPerThread)

extern "C" CUresult hook_cuGraphExecDestroy(CUgraphExec graph) noexcept {
  forget_timing(graph);
  return real().cuGraphExecDestroy(graph);
}
extern "C" CUresult hook_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* node,
                                           CUgraphExecUpdateResult* info) noexcept {
  forget_timing(exec);
  return real().cuGraphExecUpdate(exec, graph, node, info);
}
extern "C" CUresult hook_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                              CUgraphExecUpdateResultInfo* info) noexcept {
  forget_timing(exec);
  return real().cuGraphExecUpdate_v2(exec, graph, info);
}
