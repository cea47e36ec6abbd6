// Measures the addition of tracing to a launch, on the null driver: batches with and without it in turn, of a protected
// client (its fast path is the shortest). Nobody reads the ring: a reader costs the writer only cache misses, every 5
// ms.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "interpose/gate/trace.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/trace.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/state/clock.h"
#include "interpose/state/state.h"
#include "tests/bench/timing.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;

abi::LeaseLine g_lease;
abi::UsageLine g_usage;
abi::PulsePage g_pulse;
abi::RecordRing g_no_ring;

void trace(abi::TraceHeader* ring) {
  if (ring) hooks::trace_driver_calls(true);
  gate::set_trace(ring);
  if (!ring) hooks::trace_driver_calls(false);
}

}  // namespace

int main() {
  void* handle = dlopen(TS_NULL_DRIVER, RTLD_NOW);
  void* memory = std::aligned_alloc(4096, abi::kTraceBytes);
  if (!handle || !memory) {
    fprintf(stderr, "bench_trace: %s\n", handle ? "no memory" : dlerror());
    return 1;
  }
  std::memset(memory, 0, abi::kTraceBytes);
  auto* slots = reinterpret_cast<void**>(&driver_api::mutable_real_for_tests());
  for (uint16_t i = 0; i < driver_api::kEntryCount; i++)
    if (void* at = dlsym(handle, driver_api::kEntryInfo[i].symbol)) slots[i] = at;
  lifecycle::first_call(true, false);
  driver_api::real().cuInit(0);
  CUcontext context = nullptr;
  driver_api::real().cuDevicePrimaryCtxRetain(&context, 0);
  hook_cuCtxSetCurrent(context);
  static state::DaemonLink link;
  link = {&g_lease, &g_usage, &g_no_ring, 0, &g_pulse, 0, 0};
  state::set_link(&link);
  state::g_state.role.store(state::Role::kProtected);
  state::calibrate_clock();
  usleep(20'000);
  state::calibrate_clock();

  const auto f = reinterpret_cast<CUfunction>(uintptr_t{0x5000});
  const auto launch = [&] { hook_cuLaunchKernel(f, 64, 1, 1, 128, 1, 1, 0, nullptr, nullptr, nullptr); };
  bench::per_call_ns(10, 10'000, launch);
  std::vector<double> without, with;
  for (int i = 0; i < 400; i++) {  // in turn, so that both see the same machine
    trace(nullptr);
    without.push_back(bench::per_call_ns(1, 2'000, launch)[0]);
    trace(static_cast<abi::TraceHeader*>(memory));
    with.push_back(bench::per_call_ns(1, 2'000, launch)[0]);
  }
  bench::Report report;
  report.add("trace.off_launch_ns", bench::quantile(without, 0.5));
  report.add("trace.on_launch_ns", bench::quantile(with, 0.5));
  report.add("trace.added_ns", bench::quantile(with, 0.5) - bench::quantile(without, 0.5));
  report.print();
  return 0;
}
