#include "interpose/track/graphs.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

#include "interpose/state/state.h"

namespace tessera::track {
namespace {

using driver_api::real;

constexpr size_t kMostNodes = 1 << 16;
constexpr unsigned kMostDepth = 16;  // of child graphs

// Attributes that make a node another kind of launch. `passed`: a launch may have them, too.
struct NodeAttribute {
  CUlaunchAttributeID id;
  bool passed;
};
constexpr NodeAttribute kAttributes[] = {
    {CU_LAUNCH_ATTRIBUTE_COOPERATIVE, true},
    {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, true},
    {CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, true},
    {CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, false},
    {CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, false},
    {CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, false},
    {CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, false},
};

bool is_default(CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
  if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    return uint64_t(value.clusterDim.x) * value.clusterDim.y * value.clusterDim.z <= 1;
  constexpr CUlaunchAttributeValue kZero{};
  return memcmp(&value, &kZero, sizeof value) == 0;
}

// Adds up what stands in the way while a graph is read; the first reason counts.
class Reader {
 public:
  Reader(std::vector<GraphNode>& nodes, std::unordered_map<CUgraphNode, size_t>& index)
      : nodes_(nodes), index_(index) {}
  bool graph(CUgraph graph, unsigned depth);
  bool kernel(const CUDA_KERNEL_NODE_PARAMS& params, KernelNode& node);
  RunTimeReason obstacle() const { return obstacle_; }

 private:
  bool fail(RunTimeReason reason) {
    obstacle_ = reason;
    return false;
  }
  bool in_order(CUgraph graph, std::vector<CUgraphNode>& handles);
  bool edges(CUgraph graph, std::vector<CUgraphNode>& from, std::vector<CUgraphNode>& to);
  bool node(CUgraphNode handle, unsigned depth);
  bool attributes(CUgraphNode handle, KernelNode& node);
  struct Param {
    size_t offset, bytes;
  };
  struct Params {
    bool known = false;
    std::vector<Param> list;
  };
  const Params& params_of(CUfunction function, bool is_kernel);

  std::vector<GraphNode>& nodes_;
  std::unordered_map<CUgraphNode, size_t>& index_;
  std::unordered_map<CUfunction, Params> params_;
  RunTimeReason obstacle_ = RunTimeReason::kGraphNode;
};

bool Reader::edges(CUgraph graph, std::vector<CUgraphNode>& from, std::vector<CUgraphNode>& to) {
  size_t n = 0;
  if (real().cuGraphGetEdges(graph, nullptr, nullptr, &n) != CUDA_SUCCESS)
    return fail(RunTimeReason::kGraphEdge);
  from.resize(n), to.resize(n);
  if (n == 0) return true;
  std::vector<CUgraphEdgeData> data(n);
  CUresult result = real().cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &n);
  if (result == CUDA_ERROR_NOT_SUPPORTED ||
      result == CUDA_ERROR_NOT_FOUND)  // older drivers have no such edges
    result = real().cuGraphGetEdges(graph, from.data(), to.data(), &n);
  if (result != CUDA_SUCCESS) return fail(RunTimeReason::kGraphEdge);
  for (const CUgraphEdgeData& edge : data)  // programmatic ones let a kernel begin before another ends
    if (edge.from_port || edge.to_port || edge.type) return fail(RunTimeReason::kGraphEdge);
  return true;
}

// Nodes in an order that every edge agrees with; of several, that in which they were made.
bool Reader::in_order(CUgraph graph, std::vector<CUgraphNode>& handles) {
  size_t n = 0;
  if (real().cuGraphGetNodes(graph, nullptr, &n) != CUDA_SUCCESS) return false;
  if (n > kMostNodes) return fail(RunTimeReason::kGraphSize);
  std::vector<CUgraphNode> made(n), from, to;
  if (n != 0 && real().cuGraphGetNodes(graph, made.data(), &n) != CUDA_SUCCESS) return false;
  if (!edges(graph, from, to)) return false;
  std::unordered_map<CUgraphNode, size_t> place;
  for (size_t i = 0; i < n; i++) place[made[i]] = i;
  std::vector<std::vector<size_t>> next(n);
  std::vector<size_t> waits_for(n);
  for (size_t i = 0; i < from.size(); i++) {
    next[place.at(from[i])].push_back(place.at(to[i]));
    waits_for[place.at(to[i])]++;
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < n; i++)
    if (waits_for[i] == 0) ready.push(i);
  for (; !ready.empty();) {
    const size_t at = ready.top();
    ready.pop();
    handles.push_back(made[at]);
    for (const size_t behind : next[at])
      if (--waits_for[behind] == 0) ready.push(behind);
  }
  return handles.size() == n;
}

bool Reader::graph(CUgraph graph, unsigned depth) {
  std::vector<CUgraphNode> handles;
  if (depth > kMostDepth) return fail(RunTimeReason::kGraphSize);
  if (!in_order(graph, handles)) return false;
  for (const CUgraphNode handle : handles) {
    if (!node(handle, depth)) return false;
    if (nodes_.size() > kMostNodes) return fail(RunTimeReason::kGraphSize);
  }
  return true;
}

// A stream's copy from or to memory that is not page-locked keeps the host; a graph's does not.
bool of_host_memory(const CUDA_MEMCPY3D& copy) {
  const auto pageable = [](CUmemorytype type, const void* address) {
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_UNIFIED) return false;
    unsigned memory = 0;
    return real().cuPointerGetAttribute(&memory, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        reinterpret_cast<CUdeviceptr>(address)) != CUDA_SUCCESS;
  };
  const auto place = [](CUmemorytype type, const void* host, CUdeviceptr device) {
    return type == CU_MEMORYTYPE_HOST ? host : reinterpret_cast<const void*>(device);
  };
  return pageable(copy.srcMemoryType, place(copy.srcMemoryType, copy.srcHost, copy.srcDevice)) ||
         pageable(copy.dstMemoryType, place(copy.dstMemoryType, copy.dstHost, copy.dstDevice));
}

