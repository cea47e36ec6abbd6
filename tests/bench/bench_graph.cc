// Executable graphs of a best-effort program, on the software GPU in this process, against the driver's own calls:
//   graph.instantiate_added_percent   making a graph of 100 kernels, which is read
//   graph.whole_added_ns              a launch that goes whole, against one of a graph that nothing is known of; the
//                                     driver's call is empty
//   graph.unrolled_overhead_percent   100 kernels, until they have ended: in pieces that are not cut, against whole
#include <dlfcn.h>

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

CUgraph chain(CUfunction mix, CUdeviceptr out, CUdeviceptr in) {
  CUgraph graph = nullptr;
  CUgraphNode before = nullptr;
  uint32_t salt = 1;
  void* params[] = {&out, &in, &salt};
  check(real().cuGraphCreate(&graph, 0), "graph");
  for (int i = 0; i < kNodes; i++) {
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = mix;
    p.gridDimX = kBlocks, p.gridDimY = p.gridDimZ = 1;
    p.blockDimX = kThreads, p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = params;
    CUgraphNode node = nullptr;
    check(real().cuGraphAddKernelNode_v2(&node, graph, &before, i ? 1 : 0, &p), "node");
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

void instantiate(bench::Report& report, CUgraph graph) {
  CUgraphExec exec = nullptr;
  double bare_ns = 0, ours_ns = 0;
  std::vector<double> bare, ours;
  for (int i = 0; i < kRounds; i++) {
    uint64_t begin = base::now_ns();
    check(real().cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    bare.push_back(double(base::now_ns() - begin));
    check(real().cuGraphExecDestroy(exec), "destroy");
    begin = base::now_ns();
    check(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
    ours.push_back(double(base::now_ns() - begin));
    check(hook_cuGraphExecDestroy(exec), "destroy");
  }
  bare_ns = bench::quantile(bare, 0.5), ours_ns = bench::quantile(ours, 0.5);
  report.add("graph.instantiate_bare_us", bare_ns / 1e3);
  report.add("graph.instantiate_added_us", (ours_ns - bare_ns) / 1e3);
  report.add("graph.instantiate_added_percent", (ours_ns - bare_ns) / bare_ns * 100);
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

void unrolled(bench::Report& report, CUgraphExec exec) {
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
        lease(abi::kLeaseGranted, 200'000);  // longer than each kernel, shorter than all
        as(How::kPieces);
      },
      [&] {
        lease(abi::kLeaseGranted, 0);
        as(How::kWhole);
      });
  report.add("graph.whole_us_per_kernel", whole_ns / 1e3 / kNodes);
  report.add("graph.unrolled_overhead_percent", (pieces_ns - whole_ns) / whole_ns * 100);
}

}  // namespace

int main() {
  start();
  CUmodule module = nullptr;
  CUfunction mix = nullptr;
  CUdeviceptr out = 0, in = 0;
  check(hook_cuModuleLoadData(&module, test::kMixPtx), "module");
  check(hook_cuModuleGetFunction(&mix, module, "mix"), "kernel");
  check(real().cuMemAlloc_v2(&out, test::kMixWords * 4), "memory");
  check(real().cuMemAlloc_v2(&in, test::kMixWords * 4), "memory");
  const CUgraph graph = chain(mix, out, in);
  bench::Report report;
  instantiate(report, graph);
  CUgraphExec exec = nullptr;
  check(hook_cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  whole(report, exec);
  unrolled(report, exec);
  report.print();
  _exit(fflush(stdout) == 0 ? 0 : 1);  // the driver's threads stay
}
