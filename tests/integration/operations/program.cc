// Launches kernels below calls of cublasSgemm_v2:   program FILE   until SIGTERM; appends a byte to FILE after each round
// of six shapes. Begins when it is a best-effort client: then no launch of it is without a call.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/integration/operations/wait_for_role.h"

extern "C" int cublasSgemm_v2(void* handle, int transa, int transb, int m, int n, int k, const float* alpha,
                              const float* A, int lda, const float* B, int ldb, const float* beta, float* C,
                              int ldc);

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 out)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r4;
  ret;
}
)";
constexpr unsigned kThreads = 128, kMostBlocks = 32;

CUfunction g_function;
CUstream g_stream;
unsigned g_blocks = 1;
volatile sig_atomic_t g_stop = 0;

void check(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "program: error %d\n", int(result));
  exit(1);
}

void product(float* c) {
  auto out = reinterpret_cast<CUdeviceptr>(c);
  void* arguments[] = {&out};
  check(cuLaunchKernel(g_function, g_blocks, 1, 1, kThreads, 1, 1, 0, g_stream, arguments, nullptr));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  signal(SIGTERM, [](int) { g_stop = 1; });
  const int progress = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CUdeviceptr out;
  check(cuInit(0));
  check(cuDeviceGet(&device, 0));
  check(cuDevicePrimaryCtxRetain(&context, device));
  check(cuCtxSetCurrent(context));
  check(cuModuleLoadData(&module, kPtx));
  check(cuModuleGetFunction(&g_function, module, "fill"));
  check(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  check(cuMemAlloc(&out, kMostBlocks * kThreads * 4));
  wait_for_role(g_stop);
  while (!g_stop) {
    for (g_blocks = 1; g_blocks <= kMostBlocks; g_blocks *= 2)
      if (cublasSgemm_v2(reinterpret_cast<void*>(&product), 0, 0, 64, 64, 64, nullptr, nullptr, 64, nullptr,
                         64, nullptr, reinterpret_cast<float*>(out), 64) != 0)
        return 4;
    check(cuStreamSynchronize(g_stream));
    if (write(progress, ".", 1) != 1) return 1;
  }
  return 0;
}
