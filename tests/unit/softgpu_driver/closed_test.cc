// A program may close the library. Its threads, and what is to happen at the end of the program's, stay where they are.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

namespace {

#define TS_FIND(symbol) reinterpret_cast<decltype(&symbol)>(dlsym(library, #symbol))

void use(void* library) {
  CUcontext context = nullptr;
  CUdeviceptr p = 0;
  ASSERT_EQ(TS_FIND(cuInit)(0), CUDA_SUCCESS);
  ASSERT_EQ(TS_FIND(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(TS_FIND(cuCtxSetCurrent)(context), CUDA_SUCCESS);
  ASSERT_EQ(TS_FIND(cuMemAlloc_v2)(&p, 4096), CUDA_SUCCESS);
  ASSERT_EQ(TS_FIND(cuMemsetD32Async)(p, 7, 1024, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(TS_FIND(cuCtxSynchronize)(), CUDA_SUCCESS);
}

TEST(Closed, ThreadsThatUsedItEnd) {
  void* library = dlopen(TS_SOFT_DRIVER, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  std::promise<void> used, closed;
  std::thread thread([&] {
    use(library);
    used.set_value();
    closed.get_future().wait();
  });
  used.get_future().wait();
  EXPECT_EQ(dlclose(library), 0);
  closed.set_value();
  thread.join();
  library = dlopen(TS_SOFT_DRIVER, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  use(library);
}

}  // namespace
