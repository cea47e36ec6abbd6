// Drives the shim's hooks in this process with the software GPU as the driver behind them (a device of this
// process alone) and the daemon's side written by the test, as in harness.h. One context for all tests of a
// program: the attachment and the markers belong to it.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/unit/interpose/harness.h"

namespace tessera::test {

class Soft : public Gate {
 public:
  void SetUp() override;
  void TearDown() override;

  static std::string image_path(const char* file);
  static std::vector<char> bytes_of(const char* file);  // NUL-terminated

  // Slices of a pilot, and then of a sixteenth of a wave: any block is long. Both are 8 blocks of a kernel of which 32 fit on
  // an SM.
  void cutting(uint64_t window_ns = 50'000'000) {
    constexpr uint32_t kLeastWidthPercent = 1;
    lease(abi::kLeaseGranted, window_ns, 1'000, 1, 200, 60'000'000'000, kLeastWidthPercent);
  }

  CUfunction function_of(CUmodule module, const char* name) {
    CUfunction f = nullptr;
    EXPECT_EQ(hook_cuModuleGetFunction(&f, module, name), CUDA_SUCCESS) << name;
    return f;
  }
  // Nothing is known any more of what bounds it.
  static const state::KernelRecord& forget_class(CUfunction kernel);
  CUdeviceptr zeros(size_t n_words);
  std::vector<uint32_t> read(CUdeviceptr p, size_t n_words);
  CUresult launch3(CUfunction f, std::vector<uint32_t> grid, uint32_t block, void** params,
                   uint32_t shared = 0, void** extra = nullptr, CUstream stream = nullptr) {
    return hook_cuLaunchKernel(f, grid[0], grid[1], grid[2], block, 1, 1, shared, stream, params, extra);
  }
  // Launches a kernel of three parameters (out, in, salt) uncut until it is known how long it takes: measured_ns().
  uint64_t measure(CUfunction mix, uint32_t blocks, uint32_t threads);
  // The measured duration of a launch of this shape; 0: not yet.
  static uint64_t measured_ns(CUfunction kernel, uint32_t blocks, uint32_t threads);
  uint64_t slices() { return std::atomic_ref(region->usage.slices).load(); }
  uint64_t cut_of(const std::function<void()>& what) {  // slices that it was launched as; 0 = whole
    const uint64_t before = slices();
    what();
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    return slices() - before;
  }
  // stamp<<<grid, 32>>> through `f`: result right, and how many slices it took.
  uint64_t stamp(CUfunction f, std::vector<uint32_t> grid = {64, 1, 1}, uint32_t salt = 5);

  CUcontext context = nullptr;
};

}  // namespace tessera::test
