// The very first call is one with register, stack and floating-point arguments: all must arrive.
#include <cuda.h>
#include <dlfcn.h>

#include <cstring>

#include "tests/conformance/programs/print.h"
#include "tests/null_driver/null_driver.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* null_driver = dlopen(argv[1], RTLD_NOW);  // absolute path: the driver itself, whatever is preloaded
  if (null_driver == nullptr) return 3;
  const auto record = reinterpret_cast<void (*)(int)>(dlsym(null_driver, "tessera_null_record_launches"));
  const auto last = reinterpret_cast<TesseraNullLaunch (*)()>(dlsym(null_driver, "tessera_null_last_launch"));
  const auto last_float = reinterpret_cast<float (*)()>(dlsym(null_driver, "tessera_null_last_float"));
  if (record == nullptr || last == nullptr || last_float == nullptr) return 4;
  record(1);
  if (std::strcmp(argv[2], "float") == 0) {
    using SetFloat = CUresult (*)(CUfunction, int, float);
    const auto set = reinterpret_cast<SetFloat>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuParamSetf"));
    SAY(set(nullptr, 7, 2.5f));
    std::printf("%g\n", double(last_float()));
    return 0;
  }
  int a = 0;
  void* params[] = {&a};
  SAY(cuLaunchKernel(reinterpret_cast<CUfunction>(0x1234), 1, 2, 3, 4, 5, 6, 7, reinterpret_cast<CUstream>(2),
                     params, nullptr));
  const TesseraNullLaunch l = last();
  std::printf("%llu %u %u %u %u %u %u %u %p %p %d\n", (unsigned long long)l.number, l.grid[0], l.grid[1],
              l.grid[2], l.block[0], l.block[1], l.block[2], l.shared_bytes, l.function, l.stream,
              l.params == params);
}
