// From the store that opens a gate on the device until the first kernel behind it has run, on the software GPU in this
// process, p50 and p99: gate.open_to_kernel_*. No thread of Tessera takes part in it. Beside it, the same of a launch into an
// idle stream: gate.launch_to_kernel_*. On a GPU, H25 asks this (tests/device/h25_wait_word.cu).
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>

#include "base/machine.h"
#include "driver_api/cuda.h"
#include "ipc/channel/gate.h"
#include "tests/bench/timing.h"

namespace {

using namespace tessera;
namespace abi = ipc::abi;
constexpr uint32_t kRounds = 2'000, kWarm = 50;

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry tell(.param .u64 to, .param .u32 number)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [to];
  ld.param.u32 %r1, [number];
  st.volatile.global.u32 [%rd1], %r1;
  ret;
}
)";

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "bench_gate: %s: error %d\n", what, result);
  exit(1);
}

void* g_driver = nullptr;

template <class... A>
void call(const char* symbol, A... arguments) {
  auto* f = reinterpret_cast<CUresult (*)(A...)>(dlsym(g_driver, symbol));
  if (!f) {
    fprintf(stderr, "bench_gate: no %s\n", symbol);
    exit(1);
  }
  check(f(arguments...), symbol);
}

}  // namespace

int main() {
  setenv("TESSERA_SOFTGPU_LOCAL", TS_GPU, 1);
  g_driver = dlopen(TS_SOFTGPU, RTLD_NOW | RTLD_LOCAL);
  if (!g_driver) {
    fprintf(stderr, "bench_gate: %s\n", dlerror());
    return 1;
  }
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction tell = nullptr;
  CUstream stream = nullptr;
  uint32_t* word = nullptr;
  CUdeviceptr device_word = 0, gate_word = 0;
  call("cuInit", 0u);
  call("cuDevicePrimaryCtxRetain", &context, CUdevice(0));
  call("cuCtxSetCurrent", context);
  call("cuModuleLoadData", &module, static_cast<const void*>(kPtx));
  call("cuModuleGetFunction", &tell, module, "tell");
  call("cuStreamCreate", &stream, unsigned(CU_STREAM_NON_BLOCKING));
  call("cuMemHostAlloc", reinterpret_cast<void**>(&word), sizeof *word, unsigned(CU_MEMHOSTALLOC_DEVICEMAP));
  call("cuMemHostGetDevicePointer_v2", &device_word, static_cast<void*>(word), 0u);
  void* memory = mmap(nullptr, abi::kGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto& page = *static_cast<abi::GatePage*>(memory);
  for (uint32_t byte = 0; byte < abi::kGateOverrideByte; byte++)
    ipc::gate_byte(page, byte).store(abi::kGateByteOpen);
  call("cuMemHostRegister_v2", memory, size_t(abi::kGateBytes),
       unsigned(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  call("cuMemHostGetDevicePointer_v2", &gate_word, memory, 0u);
  gate_word += offsetof(abi::GatePage, word);

  uint32_t number = 0;
  void* arguments[] = {&device_word, &number};
  const auto launch = [&] {
    number++;
    call("cuLaunchKernel", tell, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, static_cast<void**>(arguments),
         static_cast<void**>(nullptr));
  };
  const auto until_it_ran = [&](uint64_t since_ns) {
    while (std::atomic_ref(*word).load(std::memory_order_acquire) != number) base::cpu_relax();
    return double(base::now_ns() - since_ns) / 1e3;
  };
  std::vector<double> opened, launched;
  for (uint32_t round = 0; round < kWarm + kRounds; round++) {
    ipc::close_gate(page, abi::kGateFirstPeer, round);
    call("cuStreamWaitValue64_v2", stream, gate_word, cuuint64_t(abi::gate_value(0)),
         unsigned(CU_STREAM_WAIT_VALUE_GEQ));
    launch();
    const uint64_t pause_ns = base::now_ns() + 200'000;  // until the stream waits
    while (base::now_ns() < pause_ns) base::cpu_relax();
    const uint64_t opens_ns = base::now_ns();
    ipc::gate_byte(page, abi::kGateFirstPeer).store(abi::kGateByteOpen, std::memory_order_seq_cst);
    const double open_us = until_it_ran(opens_ns);
    call("cuStreamSynchronize", stream);
    const uint64_t launches_ns = base::now_ns();
    launch();
    const double launch_us = until_it_ran(launches_ns);
    call("cuStreamSynchronize", stream);
    if (round < kWarm) continue;
    opened.push_back(open_us);
    launched.push_back(launch_us);
  }
  bench::Report report;
  report.add("gate.open_to_kernel_p50_us", bench::quantile(opened, 0.5));
  report.add("gate.open_to_kernel_p99_us", bench::quantile(opened, 0.99));
  report.add("gate.launch_to_kernel_p50_us", bench::quantile(launched, 0.5));
  report.add("gate.launch_to_kernel_p99_us", bench::quantile(launched, 0.99));
  report.print();
  return 0;
}
