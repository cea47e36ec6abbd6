// Random graphs by seed: what they leave in memory is the same launched bare, whole, in pieces, in runs, and in pieces while the
// daemon comes and goes. Between launches the executable graph gets every state that its source has not. Graphs inside it are
// made by hand, or are launches of other executable graphs, which were captured, with states of their own.
// TESSERA_RANDOM_GRAPHS says how many (tests/attack/graph_states.py raises it), TESSERA_RANDOM_GRAPHS_FROM where they begin: one
// seed alone repeats what it did.
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "interpose/track/graphs.h"
#include "interpose/track/reasons.h"
#include "tests/unit/interpose/mix_kernel.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

namespace abi = ipc::abi;
using driver_api::real;
using test::kMixBlocks;
using test::kMixThreads;
using test::kMixWords;

constexpr uint32_t kBuffers = 4, kBytes = kMixWords * 4;
constexpr uint64_t kEnough = 100;  // graphs; of fewer it may be that none has what is asked of all together

// Those of every graph that PyTorch makes.
constexpr unsigned long long kTorchFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

enum class Mode { kBare, kWhole, kPieces, kRuns, kComesAndGoes };

// One work of a graph: reads a buffer, writes a buffer.
struct Node {
  enum Kind {
    kKernel,
    kBuffered,
    kCopy,
    kFill,
    kHost,
    kMemoryOps,
    kRecord,
    kWait,
    kEmpty,
    kChild,
    kKinds
  } kind;
  uint32_t out, in, value;
  std::vector<uint32_t> deps;
  std::vector<Node> inner;  // of a child graph
  CUgraphNode handle = nullptr;
  bool captured = false;  // the child is a launch of an executable graph
};

// Nodes that share a buffer which one of them writes are ordered, so that any order of the rest gives one result.
bool conflict(const Node& a, const Node& b) {
  const auto touches_nothing = [](const Node& n) {
    return n.kind == Node::kEmpty || n.kind == Node::kRecord || n.kind == Node::kWait;
  };
  if (touches_nothing(a) || touches_nothing(b)) return false;
  if (a.kind == Node::kChild || b.kind == Node::kChild) return true;
  return a.out == b.out || a.out == b.in || a.in == b.out;
}

// By the driver.
bool may_be_disabled(const Node& node) {
  return node.kind == Node::kKernel || node.kind == Node::kBuffered || node.kind == Node::kCopy ||
         node.kind == Node::kFill;
}

