// A program for the sharing scenarios: bursts of launches of one kernel, which is bound by arithmetic or by
// memory, or looks like a look-back and waits for its last block, through the plain driver API. Knows
// nothing of Tessera. Its results depend on its options alone.
//
//   load compute|memory|upwards|counting|graph BLOCKS ITERATIONS LAUNCHES BURSTS GAP_US [FILE [DEVICES]]
//
// graph: compute, and the launches of a burst are one executable graph.
// counting: compute, and the launches have 1, 2 ... BLOCKS, 1 ... blocks: each differs from its neighbours.
// DEVICES: it begins on the first GPU, and comes to the others after kAlone bursts, the last one first. All bursts are then
// on each of them.
// BURSTS 0: until SIGTERM. After each burst it synchronises, appends a byte to FILE and sleeps for GAP_US. At
// the end it prints "checksum=... bursts=..." for each GPU.
#include <cuda.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "tests/integration/sharing/driver_program.h"

using tessera::test::g_stop;

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64

.visible .entry compute(.param .u64 out, .param .u64 in, .param .u32 n, .param .u32 mask)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .f32 %f<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r5, %r2, %r3, %r4;
  cvt.rn.f32.u32 %f1, %r5;
  mov.f32 %f2, 0f3F000000;
$L1:
  fma.rn.f32 %f1, %f1, %f2, %f2;
  fma.rn.f32 %f1, %f1, %f2, %f2;
  fma.rn.f32 %f1, %f1, %f2, %f2;
  fma.rn.f32 %f1, %f1, %f2, %f2;
  fma.rn.f32 %f1, %f1, %f2, %f2;
  fma.rn.f32 %f1, %f1, %f2, %f2;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $L1;
  mul.wide.u32 %rd2, %r5, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.f32 [%rd3], %f1;
  ret;
}

.visible .entry memory(.param .u64 out, .param .u64 in, .param .u32 n, .param .u32 mask)
{
  .reg .pred %p<2>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  ld.param.u32 %r1, [n];
  ld.param.u32 %r2, [mask];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  mov.u32 %r7, 0;
  mov.u32 %r8, %r6;
$L1:
  and.b32 %r9, %r8, %r2;
  mul.wide.u32 %rd3, %r9, 16;
  add.u64 %rd4, %rd2, %rd3;
  ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4];
  add.u32 %r7, %r7, %r10;
  add.u32 %r7, %r7, %r13;
  add.u32 %r8, %r8, 4096;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $L1;
  mul.wide.u32 %rd5, %r6, 4;
  add.u64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r7;
  ret;
}

.visible .entry upwards(.param .u64 out, .param .u64 in, .param .u32 n, .param .u32 mask)
{
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [out];
  ld.param.u64 %rd2, [in];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %nctaid.x;
  add.u32 %r3, %r1, 1;
  mul.wide.u32 %rd3, %r1, 16;
  add.u64 %rd4, %rd2, %rd3;
  mov.u32 %r6, %tid.x;
  setp.ne.u32 %p0, %r6, 0;
  @%p0 bra $L2;
  setp.ne.u32 %p1, %r3, %r2;
  @%p1 bra $L1;
  st.volatile.global.u32 [%rd2], %r3;  // 0 before the launch; the others are not
$L1:
  ld.volatile.global.u32 %r4, [%rd4];
  setp.eq.u32 %p2, %r4, 0;
  @%p2 bra $L1;
  st.volatile.global.u32 [%rd4+16], %r4;
$L2:
  mov.u32 %r5, %ntid.x;
  mad.lo.u32 %r7, %r1, %r5, %r6;
  mul.wide.u32 %rd5, %r7, 4;
  add.u64 %rd6, %rd1, %rd5;
  st.global.u32 [%rd6], %r7;
  ret;
}
)";

constexpr unsigned kThreads = 128, kQuads = 1u << 14;  // of 16 bytes
constexpr unsigned kAlone = 10;                        // bursts

struct Work {  // on one GPU
  CUcontext context;
  CUfunction function;
  CUdeviceptr in, out;
  CUstream stream;
  CUgraphExec graph;
};

