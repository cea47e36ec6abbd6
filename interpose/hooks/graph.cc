// Hooks of captures and of executable graphs: the books of captures (interpose/track), and of executable
// graphs: what they are made of. Slow path; any thread of the program.
#include <cstring>

#include "base/errno_guard.h"
#include "interpose/gate/timing.h"
#include "interpose/hooks/hooks.h"
#include "interpose/state/process.h"
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
  track::capture_begins();
  const CUresult result = call();
  track::capture_began(stream, result);
  return result;
}

// What was measured of a graph says nothing about the new one.
void forget_timing(CUgraphExec graph) {
  gate::Timing* t = gate::timing_of(gate::timing_key({reinterpret_cast<uint64_t>(graph), 1, 0, 0}));
  if (!t) return;
  t->block_ps.store(0, std::memory_order_relaxed);
  t->samples.store(0, std::memory_order_relaxed);
  t->launches.store(0, std::memory_order_relaxed);
}

// The driver lets user objects go when the graph's work has ended, as far as it knows of it.
constinit std::atomic<bool> g_user_objects{false};
void wait_for_pieces(CUgraphExec exec) {
  if (!g_user_objects.load(std::memory_order_relaxed)) return;
  const auto graph = track::find_graph(exec);
  if (graph && graph->pieces_in.load(std::memory_order_relaxed))
    (void)real().cuEventSynchronize(graph->ended);
}

// Those of protected programs always go whole.
CUresult made(CUresult result, CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  if (result != CUDA_SUCCESS || !live()) return result;
  const base::ErrnoGuard keep_errno;
  forget_timing(*exec);  // the handle may have been another's
  if (state::g_state.role.load(std::memory_order_relaxed) != state::Role::kProtected)
    track::graph_made(*exec, graph, flags);
  return result;
}

// `follow(graph)` after a call that changed it.
template <class F>
CUresult changed(CUresult result, CUgraphExec exec, F&& follow) {
  if (!live()) return result;
  const base::ErrnoGuard keep_errno;
  forget_timing(exec);
  if (const auto graph = track::find_graph(exec)) {
    std::lock_guard lock(graph->mutex);
    follow(*graph);
  }
  return result;
}

// The same of one node; a call that failed changed nothing.
template <class F>
CUresult node_changed(CUresult result, CUgraphExec exec, F&& follow) {
  return result == CUDA_SUCCESS ? changed(result, exec, follow) : result;
}

// A program may count on its latest update or on none of it.
CUresult updated(CUresult result, CUgraphExec exec, CUgraph graph) {
  return changed(result, exec, [&](track::ExecutableGraph& known) {
    result == CUDA_SUCCESS ? known.exchanged(graph) : known.changed();
  });
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

extern "C" CUresult hook_cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* node, char* log,
                                            size_t bytes) noexcept {
  return made(real().cuGraphInstantiate(exec, graph, node, log, bytes), exec, graph, 0);
}
extern "C" CUresult hook_cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* node, char* log,
                                               size_t bytes) noexcept {
  return made(real().cuGraphInstantiate_v2(exec, graph, node, log, bytes), exec, graph, 0);
}
extern "C" CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                                     unsigned long long flags) noexcept {
  return made(real().cuGraphInstantiateWithFlags(exec, graph, flags), exec, graph, flags);
}
extern "C" CUresult hook_cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) noexcept {
  return made(real().cuGraphInstantiateWithParams(exec, graph, params), exec, graph,
              params ? params->flags : 0);
}
extern "C" CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec* exec, CUgraph graph,
                                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) noexcept {
  return made(real().cuGraphInstantiateWithParams_ptsz(exec, graph, params), exec, graph,
              params ? params->flags : 0);
}
extern "C" CUresult hook_cuGraphExecDestroy(CUgraphExec exec) noexcept {
  forget_timing(exec);
  if (live()) {  // before another graph may have its handle
    const base::ErrnoGuard keep_errno;
    wait_for_pieces(exec);
    track::graph_destroyed(exec);
  }
  return real().cuGraphExecDestroy(exec);
}
extern "C" CUresult hook_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                                 unsigned flags) noexcept {
  g_user_objects.store(true, std::memory_order_relaxed);
  return real().cuGraphRetainUserObject(graph, object, count, flags);
}
extern "C" CUresult hook_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* node,
                                           CUgraphExecUpdateResult* info) noexcept {
  return updated(real().cuGraphExecUpdate(exec, graph, node, info), exec, graph);
}
extern "C" CUresult hook_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                              CUgraphExecUpdateResultInfo* info) noexcept {
  return updated(real().cuGraphExecUpdate_v2(exec, graph, info), exec, graph);
}

extern "C" CUresult hook_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) noexcept {
  return node_changed(real().cuGraphExecKernelNodeSetParams(exec, node, params), exec,
                      [&](track::ExecutableGraph& graph) {
                        CUDA_KERNEL_NODE_PARAMS all{};  // which begins as the older one
                        memcpy(&all, params, sizeof *params);
                        graph.set_kernel(node, all);
                      });
}
extern "C" CUresult hook_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                           const CUDA_KERNEL_NODE_PARAMS* params) noexcept {
  return node_changed(real().cuGraphExecKernelNodeSetParams_v2(exec, node, params), exec,
                      [&](track::ExecutableGraph& graph) { graph.set_kernel(node, *params); });
}
extern "C" CUresult hook_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_MEMCPY3D* params,
                                                        CUcontext context) noexcept {
  return node_changed(real().cuGraphExecMemcpyNodeSetParams(exec, node, params, context), exec,
                      [&](track::ExecutableGraph& graph) { graph.set(node, *params); });
}
extern "C" CUresult hook_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                        const CUDA_MEMSET_NODE_PARAMS* params,
                                                        CUcontext context) noexcept {
  return node_changed(real().cuGraphExecMemsetNodeSetParams(exec, node, params, context), exec,
                      [&](track::ExecutableGraph& graph) { graph.set(node, *params); });
}
extern "C" CUresult hook_cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                      const CUDA_HOST_NODE_PARAMS* params) noexcept {
  return node_changed(real().cuGraphExecHostNodeSetParams(exec, node, params), exec,
                      [&](track::ExecutableGraph& graph) { graph.set(node, *params); });
}
extern "C" CUresult hook_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                            CUgraph child) noexcept {
  return node_changed(real().cuGraphExecChildGraphNodeSetParams(exec, node, child), exec,
                      [](track::ExecutableGraph& graph) { graph.changed(); });
}
extern "C" CUresult hook_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                  CUgraphNodeParams* params) noexcept {
  return node_changed(real().cuGraphExecNodeSetParams(exec, node, params), exec,
                      [&](track::ExecutableGraph& graph) { graph.set(node, *params); });
}
extern "C" CUresult hook_cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node,
                                               unsigned enabled) noexcept {
  return node_changed(real().cuGraphNodeSetEnabled(exec, node, enabled), exec,
                      [&](track::ExecutableGraph& graph) { graph.enable(node, enabled != 0); });
}
