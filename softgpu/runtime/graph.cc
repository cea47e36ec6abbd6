// Graphs as a whole: building, cloning, instantiating, updating, walking. Nodes by kind are in
// graph_nodes.cc.

#include "softgpu/runtime/runtime.h"

using namespace tessera::softgpu::runtime;

static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

namespace {
const CUgraphEdgeData* to_driver(const cudaGraphEdgeData* edges) {
  return reinterpret_cast<const CUgraphEdgeData*>(edges);
}
CUgraphEdgeData* to_driver(cudaGraphEdgeData* edges) {
  return reinterpret_cast<CUgraphEdgeData*>(edges);
}
}  // namespace

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return with_driver([&] { return driver().GraphCreate(graph, flags); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return with_driver([&] { return driver().GraphDestroy(graph); });
}
cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return with_driver([&] { return driver().GraphClone(clone, graph); });
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  return with_driver([&] { return driver().GraphDestroyNode(node); });
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path, unsigned flags) {
  return with_driver([&] { return driver().GraphDebugDotPrint(graph, path, flags); });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return with_context([&] { return driver().GraphInstantiateWithFlags(exec, graph, flags); });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return with_driver([&] { return driver().GraphExecDestroy(exec); });
}
cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
  return with_driver([&] { return driver().GraphExecGetFlags(exec, reinterpret_cast<cuuint64_t*>(flags)); });
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  return with_context([&] {
    return driver().GraphExecUpdate(exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info));
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return with_driver([&] { return driver().GraphGetNodes(graph, nodes, count); });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return with_driver([&] { return driver().GraphGetRootNodes(graph, nodes, count); });
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData* edges, size_t* count) {
  return with_driver([&] { return driver().GraphGetEdges(graph, from, to, to_driver(edges), count); });
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                         cudaGraphEdgeData* edges, size_t* count) {
  return with_driver([&] { return driver().GraphNodeGetDependencies(node, nodes, to_driver(edges), count); });
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes,
                                           cudaGraphEdgeData* edges, size_t* count) {
  return with_driver(
      [&] { return driver().GraphNodeGetDependentNodes(node, nodes, to_driver(edges), count); });
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                     size_t count) {
  return with_driver([&] { return driver().GraphAddDependencies(graph, from, to, to_driver(edges), count); });
}
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                        size_t count) {
  return with_driver(
      [&] { return driver().GraphRemoveDependencies(graph, from, to, to_driver(edges), count); });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return with_driver(
      [&] { return driver().GraphNodeGetType(node, reinterpret_cast<CUgraphNodeType*>(type)); });
}
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* node, cudaGraphNode_t original, cudaGraph_t clone) {
  return with_driver([&] { return driver().GraphNodeFindInClone(node, original, clone); });
}
cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled) {
  return with_driver([&] { return driver().GraphNodeSetEnabled(exec, node, enabled); });
}
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled) {
  return with_driver([&] { return driver().GraphNodeGetEnabled(exec, node, enabled); });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count,
                                      unsigned flags) {
  return with_driver([&] { return driver().GraphRetainUserObject(graph, object, count, flags); });
}
cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count) {
  return with_driver([&] { return driver().GraphReleaseUserObject(graph, object, count); });
}

cudaError_t cudaDeviceGraphMemTrim(int device) {
  return with_driver([&] { return driver().DeviceGraphMemTrim(device); });
}
cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void* value) {
  return with_driver([&] {
    return driver().DeviceGetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(attribute), value);
  });
}
cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void* value) {
  return with_driver([&] {
    return driver().DeviceSetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(attribute), value);
  });
}

}  // extern "C"
