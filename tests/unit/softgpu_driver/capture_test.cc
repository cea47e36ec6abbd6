#include <thread>

#include "support.h"

namespace softgpu_driver_test {
namespace {

class CaptureApi : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    ASSERT_CU(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    p = alloc(4096);
  }
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    ASSERT_CU(cuStreamBeginCapture(a, mode));
  }
  CUresult end() { return cuStreamEndCapture(a, &graph); }
  // Runs `call` in another thread with this context current.
  template <class F>
  CUresult elsewhere(F call) {
    CUresult got = CUDA_SUCCESS;
    std::thread([&] {
      EXPECT_CU(cuCtxSetCurrent(context));
      got = call();
    }).join();
    return got;
  }
  void run_graph() {
    CUgraphExec exec;
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_CU(cuGraphLaunch(exec, a));
    ASSERT_CU(cuStreamSynchronize(a));
    ASSERT_CU(cuGraphExecDestroy(exec));
  }

  CUstream a = nullptr, b = nullptr;
  CUevent e = nullptr;
  CUdeviceptr p = 0;
  CUgraph graph = nullptr;
};

TEST_F(CaptureApi, NothingRunsUntilTheGraphDoes) {
  ASSERT_CU(cuMemsetD32(p, 0, 1024));
  begin();
  EXPECT_CU(cuMemsetD32Async(p, 3, 1024, a));
  CUstreamCaptureStatus status;
  EXPECT_CU(cuStreamIsCapturing(a, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status);
  ASSERT_CU(end());
  EXPECT_CU(cuStreamIsCapturing(a, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status);
  EXPECT_EQ(0u, read(p, 1)[0]);
  run_graph();
  EXPECT_EQ(3u, read(p, 1024)[1023]);
  EXPECT_CU(cuGraphDestroy(graph));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(graph));
}

TEST_F(CaptureApi, ForkAndJoinThroughEvents) {
  CUdeviceptr q = alloc(4096);
  CUevent joined;
  ASSERT_CU(cuEventCreate(&joined, 0));
  begin();
  EXPECT_CU(cuMemsetD32Async(p, 1, 1024, a));
  EXPECT_CU(cuEventRecord(e, a));
  EXPECT_CU(cuStreamWaitEvent(b, e, 0));
  EXPECT_CU(cuMemcpyDtoDAsync(q, p, 4096, b));
  EXPECT_CU(cuEventRecord(joined, b));
  EXPECT_CU(cuStreamWaitEvent(a, joined, 0));
  EXPECT_CU(cuMemsetD32Async(p, 2, 1024, a));
  ASSERT_CU(end());
  size_t nodes = 0, edges = 0, roots = 0;
  EXPECT_CU(cuGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_CU(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_CU(cuGraphGetRootNodes(graph, nullptr, &roots));
  EXPECT_EQ(3u, nodes);
  EXPECT_EQ(3u, edges);  // 1 -> copy, 1 -> 2, copy -> 2
  EXPECT_EQ(1u, roots);
  run_graph();
  EXPECT_EQ(1u, read(q, 1)[0]);
  EXPECT_EQ(2u, read(p, 1)[0]);
}

TEST_F(CaptureApi, UnjoinedStreamEndsWith904) {
  begin();
  EXPECT_CU(cuMemsetD32Async(p, 1, 1, a));
  EXPECT_CU(cuEventRecord(e, a));
  EXPECT_CU(cuStreamWaitEvent(b, e, 0));
  EXPECT_CU(cuMemsetD32Async(p, 2, 1, b));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end());
  EXPECT_EQ(nullptr, graph);
  CUstreamCaptureStatus status;
  EXPECT_CU(cuStreamIsCapturing(b, &status));
  EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status);
}

TEST_F(CaptureApi, SynchroniseIs900AndLosesTheCapture) {
  for (int what = 0; what < 3; ++what) {
    begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    const CUresult got = what == 0   ? cuStreamSynchronize(a)
                         : what == 1 ? cuStreamQuery(a)
                                     : cuCtxSynchronize();
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, got) << what;
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD32Async(p, 1, 1, a));
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  }
}

