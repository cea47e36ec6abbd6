// Executable graphs of a best-effort program, on the software GPU in this process, against the driver's own calls:
//   graph.instantiate_added_percent   making a graph of 100 kernels
//   graph.life_added_percent          making it, destroying its source, destroying it: never launched
//   graph.read_ns_per_node            reading it, at the first launch that is not alone on the GPU
//   graph.whole_added_ns              a launch that goes whole, against one of a graph that nothing is known of; the
//                                     driver's call is empty
//   graph.unrolled_overhead_percent   100 kernels, until they have ended: in pieces that are not cut, against whole
//   graph.wide_*                      the same of eight branches side by side
//   graph.runs_*                      of kernels that are short for their slice, so that they go out together
#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>

#include "interpose/gate/pulse.h"
#include "interpose/hooks/hooks.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/state/process.h"
#include "interpose/track/graphs.h"
#include "ipc/channel/lease.h"
#include "tests/bench/timing.h"
#include "tests/unit/interpose/mix_kernel.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;
using driver_api::real;
constexpr int kNodes = 100, kRounds = 40;
constexpr int kWidth = 8;
constexpr uint32_t kBlocks = 8, kThreads = 32;

abi::LeaseLine g_lease;
abi::UsageLine g_usage;
abi::PulsePage g_pulse;
abi::RecordRing g_no_ring;
uint32_t g_word = 0;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "bench_graph: %s: error %d\n", what, result);
  exit(1);
}

void lease(uint32_t state, uint64_t slice_ns) {
  ipc::LeaseTerms terms;
  terms.state = state;
  terms.window_ns = 10'000'000'000;
  terms.slice_ns = slice_ns;
  terms.marker_spacing_ns = 1'000'000'000;
  terms.expires_ns = base::now_ns() + 600'000'000'000;
  ipc::lease_publish(g_lease, g_word, terms);
}

void start() {
  setenv("TESSERA_SOFTGPU_LOCAL", TS_GPU, 1);
  setenv("TESSERA_PRIORITY", "0", 1);
  setenv("TESSERA_SLICE", "0", 1);  // the cost of pieces, not of slices
  void* handle = dlopen(TS_SOFTGPU, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    fprintf(stderr, "bench_graph: %s\n", dlerror());
    exit(1);
  }
  auto* slots = reinterpret_cast<void**>(&driver_api::mutable_real_for_tests());
  for (uint16_t i = 0; i < driver_api::kEntryCount; i++)
    if (void* at = dlsym(handle, driver_api::kEntryInfo[i].symbol)) slots[i] = at;
  check(real().cuInit(0), "cuInit");
  lifecycle::first_call(true, false);
  CUcontext context = nullptr;
  check(real().cuDevicePrimaryCtxRetain(&context, 0), "context");
  check(hook_cuCtxSetCurrent(context), "context");
  static state::DaemonLink link;
  link = {&g_lease, &g_usage, &g_no_ring, 0, &g_pulse, 0, 0};
  gate::g_slow.notify_daemon = []() noexcept {};
  state::g_sm_count.store(4);
  lease(abi::kLeaseFree, 0);
  state::set_link(&link);
  state::g_state.role.store(state::Role::kBestEffort);
}

// `width` chains side by side, of kNodes kernels together.
CUgraph chains(int width, CUfunction mix, CUdeviceptr out, CUdeviceptr in) {
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> last(size_t(width), nullptr);
  uint32_t salt = 1;
  void* params[] = {&out, &in, &salt};
  check(real().cuGraphCreate(&graph, 0), "graph");
  for (int i = 0; i < kNodes; i++) {
    CUgraphNode& before = last[size_t(i % width)];
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = mix;
    p.gridDimX = kBlocks, p.gridDimY = p.gridDimZ = 1;
    p.blockDimX = kThreads, p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = params;
    CUgraphNode node = nullptr;
    check(real().cuGraphAddKernelNode_v2(&node, graph, &before, before ? 1 : 0, &p), "node");
    before = node;
  }
  return graph;
}

// In turns, so that what else the machine does meets both alike. Medians of ns.
template <class A, class B>
std::pair<double, double> in_turns(int rounds, int calls, A&& a, B&& b) {
  std::vector<double> of_a, of_b;
  for (int i = 0; i < rounds; i++) {
    of_a.push_back(bench::per_call_ns(1, size_t(calls), a)[0]);
    of_b.push_back(bench::per_call_ns(1, size_t(calls), b)[0]);
  }
  return {bench::quantile(of_a, 0.5), bench::quantile(of_b, 0.5)};
}

struct Driver {  // or the hooks before it
  CUresult (*make)(CUgraphExec*, CUgraph, unsigned long long);
  CUresult (*destroy_source)(CUgraph);
  CUresult (*destroy)(CUgraphExec);
};

double ns_since(uint64_t begin) {
  return double(base::now_ns() - begin);
}

// Without calls on the source, as far as the caller's time goes; then with its end.
void make_once(const Driver& d, CUgraph graph, std::vector<double>& made, std::vector<double>& lived) {
  CUgraphExec exec = nullptr;
  const uint64_t begin = base::now_ns();
  check(d.make(&exec, graph, 0), "instantiate");
  made.push_back(ns_since(begin));
  check(d.destroy_source(graph), "destroy");
  check(d.destroy(exec), "destroy");
  lived.push_back(ns_since(begin));
}

