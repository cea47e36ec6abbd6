// Sibling modules against everything that may end them: launches, loads and unloads, libraries, captures and
// contexts in threads of their own, with the null driver. ThreadSanitizer looks on; what is asserted is that
// all comes to an end and nothing stays behind.
#include <fstream>
#include <iterator>

#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using driver_api::real;

std::atomic<int> g_modules{0};  // loaded in the "driver"

class SiblingRace : public Gate {
 public:
  void SetUp() override {
    Gate::SetUp();
    std::ifstream in(TS_IMAGES "/cut_both.fatbin", std::ios::binary);
    image.assign(std::istreambuf_iterator<char>(in), {});
    ASSERT_FALSE(image.empty());
    auto& slots = driver_api::mutable_real_for_tests();
    slots.cuFuncGetParamInfo = [](CUfunction, size_t i, size_t* offset, size_t* bytes) {
      *offset = i * 8;
      *bytes = 8;
      return i < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    };
    slots.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
    static const auto load = slots.cuModuleLoadData;
    static const auto unload = slots.cuModuleUnload;
    slots.cuModuleLoadData = [](CUmodule* module, const void* bytes) {
      g_modules++;
      return load(module, bytes);
    };
    slots.cuModuleUnload = [](CUmodule module) {
      g_modules--;
      return unload(module);
    };
    state::g_sm_count.store(1);
    attach(state::Role::kBestEffort);
    lease(abi::kLeaseGranted, 1'000'000'000, 1'000);
  }
  CUresult stamp(CUfunction f) {
    CUdeviceptr out = 0;
    uint32_t salt = 0;
    void* params[] = {&out, &salt};
    return hook_cuLaunchKernel(f, 64, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr);
  }
  std::vector<char> image;
};

TEST_F(SiblingRace, EverythingAtOnce) {
  constexpr int kRounds = 40;
  CUcontext context = nullptr;
  ASSERT_EQ(real().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  const auto thread = [&](auto&& body) {
    threads.emplace_back([&, body] {
      real().cuCtxSetCurrent(context);
      body();
    });
  };
  thread([&] {
    for (int i = 0; i < kRounds; i++) {
      CUmodule module = nullptr;
      CUfunction f = nullptr;
      EXPECT_EQ(hook_cuModuleLoadData(&module, image.data()), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuModuleGetFunction(&f, module, "stamp"), CUDA_SUCCESS);
      EXPECT_EQ(stamp(f), CUDA_SUCCESS);
      const bool waits = i % 3 == 0;
      EXPECT_TRUE(!waits || eventually([] { return track::siblings_idle(); }));
      EXPECT_EQ(stamp(f), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
    }
  });
  thread([&] {
    for (int i = 0; i < kRounds; i++) {
      CUlibrary library = nullptr;
      CUkernel kernel = nullptr;
      EXPECT_EQ(hook_cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                CUDA_SUCCESS);
      EXPECT_EQ(hook_cuLibraryGetKernel(&kernel, library, "stamp"), CUDA_SUCCESS);
      for (int k = 0; k < 3; k++) EXPECT_EQ(stamp(reinterpret_cast<CUfunction>(kernel)), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
    }
  });
  thread([&] {
    CUstream stream = new_stream();
    while (!over) {
      CUgraph graph = nullptr;
      EXPECT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
      std::this_thread::yield();
    }
    EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  });
  thread([&] {
    while (!over) {
      CUcontext own = nullptr;
      EXPECT_EQ(hook_cuCtxCreate_v4(&own, nullptr, 0, 0), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuCtxDestroy_v2(own), CUDA_SUCCESS);
      std::this_thread::yield();
    }
  });
  threads[0].join();
  threads[1].join();
  over = true;
  threads[2].join();
  threads[3].join();
  EXPECT_TRUE(eventually([] { return track::siblings_idle(); }));
  EXPECT_EQ(track::siblings_alive(), 0u);
  EXPECT_EQ(g_modules.load(), 0);
}

}  // namespace
}  // namespace tessera::test
