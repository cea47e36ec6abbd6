// Executable graphs against the software GPU: launched in pieces they leave what the driver leaves.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "interpose/gate/graph_class.h"
#include "interpose/state/config.h"
#include "interpose/track/graph_streams.h"
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
    EXPECT_EQ(hook_cuGraphAddKernelNode_v2(&node, graph, deps.data(), deps.size(), &p), CUDA_SUCCESS);
    return node;
  }
  // A graph of two kernels one behind the other, which do not commute.
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
  // A graph that goes whole for this reason, which is counted.
  void expect_whole(CUgraph graph, GraphObstacle reason, unsigned long long flags = 0) {
    const uint64_t before = track::refusals(reason);
    const CUgraphExec exec = instantiate(graph, flags);
    if (track::find_graph(exec)) {  // it must be looked at
      EXPECT_EQ(slices_of(exec), 0u);
    }
    EXPECT_EQ(track::refusals(reason), before + 1) << track::name_of(reason);
    const auto known = track::find_graph(exec);
    EXPECT_TRUE(!known || known->obstacle == reason);
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  }
  uint64_t slices_of(CUgraphExec exec, CUstream stream = nullptr) {
    return cut_of([&] { EXPECT_EQ(hook_cuGraphLaunch(exec, stream), CUDA_SUCCESS); });
  }
  static std::vector<uint32_t> words_at(CUdeviceptr p) {
    std::vector<uint32_t> words(kWords);
    EXPECT_EQ(real().cuMemcpyDtoH_v2(words.data(), p, kWords * 4), CUDA_SUCCESS);
    return words;
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
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
}