class RandomGraph : public test::Soft {
 public:
  void SetUp() override {
    Soft::SetUp();
    ASSERT_EQ(hook_cuModuleLoadData(&module_, test::kMixPtx), CUDA_SUCCESS);
    mix_ = function_of(module_, "mix");
    for (CUstream& s : streams_) ASSERT_EQ(hook_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (CUevent* e : {&events_[0], &events_[1], &node_events_[0], &node_events_[1]})
      ASSERT_EQ(real().cuEventCreate(e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    for (uint32_t i = 0; i + 1 < kBuffers; i++) buffers_[i] = zeros(kMixWords);
    void* pinned = nullptr;
    ASSERT_EQ(real().cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
    ASSERT_EQ(real().cuMemHostGetDevicePointer_v2(&buffers_[kBuffers - 1], pinned, 0), CUDA_SUCCESS);
    pinned_ = static_cast<uint32_t*>(pinned);
  }

  void all_modes(uint64_t n_by_default);

  // ---- making ----
  std::vector<Node> random_nodes(uint32_t n, bool children, bool only_kernels = false) {
    std::vector<Node> nodes;
    for (uint32_t i = 0; i < n; i++) {
      Node node{};
      do node.kind = Node::Kind(random_() % Node::kKinds);
      while (node.kind == Node::kChild && !children);
      if (only_kernels) node.kind = Node::kKernel;
      node.out = random_() % kBuffers, node.in = random_() % kBuffers, node.value = random_() % 1000;
      if (node.kind == Node::kHost) node.out = node.in = kBuffers - 1;
      if (node.kind == Node::kChild) {
        node.inner = random_nodes(1 + random_() % 4, false);
        node.captured = random_() % 2 != 0;
      }
      for (uint32_t before = 0; before < i; before++)
        if (conflict(nodes[before], node) || random_() % 8 == 0) node.deps.push_back(before);
      nodes.push_back(std::move(node));
    }
    return nodes;
  }
  CUDA_KERNEL_NODE_PARAMS kernel_params(const Node& node) {
    arguments_ = {buffers_[node.out], buffers_[node.in], node.value};
    pointers_[0] = &arguments_.out, pointers_[1] = &arguments_.in, pointers_[2] = &arguments_.salt;
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = mix_;
    p.gridDimX = kMixBlocks, p.gridDimY = p.gridDimZ = 1;
    p.blockDimX = kMixThreads, p.blockDimY = p.blockDimZ = 1;
    if (node.kind == Node::kBuffered)
      p.extra = extra_;
    else
      p.kernelParams = pointers_;
    return p;
  }
  // Within one buffer the two ends are apart.
  CUDA_MEMCPY3D copy_params(const Node& node) const {
    CUDA_MEMCPY3D p{};
    p.srcMemoryType = node.value % 2 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED;
    p.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    p.srcDevice = buffers_[node.in] + (node.in == node.out ? kBytes / 2 : 64),
    p.dstDevice = buffers_[node.out];
    p.WidthInBytes = 256, p.Height = node.value % 3 == 0 ? 1 : 4, p.Depth = 1;
    p.dstXInBytes = 32;
    p.srcPitch = p.dstPitch = 512;
    return p;
  }
  CUDA_MEMSET_NODE_PARAMS fill_params(const Node& node) const {
    const unsigned element = 1u << node.value % 3;
    const bool rows = node.out % 2 != 0;
    return {buffers_[node.out] + 128, 512, node.value * 37, element, 256 / element, rows ? 3u : 1u};
  }
  // Parameters of a host node on the page-locked buffer.
  CUDA_HOST_NODE_PARAMS host_params(const Node& node) const {
    constexpr auto step = [](void* word) {
      auto& w = *static_cast<uint32_t*>(word);
      w = 5 * w + 3;
    };
    return {step, pinned_ + node.value};
  }
  // Three words, of which a barrier stands between two.
  CUDA_BATCH_MEM_OP_NODE_PARAMS memory_ops_params(const Node& node) {
    const CUdeviceptr at = buffers_[node.out] + 64 + node.value % 64 * 8;
    for (CUstreamBatchMemOpParams& op : ops_) op = {};
    ops_[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops_[0].writeValue.address = at, ops_[0].writeValue.value = node.value + 7;
    ops_[1].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
    ops_[1].memoryBarrier.flags = CU_STREAM_MEMORY_BARRIER_TYPE_GPU;
    ops_[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops_[2].writeValue.address = at + 8, ops_[2].writeValue.value64 = uint64_t(node.value) << 33 | node.value;
    return {context, 3, ops_, 0};
  }
  void add(CUgraph graph, std::vector<Node>& nodes) {
    for (Node& node : nodes) {
      std::vector<CUgraphNode> deps;
      for (uint32_t d : node.deps) deps.push_back(nodes[d].handle);
      ASSERT_EQ(add_one(graph, node, deps), CUDA_SUCCESS);
    }
  }
  CUresult add_one(CUgraph graph, Node& node, const std::vector<CUgraphNode>& deps) {
    const size_t n = deps.size();
    switch (node.kind) {
      case Node::kKernel:
      case Node::kBuffered: {
        const auto p = kernel_params(node);
        return hook_cuGraphAddKernelNode_v2(&node.handle, graph, deps.data(), n, &p);
      }
      case Node::kCopy: {
        const auto p = copy_params(node);
        return hook_cuGraphAddMemcpyNode(&node.handle, graph, deps.data(), n, &p, context);
      }
      case Node::kFill: {
        const auto p = fill_params(node);
        return hook_cuGraphAddMemsetNode(&node.handle, graph, deps.data(), n, &p, context);
      }
      case Node::kHost: {
        const auto p = host_params(node);
        return hook_cuGraphAddHostNode(&node.handle, graph, deps.data(), n, &p);
      }
      case Node::kMemoryOps: {
        const auto p = memory_ops_params(node);
        return hook_cuGraphAddBatchMemOpNode(&node.handle, graph, deps.data(), n, &p);
      }
      case Node::kRecord:
        return hook_cuGraphAddEventRecordNode(&node.handle, graph, deps.data(), n,
                                              node_events_[node.value % 2]);
      case Node::kWait:
        return hook_cuGraphAddEventWaitNode(&node.handle, graph, deps.data(), n,
                                            node_events_[node.value % 2]);
      case Node::kChild: {
        const CUgraph child = child_of(node);
        const CUresult result = hook_cuGraphAddChildGraphNode(&node.handle, graph, deps.data(), n, child);
        EXPECT_EQ(hook_cuGraphDestroy(child), CUDA_SUCCESS);
        return result;
      }
      default:
        return hook_cuGraphAddEmptyNode(&node.handle, graph, deps.data(), n);
    }
  }
  CUgraph child_of(Node& node) {
    CUgraph child = nullptr;
    EXPECT_EQ(real().cuGraphCreate(&child, 0), CUDA_SUCCESS);
    add(child, node.inner);
    return node.captured ? captured(child, node.inner) : child;
  }
  // The graph that a launch becomes in a capture. Its executable graph is made from `graph`, which ends.
  CUgraph captured(CUgraph graph, std::vector<Node>& nodes) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph,
                                               states_captured_ && random_() % 4 == 0 ? kTorchFlags : 0),
              CUDA_SUCCESS);
    if (states_captured_) give_state(exec, graph, nodes);
    EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
    CUgraph made = nullptr;
    EXPECT_EQ(hook_cuStreamBeginCapture_v2(streams_[0], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphLaunch(exec, streams_[0]), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuStreamEndCapture(streams_[0], &made), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    return made;
  }
  void give_state(CUgraphExec exec, CUgraph graph, std::vector<Node>& nodes) {
    bool toggled = false;
    for (uint64_t n = random_() % 4; n > 0; n--) change(exec, graph, nodes, toggled);
    for (const Node& node : nodes)
      if (may_be_disabled(node) && random_() % 3 == 0) {
        EXPECT_EQ(hook_cuGraphNodeSetEnabled(exec, node.handle, 0), CUDA_SUCCESS);
      }
  }
  void set_priorities(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      CUlaunchAttributeValue value{};
      value.priority = -int(random_() % 3);
      if (node.kind != Node::kKernel && node.kind != Node::kBuffered) continue;
      EXPECT_EQ(hook_cuGraphKernelNodeSetAttribute(node.handle, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value),
                CUDA_SUCCESS);
    }
  }
  // The same kind of work, captured from two streams that fork and join; one after the other where it matters.
  CUgraph capture() {
    CUgraph graph = nullptr;
    EXPECT_EQ(hook_cuStreamBeginCapture_v2(streams_[0], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (uint32_t round = 1 + random_() % 3; round > 0; round--) {
      order(streams_[0], streams_[1], events_[0]);
      for (uint32_t side = 0; side < 2; side++)  // each side has two buffers of its own
        for (uint32_t i = 1 + random_() % 3; i > 0; i--) {
          const Node node{Node::kKernel,
                          side * 2 + uint32_t(random_() % 2),
                          side * 2 + uint32_t(random_() % 2),
                          uint32_t(random_() % 1000),
                          {},
                          {}};
          EXPECT_EQ(launch_mix(node, streams_[side]), CUDA_SUCCESS);
        }
      order(streams_[1], streams_[0], events_[1]);
    }
    EXPECT_EQ(hook_cuStreamEndCapture(streams_[0], &graph), CUDA_SUCCESS);
    return graph;
  }

  // ---- doing ----
  CUresult launch_mix(const Node& node, CUstream stream) {
    const auto p = kernel_params(node);
    return hook_cuLaunchKernel(mix_, p.gridDimX, 1, 1, p.blockDimX, 1, 1, 0, stream, p.kernelParams, p.extra);
  }
  static void order(CUstream first, CUstream then, CUevent event) {
    EXPECT_EQ(hook_cuEventRecord(event, first), CUDA_SUCCESS);
    EXPECT_EQ(real().cuStreamWaitEvent(then, event, 0), CUDA_SUCCESS);
  }
  // One change that makes no new conflict: values, not buffers.
  void change(CUgraphExec exec, CUgraph graph, std::vector<Node>& nodes, bool& toggled) {
    change(exec, graph, nodes[random_() % nodes.size()], toggled);
  }
  void change(CUgraphExec exec, CUgraph graph, Node& node, bool& toggled) {
    const uint32_t how = random_() % 6;
    if (node.kind == Node::kEmpty) return;
    if (how == 5) {
      EXPECT_EQ(real().cuGraphUpload(exec, streams_[1]), CUDA_SUCCESS);
      return;
    }
    if (node.kind == Node::kChild) {
      if (inner_named_ && random_() % 3 != 0) return change_inside(exec, graph, node, toggled);
      return exchange_child(exec, node);
    }
    if (how == 0) {
      if (!may_be_disabled(node)) return;
      toggled = true;
      EXPECT_EQ(hook_cuGraphNodeSetEnabled(exec, node.handle, random_() % 2), CUDA_SUCCESS);
      return;
    }
    const bool by_source = how == 1 && (!toggled || random_() % 4 == 0);  // then it is whole
    new_value(node);
    CUgraphExecUpdateResultInfo info;
    const bool in_source = how == 4 || by_source;  // the fourth is seen by the next update only
    EXPECT_EQ(in_source ? set_in_source(node) : set_in(exec, node), CUDA_SUCCESS);
    if (by_source) {
      EXPECT_EQ(hook_cuGraphExecUpdate_v2(exec, graph, &info), CUDA_SUCCESS);
    }
  }
  void new_value(Node& node) {
    node.value = random_() % 500 * 6 + node.value % 6;  // of a copy and a fill the kind stays
  }
  void exchange_child(CUgraphExec exec, const Node& node) {
    Node other = node;
    for (Node& inner : other.inner) new_value(inner);
    const CUgraph child = child_of(other);
    EXPECT_EQ(hook_cuGraphExecChildGraphNodeSetParams(exec, node.handle, child), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphDestroy(child), CUDA_SUCCESS);
  }
  // By the names that nodes of the source's child have.
  void change_inside(CUgraphExec exec, CUgraph graph, Node& child, bool& toggled) {
    std::vector<CUgraphNode> handles = {child.handle};
    for (uint32_t depth = child.captured ? 2 : 1; depth > 0; depth--) {
      CUgraph inner = nullptr;
      size_t n = 0;
      EXPECT_EQ(hook_cuGraphChildGraphNodeGetGraph(handles[0], &inner), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuGraphGetNodes(inner, nullptr, &n), CUDA_SUCCESS);
      handles.resize(n);
      EXPECT_EQ(hook_cuGraphGetNodes(inner, handles.data(), &n), CUDA_SUCCESS);
    }
    ASSERT_EQ(handles.size(), child.inner.size());
    const size_t i = random_() % handles.size();
    child.inner[i].handle = handles[i];
    change(exec, graph, child.inner[i], toggled);
  }
  CUresult set_in_source(const Node& node) {
    const auto k = kernel_params(node);
    const auto f = fill_params(node);
    const auto c = copy_params(node);
    const auto h = host_params(node);
    const auto m = memory_ops_params(node);
    const CUevent event = node_events_[node.value % 2];
    return node.kind == Node::kCopy        ? hook_cuGraphMemcpyNodeSetParams(node.handle, &c)
           : node.kind == Node::kFill      ? hook_cuGraphMemsetNodeSetParams(node.handle, &f)
           : node.kind == Node::kHost      ? hook_cuGraphHostNodeSetParams(node.handle, &h)
           : node.kind == Node::kMemoryOps ? hook_cuGraphBatchMemOpNodeSetParams(node.handle, &m)
           : node.kind == Node::kRecord    ? hook_cuGraphEventRecordNodeSetEvent(node.handle, event)
           : node.kind == Node::kWait      ? hook_cuGraphEventWaitNodeSetEvent(node.handle, event)
                                           : hook_cuGraphKernelNodeSetParams_v2(node.handle, &k);
  }
  // By the call for every kind of node; of some a call of its own is not made.
  CUresult set_in_generic(CUgraphExec exec, const Node& node) {
    CUgraphNodeParams p{};
    const auto k = kernel_params(node);
    const auto f = fill_params(node);
    const auto h = host_params(node);
    const auto m = memory_ops_params(node);
    switch (node.kind) {
      case Node::kCopy:
        p.type = CU_GRAPH_NODE_TYPE_MEMCPY;
        p.memcpy.copyCtx = context, p.memcpy.copyParams = copy_params(node);
        break;
      case Node::kFill:
        p.type = CU_GRAPH_NODE_TYPE_MEMSET;
        p.memset = {f.dst, f.pitch, f.value, f.elementSize, f.width, f.height, context};
        break;
      case Node::kHost:
        p.type = CU_GRAPH_NODE_TYPE_HOST;
        p.host.fn = h.fn, p.host.userData = h.userData;
        break;
      case Node::kMemoryOps:
        p.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
        p.memOp = {m.ctx, m.count, m.paramArray, m.flags};
        break;
      case Node::kRecord:
        p.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
        p.eventRecord.event = node_events_[node.value % 2];
        break;
      case Node::kWait:
        p.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
        p.eventWait.event = node_events_[node.value % 2];
        break;
      default:
        p.type = CU_GRAPH_NODE_TYPE_KERNEL;
        static_assert(sizeof k == sizeof p.kernel);
        memcpy(&p.kernel, &k, sizeof k);
    }
    return hook_cuGraphExecNodeSetParams(exec, node.handle, &p);
  }
  CUresult set_in(CUgraphExec exec, const Node& node) {
    if (random_() % 3 == 0) return set_in_generic(exec, node);
    const auto k = kernel_params(node);
    const auto f = fill_params(node);
    const auto c = copy_params(node);
    const auto h = host_params(node);
    const auto m = memory_ops_params(node);
    const CUevent event = node_events_[node.value % 2];
    switch (node.kind) {
      case Node::kCopy:
        return hook_cuGraphExecMemcpyNodeSetParams(exec, node.handle, &c, context);
      case Node::kFill:
        return hook_cuGraphExecMemsetNodeSetParams(exec, node.handle, &f, context);
      case Node::kHost:
        return hook_cuGraphExecHostNodeSetParams(exec, node.handle, &h);
      case Node::kMemoryOps:
        return hook_cuGraphExecBatchMemOpNodeSetParams(exec, node.handle, &m);
      case Node::kRecord:
        return hook_cuGraphExecEventRecordNodeSetEvent(exec, node.handle, event);
      case Node::kWait:
        return hook_cuGraphExecEventWaitNodeSetEvent(exec, node.handle, event);
      default:
        return hook_cuGraphExecKernelNodeSetParams_v2(exec, node.handle, &k);
    }
  }
  void attach_as(Mode mode) {
    attach(mode == Mode::kBare ? state::Role::kForward : state::Role::kBestEffort);
    if (mode == Mode::kWhole)
      lease(abi::kLeaseGranted, 50'000'000, 0);
    else if (mode == Mode::kRuns)
      lease(abi::kLeaseGranted, 500'000'000,
            6 * std::max<uint64_t>(1'000, measured_ns(mix_, kMixBlocks, kMixThreads)));
    else
      cutting();
  }
  void run_launches(CUgraphExec exec, CUgraph graph, std::vector<Node>& nodes, bool often) {
    bool toggled = false;
    CUstream last = streams_[0];
    for (uint32_t i = 0, n = often ? 16 : 2 + random_() % 4; i < n; i++) {
      const CUstream stream = streams_[random_() % 2];
      const uint32_t act = random_() % (often ? 20 : 4);
      if (act == 0 && !nodes.empty()) {
        EXPECT_EQ(hook_cuStreamSynchronize(last), CUDA_SUCCESS);
        change(exec, graph, nodes, toggled);
      } else if (act == 1) {
        EXPECT_EQ(launch_mix({Node::kKernel, 0, 1, i, {}, {}}, last), CUDA_SUCCESS);
        if (stream != last) order(last, stream, events_[0]);
      }
      EXPECT_EQ(hook_cuGraphLaunch(exec, stream), CUDA_SUCCESS);
      const auto known = track::find_graph(exec);
      if (known && known->obstacle == track::GraphObstacle::kNone)
        pieces_ += known->last.how == track::GraphLaunched::How::kPieces, launches_++,
            runs_ += known->runs.all().size();
      last = stream;
    }
  }

  // Everything that seed `seed` does, from fresh memory: what is in the buffers then.
  std::vector<uint32_t> run(uint64_t seed, Mode mode) {
    random_.seed(seed);
    for (uint32_t i = 0; i < kBuffers; i++)
      EXPECT_EQ(real().cuMemsetD32_v2(buffers_[i], i + 1, kMixWords), CUDA_SUCCESS);
    EXPECT_EQ(real().cuCtxSynchronize(), CUDA_SUCCESS);  // the streams do not wait for the default one
    attach_as(mode);
    CUgraph graph = nullptr;
    std::vector<Node> nodes;
    const bool many_kernels = random_() % 8 == 0;
    if (!many_kernels && random_() % 4 == 0) {
      graph = capture();
    } else {
      EXPECT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
      nodes = many_kernels ? random_nodes(12 + random_() % 12, false, true)
                           : random_nodes(2 + random_() % 10, true);
      add(graph, nodes);
      if (random_() % 4 == 0) set_priorities(nodes);
      if (states_captured_ && random_() % 4 == 0) {
        graph = captured(graph, nodes);
        nodes.clear();  // they can no longer be named
      }
    }
    if (random_() % 8 == 0) {
      CUgraph clone = nullptr;
      EXPECT_EQ(hook_cuGraphClone(&clone, graph), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
      graph = clone;
      nodes.clear();
    }
    CUgraphExec exec = nullptr;
    EXPECT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph, random_() % 2 ? kTorchFlags : 0), CUDA_SUCCESS);
    EXPECT_TRUE(track::find_graph(exec) || inner_named_) << "seed " << seed;  // else nothing is read yet
    if (random_() % 4 == 0) {  // as PyTorch does; its nodes can no longer be named
      EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
      graph = nullptr;
      nodes.clear();
    }
    std::atomic<bool> stop{false};
    std::thread daemon;
    if (mode == Mode::kComesAndGoes) daemon = std::thread([&] { come_and_go(seed, stop); });
    run_launches(exec, graph, nodes, many_kernels);
    if (random_() % 2) {  // with its work pending
      EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
      exec = nullptr;
    }
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    stop = true;
    if (daemon.joinable()) daemon.join();
    if (exec) {
      EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    }
    if (graph) {
      EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
    }
    std::vector<uint32_t> all(kBuffers * kMixWords);
    for (uint32_t i = 0; i < kBuffers; i++)
      EXPECT_EQ(real().cuMemcpy(reinterpret_cast<CUdeviceptr>(&all[i * kMixWords]), buffers_[i], kBytes),
                CUDA_SUCCESS);
    return all;
  }
  // The daemon's side: the lease is taken back and given again, and the daemon dies, at any moment of a launch.
  void come_and_go(uint64_t seed, const std::atomic<bool>& stop) {
    std::mt19937_64 random(seed);
    while (!stop) {
      switch (random() % 4) {
        case 0:
          lease(abi::kLeaseHold, 50'000'000, 1'000, 1, 20);
          break;
        case 1:
          lease(abi::kLeaseFree);
          break;
        case 2:
          lose_daemon();
          std::this_thread::yield();
          state::set_link(link);
          break;
        default:
          cutting();
      }
      std::this_thread::yield();
    }
    state::set_link(link);
    cutting();
  }

  CUmodule module_ = nullptr;
  CUfunction mix_ = nullptr;
  CUstream streams_[2] = {};
  CUevent events_[2] = {}, node_events_[2] = {};  // captured events are not for nodes
  CUdeviceptr buffers_[kBuffers] = {};
  uint32_t* pinned_ = nullptr;  // the last of them
  struct Arguments {
    CUdeviceptr out, in;
    uint32_t salt;
  } arguments_{};
  void* pointers_[3] = {};
  size_t argument_bytes_ = 20;
  void* extra_[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments_, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &argument_bytes_, CU_LAUNCH_PARAM_END};
  CUstreamBatchMemOpParams ops_[3] = {};
  std::mt19937_64 random_;
  bool states_captured_ = false;  // executable graphs are changed before a launch of them is captured
  bool inner_named_ = false;      // nodes inside child graphs are changed, too
  uint64_t pieces_ = 0, launches_ = 0, runs_ = 0;
  struct {
    uint64_t graphs, pieces, launches, slices, runs, whole_by_state;
  } of_all_{};
};

uint64_t number_of(const char* variable, uint64_t otherwise) {
  const char* value = getenv(variable);
  return value ? strtoull(value, nullptr, 10) : otherwise;
}

void RandomGraph::all_modes(uint64_t n_by_default) {
  const uint64_t from = number_of("TESSERA_RANDOM_GRAPHS_FROM", 1),
                 n = number_of("TESSERA_RANDOM_GRAPHS", n_by_default),
                 whole_before = track::refusals(track::GraphObstacle::kState);
  auto& params_of_node = driver_api::mutable_real_for_tests().cuGraphNodeGetParams;
  const auto newer = params_of_node;
  constexpr auto older = [](CUgraphNode, CUgraphNodeParams*) { return CUDA_ERROR_NOT_SUPPORTED; };
  for (uint64_t seed = from; seed < from + n; seed++) {
    params_of_node = seed % 2 ? older : newer;  // before CUDA 13.2
    const std::vector<uint32_t> bare = run(seed, Mode::kBare);
    const std::vector<uint32_t> whole = run(seed, Mode::kWhole);
    ASSERT_EQ(slices(), 0u) << "seed " << seed << " whole";
    ASSERT_TRUE(whole == bare) << "seed " << seed << " whole";
    pieces_ = launches_ = 0;
    ASSERT_TRUE(run(seed, Mode::kPieces) == bare) << "seed " << seed << " in pieces";
    of_all_.pieces += pieces_, of_all_.launches += launches_, of_all_.slices += slices();
    runs_ = 0;
    ASSERT_TRUE(run(seed, Mode::kRuns) == bare) << "seed " << seed << " in runs";
    of_all_.runs += runs_;
    ASSERT_TRUE(run(seed, Mode::kComesAndGoes) == bare) << "seed " << seed << " with a daemon that dies";
  }
  params_of_node = newer;
  of_all_.graphs = n;
  of_all_.whole_by_state = track::refusals(track::GraphObstacle::kState) - whole_before;
}

TEST_F(RandomGraph, LeavesWhatItLeavesBare) {
  all_modes(300);
  EXPECT_EQ(of_all_.whole_by_state, 0u);
  RecordProperty("pieces", int(of_all_.pieces));
  if (of_all_.graphs < kEnough) return;
  EXPECT_GT(of_all_.slices, 8 * of_all_.graphs);
  EXPECT_GT(of_all_.pieces * 2, of_all_.launches);  // most are worth it; some have nothing but fills
  EXPECT_GT(of_all_.runs, 0u);
}

// From here on graphs with others inside go whole.
TEST_F(RandomGraph, LeavesItWhenChangedOnesWereCaptured) {
  states_captured_ = true;
  all_modes(kEnough);
  if (of_all_.graphs < kEnough) return;
  EXPECT_GT(of_all_.pieces, 0u);
  EXPECT_GT(of_all_.whole_by_state, 0u);
}

// By itself (a CTest of its own) in pieces; behind the one before, whole.
TEST_F(RandomGraph, LeavesItWhenNodesInsideAreNamed) {
  inner_named_ = true;
  all_modes(kEnough);
  if (of_all_.graphs < kEnough) return;
  EXPECT_GT(of_all_.pieces + of_all_.whole_by_state, 0u);
}

}  // namespace
}  // namespace tessera