TEST_F(CaptureApi, UnsafeCallsByMode) {
  struct Row {
    CUstreamCaptureMode capture, caller;
    bool other_thread, refused;
  };
  const auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL, kLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
             kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  const Row rows[] = {
      {kGlobal, kGlobal, false, true},   {kGlobal, kLocal, false, true},   {kGlobal, kRelaxed, false, false},
      {kLocal, kGlobal, false, true},    {kLocal, kLocal, false, true},    {kLocal, kRelaxed, false, false},
      {kRelaxed, kGlobal, false, false}, {kRelaxed, kLocal, false, false}, {kGlobal, kGlobal, true, true},
      {kGlobal, kLocal, true, false},    {kGlobal, kRelaxed, true, false}, {kLocal, kGlobal, true, false},
      {kRelaxed, kGlobal, true, false},
  };
  for (const Row& row : rows) {
    begin(row.capture);
    auto call = [&] {
      CUstreamCaptureMode mode = row.caller;
      EXPECT_CU(cuThreadExchangeStreamCaptureMode(&mode));
      CUdeviceptr q = 0;
      const CUresult got = cuMemAlloc(&q, 64);
      EXPECT_CU(cuThreadExchangeStreamCaptureMode(&mode));
      EXPECT_EQ(row.caller, mode);
      return got;
    };
    const CUresult got = row.other_thread ? elsewhere(call) : call();
    EXPECT_EQ(row.refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS, got)
        << row.capture << row.caller << row.other_thread;
    EXPECT_EQ(row.refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS, end());
  }
}

TEST_F(CaptureApi, QueryElsewhereDisturbsAGlobalCapture) {
  CUevent done;
  ASSERT_CU(cuEventCreate(&done, 0));
  ASSERT_CU(cuEventRecord(done, b));
  ASSERT_CU(cuEventSynchronize(done));
  begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, elsewhere([&] { return cuStreamQuery(b); }));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(CUDA_SUCCESS, elsewhere([&] { return cuStreamQuery(b); }));
  EXPECT_EQ(CUDA_SUCCESS, elsewhere([&] { return cuEventQuery(done); }));
  EXPECT_CU(end());
}

TEST_F(CaptureApi, WrongThreadStreamAndState) {
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, end());
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
  begin();
  EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, elsewhere([&] { return end(); }));
  EXPECT_CU(end());
  begin();
  EXPECT_CU(cuEventRecord(e, a));
  EXPECT_CU(cuStreamWaitEvent(b, e, 0));
  CUgraph none;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(b, &none));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
}

TEST_F(CaptureApi, CapturedEventCannotBeAsked) {
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_CU(cuEventRecord(e, a));
  EXPECT_EQ(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  EXPECT_EQ(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(e));
  EXPECT_CU(cuEventRecord(e, a));  // recorded anew, outside
  EXPECT_CU(cuEventSynchronize(e));
}

TEST_F(CaptureApi, MergeAndIsolation) {
  CUgraph other;
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_CU(cuStreamBeginCapture(b, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CU(cuEventRecord(e, a));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(b, e, 0));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(b, &other));
  EXPECT_CU(cuEventRecord(e, b));
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(a, e, 0));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
}

TEST_F(CaptureApi, LegacyStreamNextToACapturingBlockingStream) {
  CUstream blocking;
  ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  ASSERT_CU(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status;
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(nullptr, &status));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD32Async(p, 1, 1, nullptr));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);  // a non-blocking stream does not mind
  EXPECT_CU(cuMemsetD32Async(p, 1, 1, nullptr));
  uint32_t word;
  EXPECT_CU(cuMemcpyDtoH(&word, p, 4));
  EXPECT_CU(end());
}

TEST_F(CaptureApi, NotCapturable) {
  begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamAddCallback(
                                                       a, [](CUstream, CUresult, void*) {}, nullptr, 0));
  EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  begin();
  EXPECT_CU(cuStreamDestroy(a));
  ASSERT_CU(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  EXPECT_CU(cuStreamQuery(a));  // no capture is left behind
}

// ---- graphs ----