bool Reader::node(CUgraphNode handle, unsigned depth) {
  CUgraphNodeType type;
  if (real().cuGraphNodeGetType(handle, &type) != CUDA_SUCCESS) return false;
  GraphNode made;
  switch (int(type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS params{};
      if (real().cuGraphKernelNodeGetParams_v2(handle, &params) != CUDA_SUCCESS)
        return fail(RunTimeReason::kGraphParameters);
      KernelNode kernel_node;
      if (!kernel(params, kernel_node) || !attributes(handle, kernel_node)) return false;
      made.work = std::move(kernel_node);
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      CUDA_MEMCPY3D copy{};
      if (real().cuGraphMemcpyNodeGetParams(handle, &copy) != CUDA_SUCCESS) return false;
      if (of_host_memory(copy)) return fail(RunTimeReason::kGraphHostMemory);
      made.work = copy;
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS fill{};
      if (real().cuGraphMemsetNodeGetParams(handle, &fill) != CUDA_SUCCESS) return false;
      made.work = fill;
      break;
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS host{};
      if (real().cuGraphHostNodeGetParams(handle, &host) != CUDA_SUCCESS) return false;
      made.work = host;
      break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      CUgraph child = nullptr;
      return real().cuGraphChildGraphNodeGetGraph(handle, &child) == CUDA_SUCCESS && graph(child, depth + 1);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return true;
    default:  // events, semaphores, memory of the graph, conditions, and what newer drivers have
      return fail(RunTimeReason::kGraphNode);
  }
  index_[handle] = nodes_.size();
  nodes_.push_back(std::move(made));
  return true;
}

const Reader::Params& Reader::params_of(CUfunction function, bool is_kernel) {
  const auto [it, is_new] = params_.try_emplace(function);
  Params& params = it->second;
  for (Param param; is_new;) {
    const size_t i = params.list.size();
    const CUresult result = is_kernel ? real().cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), i,
                                                                    &param.offset, &param.bytes)
                                      : real().cuFuncGetParamInfo(function, i, &param.offset, &param.bytes);
    params.known = result == CUDA_ERROR_INVALID_VALUE;  // there is no further one
    if (result != CUDA_SUCCESS) break;
    params.list.push_back(param);
  }
  return params;
}

