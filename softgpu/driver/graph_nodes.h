// The common part of the entry points of graphs: finding nodes and exchanging their parameters.
#pragma once

#include "softgpu/driver/graph.h"
#include "softgpu/driver/state.h"

namespace tessera::softgpu::driver {

inline CUgraphNode handle_of(const Node* node) {
  return reinterpret_cast<CUgraphNode>(const_cast<Node*>(node));
}
inline CUgraph handle_of(const std::shared_ptr<Graph>& graph) {
  return reinterpret_cast<CUgraph>(graph.get());
}

// Adds a node after checking graph and dependencies.
CUresult add_checked(CUgraphNode* out, CUgraph graph, const CUgraphNode* deps, size_t n, Command command);
// The node of the executable graph that stands for a node of the graph it was made from, or of a graph inside that; null: none.
CUgraphNode exec_node(CUgraphExec exec, CUgraphNode original);
// `mine` takes the parameters of a graph of the same shape. Nodes stay what they are, and enabled or not. `info` says which node
// is in the way.
CUgraphExecUpdateResult update(Graph& mine, const Graph& theirs, CUgraphExecUpdateResultInfo* info);
// All that cuGraphKernelNodeSetAttribute may have set.
void take_attributes(KernelCommand& to, const KernelCommand& from);
// Context that a node's parameters name, else the calling thread's.
CUresult pick_context(CUcontext named, std::shared_ptr<Context>* context);

template <class C>
C* payload(CUgraphNode node) {
  Node* found = find_node(node);
  return found ? std::get_if<C>(&found->command) : nullptr;
}

// Replaces the parameters of a node; its kind stays.
template <class C>
CUresult replace(CUgraphNode node, C command) {
  C* mine = payload<C>(node);
  if (!mine) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(find_node(node)->graph->mutex);
  *mine = std::move(command);
  return CUDA_SUCCESS;
}

}  // namespace tessera::softgpu::driver
