// Hooks of captures and of executable graphs: the books of captures (interpose/track), and of executable
// graphs: what they are made of. Slow path; any thread of the program.
#include <cstring>

#include "base/errno_guard.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/timing.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/memory.h"
#include "interpose/hooks/units.h"
#include "interpose/memory/memory.h"
#include "interpose/state/process.h"
#include "interpose/track/graph_notes.h"
#include "interpose/track/graphs.h"
#include "interpose/track/track.h"

namespace {

using namespace tessera;
using driver_api::Flavour;
using driver_api::real;
using driver_api::StreamArg;
using state::live;

template <class F>
CUresult capture_opens(StreamArg stream, F&& call) {
  if (!live()) return call();
  const CUcontext context = track::capture_begins(stream);
  const CUresult result = call();
  track::capture_began(stream, result, context);
  return result;
}

template <class F>
CUresult driver_call(F&& call) {
  if (!live()) return call();
  const track::GraphCall in_call;
  return call();
}

template <class F>
CUresult graph_made(CUgraphExec* exec, CUgraph graph, unsigned long long flags, F&& call) {
  const CUresult result = hooks::with_memory([&] { return driver_call(call); });
  if (result == CUDA_SUCCESS && live() && exec) {
    const base::ErrnoGuard keep_errno;
    const gate::DepthGuard depth;
    hooks::forget_timing(*exec);  // the handle may have been another's
    track::graph_made(*exec, graph, flags);
    memory::graph_changed();
  }
  return result;
}

// `note(result)` follows a call that changes the graph.
template <class F, class Note>
CUresult graph_changes(CUgraphExec exec, F&& call, Note&& note) {
  const CUresult result = driver_call(call);
  if (!live()) return result;
  const base::ErrnoGuard keep_errno;
  const gate::DepthGuard depth;
  note(result);
  hooks::forget_timing(exec);
  return result;
}

void capture_closes(StreamArg stream, CUresult result, const CUgraph* graph) {
  const gate::DepthGuard depth;
  track::capture_ended(stream, result, result == CUDA_SUCCESS && graph ? *graph : nullptr);
}

}  // namespace

#define TS_BEGIN(symbol, family, params, args)                                           \
  extern "C" CUresult hook_##symbol params noexcept {                                    \
    return capture_opens({stream, Flavour::family}, [&] { return real().symbol args; }); \
  }
TS_BEGIN(cuStreamBeginCapture, kLegacy, (CUstream stream), (stream))
TS_BEGIN(cuStreamBeginCapture_ptsz, kPerThread, (CUstream stream), (stream))
TS_BEGIN(cuStreamBeginCapture_v2, kLegacy, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
TS_BEGIN(cuStreamBeginCapture_v2_ptsz, kPerThread, (CUstream stream, CUstreamCaptureMode mode),
         (stream, mode))
#define TS_BEGIN_TO_GRAPH(symbol, family)                                                     \
  extern "C" CUresult hook_##symbol(CUstream stream, CUgraph graph, const CUgraphNode* from,  \
                                    const CUgraphEdgeData* edges, size_t n,                   \
                                    CUstreamCaptureMode mode) noexcept {                      \
    if (live()) track::graph_changes(graph);                                                  \
    return capture_opens({stream, Flavour::family},                                           \
                         [&] { return real().symbol(stream, graph, from, edges, n, mode); }); \
  }
TS_BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph, kLegacy)
TS_BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, kPerThread)
#define TS_BEGIN_ANEW(symbol, family)                                                         \
  extern "C" CUresult hook_##symbol(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, \
                                    CUgraphRecaptureCallback callback, void* data) noexcept { \
    if (live()) {                                                                             \
      track::graph_changes(graph);                                                            \
      track::notes_end_with(graph); /* the capture takes new ones */                          \
    }                                                                                         \
    return capture_opens({stream, Flavour::family},                                           \
                         [&] { return real().symbol(stream, mode, graph, callback, data); }); \
  }
TS_BEGIN_ANEW(cuStreamBeginRecaptureToGraph, kLegacy)
TS_BEGIN_ANEW(cuStreamBeginRecaptureToGraph_ptsz, kPerThread)
TS_BEGIN(cuStreamBeginCaptureToCig, kLegacy, (CUstream stream, CUstreamCigCaptureParams* params),
         (stream, params))
TS_BEGIN(cuStreamBeginCaptureToCig_ptsz, kPerThread, (CUstream stream, CUstreamCigCaptureParams* params),
         (stream, params))
#define TS_END_TO_CIG(symbol, family)                                       \
  extern "C" CUresult hook_##symbol(CUstream stream) noexcept {             \
    const CUresult result = real().symbol(stream);                          \
    if (live()) capture_closes({stream, Flavour::family}, result, nullptr); \
    return result;                                                          \
  }
TS_END_TO_CIG(cuStreamEndCaptureToCig, kLegacy)
TS_END_TO_CIG(cuStreamEndCaptureToCig_ptsz, kPerThread)
#define TS_END(symbol, family)                                                  \
  extern "C" CUresult hook_##symbol(CUstream stream, CUgraph* graph) noexcept { \
    const CUresult result = real().symbol(stream, graph);                       \
    if (live()) capture_closes({stream, Flavour::family}, result, graph);       \
    return result;                                                              \
  }
TS_END(cuStreamEndCapture, kLegacy)
TS_END(cuStreamEndCapture_ptsz, kPerThread)

#define TS_MADE(symbol, flags, params, args)                                   \
  extern "C" CUresult hook_##symbol params noexcept {                          \
    return graph_made(exec, graph, flags, [&] { return real().symbol args; }); \
  }
