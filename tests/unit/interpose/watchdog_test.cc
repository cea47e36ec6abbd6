// Slices that do not end: a kernel whose blocks wait for each other, with a hand-written variant as if the
// analysis had let it pass, and one that the analysis takes for a look-back.
#include <filesystem>

#include "interpose/slice/trial.h"
#include "interpose/state/config.h"
#include "interpose/track/reasons.h"
#include "interpose/track/sibling.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

using driver_api::real;

class Watchdog : public test::Soft {
 public:
  void SetUp() override {
    setenv("TESSERA_SLICE_WATCHDOG_MS", "100", 1);
    Soft::SetUp();
    state::load_config();
    ASSERT_EQ(real().cuModuleLoadData(&module, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
    auto image = std::make_shared<track::Image>();
    image->hash = 77;
    track::KernelFacts facts;
    facts.name = "waiter";
    facts.n_params = 2;
    facts.param_bytes = facts.origin_offset = 16;
    facts.has_variant = true;
    image->kernels.push_back(facts);
    track::image_loaded(module, false, image);
    waiter = function_of(module, "waiter");
    releases = cut::g_watchdog_releases.load();
  }
  void TearDown() override {
    EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
    Soft::TearDown();
    unsetenv("TESSERA_SLICE_WATCHDOG_MS");
  }
  // One launch of 32 blocks and, behind it in the same stream, a copy of what it wrote: all there, once.
  void launch_and_check(CUstream stream, bool extended, driver_api::Flavour flavour, uint32_t cluster = 0) {
    CUdeviceptr flag = zeros(1), out = zeros(32 * 32), copy = zeros(32 * 32);
    void* params[] = {&flag, &out};
    CUlaunchConfig config{};
    config.gridDimX = 32, config.gridDimY = 1, config.gridDimZ = 1;
    config.blockDimX = 32, config.blockDimY = 1, config.blockDimZ = 1;
    config.hStream = stream;
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {cluster, 1, 1};
    config.attrs = &attribute;
    config.numAttrs = cluster ? 1 : 0;
    if (flavour == driver_api::Flavour::kPerThread) {
      EXPECT_EQ(hook_cuLaunchKernel_ptsz(waiter, 32, 1, 1, 32, 1, 1, 0, stream, params, nullptr),
                CUDA_SUCCESS);
      EXPECT_EQ(hook_cuMemcpyDtoDAsync_v2_ptsz(copy, out, 32 * 32 * 4, stream), CUDA_SUCCESS);
    } else {
      EXPECT_EQ(extended ? hook_cuLaunchKernelEx(&config, waiter, params, nullptr)
                         : launch3(waiter, {32, 1, 1}, 32, params, 0, nullptr, stream),
                CUDA_SUCCESS);
      EXPECT_EQ(hook_cuMemcpyDtoDAsync_v2(copy, out, 32 * 32 * 4, stream), CUDA_SUCCESS);
    }
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    const auto words = read(copy, 32 * 32);
    for (uint32_t i = 0; i < words.size(); i++) ASSERT_EQ(words[i], i / 32 + 1) << i;
    read(out, 1);
    read(flag, 1);
  }

  CUmodule module = nullptr;
  CUfunction waiter = nullptr;
  uint32_t releases = 0;
};

TEST_F(Watchdog, UncutItEnds) {
  lease(ipc::abi::kLeaseFree);
  launch_and_check(nullptr, false, driver_api::Flavour::kLegacy);
  EXPECT_EQ(slices(), 0u);
}

TEST_F(Watchdog, TheRestIsLaunchedAndTheKernelNotCutAgain) {
  const uint64_t counted = track::refusals(track::RunTimeReason::kWatchdog);
  launch_and_check(nullptr, false, driver_api::Flavour::kLegacy);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kWatchdog), counted + 1);
  const uint64_t before = slices();
  EXPECT_GT(before, 0u);
  launch_and_check(nullptr, false, driver_api::Flavour::kLegacy);
  EXPECT_EQ(slices(), before);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
}

TEST_F(Watchdog, InAStreamOfTheProgramsThroughTheExtendedLaunch) {
  const CUstream stream = new_stream();
  launch_and_check(stream, true, driver_api::Flavour::kLegacy);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
}

TEST_F(Watchdog, TheRestInClusters) {
  launch_and_check(nullptr, true, driver_api::Flavour::kLegacy, 4);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
}