TEST_F(Graphs, ParametersBehindTheLastAreAskedForOnlyWhereTheDriverDoesNotCount) {
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto info = slots.cuFuncGetParamInfo;
  static uint32_t refused = 0;
  const auto count = slots.cuFuncGetParamCount;
  slots.cuFuncGetParamInfo = [](CUfunction kernel, size_t i, size_t* offset, size_t* bytes) {
    const CUresult result = info(kernel, i, offset, bytes);
    if (result != CUDA_SUCCESS) refused++;
    return result;
  };
  for (const bool counts : {false, true}) {
    slots.cuFuncGetParamCount = nullptr;
    if (counts)
      slots.cuFuncGetParamCount = [](CUfunction, size_t* n) {
        *n = 3;
        return CUDA_SUCCESS;
      };
    refused = 0;
    const CUgraphExec exec = pair();
    EXPECT_GT(slices_of(exec), 8u);  // its arguments were read
    EXPECT_EQ(refused == 0, counts) << refused;
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  }
  slots.cuFuncGetParamInfo = info;
  slots.cuFuncGetParamCount = count;
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

TEST_F(Graphs, AProtectedOneHasTheClassOfItsKernels) {
  const uint32_t of_mix = abi::kResourceMemory;
  state::find_kernel(mix)->learnt_class = of_mix;
  setenv("TESSERA_PRIORITY", "7", 1);
  state::load_config();
  attach(state::Role::kProtected);
  const CUgraphExec exec = pair();
  EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(region->pulse.resource_class, of_mix);
  EXPECT_EQ(hook_cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
  EXPECT_EQ(gate::graph_class(reinterpret_cast<uint64_t>(exec) + 64), uint32_t(abi::kResourceUnknown));
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  setenv("TESSERA_PRIORITY", "0", 1);
  state::load_config();
}

TEST_F(Graphs, WhatIsNotUnderstoodGoesWholeAndIsCounted) {
  const auto alone = [&](GraphObstacle reason, auto&& add, unsigned long long flags = 0) {
    CUgraph graph = nullptr;
    ASSERT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    CUgraphNode node = nullptr;
    EXPECT_EQ(add(graph, &node), CUDA_SUCCESS);
    expect_whole(graph, reason, flags);
    EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  };
  alone(GraphObstacle::kNodeType, [](CUgraph graph, CUgraphNode* node) {
    CUDA_MEM_ALLOC_NODE_PARAMS p{};
    p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    p.bytesize = 64;
    return hook_cuGraphAddMemAllocNode(node, graph, nullptr, 0, &p);
  });
  alone(GraphObstacle::kNodeType, [&](CUgraph graph, CUgraphNode* node) {
    CUstreamBatchMemOpParams op{};
    op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op.waitValue.address = a;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS p{context, 1, &op, 0};
    return hook_cuGraphAddBatchMemOpNode(node, graph, nullptr, 0, &p);
  });
  std::vector<uint32_t> pageable(kWords);
  alone(GraphObstacle::kCopy, [&](CUgraph graph, CUgraphNode* node) {
    CUDA_MEMCPY3D p{};
    p.srcMemoryType = CU_MEMORYTYPE_HOST, p.srcHost = pageable.data();
    p.dstMemoryType = CU_MEMORYTYPE_DEVICE, p.dstDevice = a;
    p.WidthInBytes = 64, p.Height = p.Depth = 1;
    return hook_cuGraphAddMemcpyNode(node, graph, nullptr, 0, &p, context);
  });
}

// Programs of several GPUs have nodes of another context. Older drivers do not name the context of a graph's nodes.
TEST_F(Graphs, CopiesAndFillsOfAnotherContextGoWhole) {
  CUcontext other = nullptr;
  ASSERT_EQ(real().cuCtxCreate_v2(&other, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuCtxSetCurrent(context), CUDA_SUCCESS);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = a, copy.dstDevice = b;
  copy.WidthInBytes = 64, copy.Height = copy.Depth = 1;
  const CUDA_MEMSET_NODE_PARAMS fill{
      .dst = a, .pitch = 0, .value = 1, .elementSize = 4, .width = 8, .height = 1};
  for (const bool copies : {true, false}) {
    const auto make = [&](CUcontext of_node, CUgraphNode* node) {
      CUgraph graph = nullptr;
      EXPECT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
      EXPECT_EQ(copies ? hook_cuGraphAddMemcpyNode(node, graph, nullptr, 0, &copy, of_node)
                       : hook_cuGraphAddMemsetNode(node, graph, nullptr, 0, &fill, of_node),
                CUDA_SUCCESS);
      return graph;
    };
    CUgraphNode node = nullptr;
    const CUgraph foreign = make(other, &node);
    expect_whole(foreign, GraphObstacle::kContext);
    EXPECT_EQ(hook_cuGraphDestroy(foreign), CUDA_SUCCESS);

    const CUgraph own = make(context, &node);
    const CUgraphExec exec = instantiate(own);
    const auto known = track::find_graph(exec);
    slices_of(exec);
    EXPECT_EQ(known->obstacle, GraphObstacle::kNone);
    EXPECT_EQ(copies ? hook_cuGraphExecMemcpyNodeSetParams(exec, node, &copy, other)
                     : hook_cuGraphExecMemsetNodeSetParams(exec, node, &fill, other),
              CUDA_SUCCESS);
    EXPECT_EQ(known->obstacle, GraphObstacle::kContext);
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphDestroy(own), CUDA_SUCCESS);
  }
  EXPECT_EQ(real().cuCtxDestroy_v2(other), CUDA_SUCCESS);
}

TEST_F(Graphs, HostFunctionsAndEventsKeepTheirPlace) {
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  CUevent gate = nullptr, other_gate = nullptr, done = nullptr, other_done = nullptr;
  for (CUevent* e : {&gate, &other_gate, &done, &other_done})
    ASSERT_EQ(real().cuEventCreate(e, 0), CUDA_SUCCESS);
  void* pinned = nullptr;
  ASSERT_EQ(real().cuMemHostAlloc(&pinned, kWords * 4, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  auto* words = static_cast<uint32_t*>(pinned);
  CUdeviceptr mapped = 0;
  ASSERT_EQ(real().cuMemHostGetDevicePointer_v2(&mapped, pinned, 0), CUDA_SUCCESS);
  const auto add = [](void* w) { static_cast<uint32_t*>(w)[0] += 1000; };
  const auto add_more = [](void* w) { static_cast<uint32_t*>(w)[1] += 5000; };
  // wait for `gate`; mapped = mix(a); host; b = mix(mapped); record `done`; a = mix(b)
  CUgraphNode wait = nullptr, host = nullptr, record = nullptr;
  ASSERT_EQ(hook_cuGraphAddEventWaitNode(&wait, source, nullptr, 0, gate), CUDA_SUCCESS);
  const CUgraphNode first = add_mix(source, {wait}, mapped, a, 1);
  CUDA_HOST_NODE_PARAMS call{add, pinned};
  ASSERT_EQ(hook_cuGraphAddHostNode(&host, source, &first, 1, &call), CUDA_SUCCESS);
  const CUgraphNode second = add_mix(source, {host}, b, mapped, 2);
  ASSERT_EQ(hook_cuGraphAddEventRecordNode(&record, source, &second, 1, done), CUDA_SUCCESS);
  add_mix(source, {record}, a, b, 3);
  const CUgraphExec exec = instantiate(source);

  // The same on the CPU, from zero.
  std::vector<uint32_t> in_a(kWords), in_b(kWords), in_mapped(kWords);
  const auto mixed = [](std::vector<uint32_t>& out, const std::vector<uint32_t>& in, uint32_t salt) {
    for (uint32_t i = 0; i < kWords; i++) out[i] = 31 * out[i] + 7 * in[i] + i / kThreads + salt;
  };
  memset(pinned, 0, kWords * 4);
  // streams[1] has what the graph waits for, and waits for the graph.
  const auto expect_one_launch = [&](CUevent before, CUevent behind, uint32_t word, uint32_t more) {
    SCOPED_TRACE(word);
    uint32_t salt = 9;
    void* params[] = {&a, &b, &salt};
    const uint64_t cut = slices();
    EXPECT_EQ(launch3(mix, {kBlocks, 1, 1}, kThreads, params, 0, nullptr, streams[1]), CUDA_SUCCESS);
    std::atomic<bool> open = false;
    constexpr auto until_open = [](void* flag) {
      while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
    };
    EXPECT_EQ(real().cuLaunchHostFunc(streams[1], until_open, &open), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuEventRecord(before, streams[1]), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
    for (int i = 0; i < 1000; i++) {
      EXPECT_EQ(real().cuStreamQuery(streams[0]), CUDA_ERROR_NOT_READY);
      std::this_thread::yield();
    }
    open = true;
    EXPECT_EQ(real().cuStreamWaitEvent(streams[1], behind, 0), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuMemcpyDtoDAsync_v2(mapped, b, kWords * 4, streams[1]), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_GT(slices() - cut, 16u);
    EXPECT_EQ(how(exec), GraphLaunched::How::kPieces);
    mixed(in_a, in_b, 9), mixed(in_mapped, in_a, 1);
    in_mapped[word] += more;
    mixed(in_b, in_mapped, 2), mixed(in_a, in_b, 3);
    in_mapped = in_b;
    EXPECT_EQ(std::vector<uint32_t>(words, words + kWords), in_mapped);
    std::vector<uint32_t> left(kWords);
    EXPECT_EQ(real().cuMemcpyDtoH_v2(left.data(), a, kWords * 4), CUDA_SUCCESS);
    EXPECT_EQ(left, in_a);
  };
  expect_one_launch(gate, done, 0, 1000);
  call = {add_more, pinned};
  EXPECT_EQ(hook_cuGraphExecHostNodeSetParams(exec, host, &call), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecEventWaitNodeSetEvent(exec, wait, other_gate), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecEventRecordNodeSetEvent(exec, record, other_done), CUDA_SUCCESS);
  expect_one_launch(other_gate, other_done, 1, 5000);
  for (CUevent e : {gate, other_gate, done, other_done}) EXPECT_EQ(real().cuEventDestroy_v2(e), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(real().cuMemFreeHost(pinned), CUDA_SUCCESS);
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
  ASSERT_EQ(hook_cuGraphGetNodes(captured, nullptr, &n), CUDA_SUCCESS);
  EXPECT_EQ(n, 1u);
  const CUgraphExec outer = instantiate(captured);  // of a child graph
  EXPECT_GT(slices_of(outer), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(outer), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// Each call that makes an executable graph other than its source, also one that the driver refuses.
TEST_F(Graphs, AChangeGivesItAStateOfItsOwn) {
  std::array<CUgraphNode, 2> nodes;
  uint32_t salt = 3;
  const std::function<void(CUgraphExec)> changes[] = {
      [&](CUgraphExec exec) { EXPECT_EQ(hook_cuGraphNodeSetEnabled(exec, nodes[1], 0), CUDA_SUCCESS); },
      [&](CUgraphExec exec) {
        const auto p = mix_params(a, b, salt);
        EXPECT_EQ(hook_cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &p), CUDA_SUCCESS);
      },
      [&](CUgraphExec exec) {
        auto p = mix_params(a, b, salt);
        p.blockDimX = 5000;
        EXPECT_NE(hook_cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &p), CUDA_SUCCESS);
      },
      [&](CUgraphExec exec) {
        CUgraphExecUpdateResultInfo info;
        EXPECT_EQ(hook_cuGraphExecUpdate_v2(exec, source, &info), CUDA_SUCCESS);
      },
      [&](CUgraphExec exec) {
        EXPECT_NE(hook_cuGraphExecChildGraphNodeSetParams(exec, nodes[0], source), CUDA_SUCCESS);
      },
  };
  for (const auto& change : changes) {
    SCOPED_TRACE(&change - changes);
    const CUgraphExec exec = pair(&nodes);
    EXPECT_FALSE(track::find_graph(exec)->has_own_state);
    change(exec);
    EXPECT_TRUE(track::find_graph(exec)->has_own_state);
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  }
  const CUgraphExec with_priorities = instantiate(source, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  EXPECT_TRUE(track::find_graph(with_priorities)->has_own_state);
  EXPECT_EQ(hook_cuGraphExecDestroy(with_priorities), CUDA_SUCCESS);
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
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
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
  EXPECT_EQ(known->counted_bytes, 0u);
  EXPECT_GT(slices_of(exec), 8u);
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
  ASSERT_EQ(hook_cuGraphAddChildGraphNode(&node, source, nullptr, 0, child), CUDA_SUCCESS);
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

// A driver names attributes that nobody set (softgpu answers as an H200): steps have none of them.
TEST_F(Graphs, AttributesThatNobodySetAreNone) {
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  const CUgraphNode by_hand = add_mix(source, {}, a, b, 1);
  CUlaunchAttributeValue map{};
  ASSERT_EQ(hook_cuGraphKernelNodeGetAttribute(by_hand, CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, &map),
            CUDA_SUCCESS);
  EXPECT_EQ(map.memSyncDomainMap.remote, 1);
  uint32_t salt = 2;
  void* params[] = {&b, &a, &salt};
  CUgraph captured = nullptr;
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(launch3(mix, {kBlocks, 1, 1}, kThreads, params, 0, nullptr, streams[0]), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamEndCapture(streams[0], &captured), CUDA_SUCCESS);
  for (const CUgraph graph : {source, captured}) {
    const CUgraphExec exec = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    EXPECT_GT(slices_of(exec), 4u);
    const auto known = track::find_graph(exec);
    ASSERT_EQ(known->plan.steps.size(), 1u);
    EXPECT_TRUE(std::get<track::KernelStep>(known->plan.steps[0].work).attributes.empty());
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  }
}

// Kernels keep their priority if the graph's flags say so, and only then.
TEST_F(Graphs, KernelsKeepTheirPriority) {
  static std::vector<int> priorities;  // of launches that have one
  const auto saved = driver_api::mutable_real_for_tests();
  static const auto launch_ex = saved.cuLaunchKernelEx;
  driver_api::mutable_real_for_tests().cuLaunchKernelEx = [](const CUlaunchConfig* config, CUfunction f,
                                                             void** params, void** extra) {
    for (unsigned i = 0; i < config->numAttrs; i++)
      if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        priorities.push_back(config->attrs[i].value.priority);
    return launch_ex(config, f, params, extra);
  };
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  const CUgraphNode first = add_mix(source, {}, a, b, 1);
  add_mix(source, {first}, b, a, 2);
  CUlaunchAttributeValue value{};
  value.priority = -3;
  EXPECT_EQ(hook_cuGraphKernelNodeSetAttribute(first, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value), CUDA_SUCCESS);
  const CUgraphExec without = instantiate(source),
                    with = instantiate(source, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
  EXPECT_GT(slices_of(without), 8u);
  EXPECT_TRUE(priorities.empty());
  EXPECT_GT(slices_of(with), 8u);
  EXPECT_GT(priorities.size(), 4u);  // slices of the first kernel
  EXPECT_LT(priorities.size(), 32u);
  for (const int priority : priorities) EXPECT_EQ(priority, -3);
  driver_api::mutable_real_for_tests() = saved;
  EXPECT_EQ(hook_cuGraphExecDestroy(without), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(with), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
}

// A chain: once measured they go together, no longer than a slice, and from the start again after a change.
TEST_F(Graphs, ShortKernelsGoTogether) {
  constexpr uint32_t kNodes = 100;
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  std::vector<CUgraphNode> nodes;
  std::vector<uint32_t> salts, x(kWords), y(kWords);
  for (uint32_t i = 0; i < kNodes; i++) {
    salts.push_back(i);
    nodes.push_back(add_mix(source, i == 0 ? std::vector<CUgraphNode>{} : std::vector{nodes[i - 1]},
                            i % 2 ? b : a, i % 2 ? a : b, i));
  }
  const CUgraphExec exec = instantiate(source);
  const auto runs_after = [&](uint32_t n_launches) {
    for (uint32_t launch = 0; launch < n_launches; launch++) {
      EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
      for (uint32_t node = 0; node < kNodes; node++)
        for (uint32_t i = 0; i < kWords; i++) {
          uint32_t& out = node % 2 ? y[i] : x[i];
          out = 31 * out + 7 * (node % 2 ? x[i] : y[i]) + i / kThreads + salts[node];
        }
    }
    EXPECT_EQ(hook_cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
    EXPECT_EQ(words_at(a), x);
    EXPECT_EQ(words_at(b), y);
    std::vector<size_t> sizes;
    for (const track::GraphRun& run : track::find_graph(exec)->runs.all()) sizes.push_back(run.steps.size());
    return sizes;
  };
  // With slices for that many kernels, as far as they are known now: other work on this machine makes them longer.
  const auto runs_of_at_most = [&](uint64_t n) {
    std::vector<size_t> sizes;
    for (uint32_t i = 0; i < 100 && sizes.empty(); i++) {
      lease(abi::kLeaseGranted, 500'000'000, n * measure(mix, kBlocks, kThreads));
      sizes = runs_after(1);
    }
    return sizes;
  };
  lease(abi::kLeaseGranted, 500'000'000, 20 * measure(mix, kBlocks, kThreads));
  EXPECT_TRUE(runs_after(3).empty());
  EXPECT_FALSE(runs_of_at_most(20).empty());
  lease(abi::kLeaseGranted, 500'000'000, 1);
  EXPECT_TRUE(runs_after(1).empty());
  salts[3] = 1'000;
  const auto p = mix_params(b, a, salts[3]);
  EXPECT_EQ(hook_cuGraphExecKernelNodeSetParams_v2(exec, nodes[3], &p), CUDA_SUCCESS);
  EXPECT_TRUE(runs_after(1).empty());
  EXPECT_EQ(hook_cuGraphNodeSetEnabled(exec, nodes[99], 1), CUDA_SUCCESS);
  EXPECT_TRUE(runs_after(3).empty());
  EXPECT_FALSE(runs_of_at_most(20).empty());
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
}

// One branch waits for an event that comes when the other one has written.
TEST_F(Graphs, BranchesRunSideBySide) {
  CUevent gate = nullptr;
  ASSERT_EQ(real().cuEventCreate(&gate, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  void* pinned = nullptr;
  ASSERT_EQ(real().cuMemHostAlloc(&pinned, kWords * 4, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  memset(pinned, 0, kWords * 4);
  CUdeviceptr mapped = 0;
  ASSERT_EQ(real().cuMemHostGetDevicePointer_v2(&mapped, pinned, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  CUgraphNode wait = nullptr;
  ASSERT_EQ(hook_cuGraphAddEventWaitNode(&wait, source, nullptr, 0, gate), CUDA_SUCCESS);
  const CUgraphNode behind = add_mix(source, {wait}, a, b, 1), beside = add_mix(source, {}, mapped, b, 2);
  add_mix(source, {behind, beside}, b, mapped, 3);  // joins them
  const CUgraphExec exec = instantiate(source);
  for (uint32_t round = 1; round <= 3; round++) {
    std::atomic<bool> open = false;
    constexpr auto until_open = [](void* flag) {
      while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
    };
    EXPECT_EQ(real().cuLaunchHostFunc(streams[1], until_open, &open), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuEventRecord(gate, streams[1]), CUDA_SUCCESS);
    const auto& last = static_cast<const std::atomic<uint32_t>*>(pinned)[kWords - 1];
    const uint32_t before = last;
    EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
    EXPECT_EQ(how(exec), GraphLaunched::How::kPieces);
    while (last == before) std::this_thread::yield();
    EXPECT_EQ(real().cuStreamQuery(streams[0]), CUDA_ERROR_NOT_READY);
    open = true;
    EXPECT_EQ(hook_cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
  }
  EXPECT_EQ(real().cuEventDestroy_v2(gate), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_EQ(real().cuMemFreeHost(pinned), CUDA_SUCCESS);
}

// A stream of ours in which a graph has work is not for another one, which would wait for it.
TEST_F(Graphs, GraphsDoNotShareStreams) {
  const auto wide = [&] {
    CUgraph graph = nullptr;
    EXPECT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    for (uint32_t i = 0; i < 2 * track::kMostLanes; i++) add_mix(graph, {}, a, b, i);
    const CUgraphExec exec = instantiate(graph);
    EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
    return exec;
  };
  const CUgraphExec first = wide(), second = wide();
  const auto one = track::find_graph(first), other = track::find_graph(second);
  const driver_api::StreamArg launch{streams[0], driver_api::Flavour::kLegacy};
  {
    const track::LaneStreams of_one(*one, context, launch, 5);
    EXPECT_EQ(of_one.count(), 5u);
    const track::LaneStreams of_other(*other, context, launch, track::kMostLanes);
    EXPECT_EQ(of_other.count(), track::kMostLanes - 4);
    for (uint32_t i = 1; i < of_other.count(); i++)
      for (uint32_t k = 1; k < of_one.count(); k++) EXPECT_NE(of_other[i].stream, of_one[k].stream);
    EXPECT_EQ(of_other[of_other.count()].stream, streams[0]);
  }
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  std::atomic<bool> open = false;
  constexpr auto until_open = [](void* flag) {
    while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
  };
  {
    const track::LaneStreams of_one(*one, context, launch, track::kMostLanes);
    ASSERT_EQ(of_one.count(), track::kMostLanes);
    EXPECT_EQ(real().cuLaunchHostFunc(of_one[1].stream, until_open, &open), CUDA_SUCCESS);
  }
  EXPECT_EQ(track::LaneStreams(*other, context, launch, track::kMostLanes).count(), track::kMostLanes - 1);
  EXPECT_EQ(track::LaneStreams(*one, context, launch, track::kMostLanes).count(), track::kMostLanes);
  open = true;
  EXPECT_EQ(hook_cuGraphExecDestroy(first), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(second), CUDA_SUCCESS);
}

// A graph that is read late is read as it was when it was made.
class LateReading : public Graphs {
 public:
  // a = mix(b) with salt 1, then b = mix(a) with salt 2, from zero.
  void expect_first_launch(CUgraphExec exec) {
    EXPECT_GT(slices_of(exec), 8u);
    EXPECT_EQ(how(exec), GraphLaunched::How::kPieces);
    const std::vector<uint32_t> x = words_at(a), y = words_at(b);
    for (uint32_t i = 0; i < kWords; i++) {
      ASSERT_EQ(x[i], i / kThreads + 1);
      ASSERT_EQ(y[i], 7 * x[i] + i / kThreads + 2);
    }
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  }
  void clear() {
    for (const CUdeviceptr p : {a, b}) EXPECT_EQ(real().cuMemsetD32_v2(p, 0, kWords), CUDA_SUCCESS);
    EXPECT_EQ(real().cuCtxSynchronize(), CUDA_SUCCESS);  // the streams do not wait for the default one
  }
  bool unread(CUgraphExec exec) { return track::find_graph(exec)->unread; }
  static bool in_driver(CUgraph graph) {
    size_t n = 0;
    return real().cuGraphGetNodes(graph, nullptr, &n) == CUDA_SUCCESS;
  }
};

TEST_F(LateReading, NothingIsReadBeforeALaunchAsks) {
  const CUgraphExec exec = pair();
  EXPECT_TRUE(unread(exec));
  lease(abi::kLeaseFree);
  EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
  EXPECT_TRUE(unread(exec));
  cutting();
  EXPECT_GT(slices_of(exec, streams[0]), 8u);
  EXPECT_FALSE(unread(exec));
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_FALSE(in_driver(source));
  EXPECT_EQ(track::g_live_sources.load(), 0u);
}

TEST_F(LateReading, IsBeforeEachChangeOfTheSource) {
  std::array<CUgraphNode, 2> nodes;
  uint32_t salt = 70;
  const std::function<void()> changes[] = {
      [&] {
        const auto p = mix_params(a, b, salt);
        EXPECT_EQ(hook_cuGraphKernelNodeSetParams_v2(nodes[0], &p), CUDA_SUCCESS);
      },
      [&] { add_mix(source, {nodes[1]}, a, b, 9); },
      [&] { EXPECT_EQ(hook_cuGraphDestroyNode(nodes[1]), CUDA_SUCCESS); },
      [&] {
        EXPECT_EQ(hook_cuGraphRemoveDependencies(source, &nodes[0], &nodes[1], 1), CUDA_SUCCESS);
        EXPECT_EQ(hook_cuGraphAddDependencies(source, &nodes[1], &nodes[0], 1), CUDA_SUCCESS);
      },
      [&] {
        const auto p = mix_params(a, b, salt);
        CUgraphNodeParams same{};
        same.type = CU_GRAPH_NODE_TYPE_KERNEL;
        memcpy(&same.kernel, &p, sizeof p);
        CUgraphNode node = nullptr;
        EXPECT_EQ(hook_cuGraphAddNode_v2(&node, source, &nodes[1], nullptr, 1, &same), CUDA_SUCCESS);
      },
      // This driver is older than the next three: it is read all the same, for a newer one would change the graph.
      [&] {
        CUgraphNodeParams same{};
        EXPECT_EQ(hook_cuGraphNodeSetParams_v2(nodes[0], &same), CUDA_ERROR_NOT_SUPPORTED);
      },
      [&] {
        CUgraphNodeParams same{};
        CUgraphNode node = nullptr;
        EXPECT_EQ(hook_cuGraphAddNode_v3(&node, source, &nodes[1], nullptr, 1, &same),
                  CUDA_ERROR_NOT_SUPPORTED);
      },
      [&] {
        EXPECT_EQ(hook_cuStreamBeginRecaptureToGraph(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED, source,
                                                     nullptr, nullptr),
                  CUDA_ERROR_NOT_SUPPORTED);
        EXPECT_EQ(state::g_state.captures.load(), 0u);
      },
      [&] {
        CUgraph same = nullptr;
        EXPECT_EQ(hook_cuStreamBeginCaptureToGraph(streams[0], source, nodes.data(), nullptr, 2,
                                                   CU_STREAM_CAPTURE_MODE_RELAXED),
                  CUDA_SUCCESS);
        uint32_t more = 8;
        void* params[] = {&a, &b, &more};
        EXPECT_EQ(launch3(mix, {kBlocks, 1, 1}, kThreads, params, 0, nullptr, streams[0]), CUDA_SUCCESS);
        EXPECT_EQ(hook_cuStreamEndCapture(streams[0], &same), CUDA_SUCCESS);
      },
  };
  for (const auto& change : changes) {
    SCOPED_TRACE(&change - changes);
    const CUgraphExec exec = pair(&nodes);
    EXPECT_TRUE(unread(exec));
    change();
    EXPECT_FALSE(unread(exec));
    expect_first_launch(exec);
    EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
    clear();
  }
}

// A graph that the program has destroyed stays until nobody has to read it.
TEST_F(LateReading, ADestroyedSourceIsKeptUntilThen) {
  const CUgraphExec exec = pair(), other = instantiate(source), unused = instantiate(source);
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_TRUE(unread(exec));
  EXPECT_TRUE(in_driver(source));
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(in_driver(source));
  expect_first_launch(exec);
  EXPECT_TRUE(in_driver(source));
  EXPECT_GT(slices_of(other), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(other), CUDA_SUCCESS);
  EXPECT_TRUE(in_driver(source));
  EXPECT_EQ(hook_cuGraphExecDestroy(unused), CUDA_SUCCESS);
  EXPECT_FALSE(in_driver(source));
}

TEST_F(LateReading, AnUpdateIsReadLateToo) {
  const CUgraphExec exec = pair();
  const CUgraph first = source;
  EXPECT_EQ(hook_cuGraphDestroy(first), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGraphCreate(&source, 0), CUDA_SUCCESS);
  add_mix(source, {add_mix(source, {}, a, b, 5)}, b, a, 6);
  CUgraphExecUpdateResultInfo info;
  EXPECT_EQ(hook_cuGraphExecUpdate_v2(exec, source, &info), CUDA_SUCCESS);
  EXPECT_FALSE(in_driver(first));
  EXPECT_TRUE(unread(exec));
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_FALSE(in_driver(source));
  EXPECT_EQ(words_at(a)[kThreads], 1u + 5);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// While another thread is in a call on some graph, a graph that the program has is not read: whole, this time.
TEST_F(LateReading, NeverDuringACallOnAGraph) {
  const CUgraphExec exec = pair();
  {
    const track::GraphCall in_call;
    EXPECT_EQ(slices_of(exec), 0u);
  }
  EXPECT_TRUE(unread(exec));
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// One thread launches what another one made, and that one goes on with the source.
TEST_F(LateReading, WhateverAnotherThreadDoesWithTheSource) {
  for (uint32_t round = 0; round < 30; round++) {
    std::array<CUgraphNode, 2> nodes;
    const CUgraphExec exec = pair(&nodes);
    std::thread other([&, graph = source] {
      size_t n = 2;
      CUgraphNode found[2];
      CUDA_KERNEL_NODE_PARAMS params{};
      EXPECT_EQ(real().cuCtxSetCurrent(context), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuGraphGetNodes(graph, found, &n), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuGraphKernelNodeGetParams_v2(nodes[0], &params), CUDA_SUCCESS);
      if (round % 2) {
        params.gridDimX = 1;
        EXPECT_EQ(hook_cuGraphKernelNodeSetParams_v2(nodes[1], &params), CUDA_SUCCESS);
      }
      EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
    });
    EXPECT_EQ(hook_cuGraphLaunch(exec, streams[0]), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuStreamSynchronize(streams[0]), CUDA_SUCCESS);
    other.join();
    const std::vector<uint32_t> x = words_at(a), y = words_at(b);
    for (uint32_t i = 0; i < kWords; i++) {
      ASSERT_EQ(x[i], i / kThreads + 1);
      ASSERT_EQ(y[i], 7 * x[i] + i / kThreads + 2);
    }
    clear();
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    EXPECT_FALSE(in_driver(source));
  }
}

TEST_F(LateReading, IsBeforeKernelsAreUnloaded) {
  CUmodule other = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&other, test::kMixPtx), CUDA_SUCCESS);
  const CUgraphExec exec = pair();
  EXPECT_EQ(hook_cuGraphDestroy(source), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuModuleUnload(other), CUDA_SUCCESS);
  EXPECT_FALSE(unread(exec));
  expect_first_launch(exec);
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

// These change the process for the rest of its life, so they come last.
class FromThenOn : public LateReading {};

TEST_F(FromThenOn, NothingIsReadLateOnceGraphsInsideGraphsHaveNames) {
  CUgraph outer = nullptr, inner = nullptr;
  CUgraphNode node = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&outer, 0), CUDA_SUCCESS);
  const CUgraphExec before = pair();
  ASSERT_EQ(hook_cuGraphAddChildGraphNode(&node, outer, nullptr, 0, source), CUDA_SUCCESS);
  EXPECT_TRUE(unread(before));
  const CUgraphExec exec = instantiate(outer);
  ASSERT_EQ(hook_cuGraphChildGraphNodeGetGraph(node, &inner), CUDA_SUCCESS);
  EXPECT_FALSE(unread(before));
  EXPECT_FALSE(unread(exec));
  const CUgraphExec of_inner = instantiate(inner);
  EXPECT_FALSE(unread(of_inner));
  EXPECT_EQ(hook_cuGraphDestroy(outer), CUDA_SUCCESS);
  EXPECT_FALSE(in_driver(outer));
  expect_first_launch(of_inner);
  EXPECT_GT(slices_of(exec), 8u);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(before), CUDA_SUCCESS);
}

TEST_F(FromThenOn, ALaunchOfAChangedOneThatIsCapturedMakesGraphsWithOthersInsideWhole) {
  std::array<CUgraphNode, 2> nodes;
  const CUgraphExec changed = pair(&nodes);
  ASSERT_EQ(hook_cuGraphNodeSetEnabled(changed, nodes[1], 0), CUDA_SUCCESS);
  CUgraph captured = nullptr;
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(streams[1], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphLaunch(changed, streams[1]), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuStreamEndCapture(streams[1], &captured), CUDA_SUCCESS);
  const uint64_t before = track::refusals(GraphObstacle::kState);
  const CUgraphExec outer = instantiate(captured);
  EXPECT_EQ(slices_of(outer), 0u);
  EXPECT_EQ(track::refusals(GraphObstacle::kState), before + 1);
  const std::vector<uint32_t> x = words_at(a);
  for (uint32_t i = 0; i < kWords; i++) ASSERT_EQ(x[i], i / kThreads + 1);
  EXPECT_EQ(words_at(b), std::vector<uint32_t>(kWords));  // the second did nothing
  EXPECT_EQ(hook_cuGraphExecDestroy(outer), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(changed), CUDA_SUCCESS);
  // The inner graph has a name, and may be made a graph by itself.
  CUgraphNode child = nullptr;
  CUgraph inner = nullptr;
  size_t one = 1;
  ASSERT_EQ(hook_cuGraphGetNodes(captured, &child, &one), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuGraphChildGraphNodeGetGraph(child, &inner), CUDA_SUCCESS);
  expect_whole(inner, GraphObstacle::kState);
  EXPECT_EQ(words_at(b), std::vector<uint32_t>(kWords));
}

TEST_F(FromThenOn, ObjectsTiedToGraphsMakeLaterOnesWhole) {
  CUuserObject object = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  ASSERT_EQ(real().cuUserObjectCreate(
                &object, nullptr, [](void*) {}, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
            CUDA_SUCCESS);
  ASSERT_EQ(hook_cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  add_mix(graph, {}, a, b, 1);
  expect_whole(graph, GraphObstacle::kUserObject);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera
