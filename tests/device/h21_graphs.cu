// H21: what a graph costs launched as it is, kernel by kernel, and as sub-graphs; whether order by events lets run side by
// side what the graph would; and which attributes the driver names of a kernel node that nobody gave any.
#include "probe.h"

namespace {

struct Work {
  cudaStream_t stream;
  float* scratch;
  int blocks, rounds;  // of probe::work
  void launch(cudaStream_t in) const { probe::work<<<blocks, 128, 0, in>>>(scratch, rounds); }
};

// `n` of them one behind the other, `width` such chains side by side.
cudaGraphExec_t chains(const Work& work, int n, int width = 1) {
  cudaGraph_t graph;
  CUDA_CHECK(cudaGraphCreate(&graph, 0));
  float* scratch = work.scratch;
  int rounds = work.rounds;
  void* parameters[] = {&scratch, &rounds};
  cudaKernelNodeParams node{};
  node.func = reinterpret_cast<void*>(probe::work);
  node.gridDim = dim3(work.blocks), node.blockDim = dim3(128);
  node.kernelParams = parameters;
  for (int chain = 0; chain < width; ++chain) {
    cudaGraphNode_t last = nullptr;
    for (int i = 0; i < n; ++i) {
      cudaGraphNode_t made;
      CUDA_CHECK(cudaGraphAddKernelNode(&made, graph, &last, last ? 1 : 0, &node));
      last = made;
    }
  }
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return exec;
}

// Microseconds from the first call until all has ended, median.
template <class Body>
double total_us(int64_t turns, cudaStream_t stream, Body&& body) {
  std::vector<double> all;
  for (int64_t i = 0; i <= turns; ++i) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    const uint64_t start = probe::now_ns();
    body();
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (i != 0) all.push_back(double(probe::now_ns() - start) / 1e3);  // the first one uploads
  }
  return probe::quantile(all, 0.5);
}

// One row: a number of kernels of `kernel_us` in a graph.
std::string row(Work work, double kernel_us, int n, int64_t turns) {
  work.rounds = probe::rounds_for(work.stream, work.scratch, work.blocks, kernel_us / 1e3);
  const cudaGraphExec_t whole = chains(work, n);
  probe::Report report;
  report.number("kernel_us", kernel_us);
  const double whole_us = total_us(turns, work.stream, [&] { CUDA_CHECK(cudaGraphLaunch(whole, work.stream)); });
  const auto over_whole = [&](const std::string& name, double us) {
    report.number(name + "_over_whole_percent", 100 * (us - whole_us) / whole_us);
  };
  report.number("whole_us_per_kernel", whole_us / n);
  over_whole("unrolled", total_us(turns, work.stream, [&] {
               for (int i = 0; i < n; ++i) work.launch(work.stream);
             }));
  for (const int size : {5, 10, 25}) {
    const cudaGraphExec_t part = chains(work, size);
    over_whole("sub_graphs_of_" + std::to_string(size), total_us(turns, work.stream, [&] {
                 for (int i = 0; i < n; i += size) CUDA_CHECK(cudaGraphLaunch(part, work.stream));
               }));
    CUDA_CHECK(cudaGraphExecDestroy(part));
  }
  CUDA_CHECK(cudaGraphExecDestroy(whole));
  return report.str();
}

// Four chains of narrow kernels: in the graph, and in four streams ordered by events. 1: one chain's time.
void add_branches(probe::Report& report, Work work, int n, int64_t turns) {
  constexpr int kWidth = 4;
  work.blocks = 1;
  work.rounds = probe::rounds_for(work.stream, work.scratch, 1, 0.1);
  const cudaGraphExec_t one = chains(work, n), four = chains(work, n, kWidth);
  cudaStream_t streams[kWidth];
  cudaEvent_t begin, ends[kWidth];
  CUDA_CHECK(cudaEventCreateWithFlags(&begin, cudaEventDisableTiming));
  for (int i = 0; i < kWidth; ++i) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&ends[i], cudaEventDisableTiming));
  }
  const double alone = total_us(turns, work.stream, [&] { CUDA_CHECK(cudaGraphLaunch(one, work.stream)); });
  const double graph = total_us(turns, work.stream, [&] { CUDA_CHECK(cudaGraphLaunch(four, work.stream)); });
  const double events = total_us(turns, work.stream, [&] {
    CUDA_CHECK(cudaEventRecord(begin, work.stream));
    for (int i = 0; i < kWidth; ++i) {
      CUDA_CHECK(cudaStreamWaitEvent(streams[i], begin, 0));
      for (int k = 0; k < n; ++k) work.launch(streams[i]);
      CUDA_CHECK(cudaEventRecord(ends[i], streams[i]));
      CUDA_CHECK(cudaStreamWaitEvent(work.stream, ends[i], 0));
    }
  });
  report.number("four_branches_in_graph_over_one", graph / alone);
  report.number("four_branches_by_events_over_one", events / alone);
}

// Bytes of each attribute that the driver tells of a node without any (interpose/track/graph_read.cc asks the same).
std::string attributes_of_a_plain_node(const Work& work) {
  cudaGraph_t graph;
  CUDA_CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
  work.launch(work.stream);
  CUDA_CHECK(cudaStreamEndCapture(work.stream, &graph));
  cudaGraphNode_t node;
  size_t n = 1;
  CUDA_CHECK(cudaGraphGetNodes(graph, &node, &n));
  const auto get =
      probe::driver_function<CUresult (*)(CUgraphNode, CUlaunchAttributeID, CUlaunchAttributeValue*)>(
          "cuGraphKernelNodeGetAttribute");
  probe::Report report;
  for (int id = 1; id < 32; ++id) {
    CUlaunchAttributeValue value{};
    const CUresult result = get(node, CUlaunchAttributeID(id), &value);
    if (result != CUDA_SUCCESS) continue;
    std::string hex;
    for (int i = 0; i < 16; ++i) {
      char byte[3];
      std::snprintf(byte, sizeof byte, "%02x", unsigned(static_cast<unsigned char>(value.pad[i])));
      hex += byte;
    }
    report.text(std::to_string(id), hex);
  }
  CUDA_CHECK(cudaGraphDestroy(graph));
  return report.str();
}

}  // namespace

int main(int argc, char** argv) {
  int64_t turns = 50, kernels = 100;
  samples::parse_options(argc, argv, "H21: graphs whole, kernel by kernel, and as sub-graphs.",
                         {{"--turns", &turns, "launches of each form"},
                          {"--kernels", &kernels, "per graph, a multiple of 50"}});
  Work work{.stream = nullptr, .scratch = nullptr, .blocks = 32, .rounds = 1};
  CUDA_CHECK(cudaStreamCreateWithFlags(&work.stream, cudaStreamNonBlocking));
  CUDA_CHECK(cudaMalloc(&work.scratch, 4));
  std::string rows;
  for (const double us : {2.0, 5.0, 10.0, 20.0, 50.0})
    rows += (rows.empty() ? "" : ", ") + row(work, us, int(kernels), turns);
  probe::Report report("H21");
  probe::add_device(report);
  report.raw("rows", "[" + rows + "]");
  add_branches(report, work, 10, turns);
  report.raw("plain_node", attributes_of_a_plain_node(work)).print();
}
