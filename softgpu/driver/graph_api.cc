// Graphs: building, looking, instantiating, launching.
#include <algorithm>
#include <unordered_map>

#include "softgpu/driver/capture.h"
#include "softgpu/driver/code.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/graph_nodes.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/memory.h"
#include "softgpu/driver/state.h"
#include "softgpu/driver/stream.h"

namespace tessera::softgpu::driver {

CUresult add_checked(CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* deps, size_t n,
                     Command command) {
  const std::shared_ptr<Graph> graph = driver().graphs.find(graph_handle);
  if (!out || !graph || (n && !deps)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph->mutex);
  std::vector<Node*> dependencies;
  for (size_t i = 0; i < n; ++i) {
    Node* node = find_node(deps[i]);
    if (!node || node->graph != graph.get()) return CUDA_ERROR_INVALID_VALUE;
    if (std::find(dependencies.begin(), dependencies.end(), node) != dependencies.end())
      return CUDA_ERROR_INVALID_VALUE;
    dependencies.push_back(node);
  }
  *out = handle_of(add_node(*graph, std::move(command), std::move(dependencies)));
  return CUDA_SUCCESS;
}

CUresult pick_context(CUcontext named, std::shared_ptr<Context>* context) {
  if (!named) return current(context);
  *context = driver().contexts.find(named);
  return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

namespace {

// The node of the graph, or of a graph inside it, that was made from `original`.
Node* node_from(const Graph& graph, CUgraphNode original) {
  for (const auto& node : graph.nodes) {
    if (handle_of(node->origin) == original || handle_of(node.get()) == original) return node.get();
    const auto* child = std::get_if<ChildCommand>(&node->command);
    if (Node* inner = child ? node_from(*child->graph, original) : nullptr) return inner;
  }
  return nullptr;
}

}  // namespace

CUgraphNode exec_node(CUgraphExec exec_handle, CUgraphNode original) {
  const std::shared_ptr<GraphExec> exec = driver().graph_execs.find(exec_handle);
  return exec ? handle_of(node_from(*exec->graph, original)) : nullptr;
}

namespace {

constexpr auto add = add_checked;

CUresult add_in(Context& context, CUgraphNode* out, CUgraph graph, const CUgraphNode* deps, size_t n,
                Command command) {
  const CUresult result = add(out, graph, deps, n, std::move(command));
  if (result == CUDA_SUCCESS) find_node(*out)->context = reinterpret_cast<CUcontext>(&context);
  return result;
}
constexpr auto pick = pick_context;

CUresult kernel_command(const CUDA_KERNEL_NODE_PARAMS_v2& p, KernelCommand* command) {
  std::shared_ptr<Context> context;
  if (CUresult bad = pick(p.ctx, &context)) return bad;
  const LaunchShape shape{
      {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes, false};
  const CUfunction function = p.func ? p.func : reinterpret_cast<CUfunction>(p.kern);
  return prepare_launch(context, function, shape, p.kernelParams, p.extra, command);
}

CUDA_KERNEL_NODE_PARAMS_v2 widen(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}

CUresult memset_command(const CUDA_MEMSET_NODE_PARAMS_v1& p, MemsetCommand* command) {
  *command = {p.dst, p.pitch, p.value, p.elementSize, p.width, p.height};
  return check_memset(*command);
}

std::vector<std::shared_ptr<Graph>> inner_graphs(const Command& command);

// True if a conditional node may hold this graph.
bool body_is_valid(const Graph& graph) {
  std::lock_guard lock(graph.mutex);
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    switch (type_of(node->command)) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
      case CU_GRAPH_NODE_TYPE_MEMCPY:
      case CU_GRAPH_NODE_TYPE_MEMSET:
      case CU_GRAPH_NODE_TYPE_EMPTY:
        return true;
      case CU_GRAPH_NODE_TYPE_GRAPH:
      case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
        const auto inner = inner_graphs(node->command);
        return std::all_of(inner.begin(), inner.end(), [](const auto& each) { return body_is_valid(*each); });
      }
      default:
        return false;
    }
  });
}

CUresult instantiate(CUgraphExec* out, CUgraph graph_handle, unsigned long long flags) {
  constexpr unsigned long long kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  const std::shared_ptr<Graph> graph = driver().graphs.find(graph_handle);
  if (!out || !graph || (flags & ~kKnown)) return CUDA_ERROR_INVALID_VALUE;
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (topological_order(*graph).empty() && !graph->nodes.empty()) return CUDA_ERROR_INVALID_VALUE;  // a cycle
  for (const auto& node : graph->nodes)
    for (const auto& inner : inner_graphs(node->command))
      if (std::holds_alternative<ConditionalCommand>(node->command) && !body_is_valid(*inner))
        return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult none = current(&context)) return none;
  auto exec = std::make_shared<GraphExec>();
  exec->graph = clone_graph(*graph);
  driver().graphs.remove(exec->graph.get());  // private: not a CUgraph that anyone may name
  exec->flags = flags;
  exec->context = context.get();
  driver().graph_execs.add(exec);
  *out = reinterpret_cast<CUgraphExec>(exec.get());
  return CUDA_SUCCESS;
}

// Copies up to *count of the list, or only counts when there is no room given.
CUresult list(const std::vector<CUgraphNode>& nodes, CUgraphNode* out, size_t* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  if (out) {
    for (size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i] : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
  return CUDA_SUCCESS;
}

CUresult edges(CUgraph graph_handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
               size_t* count) {
  const std::shared_ptr<Graph> graph = driver().graphs.find(graph_handle);
  if (!graph || !count || (!from != !to)) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph->mutex);
  size_t n = 0;
  for (const auto& node : graph->nodes) {
    for (Node* dep : node->deps) {
      if (from && n < *count) {
        from[n] = handle_of(dep);
        to[n] = handle_of(node.get());
        if (data) data[n] = {};
      }
      ++n;
    }
  }
  *count = from ? std::min(*count, n) : n;
  return CUDA_SUCCESS;
}

CUresult dependencies(CUgraphNode node_handle, CUgraphNode* out, size_t* count) {
  Node* node = find_node(node_handle);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(node->graph->mutex);
  std::vector<CUgraphNode> nodes;
  for (Node* dep : node->deps) nodes.push_back(handle_of(dep));
  return list(nodes, out, count);
}

CUresult dependents(CUgraphNode node_handle, CUgraphNode* out, size_t* count) {
  Node* node = find_node(node_handle);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(node->graph->mutex);
  std::vector<CUgraphNode> nodes;
  for (const auto& other : node->graph->nodes)
    if (std::find(other->deps.begin(), other->deps.end(), node) != other->deps.end())
      nodes.push_back(handle_of(other.get()));
  return list(nodes, out, count);
}

CUresult change_edges(CUgraph graph_handle, const CUgraphNode* from, const CUgraphNode* to, size_t n,
                      bool add_them) {
  const std::shared_ptr<Graph> graph = driver().graphs.find(graph_handle);
  if (!graph || (n && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph->mutex);
  for (size_t i = 0; i < n; ++i) {
    Node *a = find_node(from[i]), *b = find_node(to[i]);
    if (!a || !b || a == b || a->graph != graph.get() || b->graph != graph.get())
      return CUDA_ERROR_INVALID_VALUE;
    const auto at = std::find(b->deps.begin(), b->deps.end(), a);
    if ((at != b->deps.end()) == add_them) return CUDA_ERROR_INVALID_VALUE;
    if (add_them)
      b->deps.push_back(a);
    else
      b->deps.erase(at);
  }
  return CUDA_SUCCESS;
}

CUresult kernel_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* out) {
  KernelCommand* kernel = payload<KernelCommand>(node);
  if (!kernel || !out) return CUDA_ERROR_INVALID_VALUE;
  // The pointers to the arguments lie in the node and stay valid as long as it is not changed.
  kernel->param_pointers.clear();
  for (const exec::Param& param : kernel->function->info->params)
    kernel->param_pointers.push_back(kernel->params.data() + param.offset_bytes);
  *out = {};
  if (kernel->kernel_handle)
    out->kern = kernel->kernel_handle;
  else
    out->func = reinterpret_cast<CUfunction>(kernel->function.get());
  out->gridDimX = kernel->grid[0], out->gridDimY = kernel->grid[1], out->gridDimZ = kernel->grid[2];
  out->blockDimX = kernel->block[0], out->blockDimY = kernel->block[1], out->blockDimZ = kernel->block[2];
  out->sharedMemBytes = kernel->dynamic_shared_bytes;
  out->kernelParams = kernel->param_pointers.data();
  return CUDA_SUCCESS;
}

// May the executable node take these parameters? What hardware drivers allow, as documented.
CUgraphExecUpdateResult updatable(const Command& mine, const Command& theirs) {
  if (const auto* kernel = std::get_if<KernelCommand>(&theirs)) {
    const auto& now = std::get<KernelCommand>(mine);
    if (kernel->function->module->context != now.function->module->context)
      return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    if (kernel->cooperative != now.cooperative) return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
  } else if (const auto* copy = std::get_if<CopyCommand>(&theirs)) {
    const auto& now = std::get<CopyCommand>(mine);
    const bool linear = copy->height == 1 && copy->depth == 1 && now.height == 1 && now.depth == 1;
    const bool same_shape =
        copy->width == now.width && copy->height == now.height && copy->depth == now.depth;
    if (copy->direction != now.direction || (!linear && !same_shape))
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  } else if (const auto* set = std::get_if<MemsetCommand>(&theirs)) {
    const auto& now = std::get<MemsetCommand>(mine);
    if ((set->height > 1) != (now.height > 1)) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  } else if (const auto* alloc = std::get_if<AllocCommand>(&theirs)) {
    // Allocations are fixed when a graph is built.
    if (alloc->address != std::get<AllocCommand>(mine).address)
      return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
  } else if (const auto* free = std::get_if<FreeCommand>(&theirs)) {
    if (free->address != std::get<FreeCommand>(mine).address) return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
  } else if (const auto* conditional = std::get_if<ConditionalCommand>(&theirs)) {
    const auto& now = std::get<ConditionalCommand>(mine);
    if (conditional->condition != now.condition || conditional->type != now.type ||
        conditional->bodies.size() != now.bodies.size())
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  }
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// The graphs inside a node: a child, or the bodies of a conditional one.
std::vector<std::shared_ptr<Graph>> inner_graphs(const Command& command) {
  if (const auto* child = std::get_if<ChildCommand>(&command)) return {child->graph};
  if (const auto* conditional = std::get_if<ConditionalCommand>(&command)) return conditional->bodies;
  return {};
}

// Both have the same shape, and every node may take the other's parameters? The node of `theirs` that is in
// the way and the one it depends on, if not.
CUgraphExecUpdateResult compare(const Graph& mine, const Graph& theirs, CUgraphExecUpdateResultInfo* info) {
  std::lock_guard my_lock(mine.mutex);
  std::lock_guard lock(theirs.mutex);
  if (mine.nodes.size() != theirs.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::unordered_map<const Node*, size_t> index, my_index;
  for (size_t i = 0; i < mine.nodes.size(); ++i)
    index[theirs.nodes[i].get()] = i, my_index[mine.nodes[i].get()] = i;
  for (size_t i = 0; i < mine.nodes.size(); ++i) {
    const Node &now = *mine.nodes[i], &next = *theirs.nodes[i];
    auto refuse = [&](CUgraphExecUpdateResult why) {
      info->errorNode = handle_of(&next);
      return why;
    };
    if (next.command.index() != now.command.index())
      return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    if (next.deps.size() != now.deps.size()) return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    for (size_t d = 0; d < next.deps.size(); ++d) {
      if (index[next.deps[d]] == my_index[now.deps[d]]) continue;
      info->errorFromNode = handle_of(next.deps[d]);
      return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    }
    if (const auto why = updatable(now.command, next.command)) return refuse(why);
    const auto my_inner = inner_graphs(now.command), inner = inner_graphs(next.command);
    for (size_t g = 0; g < inner.size(); ++g)
      if (const auto why = compare(*my_inner[g], *inner[g], info)) return why;
  }
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

void take_parameters(Graph& mine, const Graph& theirs) {
  std::scoped_lock lock(mine.mutex, theirs.mutex);
  for (size_t i = 0; i < theirs.nodes.size(); ++i) {
    Command &now = mine.nodes[i]->command, &next = theirs.nodes[i]->command;
    if (auto* child = std::get_if<ChildCommand>(&now))
      take_parameters(*child->graph, *std::get<ChildCommand>(next).graph);
    else
      now = clone_command(next);
  }
}

}  // namespace

CUgraphExecUpdateResult update(Graph& mine, const Graph& theirs, CUgraphExecUpdateResultInfo* info) {
  const CUgraphExecUpdateResult why = compare(mine, theirs, info);
  if (why == CU_GRAPH_EXEC_UPDATE_SUCCESS) take_parameters(mine, theirs);
  return why;
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  TS_ENTER(cuGraphCreate);
  if (!phGraph || flags) return CUDA_ERROR_INVALID_VALUE;
  *phGraph = handle_of(make_graph());
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  TS_ENTER(cuGraphDestroy);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  destroy_graph(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* phGraphClone, CUgraph originalGraph) {
  TS_ENTER(cuGraphClone);
  const std::shared_ptr<Graph> graph = driver().graphs.find(originalGraph);
  if (!phGraphClone || !graph) return CUDA_ERROR_INVALID_VALUE;
  *phGraphClone = handle_of(clone_graph(*graph));
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* phNode, CUgraphNode hOriginalNode, CUgraph hClonedGraph) {
  TS_ENTER(cuGraphNodeFindInClone);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hClonedGraph);
  if (!phNode || !graph) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& node : graph->nodes)
    if (handle_of(node->origin) == hOriginalNode) return *phNode = handle_of(node.get()), CUDA_SUCCESS;
  return CUDA_ERROR_INVALID_VALUE;
}

// ---- nodes ----

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n) {
  TS_ENTER(cuGraphAddEmptyNode);
  return add(node, graph, deps, n, EmptyCommand{});
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  TS_ENTER(cuGraphAddKernelNode_v2);
  KernelCommand command;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = kernel_command(*params, &command)) return bad;
  return add(node, graph, deps, n, std::move(command));
}
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS_v2 wide = widen(*params);
  return cuGraphAddKernelNode_v2(node, graph, deps, n, &wide);
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                              const CUDA_MEMCPY3D* params, CUcontext ctx) {
  TS_ENTER(cuGraphAddMemcpyNode);
  std::shared_ptr<Context> context;
  CopyCommand command;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = pick(ctx, &context)) return bad;
  if (CUresult bad = box_of(*params, &command)) return bad;
  return add_in(*context, node, graph, deps, n, std::move(command));
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                              const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext ctx) {
  TS_ENTER(cuGraphAddMemsetNode);
  std::shared_ptr<Context> context;
  MemsetCommand command;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = pick(ctx, &context)) return bad;
  if (CUresult bad = memset_command(*params, &command)) return bad;
  return add_in(*context, node, graph, deps, n, command);
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                            const CUDA_HOST_NODE_PARAMS_v1* params) {
  TS_ENTER(cuGraphAddHostNode);
  if (!params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
  HostCommand command;
  command.function = params->fn;
  command.data = params->userData;
  return add(node, graph, deps, n, command);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                                  CUgraph childGraph) {
  TS_ENTER(cuGraphAddChildGraphNode);
  const std::shared_ptr<Graph> child = driver().graphs.find(childGraph);
  if (!child) return CUDA_ERROR_INVALID_VALUE;
  return add(node, graph, deps, n, ChildCommand{clone_graph(*child)});
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                                   CUevent event) {
  TS_ENTER(cuGraphAddEventRecordNode);
  const std::shared_ptr<Event> mine = driver().events.find(event);
  return mine ? add(node, graph, deps, n, EventRecordCommand{mine}) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                                 CUevent event) {
  TS_ENTER(cuGraphAddEventWaitNode);
  const std::shared_ptr<Event> mine = driver().events.find(event);
  return mine ? add(node, graph, deps, n, EventWaitCommand{mine}) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  TS_ENTER(cuGraphAddBatchMemOpNode);
  MemOpCommand command;
  if (!params || params->flags) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = check_mem_ops(params->paramArray, params->count, &command)) return bad;
  return add(node, graph, deps, n, std::move(command));
}
CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                                CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  TS_CONTEXT(cuGraphAddMemAllocNode, context);
  if (!params || !params->bytesize || params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  const CUmemLocation& where = params->poolProps.location;
  if (where.type != CU_MEM_LOCATION_TYPE_DEVICE || !find_device(where.id)) return CUDA_ERROR_INVALID_VALUE;
  if (where.id != context->device) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t address = 0;
  if (CUresult failed =
          Memory::get().allocate(MemoryKind::kDevice, params->bytesize, context.get(), 0, &address))
    return failed;
  Memory::get().annotate(address, nullptr, true);
  for (size_t i = 0; i < params->accessDescCount && params->accessDescs; ++i)
    if (find_device(params->accessDescs[i].location.id))
      Memory::get().set_access(address, params->accessDescs[i].location.id,
                               access_of(params->accessDescs[i].flags));
  params->dptr = address;
  return add(node, graph, deps, n, AllocCommand{address, params->bytesize, graph_memory(address)});
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                               CUdeviceptr dptr) {
  TS_ENTER(cuGraphAddMemFreeNode);
  Allocation found;
  if (!Memory::get().find(dptr, &found) || found.begin != dptr || !found.graph_owned)
    return CUDA_ERROR_INVALID_VALUE;
  FreeCommand command;
  command.address = dptr;
  command.from_graph = true;
  return add(node, graph, deps, n, command);
}

CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, const CUgraphEdgeData*,
                           size_t n, CUgraphNodeParams* p) {
  TS_ENTER(cuGraphAddNode_v2);
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  switch (int(p->type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return cuGraphAddKernelNode_v2(node, graph, deps, n,
                                     reinterpret_cast<const CUDA_KERNEL_NODE_PARAMS_v2*>(&p->kernel));
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(node, graph, deps, n, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v1 set{p->memset.dst,         p->memset.pitch, p->memset.value,
                                           p->memset.elementSize, p->memset.width, p->memset.height};
      return cuGraphAddMemsetNode(node, graph, deps, n, &set, p->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS_v1 host{p->host.fn, p->host.userData};
      return cuGraphAddHostNode(node, graph, deps, n, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphAddChildGraphNode(node, graph, deps, n, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(node, graph, deps, n);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(node, graph, deps, n, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(node, graph, deps, n, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(node, graph, deps, n, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return cuGraphAddMemAllocNode(node, graph, deps, n,
                                    reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(&p->alloc));
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return cuGraphAddBatchMemOpNode(node, graph, deps, n,
                                      reinterpret_cast<const CUDA_BATCH_MEM_OP_NODE_PARAMS*>(&p->memOp));
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return add_conditional(node, graph, deps, n, &p->conditional);
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* deps, size_t n,
                        CUgraphNodeParams* p) {
  return cuGraphAddNode_v2(node, graph, deps, nullptr, n, p);
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
  TS_ENTER(cuGraphDestroyNode);
  Node* node = find_node(hNode);
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  Graph& graph = *node->graph;
  std::lock_guard lock(graph.mutex);
  driver().nodes.remove(node);
  for (const auto& other : graph.nodes) std::erase(other->deps, node);
  std::erase_if(graph.nodes, [&](const auto& each) { return each.get() == node; });
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode hNode, CUgraphNodeType* type) {
  TS_ENTER(cuGraphNodeGetType);
  Node* node = find_node(hNode);
  if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
  *type = type_of(node->command);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  TS_ENTER(cuGraphGetNodes);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph->mutex);
  std::vector<CUgraphNode> all;
  for (const auto& node : graph->nodes) all.push_back(handle_of(node.get()));
  return list(all, nodes, numNodes);
}
CUresult cuGraphGetRootNodes(CUgraph hGraph, CUgraphNode* rootNodes, size_t* numRootNodes) {
  TS_ENTER(cuGraphGetRootNodes);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(graph->mutex);
  std::vector<CUgraphNode> roots;
  for (const auto& node : graph->nodes)
    if (node->deps.empty()) roots.push_back(handle_of(node.get()));
  return list(roots, rootNodes, numRootNodes);
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  TS_ENTER(cuGraphGetEdges);
  return edges(graph, from, to, nullptr, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                            size_t* count) {
  TS_ENTER(cuGraphGetEdges_v2);
  return edges(graph, from, to, data, count);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* out, size_t* count) {
  TS_ENTER(cuGraphNodeGetDependencies);
  return dependencies(node, out, count);
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* data,
                                       size_t* count) {
  TS_ENTER(cuGraphNodeGetDependencies_v2);
  const CUresult got = dependencies(node, out, count);
  if (got == CUDA_SUCCESS && data && out) std::fill_n(data, *count, CUgraphEdgeData{});
  return got;
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* out, size_t* count) {
  TS_ENTER(cuGraphNodeGetDependentNodes);
  return dependents(node, out, count);
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* out, CUgraphEdgeData* data,
                                         size_t* count) {
  TS_ENTER(cuGraphNodeGetDependentNodes_v2);
  const CUresult got = dependents(node, out, count);
  if (got == CUDA_SUCCESS && data && out) std::fill_n(data, *count, CUgraphEdgeData{});
  return got;
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t n) {
  TS_ENTER(cuGraphAddDependencies);
  return change_edges(graph, from, to, n, true);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t n) {
  TS_ENTER(cuGraphAddDependencies_v2);
  return change_edges(graph, from, to, n, true);
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t n) {
  TS_ENTER(cuGraphRemoveDependencies);
  return change_edges(graph, from, to, n, false);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t n) {
  TS_ENTER(cuGraphRemoveDependencies_v2);
  return change_edges(graph, from, to, n, false);
}

// ---- parameters of nodes ----

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  TS_ENTER(cuGraphKernelNodeGetParams_v2);
  return kernel_params(node, params);
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  TS_ENTER(cuGraphKernelNodeGetParams);
  CUDA_KERNEL_NODE_PARAMS_v2 wide;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = kernel_params(node, &wide)) return bad;
  *params = {wide.func,      wide.gridDimX,  wide.gridDimY,       wide.gridDimZ,     wide.blockDimX,
             wide.blockDimY, wide.blockDimZ, wide.sharedMemBytes, wide.kernelParams, nullptr};
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  TS_ENTER(cuGraphKernelNodeSetParams_v2);
  KernelCommand command;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = kernel_command(*params, &command)) return bad;
  // Attributes are not parameters: they stay.
  if (const KernelCommand* now = payload<KernelCommand>(node)) take_attributes(command, *now);
  return replace(node, std::move(command));
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_KERNEL_NODE_PARAMS_v2 wide = widen(*params);
  return cuGraphKernelNodeSetParams_v2(node, &wide);
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v1* params) {
  TS_ENTER(cuGraphMemsetNodeGetParams);
  const MemsetCommand* set = payload<MemsetCommand>(node);
  if (!set || !params) return CUDA_ERROR_INVALID_VALUE;
  *params = {set->dst, set->pitch, set->value, set->element_bytes, set->width, set->height};
  return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS_v1* params) {
  TS_ENTER(cuGraphMemsetNodeSetParams);
  MemsetCommand command;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = memset_command(*params, &command)) return bad;
  return replace(node, command);
}
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS_v1* params) {
  TS_ENTER(cuGraphHostNodeGetParams);
  const HostCommand* host = payload<HostCommand>(node);
  if (!host || !params) return CUDA_ERROR_INVALID_VALUE;
  *params = {host->function, host->data};
  return CUDA_SUCCESS;
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS_v1* params) {
  TS_ENTER(cuGraphHostNodeSetParams);
  if (!params || !params->fn) return CUDA_ERROR_INVALID_VALUE;
  HostCommand command;
  command.function = params->fn;
  command.data = params->userData;
  return replace(node, command);
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
  TS_ENTER(cuGraphMemcpyNodeSetParams);
  CopyCommand command;
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult bad = box_of(*params, &command)) return bad;
  return replace(node, std::move(command));
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  TS_ENTER(cuGraphChildGraphNodeGetGraph);
  const ChildCommand* child = payload<ChildCommand>(node);
  if (!child || !graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = handle_of(child->graph);
  return CUDA_SUCCESS;
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
  TS_ENTER(cuGraphEventRecordNodeGetEvent);
  const EventRecordCommand* mine = payload<EventRecordCommand>(node);
  if (!mine || !event) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(mine->event.get());
  return CUDA_SUCCESS;
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
  TS_ENTER(cuGraphEventWaitNodeGetEvent);
  const EventWaitCommand* mine = payload<EventWaitCommand>(node);
  if (!mine || !event) return CUDA_ERROR_INVALID_VALUE;
  *event = reinterpret_cast<CUevent>(mine->event.get());
  return CUDA_SUCCESS;
}

// ---- executable graphs ----

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long flags) {
  TS_ENTER(cuGraphInstantiateWithFlags);
  return instantiate(phGraphExec, hGraph, flags);
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* errorNode, char* log, size_t n) {
  TS_ENTER(cuGraphInstantiate);
  if (errorNode) *errorNode = nullptr;
  if (log && n) *log = 0;
  return instantiate(exec, graph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* errorNode, char* log,
                               size_t n) {
  return cuGraphInstantiate(exec, graph, errorNode, log, n);
}
TS_PAIR(cuGraphInstantiateWithParams, _ptsz,
        (CUgraphExec * phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS* params),
        (phGraphExec, hGraph, params)) {
  TS_ENTER(cuGraphInstantiateWithParams);
  if (!params) return CUDA_ERROR_INVALID_VALUE;
  params->hErrNode_out = nullptr;
  const CUresult made = instantiate(phGraphExec, hGraph, params->flags);
  params->result_out = made ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return made;
}
CUresult cuGraphExecGetFlags(CUgraphExec hGraphExec, cuuint64_t* flags) {
  TS_ENTER(cuGraphExecGetFlags);
  const std::shared_ptr<GraphExec> exec = driver().graph_execs.find(hGraphExec);
  if (!exec || !flags) return CUDA_ERROR_INVALID_VALUE;
  *flags = exec->flags;
  return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  TS_ENTER(cuGraphExecDestroy);
  const std::shared_ptr<GraphExec> exec = driver().graph_execs.remove(hGraphExec);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  destroy_graph(exec->graph);
  return CUDA_SUCCESS;
}
TS_PAIR(cuGraphLaunch, _ptsz, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream)) {
  TS_CONTEXT(cuGraphLaunch, context);
  const std::shared_ptr<GraphExec> exec = driver().graph_execs.find(hGraphExec);
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  if (CUresult bad = resolve(*context, hStream, null_stream, &stream)) return bad;
  return launch_graph(context, stream, exec);
}
TS_PAIR(cuGraphUpload, _ptsz, (CUgraphExec hGraphExec, CUstream hStream), (hGraphExec, hStream)) {
  TS_CONTEXT(cuGraphUpload, context);
  if (!driver().graph_execs.find(hGraphExec)) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  return resolve(*context, hStream, null_stream, &stream);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo* info) {
  TS_ENTER(cuGraphExecUpdate_v2);
  const std::shared_ptr<GraphExec> exec = driver().graph_execs.find(hGraphExec);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  if (!exec || !graph || !info) return CUDA_ERROR_INVALID_VALUE;
  *info = {};
  info->result = update(*exec->graph, *graph, info);
  return info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
CUresult cuGraphExecUpdate(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode* hErrorNode_out,
                           CUgraphExecUpdateResult* updateResult_out) {
  if (!hErrorNode_out || !updateResult_out) return CUDA_ERROR_INVALID_VALUE;
  CUgraphExecUpdateResultInfo info;
  const CUresult done = cuGraphExecUpdate_v2(hGraphExec, hGraph, &info);
  if (done != CUDA_SUCCESS && done != CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    return done;  // nothing was compared
  *hErrorNode_out = info.errorNode;
  *updateResult_out = info.result;
  return done;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  return cuGraphKernelNodeSetParams_v2(exec_node(exec, node), params);
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return cuGraphKernelNodeSetParams(exec_node(exec, node), params);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                        CUcontext) {
  return cuGraphMemcpyNodeSetParams(exec_node(exec, node), params);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext) {
  return cuGraphMemsetNodeSetParams(exec_node(exec, node), params);
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS_v1* params) {
  return cuGraphHostNodeSetParams(exec_node(exec, node), params);
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode hNode, unsigned int isEnabled) {
  TS_ENTER(cuGraphNodeSetEnabled);
  Node* node = find_node(exec_node(exec, hNode));
  if (!node) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(node->graph->mutex);
  node->enabled = isEnabled != 0;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode hNode, unsigned int* isEnabled) {
  TS_ENTER(cuGraphNodeGetEnabled);
  Node* node = find_node(exec_node(exec, hNode));
  if (!node || !isEnabled) return CUDA_ERROR_INVALID_VALUE;
  *isEnabled = node->enabled;
  return CUDA_SUCCESS;
}