template <class Make>
void instantiate(bench::Report& report, Make&& new_graph) {
  const Driver bare{real().cuGraphInstantiateWithFlags, real().cuGraphDestroy, real().cuGraphExecDestroy};
  const Driver ours{hook_cuGraphInstantiateWithFlags, hook_cuGraphDestroy, hook_cuGraphExecDestroy};
  std::vector<double> made[2], lived[2], reading;
  for (int i = 0; i < kRounds; i++)
    for (const int which : {i % 2, 1 - i % 2})  // the first one of a pair finds other memory
      make_once(which ? ours : bare, new_graph(), made[which], lived[which]);
  for (int i = 0; i < kRounds; i++) {
    CUgraphExec exec = nullptr;
    const CUgraph graph = new_graph();
    check(ours.make(&exec, graph, 0), "instantiate");
    const uint64_t begin = base::now_ns();
    track::graph_changes(graph);
    reading.push_back(ns_since(begin) / kNodes);
    check(ours.destroy_source(graph), "destroy");
    check(ours.destroy(exec), "destroy");
  }
  const auto median = [](std::vector<double>& of) { return bench::quantile(of, 0.5); };
  const double bare_ns = median(made[0]), ours_ns = median(made[1]);
  const double bare_life_ns = median(lived[0]), our_life_ns = median(lived[1]);
  report.add("graph.instantiate_bare_us", bare_ns / 1e3);
  report.add("graph.instantiate_added_us", (ours_ns - bare_ns) / 1e3);
  report.add("graph.instantiate_added_percent", (ours_ns - bare_ns) / bare_ns * 100);
  report.add("graph.life_added_percent", (our_life_ns - bare_life_ns) / bare_life_ns * 100);
  report.add("graph.read_ns_per_node", median(reading));
}

void whole(bench::Report& report, CUgraphExec known) {
  auto& slots = driver_api::mutable_real_for_tests();
  const auto driver = slots.cuGraphLaunch;
  slots.cuGraphLaunch = [](CUgraphExec, CUstream) { return CUDA_SUCCESS; };
  const auto unknown = reinterpret_cast<CUgraphExec>(uintptr_t{0x5000});
  const auto graphs = track::g_known_graphs.load();
  const auto [with_ns, without_ns] = in_turns(
      kRounds, 10'000, [&] { hook_cuGraphLaunch(known, nullptr); },
      [&] {
        track::g_known_graphs.store(0, std::memory_order_relaxed);  // as before graphs were known
        hook_cuGraphLaunch(unknown, nullptr);
        track::g_known_graphs.store(graphs, std::memory_order_relaxed);
      });
  slots.cuGraphLaunch = driver;
  report.add("graph.whole_added_ns", with_ns - without_ns);
}

void unrolled(bench::Report& report, CUgraphExec exec, const std::string& name, uint64_t slice_ns) {
  const auto run = [&] {
    check(hook_cuGraphLaunch(exec, nullptr), "launch");
    check(hook_cuCtxSynchronize(), "synchronise");
  };
  using How = track::GraphLaunched::How;
  const auto as = [&](How how) {
    run();
    if (track::find_graph(exec)->last.how == how) return;
    fprintf(stderr, "bench_graph: the graph went out otherwise than meant\n");
    exit(1);
  };
  lease(abi::kLeaseGranted, 0);
  for (int i = 0; i < 8; i++) run();  // until it is known how long it takes
  const auto [pieces_ns, whole_ns] = in_turns(
      kRounds, 1,
      [&] {
        lease(abi::kLeaseGranted, slice_ns);  // longer than each kernel, shorter than all
        as(How::kPieces);
      },
      [&] {
        lease(abi::kLeaseGranted, 0);
        as(How::kWhole);
      });
  report.add(name + "whole_us_per_kernel", whole_ns / 1e3 / kNodes);
  report.add(name + "unrolled_overhead_percent", (pieces_ns - whole_ns) / whole_ns * 100);
}

}  // namespace

int main() {
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // whose turn it is to give the heap back is no property of either
  start();
  CUmodule module = nullptr;
  CUfunction mix = nullptr;
  CUdeviceptr out = 0, in = 0;
  check(hook_cuModuleLoadData(&module, test::kMixPtx), "module");
  check(hook_cuModuleGetFunction(&mix, module, "mix"), "kernel");
  check(real().cuMemAlloc_v2(&out, test::kMixWords * 4), "memory");
  check(real().cuMemAlloc_v2(&in, test::kMixWords * 4), "memory");
  bench::Report report;
  instantiate(report, [&] { return chains(1, mix, out, in); });
  CUgraphExec exec = nullptr;
  const CUgraph graph = chains(1, mix, out, in), wide = chains(kWidth, mix, out, in);
  check(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  whole(report, exec);
  unrolled(report, exec, "graph.", 200'000);
  check(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  unrolled(report, exec, "graph.runs_", 1'000'000);
  if (track::find_graph(exec)->runs.all().empty()) {
    fprintf(stderr, "bench_graph: no kernels went out together\n");
    return 1;
  }
  check(hook_cuGraphInstantiateWithFlags(&exec, wide, 0), "instantiate");
  unrolled(report, exec, "graph.wide_", 200'000);
  report.print();
  _exit(fflush(stdout) == 0 ? 0 : 1);  // the driver's threads stay
}