bool Reader::kernel(const CUDA_KERNEL_NODE_PARAMS& p, KernelNode& node) {
  node.function = p.func ? p.func : reinterpret_cast<CUfunction>(p.kern);
  const uint32_t grid[3] = {p.gridDimX, p.gridDimY, p.gridDimZ},
                 block[3] = {p.blockDimX, p.blockDimY, p.blockDimZ};
  memcpy(node.grid, grid, sizeof grid);
  memcpy(node.block, block, sizeof block);
  node.shared_bytes = p.sharedMemBytes;
  node.values.clear(), node.params.clear(), node.buffer_bytes = 0;
  if (!p.kernelParams && p.extra) {
    const void* buffer = nullptr;
    for (void** e = p.extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
      if (e[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = e[1];
      if (e[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) node.buffer_bytes = *static_cast<const size_t*>(e[1]);
    }
    if (!buffer || node.buffer_bytes == 0) return fail(RunTimeReason::kGraphParameters);
    const auto* bytes = static_cast<const unsigned char*>(buffer);
    node.values.assign(bytes, bytes + node.buffer_bytes);
    return true;
  }
  const auto& [known, params] = params_of(node.function, !p.func);
  if (!known || (!params.empty() && !p.kernelParams)) return fail(RunTimeReason::kGraphParameters);
  for (const Param& param : params) node.values.resize(param.offset + param.bytes);
  for (size_t i = 0; i < params.size(); i++) {
    void* value = node.values.data() + params[i].offset;
    memcpy(value, p.kernelParams[i], params[i].bytes);
    node.params.push_back(value);
  }
  return true;
}

bool Reader::attributes(CUgraphNode handle, KernelNode& node) {
  for (const auto& [id, passed] : kAttributes) {
    CUlaunchAttribute attribute{.id = id};
    // A driver that does not know an attribute has no node with it.
    if (real().cuGraphKernelNodeGetAttribute(handle, id, &attribute.value) != CUDA_SUCCESS ||
        is_default(id, attribute.value))
      continue;
    if (!passed) return fail(RunTimeReason::kGraphAttribute);
    node.attributes.push_back(attribute);
  }
  return true;
}

// Executable graphs of this process. A pointer, so that nothing is constructed when the library is loaded.
using Table = std::unordered_map<CUgraphExec, std::shared_ptr<ExecutableGraph>>;
constinit std::mutex g_mutex;
constinit Table* g_table = nullptr;

template <class F>
void each_graph(F&& f) noexcept {
  std::lock_guard lock(g_mutex);
  if (g_table)
    for (auto& [exec, graph] : *g_table) f(*graph);
}

}  // namespace

uint64_t name_of_stream(driver_api::StreamArg stream) {
  const uint64_t key = state::stream_key(stream);
  return key == 2 ? reinterpret_cast<uint64_t>(&state::t_thread) | 1 : key;
}

ExecutableGraph::~ExecutableGraph() {
  if (ended) (void)real().cuEventDestroy_v2(ended);
}

GraphNode* ExecutableGraph::find(CUgraphNode node) {
  const auto it = index_.find(node);
  return it == index_.end() ? nullptr : &nodes[it->second];
}

void ExecutableGraph::whole_because(RunTimeReason reason) {
  nodes.clear();
  index_.clear();
  obstacle = reason;
  count_refusal(reason);
}

void ExecutableGraph::read(CUgraph graph, unsigned long long flags) noexcept {
  try {
    nodes.clear();
    index_.clear();
    obstacle.reset();
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return whole_because(RunTimeReason::kGraphNode);
    if (real().cuCtxGetCurrent(&context) != CUDA_SUCCESS) context = nullptr;
    Reader reader(nodes, index_);
    if (!reader.graph(graph, 0)) whole_because(reader.obstacle());
  } catch (...) {
    whole_because(RunTimeReason::kGraphSize);
  }
}

void ExecutableGraph::set_kernel(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS& params) noexcept {
  if (obstacle) return;
  try {
    GraphNode* node = find(handle);
    KernelNode* kernel = node ? std::get_if<KernelNode>(&node->work) : nullptr;
    if (!kernel) return changed();
    Reader reader(nodes, index_);
    if (!reader.kernel(params, *kernel)) whole_because(reader.obstacle());
  } catch (...) {
    whole_because(RunTimeReason::kGraphSize);
  }
}

template <class Params>
void ExecutableGraph::set(CUgraphNode handle, const Params& params) noexcept {
  if (obstacle) return;
  GraphNode* node = find(handle);
  if (!node || !std::holds_alternative<Params>(node->work)) return changed();
  if constexpr (std::is_same_v<Params, CUDA_MEMCPY3D>)
    if (of_host_memory(params)) return whole_because(RunTimeReason::kGraphHostMemory);
  node->work = params;
}
template void ExecutableGraph::set(CUgraphNode, const CUDA_MEMCPY3D&) noexcept;
template void ExecutableGraph::set(CUgraphNode, const CUDA_MEMSET_NODE_PARAMS&) noexcept;
template void ExecutableGraph::set(CUgraphNode, const CUDA_HOST_NODE_PARAMS&) noexcept;

void ExecutableGraph::set(CUgraphNode handle, const CUgraphNodeParams& params) noexcept {
  switch (int(params.type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == sizeof params.kernel);
      CUDA_KERNEL_NODE_PARAMS same;
      memcpy(&same, &params.kernel, sizeof same);
      return set_kernel(handle, same);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return set(handle, params.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& p = params.memset;
      return set(handle, CUDA_MEMSET_NODE_PARAMS{p.dst, p.pitch, p.value, p.elementSize, p.width, p.height});
    }
    case CU_GRAPH_NODE_TYPE_HOST:
      return set(handle, CUDA_HOST_NODE_PARAMS{params.host.fn, params.host.userData});
    default:
      return changed();
  }
}

// The nodes are known by the new graph's handles from now on; a change by an old one is not followed.
void ExecutableGraph::exchanged(CUgraph graph) noexcept {
  for (const GraphNode& node : nodes)
    if (!node.enabled) return changed();
  if (obstacle != RunTimeReason::kGraphNode) read(graph, 0);
}

void ExecutableGraph::enable(CUgraphNode handle, bool enabled) noexcept {
  if (obstacle) return;
  if (GraphNode* node = find(handle))
    node->enabled = enabled;
  else
    changed();
}

void ExecutableGraph::changed() noexcept {
  if (!obstacle) whole_because(RunTimeReason::kGraphChanged);
}

void graph_made(CUgraphExec exec, CUgraph graph, unsigned long long flags) noexcept {
  try {
    auto made = std::make_shared<ExecutableGraph>();
    made->read(graph, flags);
    std::lock_guard lock(g_mutex);
    if (!g_table) g_table = new Table;
    (*g_table)[exec] = std::move(made);
  } catch (...) {  // without memory it goes whole
  }
}

std::shared_ptr<ExecutableGraph> find_graph(CUgraphExec exec) noexcept {
  std::lock_guard lock(g_mutex);
  if (!g_table) return nullptr;
  const auto it = g_table->find(exec);
  return it == g_table->end() ? nullptr : it->second;
}

void graph_destroyed(CUgraphExec exec) noexcept {
  std::shared_ptr<ExecutableGraph> gone;  // ends outside the lock
  std::lock_guard lock(g_mutex);
  if (!g_table) return;
  const auto it = g_table->find(exec);
  if (it == g_table->end()) return;
  gone = std::move(it->second);
  g_table->erase(it);
}

// Another stream may get its handle; what was launched in it may go on.
void graphs_lose_stream(CUstream stream) noexcept {
  constexpr uint64_t kGone = 2;  // no stream has this name
  const uint64_t name = reinterpret_cast<uint64_t>(stream);
  each_graph([&](ExecutableGraph& graph) {
    if (graph.whole_in == name) graph.whole_in = kGone;
    if (graph.pieces_in == name) graph.pieces_in = kGone;
  });
}

void graphs_lose_context(CUcontext context) noexcept {
  each_graph([&](ExecutableGraph& graph) {
    if (context && graph.context != context) return;
    graph.ended = nullptr;  // went with it
    graph.pieces_in = graph.whole_in = 0;
  });
}

}  // namespace tessera::track
