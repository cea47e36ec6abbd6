// Stream capture and graphs built by hand.
#include <vector>

#include "checks.h"

namespace checks {
namespace {

__global__ void add(int* p, int v) {
  p[threadIdx.x] += v;
}
__global__ void times(int* p, int v) {
  p[threadIdx.x] *= v;
}

void capture_fork_join() {
  int *a = nullptr, *b = nullptr;
  OK(cudaMalloc(&a, 32 * sizeof(int)));
  OK(cudaMalloc(&b, 32 * sizeof(int)));
  OK(cudaMemset(a, 0, 128));
  OK(cudaMemset(b, 0, 128));
  cudaStream_t main, side;
  cudaEvent_t fork, join;
  OK(cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  OK(cudaDeviceSynchronize());

  OK(cudaStreamBeginCapture(main, cudaStreamCaptureModeGlobal));
  add<<<1, 32, 0, main>>>(a, 1);
  OK(cudaEventRecord(fork, main));
  OK(cudaStreamWaitEvent(side, fork, 0));
  add<<<1, 32, 0, side>>>(b, 10);
  times<<<1, 32, 0, main>>>(a, 2);
  OK(cudaEventRecord(join, side));
  OK(cudaStreamWaitEvent(main, join, 0));
  add<<<1, 32, 0, main>>>(b, 100);
  cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(main, &status));
  EXPECT_EQ(int(status), int(cudaStreamCaptureStatusActive));
  cudaGraph_t graph;
  OK(cudaStreamEndCapture(main, &graph));
  size_t n_nodes = 0;
  OK(cudaGraphGetNodes(graph, nullptr, &n_nodes));
  EXPECT_EQ(n_nodes, 4u);

  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, main));
  OK(cudaGraphLaunch(exec, main));
  OK(cudaStreamSynchronize(main));
  int host = 0;
  OK(cudaMemcpy(&host, a + 31, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host, 6);  // ((0 + 1) * 2 + 1) * 2
  OK(cudaMemcpy(&host, b + 31, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host, 220);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
}

void capture_errors() {
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_CUDA(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  (void)cudaGetLastError();
  OK(cudaStreamSynchronize(stream));
  OK(cudaStreamDestroy(stream));
}

void nodes_by_hand() {
  int* p = nullptr;
  int host[32] = {};
  static int seen = 0;
  OK(cudaMalloc(&p, 128));
  cudaGraph_t graph;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t fill, kernel, copy, function;
  cudaMemsetParams memset{};
  memset.dst = p;
  memset.elementSize = 4;
  memset.value = 5;
  memset.width = 32;
  memset.height = 1;
  OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
  int value = 3;
  void* args[] = {&p, &value};
  cudaKernelNodeParams launch{};
  launch.func = reinterpret_cast<void*>(times);
  launch.gridDim = dim3(1);
  launch.blockDim = dim3(32);
  launch.kernelParams = args;
  OK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
  OK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, host, p, 128, cudaMemcpyDeviceToHost));
  cudaHostNodeParams call{};
  call.fn = [](void* data) { seen = static_cast<int*>(data)[31]; };
  call.userData = host;
  OK(cudaGraphAddHostNode(&function, graph, &copy, 1, &call));

  cudaGraphNodeType type;
  OK(cudaGraphNodeGetType(kernel, &type));
  EXPECT_EQ(int(type), int(cudaGraphNodeTypeKernel));
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(host[31], 15);
  EXPECT_EQ(seen, 15);

  value = 7;  // parameters are copied when set
  OK(cudaGraphExecKernelNodeSetParams(exec, kernel, &launch));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(seen, 35);

  cudaGraph_t clone;
  OK(cudaGraphClone(&clone, graph));
  size_t n_nodes = 0;
  OK(cudaGraphGetNodes(clone, nullptr, &n_nodes));
  EXPECT_EQ(n_nodes, 4u);
  OK(cudaGraphDestroy(clone));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaStreamDestroy(stream));
  OK(cudaFree(p));
}

}  // namespace

const Case kGraphCases[] = {{"capture_fork_join", capture_fork_join},
                            {"capture_errors", capture_errors},
                            {"nodes_by_hand", nodes_by_hand},
                            {nullptr, nullptr}};

}  // namespace checks