TEST_F(Watchdog, InThePerThreadStream) {
  launch_and_check(nullptr, false, driver_api::Flavour::kPerThread);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
}

// A look-back by its looks, cut because the user allows it.
class LookBack : public test::Soft {
 public:
  void SetUp() override {
    folder = testing::TempDir() + "tessera-watchdog-" + std::to_string(getpid());
    std::filesystem::remove_all(folder);
    setenv("TESSERA_CACHE_DIR", folder.c_str(), 1);
    setenv("TESSERA_CACHE_MAX_MB", "1", 1);
    setenv("TESSERA_SLICE_WATCHDOG_MS", "100", 1);
    setenv("TESSERA_ALLOW_ORDER_DEPENDENT", "1", 1);
    Soft::SetUp();
    state::load_config();
    releases = cut::g_watchdog_releases.load();
  }
  void TearDown() override {
    for (const char* name : {"TESSERA_SLICE_WATCHDOG_MS", "TESSERA_ALLOW_ORDER_DEPENDENT",
                             "TESSERA_CACHE_DIR", "TESSERA_CACHE_MAX_MB"})
      unsetenv(name);
    state::load_config();
    Soft::TearDown();
    std::filesystem::remove_all(folder);
  }
  CUfunction load(const char* file) {
    EXPECT_EQ(hook_cuModuleLoadData(&module, bytes_of(file).data()), CUDA_SUCCESS);
    return function_of(module, "chain");
  }
  // Slices that it took; the result is right. The first word is set, or left to the last block.
  uint64_t chain(CUfunction f, bool is_set, std::vector<uint32_t> grid = {32, 1, 1}) {
    const uint32_t n = grid[0];
    CUdeviceptr words = zeros(n + 1), aside = zeros(1), out = zeros(n * 32);
    EXPECT_EQ(real().cuMemsetD32_v2(words, is_set ? 1 : 0, 1), CUDA_SUCCESS);
    void* params[] = {&words, is_set ? &aside : &words, &out};
    const uint64_t slices = cut_of([&] { EXPECT_EQ(launch3(f, grid, 32, params), CUDA_SUCCESS); });
    const auto got = read(out, n * 32);
    for (uint32_t i = 0; i < got.size(); i++) {
      const uint32_t block = i / 32, right = 1 + block * (block - 1) / 2;
      EXPECT_EQ(got[i], right) << i;
      if (got[i] != right) break;
    }
    read(words, 1);
    read(aside, 1);
    return slices;
  }
  CUmodule module = nullptr;
  uint32_t releases = 0;
  std::filesystem::path folder;  // of what is remembered
};

TEST_F(LookBack, IsCutInOneRowOnly) {
  const CUfunction f = load("cut.ptx");
  EXPECT_GT(chain(f, true), 2u);
  const uint64_t counted = track::refusals(track::RunTimeReason::kGridRows);
  EXPECT_EQ(chain(f, true, {32, 2, 1}), 0u);
  EXPECT_EQ(chain(f, true, {32, 1, 2}), 0u);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kGridRows), counted + 1);  // a kernel counts once
  EXPECT_GT(chain(f, true), 2u);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// Whatever its slices did before: it ends, right, and goes whole from then on.
