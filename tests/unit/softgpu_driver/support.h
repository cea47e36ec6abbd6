// Fixture and kernels for tests of the driver library through its exported API. Every test gets a fresh
// context.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <vector>

#define ASSERT_CU(call) ASSERT_EQ(CUDA_SUCCESS, (call))
#define EXPECT_CU(call) EXPECT_EQ(CUDA_SUCCESS, (call))

namespace softgpu_driver_test {

// fill(u32* p, u32 value, u32 n): p[i] = value       add(u32* p, u32 value, u32 n): p[i] += value
// spin(u32* p, u32 rounds): p[0] = rounds, after a loop of that many rounds
// store(u64 address): writes 4 bytes there           trapper(): trap
// await(u32* p): reads p[0] until it is not 0
// variables: counter (global u32 = 7), table (const 4 x u32)
extern const char* const kPtx;

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CU(cuInit(0));
    ASSERT_CU(cuCtxCreate(&context, nullptr, 0, 0));
  }
  void TearDown() override {
    if (context) cuCtxDestroy(context);
  }

  CUdeviceptr alloc(size_t bytes) {
    CUdeviceptr p = 0;
    EXPECT_CU(cuMemAlloc(&p, bytes));
    return p;
  }
  std::vector<uint32_t> read(CUdeviceptr p, size_t n) {
    std::vector<uint32_t> values(n);
    EXPECT_CU(cuMemcpyDtoH(values.data(), p, n * 4));
    return values;
  }
  CUfunction function(const char* name) {
    if (!module) {
      EXPECT_CU(cuModuleLoadData(&module, kPtx));
    }
    CUfunction f = nullptr;
    EXPECT_CU(cuModuleGetFunction(&f, module, name));
    return f;
  }
  // One-dimensional launch with values as arguments.
  template <class... Args>
  CUresult launch(CUfunction f, unsigned grid, unsigned block, CUstream stream, Args... args) {
    void* params[] = {&args..., nullptr};
    return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, stream, params, nullptr);
  }

  CUcontext context = nullptr;
  CUmodule module = nullptr;
};

// A word that a stream can be made to wait for, so that tests decide when it goes on.
class Gate {
 public:
  Gate() {
    EXPECT_CU(cuMemHostAlloc(&memory_, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    word() = 0;
  }
  ~Gate() { open(); }
  CUresult hold(CUstream stream) {
    return cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(memory_), 1, CU_STREAM_WAIT_VALUE_EQ);
  }
  void open() { std::atomic_ref<uint32_t>(word()).store(1); }

 private:
  uint32_t& word() { return *static_cast<uint32_t*>(memory_); }
  void* memory_ = nullptr;  // freed with the context
};

}  // namespace softgpu_driver_test
