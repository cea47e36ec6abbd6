// Eight threads race for the first call, then work; the sum of successes is printed, and what the driver saw.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/conformance/programs/print.h"

int main(int argc, char** argv) {
  constexpr int kThreads = 8, kLaunches = 20000;
  std::atomic<bool> go{false};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      CUcontext context;
      CUstream stream;
      if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0 ||
          cuStreamCreate(&stream, 0) != 0) {
        failures += 1000000;
        return;
      }
      for (int i = 0; i < kLaunches; ++i) {
        if (cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) != 0) ++failures;
        if (i % 1000 == 0 && cuStreamSynchronize(stream) != 0) ++failures;
      }
      if (cuStreamDestroy(stream) != 0) ++failures;
    });
  }
  go.store(true, std::memory_order_release);
  for (auto& t : threads) t.join();
  std::printf("failures %d\n", failures.load());
  if (argc < 2) return 2;
  const auto calls =
      reinterpret_cast<uint64_t (*)(const char*)>(dlsym(dlopen(argv[1], RTLD_NOW), "tessera_null_calls"));
  if (calls == nullptr) return 3;
  for (const char* name : {"cuLaunchKernel", "cuStreamCreate", "cuStreamDestroy_v2"})
    std::printf("%s %llu\n", name, (unsigned long long)calls(name));
}