TEST_F(LookBack, ThatWaitsForAHigherBlockAfterAllEnds) {
  const CUfunction f = load("cut.ptx");
  for (uint32_t blocks = 32; blocks < 42; blocks++) EXPECT_GT(chain(f, true, {blocks, 1, 1}), 2u);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases);
  EXPECT_GT(chain(f, false), 0u);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(chain(f, false), 0u);
  EXPECT_EQ(chain(f, true), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// The next load knows nothing of this one but what is in the folder.
TEST_F(LookBack, ThatWaitedIsNotCutAfterTheNextStart) {
  EXPECT_GT(chain(load("cut.ptx"), false), 0u);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);

  const uint64_t counted = track::refusals(track::RunTimeReason::kWatchdog);
  CUfunction f = load("cut.ptx");
  EXPECT_EQ(track::refusals(track::RunTimeReason::kWatchdog), counted + 1);
  EXPECT_EQ(chain(f, false), 0u);
  EXPECT_EQ(chain(f, true), 0u);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);

  std::filesystem::remove_all(folder);
  f = load("cut.ptx");
  EXPECT_GT(chain(f, true), 2u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// The same kernel as a sibling of machine code.
TEST_F(LookBack, ThatWaitedHasNoSiblingAfterTheNextStart) {
  CUfunction f = load("cut_both.fatbin");
  EXPECT_EQ(chain(f, true), 0u);
  ASSERT_TRUE(test::eventually([] { return track::siblings_idle(); }));
  EXPECT_GT(chain(f, false), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  f = load("cut_both.fatbin");
  for (int launch = 0; launch < 2; launch++) {
    EXPECT_EQ(chain(f, false), 0u);
    ASSERT_TRUE(test::eventually([] { return track::siblings_idle(); }));
  }
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

// A stream that shares its queue with the program's waits behind the slice: the rest goes into another.
TEST_F(LookBack, TheRestDoesNotQueueUpBehindTheSlice) {
  static CUevent blocked;
  static CUstream behind;
  static std::vector<CUstream> launched;
  blocked = nullptr, behind = nullptr, launched.clear();
  auto& slots = driver_api::mutable_real_for_tests();
  static const auto before = slots;
  slots.cuEventRecord = [](CUevent event, CUstream stream) {
    if (stream && !behind) blocked = event, behind = stream;
    return before.cuEventRecord(event, stream);
  };
  slots.cuEventQuery = [](CUevent event) {
    return event == blocked ? CUDA_ERROR_NOT_READY : before.cuEventQuery(event);
  };
  slots.cuLaunchKernel = [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
    launched.push_back(stream);
    return before.cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
  };
  const CUfunction f = load("cut.ptx");
  EXPECT_GT(chain(f, false), 0u);
  slots = before;
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  ASSERT_TRUE(behind && launched.size() > 1);
  for (const CUstream stream : launched) EXPECT_NE(stream, behind);
  EXPECT_NE(launched.back(), nullptr);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(LookBack, GoesWholeWhereAllStreamsShareAQueue) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  state::load_config();
  const uint64_t counted = track::refusals(track::RunTimeReason::kOneQueue);
  const CUfunction f = load("cut.ptx");
  EXPECT_EQ(chain(f, true), 0u);
  EXPECT_EQ(chain(f, true), 0u);
  EXPECT_EQ(track::refusals(track::RunTimeReason::kOneQueue), counted + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
}

TEST_F(LookBack, InASiblingToo) {
  const CUfunction f = load("cut_both.fatbin");
  EXPECT_EQ(chain(f, true), 0u);  // asked for; this launch goes whole
  ASSERT_TRUE(test::eventually([] { return track::siblings_idle(); }));
  EXPECT_GT(chain(f, true), 2u);
  EXPECT_EQ(chain(f, true, {32, 2, 1}), 0u);
  EXPECT_GT(chain(f, false), 0u);
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases + 1);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(LookBack, GoesWholeUnlessTheUserAllowsIt) {
  setenv("TESSERA_ALLOW_ORDER_DEPENDENT", "0", 1);
  state::load_config();
  const uint64_t counted = track::refusals(slice::Refusal::kLowerBlockWait);
  const CUfunction f = load("cut.ptx");
  EXPECT_EQ(track::refusals(slice::Refusal::kLowerBlockWait), counted + 1);
  EXPECT_EQ(chain(f, true), 0u);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Watchdog, ShapesThatEndedAreNotTriedAgain) {
  CUmodule other = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&other, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
  const CUfunction f = function_of(other, "stamp");
  const state::KernelRecord& kernel = *state::find_kernel(f);
  gate::LaunchCall launch{f, {64, 1, 1}, {32, 1, 1}, 0, {}, nullptr, nullptr, nullptr};
  EXPECT_TRUE(cut::Trial::needed(kernel, launch));
  EXPECT_GT(stamp(f), 1u);
  EXPECT_FALSE(cut::Trial::needed(kernel, launch));
  launch.grid[0] = 65;
  EXPECT_TRUE(cut::Trial::needed(kernel, launch));
  for (uint32_t n = 40; n < 48; n++) EXPECT_GT(stamp(f, {n, 1, 1}), 1u);
  EXPECT_FALSE(cut::Trial::needed(kernel, launch));  // enough shapes ended: trusted
  EXPECT_EQ(cut::g_watchdog_releases.load(), releases);
  EXPECT_EQ(hook_cuModuleUnload(other), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera
