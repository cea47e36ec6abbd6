// Entry points of graphs beside nodes: user objects, conditions, memory statistics, pictures.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "softgpu/driver/graph_nodes.h"
#include "softgpu/driver/memory.h"

namespace tessera::softgpu::driver {
namespace {

Registry<UserObject>& user_objects() {
  static auto* registry = new Registry<UserObject>;  // never destroyed
  return *registry;
}
const char* name_of(CUgraphNodeType type) {
  static const char* const kNames[] = {"kernel", "memcpy",     "memset",       "host",       "child",
                                       "empty",  "wait event", "event record", "ext signal", "ext wait",
                                       "alloc",  "free",       "mem op",       "conditional"};
  return size_t(type) < std::size(kNames) ? kNames[type] : "?";
}

void draw(FILE* to, const Graph& graph, unsigned* next_cluster) {
  std::lock_guard lock(graph.mutex);
  const unsigned cluster = (*next_cluster)++;
  std::fprintf(to, "subgraph cluster_%u {\n", cluster);
  for (const auto& node : graph.nodes) {
    const auto* kernel = std::get_if<KernelCommand>(&node->command);
    std::fprintf(to, "  \"%p\" [label=\"%s%s%s\"];\n", static_cast<const void*>(node.get()),
                 name_of(type_of(node->command)), kernel ? "\\n" : "",
                 kernel ? kernel->function->info->name.c_str() : "");
    for (const Node* dep : node->deps)
      std::fprintf(to, "  \"%p\" -> \"%p\";\n", static_cast<const void*>(dep),
                   static_cast<const void*>(node.get()));
    if (const auto* child = std::get_if<ChildCommand>(&node->command)) draw(to, *child->graph, next_cluster);
    if (const auto* conditional = std::get_if<ConditionalCommand>(&node->command))
      for (const auto& body : conditional->bodies) draw(to, *body, next_cluster);
  }
  std::fprintf(to, "}\n");
}

}  // namespace

void UserObject::release(int64_t n) {
  if (references.fetch_sub(n, std::memory_order_acq_rel) != n) return;
  const std::shared_ptr<UserObject> self = user_objects().remove(this);
  const bool before = std::exchange(thread().in_callback, true);  // it may not call CUDA
  destroy(pointer);
  thread().in_callback = before;
}

Condition::~Condition() {
  if (!word) return;
  for (size_t i = 0; i < driver().devices.size(); ++i)
    (void)Memory::get().map(int(i)).remove(reinterpret_cast<uint64_t>(word));
  std::free(word);
}

CUresult add_conditional(CUgraphNode* node, CUgraph graph_handle, const CUgraphNode* deps, size_t n,
                         CUDA_CONDITIONAL_NODE_PARAMS* params) {
  const std::shared_ptr<Graph> graph = driver().graphs.find(graph_handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  ConditionalCommand command;
  for (const auto& mine : graph->conditions)
    if (reinterpret_cast<CUgraphConditionalHandle>(mine->word) == params->handle) command.condition = mine;
  const bool size_ok = params->type == CU_GRAPH_COND_TYPE_WHILE ? params->size == 1
                       : params->type == CU_GRAPH_COND_TYPE_IF  ? params->size == 1 || params->size == 2
                                                                : params->size > 0;
  if (!command.condition || unsigned(params->type) > CU_GRAPH_COND_TYPE_SWITCH || !size_ok)
    return CUDA_ERROR_INVALID_VALUE;
  if (params->ctx && params->ctx != reinterpret_cast<CUcontext>(command.condition->context))
    return CUDA_ERROR_INVALID_VALUE;
  command.type = params->type;
  for (unsigned i = 0; i < params->size; ++i) {
    command.bodies.push_back(make_graph());
    command.bodies.back()->conditions = graph->conditions;  // nested nodes may ask the same values
    command.handles.push_back(handle_of(command.bodies.back()));
  }
  if (CUresult bad = add_checked(node, graph_handle, deps, n, std::move(command))) return bad;
  params->phGraph_out = payload<ConditionalCommand>(*node)->handles.data();
  return CUDA_SUCCESS;
}

}  // namespace tessera::softgpu::driver

using namespace tessera::softgpu::driver;  // entry points are global by nature

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  TS_ENTER(cuUserObjectCreate);
  // The flag is required: no synchronisation of the destructor is on offer.
  if (!object_out || !destroy || !initialRefcount || initialRefcount > INT32_MAX ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<UserObject>();
  made->pointer = ptr;
  made->destroy = destroy;
  made->references.store(initialRefcount, std::memory_order_relaxed);
  user_objects().add(made);
  *object_out = reinterpret_cast<CUuserObject>(made.get());
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  TS_ENTER(cuUserObjectRetain);
  const std::shared_ptr<UserObject> mine = user_objects().find(object);
  if (!mine || !count || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  mine->references.fetch_add(count, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  TS_ENTER(cuUserObjectRelease);
  const std::shared_ptr<UserObject> mine = user_objects().find(object);
  if (!mine || !count || int64_t(count) > mine->references.load(std::memory_order_acquire))
    return CUDA_ERROR_INVALID_VALUE;
  mine->release(count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph hGraph, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  TS_ENTER(cuGraphRetainUserObject);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  const std::shared_ptr<UserObject> mine = user_objects().find(object);
  if (!graph || !mine || !count || count > INT32_MAX || flags > CU_GRAPH_USER_OBJECT_MOVE)
    return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) mine->references.fetch_add(count, std::memory_order_relaxed);
  auto hold = std::make_shared<UserHold>();
  hold->object = mine;
  hold->count = count;
  std::lock_guard lock(graph->mutex);
  graph->user_objects.push_back(std::move(hold));
  return CUDA_SUCCESS;
}
CUresult cuGraphReleaseUserObject(CUgraph hGraph, CUuserObject object, unsigned int count) {
  TS_ENTER(cuGraphReleaseUserObject);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  const std::shared_ptr<UserObject> mine = user_objects().find(object);
  if (!graph || !mine || !count) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::shared_ptr<UserHold>> dropped;  // released without the lock
  std::lock_guard lock(graph->mutex);
  unsigned held = 0;
  for (const auto& hold : graph->user_objects) held += hold->object == mine ? hold->count : 0;
  if (held < count) return CUDA_ERROR_INVALID_VALUE;
  std::erase_if(graph->user_objects, [&](const auto& hold) {
    if (hold->object != mine) return false;
    dropped.push_back(hold);
    return true;
  });
  if (held > count) {
    mine->references.fetch_add(held - count, std::memory_order_relaxed);  // what stays gets a hold of its own
    auto rest = std::make_shared<UserHold>();
    rest->object = mine;
    rest->count = held - count;
    graph->user_objects.push_back(std::move(rest));
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out, CUgraph hGraph, CUcontext ctx,
                                        unsigned int defaultLaunchValue, unsigned int flags) {
  TS_ENTER(cuGraphConditionalHandleCreate);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  if (!pHandle_out || !graph || flags > CU_GRAPH_COND_ASSIGN_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Context> context;
  if (CUresult bad = pick_context(ctx, &context)) return bad;
  auto made = std::make_shared<Condition>();
  made->context = context.get();
  made->word = static_cast<uint32_t*>(std::aligned_alloc(64, 64));
  if (!made->word) return CUDA_ERROR_OUT_OF_MEMORY;
  *made->word = defaultLaunchValue;
  made->default_value = defaultLaunchValue;
  made->assign_default = flags & CU_GRAPH_COND_ASSIGN_DEFAULT;
  Memory::get().map(context->device).add(reinterpret_cast<uint64_t>(made->word), 4, true);
  *pHandle_out = reinterpret_cast<CUgraphConditionalHandle>(made->word);
  std::lock_guard lock(graph->mutex);
  graph->conditions.push_back(std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  TS_ENTER(cuDeviceGetGraphMemAttribute);
  if (!find_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!value || unsigned(attr) > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) return CUDA_ERROR_INVALID_VALUE;
  const bool high = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  *static_cast<cuuint64_t*>(value) = Memory::get().used_by_graphs(device, high);
  return CUDA_SUCCESS;
}
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  TS_ENTER(cuDeviceSetGraphMemAttribute);
  if (!find_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const bool high = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  if (!value || !high || *static_cast<const cuuint64_t*>(value)) return CUDA_ERROR_INVALID_VALUE;
  Memory::get().reset_graph_high(device);
  return CUDA_SUCCESS;
}

CUresult cuGraphDebugDotPrint(CUgraph hGraph, const char* path, unsigned int) {
  TS_ENTER(cuGraphDebugDotPrint);
  const std::shared_ptr<Graph> graph = driver().graphs.find(hGraph);
  if (!graph || !path) return CUDA_ERROR_INVALID_VALUE;
  FILE* file = std::fopen(path, "we");
  if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
  unsigned cluster = 0;
  std::fprintf(file, "digraph dot {\n");
  draw(file, *graph, &cluster);
  std::fprintf(file, "}\n");
  return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