TS_MADE(cuGraphInstantiate, 0,
        (CUgraphExec * exec, CUgraph graph, CUgraphNode* error, char* log, size_t log_bytes),
        (exec, graph, error, log, log_bytes))
TS_MADE(cuGraphInstantiate_v2, 0,
        (CUgraphExec * exec, CUgraph graph, CUgraphNode* error, char* log, size_t log_bytes),
        (exec, graph, error, log, log_bytes))
TS_MADE(cuGraphInstantiateWithFlags, flags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
        (exec, graph, flags))
TS_MADE(cuGraphInstantiateWithParams, params ? params->flags : 0,
        (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params), (exec, graph, params))
TS_MADE(cuGraphInstantiateWithParams_ptsz, params ? params->flags : 0,
        (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params), (exec, graph, params))

extern "C" CUresult hook_cuGraphExecDestroy(CUgraphExec exec) noexcept {
  hooks::forget_timing(exec);
  if (live()) track::graph_destroyed(exec);  // before another graph may have its handle
  const CUresult result = real().cuGraphExecDestroy(exec);
  if (live()) memory::graph_changed();
  return result;
}
extern "C" CUresult hook_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                                 unsigned flags) noexcept {
  if (live()) track::user_object_retained(graph);
  return real().cuGraphRetainUserObject(graph, object, count, flags);
}

#define TS_CHANGED(symbol, note, params, args)                                            \
  extern "C" CUresult hook_##symbol params noexcept {                                     \
    return graph_changes(                                                                 \
        exec, [&] { return real().symbol args; }, [&](CUresult result) { track::note; }); \
  }
TS_CHANGED(cuGraphExecUpdate, graph_updated(exec, graph, result),
           (CUgraphExec exec, CUgraph graph, CUgraphNode* node, CUgraphExecUpdateResult* info),
           (exec, graph, node, info))
TS_CHANGED(cuGraphExecUpdate_v2, graph_updated(exec, graph, result),
           (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info), (exec, graph, info))
TS_CHANGED(cuGraphExecKernelNodeSetParams_v2, graph_kernel_set(exec, node, params, result),
           (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params), (exec, node, params))
TS_CHANGED(cuGraphExecMemcpyNodeSetParams, graph_copy_set(exec, node, params, context, result),
           (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params, CUcontext context),
           (exec, node, params, context))
TS_CHANGED(cuGraphExecMemsetNodeSetParams, graph_fill_set(exec, node, params, context, result),
           (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context),
           (exec, node, params, context))
TS_CHANGED(cuGraphExecHostNodeSetParams, graph_host_set(exec, node, params, result),
           (CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params), (exec, node, params))
TS_CHANGED(cuGraphExecBatchMemOpNodeSetParams, graph_memory_ops_set(exec, node, params, result),
           (CUgraphExec exec, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params),
           (exec, node, params))
TS_CHANGED(cuGraphExecEventRecordNodeSetEvent, graph_event_set(exec, node, event, result),
           (CUgraphExec exec, CUgraphNode node, CUevent event), (exec, node, event))
TS_CHANGED(cuGraphExecEventWaitNodeSetEvent, graph_event_set(exec, node, event, result),
           (CUgraphExec exec, CUgraphNode node, CUevent event), (exec, node, event))
TS_CHANGED(cuGraphExecChildGraphNodeSetParams, graph_child_set(exec, node, child, result),
           (CUgraphExec exec, CUgraphNode node, CUgraph child), (exec, node, child))
TS_CHANGED(cuGraphNodeSetEnabled, graph_node_enabled(exec, node, enabled != 0, result),
           (CUgraphExec exec, CUgraphNode node, unsigned enabled), (exec, node, enabled))

extern "C" CUresult hook_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) noexcept {
  return graph_changes(
      exec, [&] { return real().cuGraphExecKernelNodeSetParams(exec, node, params); },
      [&](CUresult result) {
        CUDA_KERNEL_NODE_PARAMS all{};  // which begins as the older one
        if (params) memcpy(&all, params, sizeof *params);
        track::graph_kernel_set(exec, node, &all, result);
      });
}

static void node_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams& p, CUresult result) {
  switch (int(p.type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == sizeof p.kernel);
      CUDA_KERNEL_NODE_PARAMS same;
      memcpy(&same, &p.kernel, sizeof same);
      return track::graph_kernel_set(exec, node, &same, result);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return track::graph_copy_set(exec, node, &p.memcpy.copyParams, p.memcpy.copyCtx, result);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& m = p.memset;
      const CUDA_MEMSET_NODE_PARAMS fill{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
      return track::graph_fill_set(exec, node, &fill, m.ctx, result);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS call{p.host.fn, p.host.userData};
      return track::graph_host_set(exec, node, &call, result);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS same{p.memOp.ctx, p.memOp.count, p.memOp.paramArray, p.memOp.flags};
      return track::graph_memory_ops_set(exec, node, &same, result);
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return track::graph_event_set(exec, node, p.eventRecord.event, result);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return track::graph_event_set(exec, node, p.eventWait.event, result);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return track::graph_child_set(exec, node, p.graph.graph, result);
    default:
      return track::graph_unknown_change(exec);
  }
}

extern "C" CUresult hook_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                  CUgraphNodeParams* params) noexcept {
  return graph_changes(
      exec, [&] { return real().cuGraphExecNodeSetParams(exec, node, params); },
      [&](CUresult result) { params ? node_set(exec, node, *params, result) : void(); });
}
