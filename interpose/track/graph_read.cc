#include "interpose/track/graph_read.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "interpose/gate/graph_class.h"
#include "interpose/state/kernels.h"
#include "interpose/track/parameter_count.h"

namespace tessera::track {
namespace {

using driver_api::real;
using enum GraphObstacle;

// Sizes of a kernel's parameters, asked once per kernel in a reading. False: this driver does not say.
bool parameter_sizes(const CUDA_KERNEL_NODE_PARAMS& params, std::vector<size_t>& sizes) {
  const std::optional<size_t> count = params.kern ? parameter_count(real().cuKernelGetParamCount, params.kern)
                                                  : parameter_count(real().cuFuncGetParamCount, params.func);
  for (size_t i = 0; !count || i < *count; i++) {
    size_t offset = 0, bytes = 0;
    const CUresult result = params.kern ? real().cuKernelGetParamInfo(params.kern, i, &offset, &bytes)
                                        : real().cuFuncGetParamInfo(params.func, i, &offset, &bytes);
    if (result == CUDA_ERROR_INVALID_VALUE && !count) return true;  // behind the last one
    if (result != CUDA_SUCCESS) return false;
    sizes.push_back(bytes);
  }
  return true;
}

// {BUFFER_POINTER, p, BUFFER_SIZE, &n, END} in either order.
bool parse_extra(void* const* extra, const void** buffer, size_t* bytes) {
  constexpr int kMostWords = 8;
  for (int i = 0; i < kMostWords && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *bytes = *static_cast<const size_t*>(extra[i + 1]);
    else
      return false;
  }
  return *buffer && *bytes;
}

// Asks the driver about a node of `type` as before it had one call for all.
CUresult older_params(CUgraphNode node, CUgraphNodeType type, CUgraphNodeParams& p) {
  switch (int(type)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      const CUresult result = real().cuGraphKernelNodeGetParams_v2(node, &kernel);
      p.kernel = std::bit_cast<decltype(p.kernel)>(kernel);
      return result;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return real().cuGraphMemcpyNodeGetParams(node, &p.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS m{};
      const CUresult result = real().cuGraphMemsetNodeGetParams(node, &m);
      p.memset = {m.dst, m.pitch, m.value, m.elementSize, m.width, m.height, nullptr};
      return result;
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS host{};
      const CUresult result = real().cuGraphHostNodeGetParams(node, &host);
      p.host.fn = host.fn, p.host.userData = host.userData;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return real().cuGraphEventRecordNodeGetEvent(node, &p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return real().cuGraphEventWaitNodeGetEvent(node, &p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS ops{};
      const CUresult result = real().cuGraphBatchMemOpNodeGetParams(node, &ops);
      p.memOp = std::bit_cast<decltype(p.memOp)>(ops);
      return result;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return real().cuGraphChildGraphNodeGetGraph(node, &p.graph.graph);
    default:  // empty
      return CUDA_SUCCESS;
  }
}

// Type and parameters of a node that a plan can hold. Since CUDA 13.2 the driver also says in which context a copy or a
// fill runs; earlier, none stands there.
GraphObstacle node_params(CUgraphNode node, CUgraphNodeParams& p) {
  if (CUgraphNodeParams all{}; real().cuGraphNodeGetParams(node, &all) == CUDA_SUCCESS) {
    p = all;
    return obstacle_of(p.type);
  }
  CUgraphNodeType type{};
  if (real().cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return kNotRead;
  if (const GraphObstacle bad = obstacle_of(type); bad != kNone) return bad;
  p = {};
  p.type = type;
  return older_params(node, type, p) == CUDA_SUCCESS ? kNone : kNotRead;
}

GraphObstacle take_shape(const CUDA_KERNEL_NODE_PARAMS& p, CUcontext context, KernelStep& step) {
  step.is_library_kernel = p.kern != nullptr;
  step.function = p.kern ? reinterpret_cast<CUfunction>(p.kern) : p.func;
  if (!step.function) return kKernel;
  if (p.ctx && p.ctx != context) return kContext;
  const state::KernelRecord* record = state::find_kernel(step.function);
  if (record && record->loaded.never_hold) return kKernel;
  const uint32_t grid[3] = {p.gridDimX, p.gridDimY, p.gridDimZ};
  const uint32_t block[3] = {p.blockDimX, p.blockDimY, p.blockDimZ};
  std::copy(grid, grid + 3, step.grid);
  std::copy(block, block + 3, step.block);
  step.shared_bytes = p.sharedMemBytes;
  return kNone;
}

GraphObstacle take_arguments(const CUDA_KERNEL_NODE_PARAMS& p, std::span<const size_t> sizes,
                             KernelStep& step) {
  if (sizes.empty() || p.kernelParams) {
    step.arguments = KernelArguments(sizes, p.kernelParams);
    return kNone;
  }
  const void* buffer = nullptr;
  size_t bytes = 0;
  if (!p.extra || !parse_extra(p.extra, &buffer, &bytes)) return kKernel;
  step.arguments = KernelArguments(buffer, bytes);
  return kNone;
}

GraphObstacle read_attributes(CUgraphNode node, bool with_priority, KernelStep& step) {
  for (const CUlaunchAttributeID id : attributes_to_read()) {
    if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY && !with_priority) continue;
    CUlaunchAttribute attribute{};
    attribute.id = id;
    // An attribute that this driver does not know is not set.
    if (real().cuGraphKernelNodeGetAttribute(node, id, &attribute.value) != CUDA_SUCCESS) continue;
    bool pass_on = false;
    if (const GraphObstacle bad = obstacle_of(attribute, &pass_on); bad != kNone) return bad;
    if (pass_on) step.attributes.push_back(attribute);
  }
  return kNone;
}

// Memory that a copy in a stream treats as one in a graph does: pageable memory would be read or written by
// the calling thread, at another time.
bool asynchronous(CUmemorytype type, const void* host, CUdeviceptr device) {
  if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY) return true;
  const CUdeviceptr address = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device;
  unsigned found = 0;
  return real().cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
         (found == CU_MEMORYTYPE_HOST || found == CU_MEMORYTYPE_DEVICE);
}

// The limit for one step or end of a graph. Beyond it branches are many and short.
constexpr size_t kMostDependencies = 64;

class Reader {
 public:
  Reader(CUcontext context, bool node_priorities, GraphPlan& plan)
      : context_(context), node_priorities_(node_priorities), plan_(plan) {}

  GraphObstacle read(CUgraph graph) {
    StepSet all;
    if (const GraphObstacle bad = read(graph, 0, {}, all); bad != kNone) return bad;
    if (!one_lane_) plan_.lanes = lanes_of(dependencies_);
    return kNone;
  }

 private:
  using StepSet = std::vector<uint32_t>;

  // Whatever has nothing before it in this graph is behind `before`; `behind`: what whoever follows it must be behind.
  GraphObstacle read(CUgraph graph, uint32_t depth, const StepSet& before, StepSet& behind) {
    if (depth > kMostGraphDepth) return kLimit;
    std::vector<CUgraphNode> nodes;
    std::vector<GraphEdge> edges;
    if (const GraphObstacle bad = read_nodes(graph, nodes); bad != kNone) return bad;
    if (const GraphObstacle bad = read_edges(graph, nodes, edges); bad != kNone) return bad;
    const std::shared_ptr<const GraphNotes> notes = notes_of(graph);
    const std::vector<uint32_t> order = topological_order(uint32_t(nodes.size()), edges);
    if (order.size() != nodes.size()) return kEdge;
    std::vector<std::vector<uint32_t>> previous(nodes.size());
    std::vector<bool> is_last(nodes.size(), true);
    for (const GraphEdge& e : edges) previous[e.to].push_back(e.from), is_last[e.from] = false;
    std::vector<StepSet> ends(
        nodes.size());  // of each node: its step, or what an empty one or a child stands for
    for (const uint32_t i : order) {
      StepSet needs = previous[i].empty() ? before : StepSet{};
      for (const uint32_t p : previous[i]) unite(needs, ends[p]);
      const GraphObstacle bad = add(nodes[i], notes.get(), depth, std::move(needs), ends[i]);
      if (bad != kNone) return bad;
      if (is_last[i]) unite(behind, ends[i]);
    }
    if (nodes.empty()) behind = before;
    return kNone;
  }

  void unite(StepSet& set, const StepSet& other) {
    if (one_lane_) return;
    set.insert(set.end(), other.begin(), other.end());
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    one_lane_ = set.size() > kMostDependencies;
  }

  void add_step(CUgraphNode node, decltype(GraphStep::work) work, StepSet&& needs, StepSet& ends) {
    if (!one_lane_) ends = {uint32_t(plan_.steps.size())};
    dependencies_.push_back(std::move(needs));
    plan_.steps.push_back({.node = node, .work = std::move(work)});
  }

  GraphObstacle read_nodes(CUgraph graph, std::vector<CUgraphNode>& nodes) {
    size_t n = 0;
    if (real().cuGraphGetNodes(graph, nullptr, &n) != CUDA_SUCCESS) return kNotRead;
    n_nodes_ += n;
    if (n_nodes_ > kMostGraphNodes) return kLimit;
    nodes.resize(n);
    if (n != 0 && real().cuGraphGetNodes(graph, nodes.data(), &n) != CUDA_SUCCESS) return kNotRead;
    return n == nodes.size() ? kNone : kNotRead;
  }

  GraphObstacle read_edges(CUgraph graph, const std::vector<CUgraphNode>& nodes,
                           std::vector<GraphEdge>& edges) {
    size_t n = 0;
    // Drivers before 12.3 have no data of edges.
    const bool has_data = real().cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &n) == CUDA_SUCCESS;
    if (!has_data && real().cuGraphGetEdges(graph, nullptr, nullptr, &n) != CUDA_SUCCESS) return kNotRead;
    if (n == 0) return kNone;
    std::vector<CUgraphNode> from(n), to(n);
    std::vector<CUgraphEdgeData> data(has_data ? n : 0);
    const CUresult result = has_data
                                ? real().cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &n)
                                : real().cuGraphGetEdges(graph, from.data(), to.data(), &n);
    if (result != CUDA_SUCCESS || n != from.size()) return kNotRead;
    for (const CUgraphEdgeData& d : data)
      if (const GraphObstacle bad = obstacle_of(d); bad != kNone) return bad;
    std::unordered_map<CUgraphNode, uint32_t> index;
    for (uint32_t i = 0; i < nodes.size(); i++) index[nodes[i]] = i;
    for (size_t i = 0; i < n; i++) {
      const auto a = index.find(from[i]), b = index.find(to[i]);
      if (a == index.end() || b == index.end()) return kNotRead;
      edges.push_back({a->second, b->second});
    }
    return kNone;
  }

  GraphObstacle add(CUgraphNode node, const GraphNotes* notes, uint32_t depth, StepSet&& needs,
                    StepSet& ends) {
    CUgraphNodeParams p{};
    if (const GraphObstacle bad = node_params(node, p); bad != kNone) return bad;
    switch (int(p.type)) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(node, std::bit_cast<CUDA_KERNEL_NODE_PARAMS>(p.kernel), notes, std::move(needs),
                          ends);
      case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CopyStep step{};
        if (const GraphObstacle bad = take_copy(p.memcpy.copyParams, p.memcpy.copyCtx, context_, step);
            bad != kNone)
          return bad;
        add_step(node, step, std::move(needs), ends);
        return kNone;
      }
      case CU_GRAPH_NODE_TYPE_MEMSET: {
        const auto& m = p.memset;
        FillStep step{};
        if (const GraphObstacle bad =
                take_fill({m.dst, m.pitch, m.value, m.elementSize, m.width, m.height}, m.ctx, context_, step);
            bad != kNone)
          return bad;
        add_step(node, step, std::move(needs), ends);
        return kNone;
      }
      case CU_GRAPH_NODE_TYPE_HOST:
        add_step(node, HostStep{{p.host.fn, p.host.userData}}, std::move(needs), ends);
        return kNone;
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        add_step(node, EventStep{.event = p.eventRecord.event, .waits = false}, std::move(needs), ends);
        return kNone;
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        add_step(node, EventStep{.event = p.eventWait.event, .waits = true}, std::move(needs), ends);
        return kNone;
      case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        MemoryOpsStep step{};
        const auto ops = std::bit_cast<CUDA_BATCH_MEM_OP_NODE_PARAMS>(p.memOp);
        if (const GraphObstacle bad = take_memory_ops(ops, context_, step); bad != kNone) return bad;
        add_step(node, std::move(step), std::move(needs), ends);
        return kNone;
      }
      case CU_GRAPH_NODE_TYPE_GRAPH:
        return add_child(node, p.graph.graph, depth, needs, ends);
      default:  // empty
        ends = std::move(needs);
        return kNone;
    }
  }

  GraphObstacle add_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params, const GraphNotes* notes,
                           StepSet&& needs, StepSet& ends) {
    KernelStep step;
    if (const GraphObstacle bad = take_shape(params, context_, step); bad != kNone) return bad;
    const auto [known, is_new] = sizes_.try_emplace(step.function);
    if (is_new && !parameter_sizes(params, known->second)) return kKernel;
    if (const GraphObstacle bad = take_arguments(params, known->second, step); bad != kNone) return bad;
    if (const GraphObstacle bad = read_attributes(node, node_priorities_, step); bad != kNone) return bad;
    if (notes) step.call = notes->find(node, step.blocks(), step.threads());
    add_step(node, std::move(step), std::move(needs), ends);
    return kNone;
  }

  GraphObstacle add_child(CUgraphNode node, CUgraph child, uint32_t depth, const StepSet& needs,
                          StepSet& ends) {
    if (!child) return kNotRead;
    const uint32_t first = uint32_t(plan_.steps.size());
    if (const GraphObstacle bad = read(child, depth + 1, needs, ends); bad != kNone) return bad;
    plan_.children.push_back({node, first, uint32_t(plan_.steps.size()) - first});
    return kNone;
  }

  CUcontext const context_;
  bool const node_priorities_;
  GraphPlan& plan_;
  size_t n_nodes_ = 0;
  std::vector<StepSet> dependencies_;  // of each step
  bool one_lane_ = false;              // too many of them: the steps go one behind the other
  std::unordered_map<CUfunction, std::vector<size_t>> sizes_;
};

}  // namespace

GraphObstacle read_graph(CUgraph graph, CUcontext context, bool node_priorities, GraphPlan& plan) {
  const GraphObstacle bad = Reader(context, node_priorities, plan).read(graph);
  if (bad == kNone) plan.sum_calls();
  return bad;
}

GraphObstacle take_kernel(const CUDA_KERNEL_NODE_PARAMS& params, CUcontext context, KernelStep& step) {
  std::vector<size_t> sizes;
  const CUfunction before = step.function;
  const uint64_t blocks = step.blocks();
  if (const GraphObstacle bad = take_shape(params, context, step); bad != kNone) return bad;
  if (step.function != before || step.blocks() != blocks) step.call = {};  // of another call, or of none
  if (!parameter_sizes(params, sizes)) return kKernel;
  return take_arguments(params, sizes, step);
}

GraphObstacle take_memory_ops(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, CUcontext context,
                              MemoryOpsStep& step) {
  if (p.ctx && p.ctx != context) return kContext;
  step.ops.assign(p.paramArray, p.paramArray + p.count);
  step.flags = p.flags;
  return obstacle_of(std::span<const CUstreamBatchMemOpParams>(step.ops));
}

GraphObstacle take_copy(const CUDA_MEMCPY3D& p, CUcontext of_copy, CUcontext context, CopyStep& step) {
  if (of_copy && of_copy != context) return kContext;
  if (!asynchronous(p.srcMemoryType, p.srcHost, p.srcDevice) ||
      !asynchronous(p.dstMemoryType, p.dstHost, p.dstDevice))
    return kCopy;
  step.box = p;
  return kNone;
}

GraphObstacle take_fill(const CUDA_MEMSET_NODE_PARAMS& p, CUcontext of_fill, CUcontext context,
                        FillStep& step) {
  if (of_fill && of_fill != context) return kContext;
  step.area = p;
  return kNone;
}

uint32_t class_of_graph(CUgraph graph) {
  constexpr size_t kMostLooked =
      8;  // spread over the graph: making a graph is to cost no more than a tenth more
  size_t n = 0;
  if (real().cuGraphGetNodes(graph, nullptr, &n) != CUDA_SUCCESS || n == 0 || n > kMostGraphNodes) return 0;
  std::vector<CUgraphNode> nodes(n);
  if (real().cuGraphGetNodes(graph, nodes.data(), &n) != CUDA_SUCCESS) return 0;
  uint32_t votes[4] = {};
  for (size_t i = 0; i < n; i += std::max<size_t>(1, n / kMostLooked)) {
    CUDA_KERNEL_NODE_PARAMS p{};  // refused of a node that is no kernel
    if (real().cuGraphKernelNodeGetParams_v2(nodes[i], &p) != CUDA_SUCCESS) continue;
    const state::KernelRecord* kernel =
        state::find_kernel(p.kern ? reinterpret_cast<CUfunction>(p.kern) : p.func);
    if (kernel) votes[kernel->resource_class() & 3u]++;
  }
  return gate::leading_class(votes);
}

}  // namespace tessera::track
