// Launches that are cut, in every form a program may give them, against the software GPU.
#include <array>
#include <thread>

#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

using driver_api::real;

class Cutting : public test::Soft {
 public:
  void SetUp() override {
    Soft::SetUp();
    ASSERT_EQ(hook_cuModuleLoadData(&module, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
    Soft::TearDown();
  }
  CUfunction variant_of(CUfunction f) { return state::find_kernel(f)->variant.handle.load(); }
  // shared_stamp<<<64, 64, bytes>>>: slices, or -1 if the driver refuses.
  int shared_stamp(CUfunction f, uint32_t bytes) {
    CUdeviceptr out = zeros(64 * 64);
    void* params[] = {&out};
    CUresult result = CUDA_SUCCESS;
    const uint64_t n = cut_of([&] { result = launch3(f, {64, 1, 1}, 64, params, bytes); });
    const auto words = read(out, 64 * 64);
    if (result != CUDA_SUCCESS) return -1;
    for (uint32_t i = 0; i < words.size(); i++) EXPECT_EQ(words[i], i / 64 + 64);
    return int(n);
  }
  // A kernel of cut.ptx as a library, which the caller unloads.
  static CUkernel library_kernel(CUlibrary* library, const char* name) {
    CUkernel kernel = nullptr;
    EXPECT_EQ(
        hook_cuLibraryLoadData(library, bytes_of("cut.ptx").data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        CUDA_SUCCESS);
    EXPECT_EQ(hook_cuLibraryGetKernel(&kernel, *library, name), CUDA_SUCCESS);
    return kernel;
  }

  CUmodule module = nullptr;
};

TEST_F(Cutting, ParametersInABuffer) {
  const CUfunction f = function_of(module, "stamp");
  for (const size_t bytes : {size_t(12), size_t(16)}) {  // with and without the padding at the end
    CUdeviceptr out = zeros(64 * 32);
    alignas(8) unsigned char buffer[16] = {};
    const uint32_t salt = 11;
    memcpy(buffer, &out, 8);
    memcpy(buffer + 8, &salt, 4);
    size_t n_bytes = bytes;
    std::array<std::array<void*, 5>, 2> orders = {
        {{CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &n_bytes, CU_LAUNCH_PARAM_END},
         {CU_LAUNCH_PARAM_BUFFER_SIZE, &n_bytes, CU_LAUNCH_PARAM_BUFFER_POINTER, buffer,
          CU_LAUNCH_PARAM_END}}};
    for (auto& extra : orders) {
      EXPECT_GT(cut_of([&] {
                  EXPECT_EQ(launch3(f, {64, 1, 1}, 32, nullptr, 0, extra.data()), CUDA_SUCCESS);
                }),
                1u);
    }
    const auto words = read(out, 64 * 32);
    for (uint32_t i = 0; i < words.size(); i++)
      ASSERT_EQ(words[i], 2 * (i / 32 * 1000 + i % 32 + salt + 64 * 7 + 3)) << i;
  }
}

TEST_F(Cutting, AHeldLaunchGoesAsTheLeaseSaysThatReleasesIt) {
  const CUfunction f = function_of(module, "stamp");
  lease(ipc::abi::kLeaseHold, 50'000'000, 0, 1, 60'000);  // nothing is cut
  uint64_t n_slices = 0;
  std::thread program([&] {
    real().cuCtxSetCurrent(context);
    n_slices = stamp(f);
  });
  const bool waits = test::eventually([&] { return std::atomic_ref(region->usage.waiting).load() == 1; });
  cutting();
  program.join();
  EXPECT_TRUE(waits);
  EXPECT_GT(n_slices, 1u);
}

TEST_F(Cutting, BigParametersByPointerAndByBuffer) {
  struct Big {
    CUdeviceptr out;
    uint32_t words[1000];
  } p = {};
  for (uint32_t i = 0; i < 1000; i++) p.words[i] = i * i;
  p.out = zeros(64 * 32);
  const CUfunction f = function_of(module, "big");
  void* params[] = {&p.out, p.words};
  size_t bytes = sizeof p;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_GT(cut_of([&] { EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params), CUDA_SUCCESS); }), 1u);
  EXPECT_GT(cut_of([&] { EXPECT_EQ(launch3(f, {64, 1, 1}, 32, nullptr, 0, extra), CUDA_SUCCESS); }), 1u);
  const auto words = read(p.out, 64 * 32);
  for (uint32_t i = 0; i < words.size(); i++) {
    const uint32_t at = (i / 32 * 31 + i % 32) % 1000;
    ASSERT_EQ(words[i], 2 * (at * at + 64)) << i;
  }
}

TEST_F(Cutting, ParametersAtTheLimitAreRight) {
  struct Huge {
    CUdeviceptr out;
    uint32_t words[1018];
  } p = {};
  for (uint32_t i = 0; i < 1018; i++) p.words[i] = i ^ 77;
  p.out = zeros(64 * 32);
  const CUfunction f = function_of(module, "huge");
  void* params[] = {&p.out, p.words};
  size_t bytes = sizeof p;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params), CUDA_SUCCESS);
  EXPECT_EQ(launch3(f, {64, 1, 1}, 32, nullptr, 0, extra), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  const auto words = read(p.out, 64 * 32);
  for (uint32_t i = 0; i < words.size(); i++)
    ASSERT_EQ(words[i], 2 * ((i / 32 * 31 + i % 32) % 1018 ^ 77)) << i;
}

// A launch that the driver refuses is refused the same way, and nothing of it has run.
TEST_F(Cutting, WhatTheDriverRefusesIsNotSavedByCutting) {
  const CUfunction f = function_of(module, "stamp");
  CUdeviceptr out = zeros(64 * 32);
  uint32_t salt = 0;
  void* params[] = {&out, &salt};
  size_t bytes = 0;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const auto both = [&](std::vector<uint32_t> grid, uint32_t block, void** p, void** e) {
    const CUresult ours = launch3(f, grid, block, p, 0, e);
    EXPECT_EQ(ours, real().cuLaunchKernel(f, grid[0], grid[1], grid[2], block, 1, 1, 0, nullptr, p, e));
    return ours;
  };
  EXPECT_NE(both({64, 70'000, 1}, 32, params, nullptr), CUDA_SUCCESS);
  EXPECT_NE(both({64, 1, 70'000}, 32, params, nullptr), CUDA_SUCCESS);
  EXPECT_NE(both({64, 1, 1}, 2'000, params, nullptr), CUDA_SUCCESS);
  EXPECT_NE(both({64, 1, 1}, 32, params, extra), CUDA_SUCCESS);
  EXPECT_NE(both({64, 1, 1}, 32, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  for (uint32_t word : read(out, 64 * 32)) ASSERT_EQ(word, 0u);
}

TEST_F(Cutting, AttributesFollowTheOriginalAlsoLaterOnes) {
  const CUfunction f = function_of(module, "shared_stamp");
  EXPECT_GT(shared_stamp(f, 256), 1);
  ASSERT_NE(variant_of(f), nullptr);
  EXPECT_EQ(shared_stamp(f, 100'000), -1);  // the program did not ask for that much
  ASSERT_EQ(hook_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100'000),
            CUDA_SUCCESS);
  const CUfunction again = function_of(module, "shared_stamp");  // asked for again: the same kernel
  EXPECT_EQ(again, f);
}

TEST_F(Cutting, SharedMemoryBeyondTheDefaultAfterTheFirstCut) {
  const CUfunction f = function_of(module, "shared_stamp");
  EXPECT_GT(shared_stamp(f, 256), 1);
  ASSERT_EQ(hook_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100'000),
            CUDA_SUCCESS);
  EXPECT_GT(shared_stamp(f, 100'000), 1);
  int bytes = 0;
  ASSERT_EQ(real().cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, variant_of(f)),
            CUDA_SUCCESS);
  EXPECT_EQ(bytes, 100'000);
  // Taken back: what the driver refuses of the original, the variant must not do.
  ASSERT_EQ(hook_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1'000), CUDA_SUCCESS);
  EXPECT_EQ(shared_stamp(f, 100'000), -1);
  ASSERT_EQ(hook_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50), CUDA_SUCCESS);
}

TEST_F(Cutting, CarveoutAndCacheConfigurationAreMirrored) {
  const CUfunction f = function_of(module, "stamp");
  ASSERT_EQ(hook_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50), CUDA_SUCCESS);
  EXPECT_GT(stamp(f), 1u);
  int carveout = 0;
  ASSERT_EQ(
      real().cuFuncGetAttribute(&carveout, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, variant_of(f)),
      CUDA_SUCCESS);
  EXPECT_EQ(carveout, 50);
  // There is no question for the cache configuration: what reaches the driver is counted.
  static CUfunction seen = nullptr;
  static CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
  auto& slots = driver_api::mutable_real_for_tests();
  const auto before = slots.cuFuncSetCacheConfig;
  slots.cuFuncSetCacheConfig = [](CUfunction of, CUfunc_cache c) {
    seen = of;
    config = c;
    return CUDA_SUCCESS;
  };
  EXPECT_EQ(hook_cuFuncSetCacheConfig(f, CU_FUNC_CACHE_PREFER_L1), CUDA_SUCCESS);
  EXPECT_EQ(seen, f);
  EXPECT_GT(stamp(f), 1u);
  EXPECT_EQ(seen, variant_of(f));
  EXPECT_EQ(config, CU_FUNC_CACHE_PREFER_L1);
  seen = nullptr;
  EXPECT_GT(stamp(f), 1u);
  EXPECT_EQ(seen, nullptr);  // once
  slots.cuFuncSetCacheConfig = before;
}

TEST_F(Cutting, AttributesOfALibraryKernel) {
  CUlibrary library = nullptr;
  const CUkernel kernel = library_kernel(&library, "shared_stamp");
  ASSERT_NE(kernel, nullptr);
  const auto f = reinterpret_cast<CUfunction>(kernel);
  EXPECT_GT(shared_stamp(f, 256), 1);
  ASSERT_EQ(hook_cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100'000, kernel, 0),
            CUDA_SUCCESS);
  EXPECT_GT(shared_stamp(f, 100'000), 1);
  // The function of this context is the same kernel.
  CUfunction of = nullptr;
  ASSERT_EQ(hook_cuKernelGetFunction(&of, kernel), CUDA_SUCCESS);
  EXPECT_GT(shared_stamp(of, 90'000), 1);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

using Shape = std::array<uint32_t, 3>;

class InClusters : public Cutting {
 public:
  // Launches `f` on `grid`, whose clusters should be `expected`; asked for at launch if `ask` has a shape. Returns
  // slices, or minus the driver's error.
  int launch(CUfunction f, Shape grid, Shape expected, Shape ask = {}, CUlaunchAttributeID more = {}) {
    const uint32_t n_blocks = grid[0] * grid[1] * grid[2], threads = 32;
    CUdeviceptr out = zeros(n_blocks * threads * 4);
    void* params[] = {&out};
    CUlaunchAttribute attributes[2] = {};
    attributes[0].id = more;
    attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[1].value.clusterDim = {ask[0], ask[1], ask[2]};
    CUlaunchConfig config{};
    config.gridDimX = grid[0], config.gridDimY = grid[1], config.gridDimZ = grid[2];
    config.blockDimX = threads, config.blockDimY = 1, config.blockDimZ = 1;
    config.attrs = attributes;
    config.numAttrs = ask[0] ? 2 : 1;
    CUresult result = CUDA_SUCCESS;
    const uint64_t n = cut_of([&] { result = hook_cuLaunchKernelEx(&config, f, params, nullptr); });
    const auto words = read(out, n_blocks * threads * 4);
    if (result != CUDA_SUCCESS) return -int(result);
    check(words, grid, expected, threads);
    return int(n);
  }
  static void check(const std::vector<uint32_t>& words, Shape grid, Shape shape, uint32_t threads) {
    const Shape clusters = {grid[0] / shape[0], grid[1] / shape[1], grid[2] / shape[2]};
    const uint32_t ranks = shape[0] * shape[1] * shape[2];
    for (size_t i = 0; i < words.size(); i += 4) {
      const uint32_t block = uint32_t(i / 4) / threads;
      const Shape at = {block % grid[0], block / grid[0] % grid[1], block / grid[0] / grid[1]};
      const Shape c = {at[0] / shape[0], at[1] / shape[1], at[2] / shape[2]};
      const uint32_t cluster = (c[2] * clusters[1] + c[1]) * clusters[0] + c[0];
      const uint32_t rank = (at[2] % shape[2] * shape[1] + at[1] % shape[1]) * shape[0] + at[0] % shape[0];
      const uint32_t next = (rank + 1) % ranks;
      const Shape peer = {c[0] * shape[0] + next % shape[0], c[1] * shape[1] + next / shape[0] % shape[1],
                          c[2] * shape[2] + next / shape[0] / shape[1]};
      const uint32_t peer_block = (peer[2] * grid[1] + peer[1]) * grid[0] + peer[0];
      ASSERT_EQ(words[i], cluster) << block;
      ASSERT_EQ(words[i + 1], clusters[0]) << block;
      ASSERT_EQ(words[i + 2], rank) << block;
      ASSERT_EQ(words[i + 3], peer_block * 1000 + cluster) << block;
    }
  }
};

TEST_F(InClusters, ShapeOfTheLaunch) {
  const CUfunction f = function_of(module, "cluster_stamp");
  EXPECT_GT(launch(f, {64, 1, 1}, {2, 1, 1}, {2, 1, 1}), 7);
  EXPECT_GT(launch(f, {12, 6, 4}, {3, 2, 1}, {3, 2, 1}), 4);
  EXPECT_GT(launch(f, {6, 6, 4}, {1, 1, 4}, {1, 1, 4}), 4);
  EXPECT_EQ(launch(f, {40, 1, 1}, {8, 1, 1}, {8, 1, 1}), 5);
  EXPECT_GT(launch(f, {64, 1, 1}, {1, 1, 1}), 7);  // none
  EXPECT_GT(
      launch(f, {64, 1, 1}, {2, 1, 1}, {2, 1, 1}, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE),
      7);
  // The driver chooses the clusters that get the preferred shape.
  EXPECT_LE(launch(f, {64, 1, 1}, {2, 1, 1}, {2, 1, 1}, CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION), 0);
  EXPECT_GT(state::find_kernel(f)->variant.cluster_wave.load(), 0u);
}

// A program that asks for more than the GPU has, and then for less, is cut all the same.
TEST_F(InClusters, FallingBackToASmallerShape) {
  const CUfunction f = function_of(module, "cluster_stamp");
  for (int i = 0; i < 6; i++) {
    EXPECT_EQ(launch(f, {64, 1, 1}, {16, 1, 1}, {16, 1, 1}), -CUDA_ERROR_INVALID_CLUSTER_SIZE);
    EXPECT_EQ(launch(f, {64, 1, 1}, {8, 1, 1}, {8, 1, 1}), 8);
  }
  for (int i = 0; i < 6; i++) EXPECT_LT(launch(f, {64, 1, 1}, {16, 1, 1}, {16, 1, 1}), 0);
  EXPECT_EQ(launch(f, {64, 1, 1}, {8, 1, 1}, {8, 1, 1}), 0);  // too often for nothing
}

TEST_F(InClusters, ShapeOfTheKernel) {
  const CUfunction f = function_of(module, "cluster_stamp_2x2");
  EXPECT_GT(launch(f, {16, 8, 1}, {2, 2, 1}), 7);
  EXPECT_GT(launch(f, {16, 8, 1}, {2, 2, 1}, {2, 2, 1}), 7);
  EXPECT_LT(launch(f, {16, 8, 1}, {2, 2, 1}, {4, 1, 1}), 0);  // another one: the driver refuses
  EXPECT_LT(launch(f, {15, 8, 1}, {2, 2, 1}), 0);
  EXPECT_GT(launch(f, {16, 8, 1}, {2, 2, 1}), 7);
}

TEST_F(InClusters, ShapeThatTheProgramSets) {
  const CUfunction f = function_of(module, "cluster_stamp");
  EXPECT_GT(launch(f, {64, 2, 1}, {1, 1, 1}), 7);
  const auto set = [&](Shape shape) {
    for (int axis = 0; axis < 3; axis++)
      ASSERT_EQ(
          hook_cuFuncSetAttribute(f, CUfunction_attribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + axis),
                                  int(shape[axis])),
          CUDA_SUCCESS);
  };
  set({4, 2, 1});
  EXPECT_GT(launch(f, {64, 2, 1}, {4, 2, 1}), 7);
  set({2, 1, 1});
  EXPECT_GT(launch(f, {64, 2, 1}, {2, 1, 1}), 7);
  set({0, 0, 0});
  EXPECT_GT(launch(f, {64, 2, 1}, {1, 1, 1}), 7);
}

TEST_F(InClusters, ShapeOfALibraryKernel) {
  CUlibrary library = nullptr;
  const CUkernel kernel = library_kernel(&library, "cluster_stamp");
  ASSERT_NE(kernel, nullptr);
  const auto f = reinterpret_cast<CUfunction>(kernel);
  EXPECT_GT(launch(f, {64, 2, 1}, {1, 1, 1}), 7);
  for (const CUfunction_attribute axis :
       {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT})
    ASSERT_EQ(hook_cuKernelSetAttribute(axis, 2, kernel, 0), CUDA_SUCCESS);
  ASSERT_EQ(hook_cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 1, kernel, 0), CUDA_SUCCESS);
  EXPECT_GT(launch(f, {64, 2, 1}, {2, 2, 1}), 7);
  EXPECT_EQ(hook_cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(InClusters, LargerThanASliceOfTheLease) {
  const CUfunction f = function_of(module, "cluster_stamp");
  ASSERT_EQ(hook_cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), CUDA_SUCCESS);
  EXPECT_EQ(launch(f, {64, 1, 1}, {16, 1, 1}, {16, 1, 1}), 4);
}

TEST_F(Cutting, ExtendedLaunchAndPerThreadStream) {
  const CUfunction f = function_of(module, "stamp");
  CUdeviceptr out = zeros(64 * 32);
  uint32_t salt = 3;
  void* params[] = {&out, &salt};
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CUlaunchConfig config{};
  config.gridDimX = 64, config.gridDimY = 1, config.gridDimZ = 1;
  config.blockDimX = 32, config.blockDimY = 1, config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  EXPECT_GT(cut_of([&] { EXPECT_EQ(hook_cuLaunchKernelEx(&config, f, params, nullptr), CUDA_SUCCESS); }), 1u);
  EXPECT_GT(cut_of([&] { EXPECT_EQ(hook_cuLaunchKernelEx_ptsz(&config, f, params, nullptr), CUDA_SUCCESS); }),
            1u);
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;  // all blocks at once: never cut
  attribute.value.cooperative = 1;
  EXPECT_EQ(cut_of([&] { hook_cuLaunchKernelEx(&config, f, params, nullptr); }), 0u);
  read(out, 64 * 32);
}

// A device without stream memory operations: completion is seen by events.
TEST_F(Cutting, EventsInsteadOfStreamWrites) {
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto ask = slots.cuDeviceGetAttribute;
  static const auto write = slots.cuStreamWriteValue32_v2;
  static constinit std::atomic<int> writes = 0;
  slots.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice device) {
    if (attribute != CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1 &&
        attribute != CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
      return ask(value, attribute, device);
    *value = 0;
    return CUDA_SUCCESS;
  };
  slots.cuStreamWriteValue32_v2 = [](CUstream, CUdeviceptr, cuuint32_t, unsigned) {
    writes++;
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  track::context_ended(nullptr);  // as after a reset: markers are made anew
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  ASSERT_EQ(gate::g_markers.use_events.load(), 1u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);  // nothing is known of it any more
  ASSERT_EQ(hook_cuModuleLoadData(&module, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
  cutting(200'000);  // a window that has to be seen draining
  const CUfunction f = function_of(module, "stamp");
  const CUstream stream = new_stream();
  for (CUstream s : {static_cast<CUstream>(nullptr), stream}) {
    for (int i = 0; i < 20; i++) {
      CUdeviceptr out = zeros(64 * 32);
      uint32_t salt = 1;
      void* params[] = {&out, &salt};
      EXPECT_EQ(launch3(f, {64, 1, 1}, 32, params, 0, nullptr, s), CUDA_SUCCESS);
      EXPECT_EQ(hook_cuStreamSynchronize(s), CUDA_SUCCESS);
      const auto words = read(out, 64 * 32);
      for (uint32_t k = 0; k < words.size(); k++)
        ASSERT_EQ(words[k], k / 32 * 1000 + k % 32 + 1 + 64 * 7 + 3);
    }
  }
  EXPECT_GT(slices(), 40u);
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(writes.load(), 0);
  EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  slots.cuDeviceGetAttribute = ask;
  slots.cuStreamWriteValue32_v2 = write;
  track::context_ended(nullptr);
  ASSERT_EQ(hook_cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(gate::g_markers.use_events.load(), 0u);
}

}  // namespace
}  // namespace tessera
