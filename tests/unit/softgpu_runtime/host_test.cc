// The runtime from plain C++ (no nvcc), so that sanitizers can watch runtime and driver together: kernels
// come as PTX text through cudaLibraryLoadData.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

// Generated code calls these; the toolkit declares them for nvcc only.
extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream);
extern "C" cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                                  void* stream);

namespace {

constexpr char kPtx[] = R"(
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry add_index(.param .u64 target, .param .u32 amount)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [target];
  ld.param.u32 %r1, [amount];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r2, %r2, %r3, %r4;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r5, [%rd3];
  add.s32 %r5, %r5, %r1;
  add.s32 %r5, %r5, %r2;
  st.global.u32 [%rd3], %r5;
  ret;
}
)";

#define OK(call) ASSERT_EQ(cudaGetErrorName(call), cudaGetErrorName(cudaSuccess))

class Runtime : public testing::Test {
 protected:
  void SetUp() override {
    OK(cudaLibraryLoadData(&library_, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(cudaLibraryGetKernel(&kernel_, library_, "add_index"));
  }
  void TearDown() override {
    OK(cudaLibraryUnload(library_));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  static cudaError_t launch(cudaKernel_t kernel, unsigned* target, unsigned amount, cudaStream_t stream) {
    void* args[] = {&target, &amount};
    return cudaLaunchKernel(kernel, dim3(4), dim3(64), args, 0, stream);
  }
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

TEST_F(Runtime, KernelHandlesStandForFunctions) {
  unsigned *device = nullptr, host[256] = {};
  OK(cudaMalloc(reinterpret_cast<void**>(&device), sizeof host));
  OK(cudaMemset(device, 0, sizeof host));
  OK(launch(kernel_, device, 5, nullptr));
  OK(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  EXPECT_EQ(host[0], 5u);
  EXPECT_EQ(host[255], 260u);
  cudaFuncAttributes attributes{};
  OK(cudaFuncGetAttributes(&attributes, kernel_));
  EXPECT_GT(attributes.maxThreadsPerBlock, 0);
  size_t offset = 0, size = 0;
  OK(cudaFuncGetParamInfo(kernel_, 1, &offset, &size));
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(size, 4u);
  OK(cudaFree(device));
}

TEST_F(Runtime, LibraryGlobals) {
  void* address = nullptr;
  size_t bytes = 0;
  unsigned value = 0;
  OK(cudaLibraryGetGlobal(&address, &bytes, library_, "counter"));
  EXPECT_EQ(bytes, 4u);
  OK(cudaMemcpy(&value, address, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 7u);
  EXPECT_EQ(cudaLibraryGetGlobal(&address, &bytes, library_, "no_such_thing"), cudaErrorSymbolNotFound);
  EXPECT_EQ(cudaGetLastError(), cudaErrorSymbolNotFound);
}

TEST_F(Runtime, ManyThreadsManyStreams) {
  constexpr int kThreads = 6, kRounds = 20;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      cudaStream_t stream = nullptr;
      cudaEvent_t event = nullptr;
      unsigned *device = nullptr, host[256] = {};
      bool ok = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess &&
                cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
                cudaMallocAsync(reinterpret_cast<void**>(&device), sizeof host, stream) == cudaSuccess &&
                cudaMemsetAsync(device, 0, sizeof host, stream) == cudaSuccess;
      for (int i = 0; ok && i < kRounds; ++i) ok = launch(kernel_, device, 1, stream) == cudaSuccess;
      ok = ok && cudaMemcpyAsync(host, device, sizeof host, cudaMemcpyDeviceToHost, stream) == cudaSuccess &&
           cudaEventRecord(event, stream) == cudaSuccess && cudaEventSynchronize(event) == cudaSuccess &&
           cudaFreeAsync(device, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess &&
           cudaEventDestroy(event) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess;
      for (unsigned i = 0; i < 256; ++i) ok = ok && host[i] == kRounds * (1 + i);
      if (!ok) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(Runtime, ErrorsBelongToTheirThread) {
  EXPECT_EQ(cudaSetDevice(77), cudaErrorInvalidDevice);
  cudaError_t seen = cudaErrorUnknown;
  std::thread([&] { seen = cudaPeekAtLastError(); }).join();
  EXPECT_EQ(seen, cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_F(Runtime, PushAndPopNest) {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
  EXPECT_EQ(__cudaPushCallConfiguration(dim3(1), dim3(2), 3, nullptr), 0u);
  EXPECT_EQ(__cudaPushCallConfiguration(dim3(4), dim3(5), 6, nullptr), 0u);
  OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
  EXPECT_EQ(grid.x, 4u);
  OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
  EXPECT_EQ(block.x, 2u);
  EXPECT_EQ(shared, 3u);
  EXPECT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaErrorMissingConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMissingConfiguration);
}

}  // namespace
