// A service that says what its requests are, by ranges of NVTX, and measures them itself: one of "engine/prefill", then steps
// called "decode 0", "decode 1" ... Through the plain driver API. Knows nothing of Tessera.
//
//   service REQUESTS STEPS FILE
//
// A prefill is waited for behind its range, a step within it. FILE gets a line for each: its kind, and in ns of CLOCK_MONOTONIC
// when its first call was made and when the wait had ended. Then the program waits for SIGTERM. It begins when FILE.go is there;
// until then it waits again and again for a GPU that has nothing to do.
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/integration/sharing/driver_program.h"

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64

.visible .entry work(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  .reg .f32 %f<3>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  mov.f32 %f1, 0f3F000000;
$L1:
  fma.rn.f32 %f1, %f1, %f1, %f1;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $L1;
  st.global.f32 [%rd1], %f1;
  ret;
}
)";

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1'000'000'000 + uint64_t(t.tv_nsec);
}

// A step has one: so the two can be told apart without ranges.
constexpr int kPrefillLaunches = 4;

struct Measured {
  const char* kind;
  uint64_t start_ns, end_ns;
};

class Engine {
 public:
  Engine() {
    CHECK(cuInit(0));
    CUdevice device = 0;
    CUcontext context = nullptr;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CUmodule module = nullptr;
    CHECK(cuModuleLoadData(&module, kPtx));
    CHECK(cuModuleGetFunction(&work_, module, "work"));
    CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&out_, 4));
  }
  void launch(uint32_t iterations) {
    void* arguments[] = {&out_, &iterations};
    CHECK(cuLaunchKernel(work_, 8, 1, 1, 128, 1, 1, 0, stream_, arguments, nullptr));
  }
  void wait() { CHECK(cuStreamSynchronize(stream_)); }

 private:
  CUfunction work_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr out_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  tessera::test::stop_on_sigterm();
  const int requests = atoi(argv[1]), steps = atoi(argv[2]);
  Engine engine;
  for (const std::string go = std::string(argv[3]) + ".go";
       !tessera::test::g_stop && access(go.c_str(), F_OK) != 0; usleep(1000))
    engine.wait();
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("engine");
  nvtxEventAttributes_t prefill{};
  prefill.version = NVTX_VERSION;
  prefill.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  prefill.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  prefill.message.registered = nvtxDomainRegisterStringA(domain, "prefill");
  std::vector<Measured> measured;
  for (int request = 0; request < requests; request++) {
    uint64_t start_ns =
        now_ns();  // before the range: where nobody saw a request's first call, it starts with its range
    nvtxDomainRangePushEx(domain, &prefill);
    for (int part = 0; part < kPrefillLaunches; part++) engine.launch(8000 / kPrefillLaunches);
    nvtxDomainRangePop(domain);
    engine.wait();
    measured.push_back({"prefill", start_ns, now_ns()});
    for (int step = 0; step < steps; step++) {
      start_ns = now_ns();
      nvtxRangePushA(("decode " + std::to_string(step)).c_str());
      engine.launch(1000);
      engine.wait();
      measured.push_back({"decode", start_ns, now_ns()});
      nvtxRangePop();
    }
  }
  const std::string part = std::string(argv[3]) + ".part";
  FILE* file = fopen(part.c_str(), "w");
  if (!file) return 1;
  for (const Measured& m : measured)
    fprintf(file, "%s %llu %llu\n", m.kind, (unsigned long long)m.start_ns, (unsigned long long)m.end_ns);
  if (fclose(file) != 0 || rename(part.c_str(), argv[3]) != 0) return 1;
  while (!tessera::test::g_stop) usleep(10'000);
  return 0;
}
