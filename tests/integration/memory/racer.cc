// A program under a limit of memory that it shares with others like it: allocates and frees, and looks whether all of them
// together ever have more. Begins when the test says so. usage: memory_racer LIBRARY SHARED_FD LIMIT_BYTES ROUNDS. Of ROUNDS 0: takes all, says so by a
// line, and keeps it until it is killed. Exit status 0: never more.
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "driver_api/cuda.h"

namespace {

struct Shared {
  std::atomic<uint64_t> held_bytes, refused, taken, go;
};

template <class F>
F* find(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0));
  const uint64_t limit = strtoull(argv[3], nullptr, 10);
  const int rounds = atoi(argv[4]);
  auto* allocate = find<decltype(cuMemAlloc_v2)>(library, "cuMemAlloc_v2");
  auto* release = find<decltype(cuMemFree_v2)>(library, "cuMemFree_v2");
  CUcontext context = nullptr;
  if (find<decltype(cuInit)>(library, "cuInit")(0) != CUDA_SUCCESS ||
      find<decltype(cuDevicePrimaryCtxRetain)>(library, "cuDevicePrimaryCtxRetain")(&context, 0) !=
          CUDA_SUCCESS ||
      find<decltype(cuCtxSetCurrent)>(library, "cuCtxSetCurrent")(context) != CUDA_SUCCESS)
    return 2;
  CUdeviceptr p = 0;
  if (rounds == 0) {
    if (allocate(&p, limit) != CUDA_SUCCESS) return 3;
    puts("holds");
    fflush(stdout);
    for (;;) pause();
  }
  std::mt19937 random{unsigned(getpid())};
  while (shared->go == 0) {  // the daemon hears of it by its first allocations
    if (allocate(&p, 1) != CUDA_SUCCESS || release(p) != CUDA_SUCCESS) return 5;
    sched_yield();
  }
  // Keeps what it has until it has the next one, or was refused it.
  int status = 0;
  uint64_t kept_bytes = 0;
  const auto give_back = [&] {
    shared->held_bytes.fetch_sub(kept_bytes);  // counted for a shorter time than it is held
    if (kept_bytes != 0 && release(p) != CUDA_SUCCESS) status = 4;
    kept_bytes = 0;
  };
  for (int i = 0; i < rounds; ++i) {
    const uint64_t bytes = (1 + random() % 32) * (limit / 64);
    CUdeviceptr next = 0;
    const bool taken = allocate(&next, bytes) == CUDA_SUCCESS;
    ++(taken ? shared->taken : shared->refused);
    if (taken && shared->held_bytes.fetch_add(bytes) + bytes > limit) status = 1;
    give_back();
    if (taken) p = next, kept_bytes = bytes;
    sched_yield();  // all of them race, also on few cores
  }
  give_back();
  return status;
}