Work work_on(int ordinal, const char* kernel, unsigned blocks) {
  Work w{};
  CUdevice device;
  CUmodule module;
  CHECK(cuDeviceGet(&device, ordinal));
  CHECK(cuDevicePrimaryCtxRetain(&w.context, device));
  CHECK(cuCtxSetCurrent(w.context));
  CHECK(cuModuleLoadData(&module, kPtx));
  CHECK(cuModuleGetFunction(&w.function, module, kernel));
  CHECK(cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuMemAlloc(&w.in, kQuads * 16));
  CHECK(cuMemAlloc(&w.out, size_t(blocks) * kThreads * 4));
  std::vector<uint32_t> words(kQuads * 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = uint32_t(i * 2654435761u);
  CHECK(cuMemcpyHtoD(w.in, words.data(), words.size() * 4));
  return w;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr,
                 "usage: load compute|memory|upwards|counting|graph BLOCKS ITERATIONS LAUNCHES BURSTS GAP_US "
                 "[FILE [DEVICES]]\n");
    return 2;
  }
  const unsigned blocks = unsigned(std::atoi(argv[2])), launches = unsigned(std::atoi(argv[4]));
  unsigned iterations = unsigned(std::atoi(argv[3])), mask = kQuads - 1;
  const unsigned bursts = unsigned(std::atoi(argv[5])), gap_us = unsigned(std::atoi(argv[6]));
  const bool upwards = std::strcmp(argv[1], "upwards") == 0, counting = std::strcmp(argv[1], "counting") == 0;
  const bool in_graph = std::strcmp(argv[1], "graph") == 0;
  const int progress =
      argc > 7 ? open(argv[7], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600) : -1;
  tessera::test::stop_on_sigterm();

  const int n_devices = argc > 8 ? std::atoi(argv[8]) : 1;
  const char* kernel = counting || in_graph ? "compute" : argv[1];
  CHECK(cuInit(0));
  std::vector<Work> works;
  unsigned done = 0, launched = 0;
  const auto launch_burst = [&](Work& w) {
    void* arguments[] = {&w.out, &w.in, &iterations, &mask};
    for (unsigned i = 0; i < launches && !g_stop; ++i) {
      if (upwards) CHECK(cuMemsetD32Async(w.in, 0, 1, w.stream));
      const unsigned now = counting ? 1 + launched++ % blocks : blocks;
      CHECK(cuLaunchKernel(w.function, now, 1, 1, kThreads, 1, 1, 0, w.stream, arguments, nullptr));
    }
  };
  const auto begin_on = [&](int device) {
    Work& w = works.emplace_back(work_on(device, kernel, blocks));
    if (!in_graph) return;
    CUgraph captured;
    CHECK(cuStreamBeginCapture(w.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_burst(w);
    CHECK(cuStreamEndCapture(w.stream, &captured));
    CHECK(cuGraphInstantiate(&w.graph, captured, 0));
    CHECK(cuGraphDestroy(captured));
  };
  begin_on(0);
  while (!g_stop && (bursts == 0 || done < bursts)) {
    for (int device = n_devices - 1; done == kAlone && device > 0; --device) begin_on(device);
    for (Work& w : works) {
      CHECK(cuCtxSetCurrent(w.context));
      if (w.graph)
        CHECK(cuGraphLaunch(w.graph, w.stream));
      else
        launch_burst(w);
    }
    for (Work& w : works) {
      CHECK(cuCtxSetCurrent(w.context));
      CHECK(cuStreamSynchronize(w.stream));
    }
    ++done;
    if (progress >= 0 && write(progress, ".", 1) != 1) return 1;
    if (gap_us != 0) usleep(gap_us);
  }
  for (const Work& w : works) {
    std::vector<uint32_t> words(size_t(blocks) * kThreads);
    CHECK(cuCtxSetCurrent(w.context));
    CHECK(cuMemcpyDtoH(words.data(), w.out, words.size() * 4));
    uint64_t sum = tessera::base::kFnvBasis;
    for (uint32_t word : words) sum = tessera::base::fnv1a_step(sum, word);
    std::printf("checksum=%016llx bursts=%u\n", static_cast<unsigned long long>(sum), done);
  }
  return 0;
}
