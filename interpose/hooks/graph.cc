// Hooks of captures and of executable graphs: the books of captures (interpose/track), and what was learnt of a
// graph that changes. Slow path; any thread of the program.
#include "interpose/gate/timing.h"
#include "interpose/hooks/hooks.h"
#include "interpose/state/process.h"
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

// The result of the last load of a graph's shape says nothing about the new one.
void forget_timing(CUgraphExec graph) {
  gate::Timing* t = gate::timing_of(gate::timing_key({reinterpret_cast<uint64_t>(graph), 1, 0, 0}));
  if (!t) return;
  t->block_ps.store(0, std::memory_order_relaxed);
  t->samples.store(0, std::memory_order_relaxed);
  t->launches.store(0, std::memory_order_relaxed);
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