TEST_F(CaptureApi, ExplicitGraph) {
  CUgraphNode set, copy, host, again;
  CUdeviceptr q = alloc(64);
  ASSERT_CU(cuGraphCreate(&graph, 0));
  CUDA_MEMSET_NODE_PARAMS fill = {p, 0, 5, 4, 16, 1};
  ASSERT_CU(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &fill, context));
  CUDA_MEMCPY3D move = {};
  move.srcMemoryType = move.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  move.srcDevice = p;
  move.dstDevice = q;
  move.WidthInBytes = 64;
  move.Height = move.Depth = 1;
  ASSERT_CU(cuGraphAddMemcpyNode(&copy, graph, &set, 1, &move, context));
  int calls = 0;
  CUDA_HOST_NODE_PARAMS call = {[](void* n) { ++*static_cast<int*>(n); }, &calls};
  ASSERT_CU(cuGraphAddHostNode(&host, graph, &copy, 1, &call));
  fill.value = 6;
  ASSERT_CU(cuGraphAddMemsetNode(&again, graph, &host, 1, &fill, context));
  CUgraphNodeType type;
  EXPECT_CU(cuGraphNodeGetType(copy, &type));
  EXPECT_EQ(CU_GRAPH_NODE_TYPE_MEMCPY, type);
  const CUgraphNode wild = reinterpret_cast<CUgraphNode>(&type);
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode(&again, graph, &wild, 1, &fill, context));

  CUgraph clone;
  CUgraphExec exec;
  ASSERT_CU(cuGraphClone(&clone, graph));
  ASSERT_CU(cuGraphDestroy(graph));
  ASSERT_CU(cuGraphInstantiate(&exec, clone, 0));
  for (int i = 0; i < 3; ++i) EXPECT_CU(cuGraphLaunch(exec, b));
  EXPECT_CU(cuStreamSynchronize(b));
  EXPECT_EQ(3, calls);
  EXPECT_EQ(5u, read(q, 1)[0]);
  EXPECT_EQ(6u, read(p, 1)[0]);

  size_t n = 4;
  CUgraphNode nodes[4];
  EXPECT_CU(cuGraphGetNodes(clone, nodes, &n));
  ASSERT_EQ(4u, n);
  fill.value = 9;
  EXPECT_CU(cuGraphExecMemsetNodeSetParams(exec, nodes[3], &fill, context));
  EXPECT_CU(cuGraphNodeSetEnabled(exec, nodes[2], 0));
  EXPECT_CU(cuGraphLaunch(exec, b));
  EXPECT_CU(cuStreamSynchronize(b));
  EXPECT_EQ(3, calls);
  EXPECT_EQ(9u, read(p, 1)[0]);

  CUgraphNode from = nodes[3], to = nodes[0];
  EXPECT_CU(cuGraphAddDependencies(clone, &from, &to, nullptr, 1));  // a cycle
  CUgraphExec none;
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate(&none, clone, 0));
  EXPECT_CU(cuGraphExecDestroy(exec));
  EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, b));
}

TEST_F(CaptureApi, GraphLaunchInsideACaptureBecomesAChild) {
  begin();
  EXPECT_CU(cuMemsetD32Async(p, 7, 4, a));
  ASSERT_CU(end());
  CUgraphExec exec;
  ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
  begin();
  EXPECT_CU(cuGraphLaunch(exec, a));
  EXPECT_CU(cuMemsetD32Async(p + 4, 8, 1, a));
  ASSERT_CU(end());
  run_graph();
  EXPECT_EQ((std::vector<uint32_t>{7, 8, 7, 7}), read(p, 4));
}

TEST_F(CaptureApi, UpdateKeepsShapeAndTakesParameters) {
  CUgraph first, second, third;
  CUgraphExec exec;
  CUgraphExecUpdateResultInfo info;
  begin();
  EXPECT_CU(cuMemsetD32Async(p, 1, 4, a));
  ASSERT_CU(cuStreamEndCapture(a, &first));
  begin();
  EXPECT_CU(cuMemsetD32Async(p, 2, 4, a));
  ASSERT_CU(cuStreamEndCapture(a, &second));
  begin();
  EXPECT_CU(cuMemcpyDtoDAsync(p, p + 64, 4, a));
  ASSERT_CU(cuStreamEndCapture(a, &third));
  ASSERT_CU(cuGraphInstantiate(&exec, first, 0));
  EXPECT_CU(cuGraphExecUpdate(exec, second, &info));
  EXPECT_CU(cuGraphLaunch(exec, a));
  EXPECT_CU(cuStreamSynchronize(a));
  EXPECT_EQ(2u, read(p, 1)[0]);
  EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, third, &info));
  EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, info.result);
}

}  // namespace
}  // namespace softgpu_driver_test
