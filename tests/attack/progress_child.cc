// An honest program of which progress.py wants to know whether it gets on, and whether others get on beside it. Appends a
// byte to FILE after each step, until SIGTERM.
//
//   progress_child steady FILE       always has work on one stream
//   progress_child host FILE         its stream waits for a host function of 2 s after each step
//   progress_child streams FILE      one thread, 100 streams in turn; it never waits for one
//   progress_child threads FILE      100 threads, each in its own default stream, which it never waits for
//   progress_child service FILE      sixty short requests a second on eight streams, of which it waits for none
//   progress_child other FILE        its stream waits for an event of a process that works for 0.2 s and rests for 2 s
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64

.visible .entry turn(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<2>;
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, 0;
$L1:
  mad.lo.u32 %r2, %r2, 3, 1;
  sub.u32 %r1, %r1, 1;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra $L1;
  st.global.u32 [%rd1], %r2;
  ret;
}
)";

constexpr int kMany = 100, kOfService = 8;
constexpr unsigned kLong = 1000, kShort = 100;  // turns of the loop

int g_progress = -1;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "progress_child: %s: %d\n", what, int(result));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Gpu {
  CUcontext context = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr out = 0;

  Gpu() {
    CUdevice device;
    CUmodule module;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, kPtx));
    CHECK(cuModuleGetFunction(&function, module, "turn"));
    CHECK(cuMemAlloc(&out, 4));
  }
  void launch(CUstream stream, unsigned turns, unsigned blocks = 64) {
    void* arguments[] = {&out, &turns};
    CHECK(cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr));
  }
};

void step() {
  if (write(g_progress, ".", 1) != 1) std::exit(1);
}

CUstream new_stream() {
  CUstream stream;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

void steady(Gpu& gpu) {
  for (const CUstream stream = new_stream();; step()) {
    for (int i = 0; i < 4; ++i) gpu.launch(stream, kLong);
    CHECK(cuStreamSynchronize(stream));
  }
}

void host(Gpu& gpu) {
  for (const CUstream stream = new_stream();; step()) {
    CHECK(cuLaunchHostFunc(
        stream, [](void*) { sleep(2); }, nullptr));
    for (int i = 0; i < 8; ++i) gpu.launch(stream, kLong);
    CHECK(cuStreamSynchronize(stream));
  }
}

void streams(Gpu& gpu, int n, unsigned blocks, useconds_t rest_us) {
  std::vector<CUstream> all;
  for (int i = 0; i < n; ++i) all.push_back(new_stream());
  for (;; usleep(rest_us))
    for (CUstream stream : all) {
      gpu.launch(stream, kShort, blocks);
      step();
    }
}

void threads(Gpu& gpu) {
  std::vector<std::thread> all;
  for (int i = 0; i < kMany; ++i)
    all.emplace_back([&] {
      CHECK(cuCtxSetCurrent(gpu.context));
      for (;; usleep(10'000), step()) gpu.launch(CU_STREAM_PER_THREAD, kShort, 8);  // the CPUs are for all
    });
  for (std::thread& t : all) t.join();
}

// Two processes: what the first records, the second's stream waits for.
void other() {
  int channel[2];
  if (pipe(channel) != 0) std::exit(1);
  const bool waits = fork() == 0;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Gpu gpu;
  const CUstream stream = new_stream();
  CUipcEventHandle handle;
  CUevent event;
  if (!waits) {
    CHECK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CHECK(cuIpcGetEventHandle(&handle, event));
    CHECK(cuEventRecord(event, stream));
    if (write(channel[1], &handle, sizeof handle) != sizeof handle) std::exit(1);
    for (;; sleep(2)) {
      CHECK(cuLaunchHostFunc(
          stream, [](void*) { usleep(200'000); }, nullptr));
      gpu.launch(stream, kLong);
      CHECK(cuEventRecord(event, stream));
    }
  }
  if (read(channel[0], &handle, sizeof handle) != sizeof handle) std::exit(1);
  CHECK(cuIpcOpenEventHandle(&event, handle));
  for (;; step()) {
    CHECK(cuStreamWaitEvent(stream, event, 0));
    for (int i = 0; i < 8; ++i) gpu.launch(stream, kLong);
    CHECK(cuStreamSynchronize(stream));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: progress_child steady|host|streams|threads|service|other FILE\n");
    return 2;
  }
  const char* kind = argv[1];
  g_progress = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (std::strcmp(kind, "other") == 0) other();  // before the first call: a forked child has no context
  Gpu gpu;
  if (std::strcmp(kind, "steady") == 0) steady(gpu);
  if (std::strcmp(kind, "host") == 0) host(gpu);
  if (std::strcmp(kind, "streams") == 0) streams(gpu, kMany, 64, 0);
  if (std::strcmp(kind, "threads") == 0) threads(gpu);
  if (std::strcmp(kind, "service") == 0) streams(gpu, kOfService, 1, 16'000);
  return 2;
}
