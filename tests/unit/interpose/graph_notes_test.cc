// Library calls that were captured, against the software GPU: what they asked for is known when their graph is launched.
#include "interpose/track/graph_notes.h"

#include <functional>
#include <map>

#include "interpose/gate/first_estimate.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/rates.h"
#include "interpose/gate/trace.h"
#include "interpose/track/graphs.h"
#include "ipc/channel/trace_ring.h"
#include "tests/unit/interpose/mix_kernel.h"
#include "tests/unit/interpose/soft.h"

extern "C" const tessera::operations::NoteReader* tessera_note_reader(uint32_t version) noexcept;

namespace tessera {
namespace {

using driver_api::real;
using operations::Note;
using track::KernelStep;
namespace abi = ipc::abi;

constexpr uint32_t kBlocks = test::kMixBlocks, kThreads = test::kMixThreads;

class CapturedCalls : public test::Soft {
 public:
  void SetUp() override {
    Soft::SetUp();
    table_before_ = driver_api::real();
    gate::use_rates_of(0);
    ASSERT_EQ(hook_cuModuleLoadData(&module_, test::kMixPtx), CUDA_SUCCESS);
    mix_ = function_of(module_, "mix");
    forget_class(mix_);
    ASSERT_EQ(hook_cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    out_ = zeros(test::kMixWords), in_ = zeros(test::kMixWords);
    link->operations = &table_.totals;
    link->operation_counts = table_.counts;
    link->operation_slots = 1;
  }
  void TearDown() override {
    driver_api::mutable_real_for_tests() = table_before_;
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    real().cuMemFree_v2(out_), real().cuMemFree_v2(in_);
    EXPECT_EQ(hook_cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuModuleUnload(module_), CUDA_SUCCESS);
    Soft::TearDown();
  }

 protected:
  static uint64_t describe(const Note*, char* text, uint32_t bytes) {
    if (text) snprintf(text, bytes, "a product of three");
    return 7;
  }
  static Note product() {  // 10 ms by the roofline of test4
    return {.flop = 15'360'000, .bytes = 1'000, .name = "cublasSgemm_v2", .describe = describe};
  }
  CUgraph capture(const std::function<void()>& what) {
    EXPECT_EQ(hook_cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    what();
    CUgraph graph = nullptr;
    EXPECT_EQ(hook_cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
    return graph;
  }
  void launch_mix(uint32_t blocks = kBlocks) {
    uint32_t salt = 1;
    void* params[] = {&out_, &in_, &salt};
    EXPECT_EQ(launch3(mix_, {blocks, 1, 1}, kThreads, params, 0, nullptr, stream_), CUDA_SUCCESS);
  }
  void call(uint32_t kernels, uint32_t blocks = kBlocks) {
    Note note = product();
    reader_->begin(&note);
    for (uint32_t i = 0; i < kernels; i++) launch_mix(blocks);
    reader_->end(&note);
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
  }
  uint64_t slices_of(CUgraphExec exec) {
    return cut_of([&] { EXPECT_EQ(hook_cuGraphLaunch(exec, stream_), CUDA_SUCCESS); });
  }
  // Of the kernels of a graph that is launched now: whose are how many?
  std::vector<track::CallSum> calls_of(CUgraph graph) {
    const CUgraphExec exec = instantiate(graph);
    slices_of(exec);
    std::vector<track::CallSum> calls = track::find_graph(exec)->plan.calls;
    EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
    return calls;
  }
  const abi::OperationCounts& counts() const { return table_.counts[0]; }

  const operations::NoteReader* reader_ = tessera_note_reader(operations::kNoteVersion);
  CUfunction mix_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr out_ = 0, in_ = 0;

 private:
  driver_api::RealDriver table_before_;
  CUmodule module_ = nullptr;
  struct {
    abi::OperationTotals totals{};
    abi::OperationCounts counts[1]{};
  } table_;
};

TEST_F(CapturedCalls, AreKnownOfTheGraphBeforeItsFirstLaunch) {
  constexpr uint32_t kFew = 8;  // it is not worth a slice to find out how long they take
  const CUgraph graph = capture([&] { call(1, kFew); });
  const CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(counts().calls, 0u);  // it has computed nothing
  lease(abi::kLeaseGranted, 500'000'000'000, 100'000'000'000);
  Note note = product();
  const uint64_t expected =
      gate::first_estimate(gate::basis_of(note, state::find_kernel(mix_)->loaded.hash, kFew, kFew, true));
  EXPECT_GT(expected, 0u);
  const uint64_t before = in_flight();
  EXPECT_EQ(hook_cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  EXPECT_EQ(track::find_graph(exec)->last.how, track::GraphLaunched::How::kWhole);
  EXPECT_EQ(in_flight() - before, expected);
  EXPECT_EQ(ipc::load(link->signals->resource_class, std::memory_order_relaxed),
            uint32_t(abi::kResourceCompute));
  EXPECT_EQ(counts().calls, 1u);
  EXPECT_EQ(counts().flop[0], note.flop);
  EXPECT_EQ(counts().launches, 1u);
  EXPECT_EQ(counts().gpu_ns, expected);
  EXPECT_EQ(counts().resource_class, uint32_t(abi::kResourceCompute));
  EXPECT_EQ(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

// One for the calls of each function and type.
TEST_F(CapturedCalls, AreEventsOfAGraphThatGoesOutWhole) {
  constexpr uint32_t kFew = 8;
  const CUgraph graphs[] = {capture([&] {
                              call(1, kFew);
                              call(2, kFew);
                            }),
                            capture([&] { call(1, kFew); })};
  const CUgraphExec several = instantiate(graphs[0]), single = instantiate(graphs[1]);
  lease(abi::kLeaseGranted, 500'000'000'000, 100'000'000'000);
  std::vector<uint64_t> memory(abi::kTraceBytes / sizeof(uint64_t));
  auto* const ring = reinterpret_cast<abi::TraceHeader*>(memory.data());
  gate::set_trace(ring);
  for (CUgraphExec exec : {several, single, several}) {
    EXPECT_EQ(hook_cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
    EXPECT_EQ(track::find_graph(exec)->last.how, track::GraphLaunched::How::kWhole);
  }
  gate::set_trace(nullptr);
  ipc::TraceReader reader(ring);
  reader.from_what_is_kept();
  std::map<uint64_t, std::string> names;
  std::vector<std::pair<std::string, uint64_t>> seen;  // name, FLOP
  for (abi::TraceEvent e; reader.read(&e);) {
    if (e.kind == abi::kTraceName) names[e.a] += reinterpret_cast<const char*>(e.name);
    if (e.kind == abi::kTraceOperation) {
      seen.emplace_back(names[e.a], e.at.b);
      EXPECT_LE(e.at.start_ns, e.at.end_ns);
      EXPECT_EQ(e.at.stream, reinterpret_cast<uint64_t>(stream_));
    }
  }
  const uint64_t flop = product().flop;
  EXPECT_EQ(seen, (std::vector<std::pair<std::string, uint64_t>>{{"2 calls of a product", 2 * flop},
                                                                 {"a product of three", flop},
                                                                 {"2 calls of a product", 2 * flop}}));
  EXPECT_EQ(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
  for (CUgraphExec exec : {several, single}) EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  for (CUgraph graph : graphs) EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(CapturedCalls, CountWithEachLaunchInPieces) {
  const CUgraph graph = capture([&] {
    call(2);
    launch_mix();
    call(1);
  });
  const CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  for (uint64_t n = 1; n <= 2; n++) {
    EXPECT_GT(slices_of(exec), 8u);
    EXPECT_EQ(counts().calls, 2 * n);
    EXPECT_EQ(counts().flop[0], 2 * n * product().flop);
    EXPECT_EQ(counts().bytes[0], 2 * n * product().bytes);
    EXPECT_EQ(counts().launches, 3 * n);
    EXPECT_GT(counts().gpu_ns, 0u);
    EXPECT_EQ(state::t_note, nullptr);
  }
  const track::GraphPlan& plan = track::find_graph(exec)->plan;
  ASSERT_EQ(plan.steps.size(), 4u);
  const auto of = [&](size_t i) { return std::get<KernelStep>(plan.steps[i].work).call; };
  EXPECT_EQ(of(0).call, of(1).call);
  EXPECT_EQ(of(0).launch, 0u);
  EXPECT_EQ(of(1).launch, 1u);
  EXPECT_EQ(of(2).call, nullptr);
  EXPECT_NE(of(3).call, of(0).call);
  EXPECT_EQ(of(3).launch, 0u);
  EXPECT_EQ(of(3).call->text, "a product of three");
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
}

TEST_F(CapturedCalls, AreForgottenWithTheirGraph) {
  CUgraph graph = capture([&] { call(3); });
  ASSERT_NE(track::notes_of(graph), nullptr);
  EXPECT_EQ(track::notes_of(graph)->size(), 3u);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(graph), nullptr);

  graph = capture([&] { call(3); });
  const CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_NE(track::notes_of(graph), nullptr);  // it is not read yet
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(graph), nullptr);

  // A capture that comes to nothing.
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  call(1);
  CUstreamCaptureStatus status{};
  ASSERT_EQ(real().cuStreamGetCaptureInfo_v2(stream_, &status, nullptr, &graph, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_NE(track::notes_of(graph), nullptr);
  EXPECT_NE(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
  CUgraph none = nullptr;
  EXPECT_NE(hook_cuStreamEndCapture(stream_, &none), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(graph), nullptr);
}

// Two captures run at once.
TEST_F(CapturedCalls, AreNotLostWithAnothersCapture) {
  CUstream other = nullptr;
  ASSERT_EQ(hook_cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  for (CUstream stream : {stream_, other})
    ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  call(2);
  std::swap(stream_, other);
  call(1);
  const CUgraph failing = track::graph_of_capture({stream_, driver_api::Flavour::kLegacy});
  ASSERT_NE(track::notes_of(failing), nullptr);
  EXPECT_NE(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
  CUgraph none = nullptr;
  EXPECT_NE(hook_cuStreamEndCapture(stream_, &none), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(failing), nullptr);
  std::swap(stream_, other);
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  ASSERT_NE(track::notes_of(graph), nullptr);
  EXPECT_EQ(track::notes_of(graph)->size(), 2u);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);

  // A stream that goes takes its capture along.
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  std::swap(stream_, other);
  call(1);
  const CUgraph lost = track::graph_of_capture({stream_, driver_api::Flavour::kLegacy});
  std::swap(stream_, other);
  ASSERT_NE(track::notes_of(lost), nullptr);
  EXPECT_EQ(hook_cuStreamDestroy_v2(other), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(lost), nullptr);
}

TEST_F(CapturedCalls, AreThoseOfClonesAndChildren) {
  const CUgraph graph = capture([&] { call(2); });
  CUgraph clone = nullptr;
  ASSERT_EQ(hook_cuGraphClone(&clone, graph), CUDA_SUCCESS);
  CUgraph outer = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&outer, 0), CUDA_SUCCESS);
  CUgraphNode first = nullptr, second = nullptr;
  ASSERT_EQ(hook_cuGraphAddChildGraphNode(&first, outer, nullptr, 0, graph), CUDA_SUCCESS);
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_GRAPH;
  params.graph.graph = clone;
  ASSERT_EQ(hook_cuGraphAddNode(&second, outer, &first, 1, &params), CUDA_SUCCESS);
  CUgraph inside = nullptr;
  ASSERT_EQ(real().cuGraphChildGraphNodeGetGraph(second, &inside), CUDA_SUCCESS);
  for (CUgraph g : {graph, clone}) {
    const std::vector<track::CallSum> calls = calls_of(g);
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].calls, 1u);
    EXPECT_EQ(calls[0].launches, 2u);
  }
  // The clone's notes are its own.
  for (CUgraph g : {graph, clone}) EXPECT_EQ(hook_cuGraphDestroy(g), CUDA_SUCCESS);
  for (CUgraph g : {graph, clone}) EXPECT_EQ(track::notes_of(g), nullptr);
  const std::vector<track::CallSum> calls = calls_of(outer);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].calls, 2u);
  EXPECT_EQ(calls[0].launches, 4u);
  EXPECT_EQ(calls[0].flop, 2 * product().flop);
  EXPECT_NE(track::notes_of(inside), nullptr);
  EXPECT_EQ(hook_cuGraphDestroy(outer), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(inside), nullptr);
}

// The next node may have the handle of one that is destroyed, and so may a graph inside one.
TEST_F(CapturedCalls, AreForgottenWithTheirNode) {
  const CUgraph graph = capture([&] { call(2); });
  CUgraphNode nodes[2];
  size_t n = 2;
  ASSERT_EQ(real().cuGraphGetNodes(graph, nodes, &n), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphDestroyNode(nodes[1]), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(graph)->size(), 1u);
  EXPECT_EQ(track::notes_of(graph)->find(nodes[1], kBlocks, kThreads).call, nullptr);
  const std::vector<track::CallSum> calls = calls_of(graph);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].launches, 1u);

  CUgraph outer = nullptr, inside = nullptr;
  CUgraphNode child = nullptr;
  ASSERT_EQ(real().cuGraphCreate(&outer, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuGraphAddChildGraphNode(&child, outer, nullptr, 0, graph), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGraphChildGraphNodeGetGraph(child, &inside), CUDA_SUCCESS);
  EXPECT_NE(track::notes_of(inside), nullptr);
  EXPECT_EQ(hook_cuGraphDestroyNode(child), CUDA_SUCCESS);
  EXPECT_EQ(track::notes_of(inside), nullptr);
  for (CUgraph g : {graph, outer}) EXPECT_EQ(hook_cuGraphDestroy(g), CUDA_SUCCESS);
}

TEST_F(CapturedCalls, AreNotThoseOfExecutableGraphsInACapture) {
  const CUgraph graph = capture([&] { call(1); });
  const CUgraphExec exec = instantiate(graph);
  const CUgraph outer = capture([&] { EXPECT_EQ(hook_cuGraphLaunch(exec, stream_), CUDA_SUCCESS); });
  EXPECT_TRUE(calls_of(outer).empty());
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  for (CUgraph g : {outer, graph}) EXPECT_EQ(hook_cuGraphDestroy(g), CUDA_SUCCESS);
}

TEST_F(CapturedCalls, ADriverThatDoesNotFindNodesInClonesIsHarmless) {
  driver_api::mutable_real_for_tests().cuGraphNodeFindInClone = [](CUgraphNode*, CUgraphNode, CUgraph) {
    return CUDA_ERROR_INVALID_VALUE;
  };
  const CUgraph graph = capture([&] { call(2); });
  CUgraph clone = nullptr;
  ASSERT_EQ(hook_cuGraphClone(&clone, graph), CUDA_SUCCESS);
  EXPECT_TRUE(calls_of(clone).empty());
  for (CUgraph g : {clone, graph}) EXPECT_EQ(hook_cuGraphDestroy(g), CUDA_SUCCESS);
}

TEST_F(CapturedCalls, EndWhereAKernelBecomesAnother) {
  const CUgraph graph = capture([&] { call(2); });
  std::vector<CUgraphNode> nodes(2);
  size_t n = nodes.size();
  ASSERT_EQ(hook_cuGraphGetNodes(graph, nodes.data(), &n), CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(graph);
  const auto calls_with = [&](uint32_t blocks) {
    uint32_t salt = 2;
    void* params[] = {&out_, &in_, &salt};
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = mix_;
    p.gridDimX = blocks, p.gridDimY = p.gridDimZ = 1;
    p.blockDimX = kThreads, p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = params;
    EXPECT_EQ(hook_cuGraphExecKernelNodeSetParams_v2(exec, nodes[0], &p), CUDA_SUCCESS);
    const track::CallSum sum = track::find_graph(exec)->plan.calls.at(0);
    return std::pair{sum.calls, sum.launches};
  };
  EXPECT_EQ(calls_with(kBlocks), (std::pair<uint64_t, uint64_t>{1, 2}));
  EXPECT_EQ(calls_with(kBlocks / 2), (std::pair<uint64_t, uint64_t>{0, 1}));
  EXPECT_EQ(hook_cuGraphExecDestroy(exec), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
}

TEST_F(CapturedCalls, ADriverThatDoesNotTellNodesIsHarmless) {
  auto& table = driver_api::mutable_real_for_tests();
  table.cuStreamGetCaptureInfo_v3 = [](CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                       const CUgraphNode**, const CUgraphEdgeData**,
                                       size_t*) { return CUDA_ERROR_NOT_SUPPORTED; };
  CUgraph graph = capture([&] { call(1); });  // as drivers before 12.3
  EXPECT_EQ(calls_of(graph).size(), 1u);
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
  table.cuStreamGetCaptureInfo_v2 = [](CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                       const CUgraphNode**, size_t*) { return CUDA_ERROR_NOT_SUPPORTED; };
  graph = capture([&] { call(1); });
  EXPECT_TRUE(calls_of(graph).empty());
  EXPECT_EQ(hook_cuGraphDestroy(graph), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera
