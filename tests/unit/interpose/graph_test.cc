// Executable graphs against the software GPU: launched in pieces they leave what the driver leaves.
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "interpose/track/graphs.h"
#include "interpose/track/reasons.h"
#include "tests/unit/interpose/mix_kernel.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

using driver_api::real;
namespace abi = ipc::abi;
using track::GraphLaunched;
using track::GraphObstacle;

constexpr uint32_t kBlocks = test::kMixBlocks, kThreads = test::kMixThreads, kWords = test::kMixWords;

// Whether a thread of this process waits for something (proc(5), the state behind the name in parentheses).
bool sleeps(pid_t thread_id) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread_id) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.find(") S ") != std::string::npos;
}

class Graphs : public test::Soft {
 public:
  void SetUp() override {
    Soft::SetUp();
    ASSERT_EQ(hook_cuModuleLoadData(&module, test::kMixPtx), CUDA_SUCCESS);
    mix = function_of(module, "mix");
    for (CUstream& s : streams) ASSERT_EQ(hook_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    a = zeros(kWords), b = zeros(kWords);
  }
  void TearDown() override {
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    real().cuMemFree_v2(a), real().cuMemFree_v2(b);
    for (CUstream s : streams) EXPECT_EQ(hook_cuStreamDestroy_v2(s), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
    Soft::TearDown();
  }
  CUDA_KERNEL_NODE_PARAMS mix_params(CUdeviceptr& out, CUdeviceptr& in, uint32_t& salt) {
    arguments = {&out, &in, &salt};
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = mix;
    p.gridDimX = kBlocks, p.gridDimY = p.gridDimZ = 1;
    p.blockDimX = kThreads, p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = arguments.data();
    return p;
  }
  CUgraphNode add_mix(CUgraph graph, std::vector<CUgraphNode> deps, CUdeviceptr out, CUdeviceptr in,
                      uint32_t salt) {
    const auto p = mix_params(out, in, salt);
    CUgraphNode node = nullptr;
    EXPECT_EQ(real().cuGraphAddKernelNode_v2(&node, graph, deps.data(), deps.size(), &p), CUDA_SUCCESS);
    return node;
  }
  // Of two kernels one behind the other, which do not commute.
  CUgraphExec pair(std::array<CUgraphNode, 2>* nodes = nullptr) {
    EXPECT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
    const CUgraphNode first = add_mix(source, {}, a, b, 1), second = add_mix(source, {first}, b, a, 2);
    if (nodes) *nodes = {first, second};
    return instantiate(source);
  }
  CUgraphExec instantiate(CUgraph graph, unsigned long long flags = 0) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph, flags), CUDA_SUCCESS);
    return exec;
  }
  // A graph of one node that goes whole for this reason, which is counted.
  void expect_whole(CUgraph graph, GraphObstacle reason, unsigned long long flags = 0) {
    const uint64_t before = track::refusals(reason);
    const CUgraphExec exec = instantiate(graph, flags);
    EXPECT_EQ(track::refusals(reason), before + 1) << track::name_of(reason);
    EXPECT_EQ(track::find_graph(exec), nullptr);
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  }
  uint64_t slices_of(CUgraphExec exec, CUstream stream = nullptr) {
    return cut_of([&] { EXPECT_EQ(hook_cuGraphLaunch(exec, stream), CUDA_SUCCESS); });
  }
  GraphLaunched::How how(CUgraphExec exec) { return track::find_graph(exec)->last.how; }

  CUmodule module = nullptr;
  CUfunction mix = nullptr;
  CUstream streams[2] = {};
  CUdeviceptr a = 0, b = 0;
  CUgraph source = nullptr;
  std::array<void*, 3> arguments = {};
};

TEST_F(Graphs, ALongOneGoesOutInPiecesThatAreCut) {
  const CUgraphExec exec = pair();
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_EQ(how(exec), GraphLaunched::How::kPieces);
  std::vector<uint32_t> x(kWords), y(kWords);
  ASSERT_EQ(real().cuMemcpyDtoH_v2(x.data(), a, kWords * 4), CUDA_SUCCESS);
  ASSERT_EQ(real().cuMemcpyDtoH_v2(y.data(), b, kWords * 4), CUDA_SUCCESS);
  for (uint32_t i = 0; i < kWords; i++) {
    ASSERT_EQ(x[i], i / kThreads + 1);
    ASSERT_EQ(y[i], 7 * x[i] + i / kThreads + 2);
  }
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(real().cuGraphDestroy(source), CUDA_SUCCESS);
}

TEST_F(Graphs, AloneOrShortItGoesWhole) {
  const CUgraphExec exec = pair();
  lease(abi::kLeaseFree);
  EXPECT_EQ(slices_of(exec), 0u);
  EXPECT_EQ(how(exec), GraphLaunched::How::kWhole);
  lease(abi::kLeaseGranted, 50'000'000, 0);  // nothing is cut: no protected client is there
  EXPECT_EQ(slices_of(exec), 0u);
  EXPECT_EQ(how(exec), GraphLaunched::How::kWhole);
  cutting();
  EXPECT_GT(slices_of(exec), 8u);
  lose_daemon();
  EXPECT_EQ(slices_of(exec), 0u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, OfAProtectedProgramNothingIsLookedAt) {
  const CUgraphExec exec = pair();
  attach(state::Role::kProtected);
  EXPECT_EQ(slices_of(exec), 0u);
  attach(state::Role::kBestEffort);
  cutting();
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, WhatIsNotUnderstoodGoesWholeAndIsCounted) {
  const auto alone = [&](GraphObstacle reason, auto&& add, unsigned long long flags = 0) {
    CUgraph graph = nullptr;
    ASSERT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CUgraphNode node = nullptr;
    EXPECT_EQ(add(graph, &node), CUDA_SUCCESS);
    expect_whole(graph, reason, flags);
    EXPECT_EQ(real().cuGraphDestroy(graph), CUDA_SUCCESS);
  };
  alone(GraphObstacle::kNodeType, [](CUgraph graph, CUgraphNode* node) {
    const CUDA_HOST_NODE_PARAMS host{[](void*) {}, nullptr};
    return real().cuGraphAddHostNode(node, graph, nullptr, 0, &host);
  });
  CUevent event = nullptr;
  ASSERT_EQ(real().cuEventCreate(&event, 0), CUDA_SUCCESS);
  alone(GraphObstacle::kNodeType, [&](CUgraph graph, CUgraphNode* node) {
    return real().cuGraphAddEventRecordNode(node, graph, nullptr, 0, event);
  });
  alone(GraphObstacle::kNodeType, [](CUgraph graph, CUgraphNode* node) {
    CUDA_MEM_ALLOC_NODE_PARAMS p{};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    p.bytesize = 64;
    return real().cuGraphAddMemAllocNode(node, graph, nullptr, 0, &p);
  });
  std::vector<uint32_t> pageable(kWords);
  alone(GraphObstacle::kCopy, [&](CUgraph graph, CUgraphNode* node) {
    CUDA_MEMCPY3D p{};
    p.srcMemoryType = CU_MEMORYTYPE_HOST, p.srcHost = pageable.data();
    p.dstMemoryType = CU_MEMORYTYPE_DEVICE, p.dstDevice = a;
    p.WidthInBytes = 64, p.Height = p.Depth = 1;
    return real().cuGraphAddMemcpyNode(node, graph, nullptr, 0, &p, context);
  });
  alone(GraphObstacle::kAttribute, [&](CUgraph graph, CUgraphNode* node) {
    *node = add_mix(graph, {}, a, b, 1);
    CUlaunchAttributeValue value{};
    value.cooperative = 1;
    return real().cuGraphKernelNodeSetAttribute(*node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value);
  });
  const auto empty = [](CUgraph graph, CUgraphNode* node) {
    return real().cuGraphAddEmptyNode(node, graph, nullptr, 0);
  };
  alone(GraphObstacle::kFlags, empty, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  EXPECT_EQ(real().cuEventDestroy_v2(event), CUDA_SUCCESS);
}

// D11: whatever happens in the process meanwhile, a launch into a capture is a node, and nothing else is asked.
TEST_F(Graphs, ALaunchIntoACaptureIsANode) {
  const CUgraphExec exec = pair();
  EXPECT_GT(slices_of(exec, streams[0]), 8u);
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(streams[1], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphLaunch(exec, streams[1]), CUDA_SUCCESS);
  CUgraph captured = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(streams[1], &captured), CUDA_SUCCESS);
  size_t n = 0;
  ASSERT_EQ(real().cuGraphGetNodes(captured, nullptr, &n), CUDA_SUCCESS);
  EXPECT_EQ(n, 1u);
  const CUgraphExec outer = instantiate(captured);  // of a child graph
  EXPECT_GT(slices_of(outer), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(outer), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, WhileACaptureIsOpenNothingIsReadOrTakenApart) {
  const CUgraphExec exec = pair();
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(streams[1], CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  expect_whole(source, GraphObstacle::kNotRead);
  EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(how(exec), GraphLaunched::How::kWhole);
  CUgraph captured = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(streams[1], &captured), CUDA_SUCCESS);
  EXPECT_GT(slices_of(exec, streams[0]), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, PiecesFollowAWholeLaunchInItsStreamOnly) {
  const CUgraphExec exec = pair();
  lease(abi::kLeaseFree);
  slices_of(exec, streams[0]);
  cutting();
  EXPECT_EQ(slices_of(exec, streams[1]), 0u);  // only the driver knows what is before it
  EXPECT_GT(slices_of(exec, streams[1]), 8u);
  EXPECT_GT(slices_of(exec, streams[0]), 8u);  // behind an event
  EXPECT_EQ(hook_cuStreamDestroy_v2(streams[0]), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  lease(abi::kLeaseFree);
  slices_of(exec, streams[1]);
  cutting();
  CUstream other = nullptr;
  ASSERT_EQ(hook_cuStreamCreate(&other, 0), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuStreamDestroy_v2(other), CUDA_SUCCESS);
  EXPECT_EQ(slices_of(exec, streams[1]), 0u);  // its stream may be a new one with the same handle
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, ChangesThatAreNotFollowedMakeItWhole) {
  std::array<CUgraphNode, 2> nodes;
  const CUgraphExec exec = pair(&nodes);
  const auto known = track::find_graph(exec);
  uint32_t salt = 3;
  CUDA_KERNEL_NODE_PARAMS wrong = mix_params(a, b, salt);
  wrong.blockDimX = 5000;
  EXPECT_NE(hook_cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &wrong), CUDA_SUCCESS);
  EXPECT_EQ(known->obstacle, GraphObstacle::kUpdate);
  EXPECT_EQ(slices_of(exec), 0u);
  EXPECT_EQ(known->counted_bytes, 0u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(track::find_graph(exec), nullptr);
}

TEST_F(Graphs, AnUpdateAfterADisabledNodeMakesItWhole) {
  std::array<CUgraphNode, 2> nodes;
  const CUgraphExec exec = pair(&nodes);
  EXPECT_EQ(hook_cuGraphNodeSetEnabled(exec, nodes[1], 0), CUDA_SUCCESS);
  const uint64_t one = slices_of(exec);
  EXPECT_GT(one, 4u);
  EXPECT_EQ(hook_cuGraphNodeSetEnabled(exec, nodes[1], 1), CUDA_SUCCESS);
  EXPECT_GT(slices_of(exec), one);
  CUgraphExecUpdateResultInfo info;
  EXPECT_EQ(hook_cuGraphExecUpdate_v2(exec, source, &info), CUDA_SUCCESS);
  EXPECT_EQ(slices_of(exec), 0u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, DestroyedWithPiecesPending) {
  const CUgraphExec exec = pair();
  EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(real().cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), real().cuGraphLaunch(exec, streams[0]));
}

TEST_F(Graphs, AnErrorIsTheDriversAndOfTheSameCall) {
  const CUgraphExec exec = pair();
  const auto gone = reinterpret_cast<CUstream>(uintptr_t{0x5550});
  EXPECT_EQ(hook_cuGraphLaunch(exec, gone), real().cuGraphLaunch(exec, gone));
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(Graphs, MemoryOfPlansIsGivenBack) {
  const CUgraphExec exec = pair();
  const auto known = track::find_graph(exec);
  EXPECT_GT(known->counted_bytes, 2 * sizeof(track::GraphStep));
  EXPECT_EQ(track::g_known_graphs.load(), 1u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(known->counted_bytes, 0u);
  EXPECT_EQ(track::g_known_graphs.load(), 0u);
}

TEST_F(Graphs, AChildThatIsExchangedIsFollowed) {
  CUgraph child = nullptr, other = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&child, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGraphCreate(&other, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  add_mix(child, {add_mix(child, {}, a, b, 1)}, b, a, 2);
  add_mix(other, {add_mix(other, {}, a, b, 30)}, b, a, 40);
  CUgraphNode node = nullptr;
  ASSERT_EQ(real().cuGraphAddChildGraphNode(&node, source, nullptr, 0, child), CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(source);
  ASSERT_EQ(hook_cuGraphExecChildGraphNodeSetParams(exec, node, other), CUDA_SUCCESS);
  EXPECT_GT(slices_of(exec), 8u);
  std::vector<uint32_t> x(kWords), y(kWords);
  ASSERT_EQ(real().cuMemcpyDtoH_v2(x.data(), a, kWords * 4), CUDA_SUCCESS);
  ASSERT_EQ(real().cuMemcpyDtoH_v2(y.data(), b, kWords * 4), CUDA_SUCCESS);
  for (uint32_t i = 0; i < kWords; i++) {
    ASSERT_EQ(x[i], i / kThreads + 30);
    ASSERT_EQ(y[i], 7 * x[i] + i / kThreads + 40);
  }
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// A signal handler that launches while its own thread has the graph: not a deadlock, and whole.
TEST_F(Graphs, WhoseTurnItIsNotGoesWhole) {
  const CUgraphExec exec = pair();
  const auto known = track::find_graph(exec);
  {
    const track::GraphTurn turn(*known);
    ASSERT_TRUE(bool(turn));
    EXPECT_EQ(slices_of(exec), 0u);
  }
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// The graph runs once at a time: who comes while another thread launches it is behind that.
TEST_F(Graphs, ALaunchWaitsForThatOfAnotherThread) {
  const CUgraphExec exec = pair();
  const auto known = track::find_graph(exec);
  std::thread second;
  std::atomic<pid_t> thread_id = 0;
  std::atomic<bool> done = false;
  uint64_t slices = 0;
  {
    const track::GraphTurn turn(*known);
    second = std::thread([&] {
      (void)real().cuCtxSetCurrent(known->context);
      thread_id = gettid();
      slices = slices_of(exec, streams[1]);
      done = true;
    });
    while (!done && !(thread_id != 0 && sleeps(thread_id))) std::this_thread::yield();
  }
  second.join();
  EXPECT_GT(slices, 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// The last one: it holds for the process from then on.
TEST_F(Graphs, ObjectsTiedToGraphsMakeLaterOnesWhole) {
  CUuserObject object = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuUserObjectCreate(
                &object, nullptr, [](void*) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  add_mix(graph, {}, a, b, 1);
  expect_whole(graph, GraphObstacle::kUserObject);
  EXPECT_EQ(real().cuGraphDestroy(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera
