// Hooks of the graphs that executable ones are made from. What is not read yet of a graph is read before it changes, and
// nothing of ours reads it during a call on it (interpose/track/graph_sources.h). Slow path; any thread of the program.
#include "base/errno_guard.h"
#include "interpose/gate/cover.h"
#include "interpose/gate/launch.h"
#include "interpose/hooks/hooks.h"
#include "interpose/memory/memory.h"
#include "interpose/state/process.h"
#include "interpose/track/graph_notes.h"
#include "interpose/track/graphs.h"

namespace {

using namespace tessera;
using driver_api::real;
using state::live;

template <class F>
CUresult looks(F&& call) {
  if (!live()) return call();
  const track::GraphCall in_call;
  return call();
}

// Behind it there is nothing to read, so the call may call back.
template <class F>
CUresult edits(CUgraph graph, F&& call) {
  if (live()) {
    const base::ErrnoGuard keep_errno;
    const gate::DepthGuard depth;
    track::graph_changes(graph);
  }
  return call();
}

// The graph among the parameters of a call. Null: they name a node, whose graph the driver is not asked for.
template <class... Rest>
CUgraph graph_among(CUgraph graph, const Rest&...) {
  return graph;
}
template <class... Rest>
CUgraph graph_among(CUgraphNode*, CUgraph graph, const Rest&...) {
  return graph;
}
template <class... Rest>
CUgraph graph_among(CUgraphNode, const Rest&...) {
  return nullptr;
}

// Bytes of the allocation node that a call adds; 0: it adds none.
template <class... Rest>
size_t node_bytes(const Rest&... rest) {
  size_t bytes = 0;
  const auto look = [&](const auto& parameter) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(parameter)>, CUDA_MEM_ALLOC_NODE_PARAMS*>)
      bytes = parameter ? parameter->bytesize : 0;
  };
  (look(rest), ...);
  return bytes;
}
bool node_fits(size_t bytes) {
  return bytes == 0 || !memory::counting() || memory::graph_may_allocate(bytes);
}

// An event among the parameters of a node.
template <class... Rest>
void leave_events(const Rest&... rest) {
  const auto look = [](const auto& parameter) {
    using Parameter = std::remove_cvref_t<decltype(parameter)>;
    if constexpr (std::is_same_v<Parameter, CUevent>) gate::leave_to_others(parameter);
    if constexpr (std::is_same_v<Parameter, CUgraphNodeParams*>)
      if (parameter && parameter->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        gate::leave_to_others(parameter->eventRecord.event);
  };
  (look(rest), ...);
}

bool makes_inner_graph(const CUgraphNodeParams* params) {
  if (!params) return false;
  return params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL ||
         (params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
          params->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
}

CUgraph copied_child(const CUgraphNodeParams* params) {
  const bool is_copied = params && params->type == CU_GRAPH_NODE_TYPE_GRAPH &&
                         params->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
  return is_copied ? params->graph.graph : nullptr;
}

// Follows a child graph that was copied into a node.
void child_added(CUresult result, CUgraph graph, const CUgraphNode* node, CUgraph child) {
  if (result != CUDA_SUCCESS || !node || !live()) return;
  const base::ErrnoGuard keep_errno;
  const gate::DepthGuard depth;
  const track::GraphCall in_call;
  track::notes_of_child(graph, *node, child);
}

}  // namespace

#define TS_HOOK_graph_edit(symbol, base, since, stream, ret, params, args)       \
  extern "C" ret hook_##symbol params noexcept {                                 \
    if (!node_fits(node_bytes args)) return CUDA_ERROR_OUT_OF_MEMORY;            \
    leave_events args;                                                           \
    return edits(graph_among args, [&]() -> ret { return real().symbol args; }); \
  }
#define TS_HOOK_graph_query(symbol, base, since, stream, ret, params, args) \
  extern "C" ret hook_##symbol params noexcept {                            \
    return looks([&]() -> ret { return real().symbol args; });              \
  }
#include "driver_api/hooks.def"

#define TS_NODE_ADDED(symbol, params_list, args)                                                      \
  extern "C" CUresult hook_##symbol params_list noexcept {                                            \
    if (params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !node_fits(params->alloc.bytesize)) \
      return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
    if (live() && makes_inner_graph(params)) track::inner_graph_named();                              \
    leave_events(params);                                                                             \
    const CUgraph child = copied_child(params);                                                       \
    const CUresult result = edits(graph, [&] { return real().symbol args; });                         \
    if (child) child_added(result, graph, node, child);                                               \
    return result;                                                                                    \
  }
TS_NODE_ADDED(cuGraphAddNode,
              (CUgraphNode * node, CUgraph graph, const CUgraphNode* from, size_t n,
               CUgraphNodeParams* params),
              (node, graph, from, n, params))
TS_NODE_ADDED(cuGraphAddNode_v2,
              (CUgraphNode * node, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges,
               size_t n, CUgraphNodeParams* params),
              (node, graph, from, edges, n, params))
TS_NODE_ADDED(cuGraphAddNode_v3,
              (CUgraphNode * node, CUgraph graph, const CUgraphNode* from, const CUgraphEdgeData* edges,
               size_t n, CUgraphNodeParams* params),
              (node, graph, from, edges, n, params))

extern "C" CUresult hook_cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* from,
                                                  size_t n, CUgraph child) noexcept {
  const CUresult result =
      edits(graph, [&] { return real().cuGraphAddChildGraphNode(node, graph, from, n, child); });
  child_added(result, graph, node, child);
  return result;
}
extern "C" CUresult hook_cuGraphClone(CUgraph* clone, CUgraph graph) noexcept {
  return looks([&] {
    const CUresult result = real().cuGraphClone(clone, graph);
    if (result == CUDA_SUCCESS && live()) {
      const base::ErrnoGuard keep_errno;
      const gate::DepthGuard depth;
      track::notes_cloned(graph, *clone);
    }
    return result;
  });
}

extern "C" CUresult hook_cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) noexcept {
  if (live()) track::inner_graph_named();
  return looks([&] { return real().cuGraphChildGraphNodeGetGraph(node, graph); });
}
extern "C" CUresult hook_cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams* params) noexcept {
  if (live()) track::inner_graph_named();
  return looks([&] { return real().cuGraphNodeGetParams(node, params); });
}

extern "C" CUresult hook_cuGraphDestroyNode(CUgraphNode node) noexcept {
  return edits(nullptr, [&] {
    if (live()) {
      const base::ErrnoGuard keep_errno;
      const track::GraphCall in_call;
      track::notes_end_with(node);
    }
    return real().cuGraphDestroyNode(node);
  });
}
extern "C" CUresult hook_cuGraphDestroy(CUgraph graph) noexcept {
  CUresult result = CUDA_SUCCESS;
  if (live()) {
    const base::ErrnoGuard keep_errno;
    const gate::DepthGuard depth;
    if (!track::graph_ends(graph, &result)) return result;
    track::notes_end_with(graph);
  }
  return real().cuGraphDestroy(graph);  // there is nothing to read any more
}
