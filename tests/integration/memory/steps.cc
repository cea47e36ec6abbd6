// A program under a limit of 64 MiB of each of two GPUs; its argument says what it looks at. Exit status 0: all as it should be,
// else the number of the line that is not.
//   devices   what lies on a GPU is charged and released there, whichever is current
//   fork      a child that ends takes nothing of its parent's with it
//   hold      fills its GPU 0, makes the file that is named behind it, and keeps what it has until it is ended
//   other     its GPU 0 is free, its GPU 1 is not
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api/cuda.h"

#define EXPECT(condition) \
  if (!(condition)) return __LINE__

namespace {

constexpr size_t kMost = size_t(60) << 20, kSome = size_t(8) << 20;

bool takes(CUdeviceptr* p, size_t bytes) {
  return cuMemAlloc_v2(p, bytes) == CUDA_SUCCESS;
}
bool refused(size_t bytes) {
  CUdeviceptr p = 0;
  return cuMemAlloc_v2(&p, bytes) == CUDA_ERROR_OUT_OF_MEMORY;
}
bool gives(CUdeviceptr p) {
  return cuMemFree_v2(p) == CUDA_SUCCESS;
}

}  // namespace

int main(int, char** argv) {
  CUcontext gpu[2] = {};
  CUdeviceptr a = 0, b = 0;
  EXPECT(cuInit(0) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) EXPECT(cuDevicePrimaryCtxRetain(&gpu[i], i) == CUDA_SUCCESS);
  cuCtxSetCurrent(gpu[0]);
  if (!strcmp(argv[1], "devices")) {
    cuCtxSetCurrent(gpu[1]);
    EXPECT(takes(&b, kMost));
    EXPECT(refused(kSome));
    cuCtxSetCurrent(gpu[0]);
    EXPECT(takes(&a, kMost));
    EXPECT(refused(kSome));
    EXPECT(gives(b));
    EXPECT(refused(kSome));
    cuCtxSetCurrent(gpu[1]);
    EXPECT(takes(&b, kMost));
    EXPECT(gives(a));
    EXPECT(gives(b));
  } else if (!strcmp(argv[1], "fork")) {
    EXPECT(takes(&a, kMost));
    const pid_t child = fork();
    if (child == 0) return 0;
    int status = 1;
    waitpid(child, &status, 0);
    EXPECT(status == 0);
    EXPECT(refused(kSome));
    EXPECT(gives(a));
    EXPECT(takes(&a, kMost));
  } else if (!strcmp(argv[1], "hold")) {
    EXPECT(takes(&a, kMost));
    FILE* ready = fopen(argv[2], "w");
    EXPECT(ready && fclose(ready) == 0);
    for (;;) pause();
  } else {
    EXPECT(takes(&a, kMost));
    cuCtxSetCurrent(gpu[1]);
    EXPECT(refused(kSome));
  }
  return 0;
}
