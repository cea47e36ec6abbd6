// Signals of launches to the daemon for packing: classes of bursts and of best-effort launches, width, counts, and the
// learnt cost of a slice.
#include "interpose/gate/signals.h"

#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using state::Role;

class Signals : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    saved_ = driver_api::real();
    state::g_sm_count.store(100);
  }
  void TearDown() override {
    driver_api::mutable_real_for_tests() = saved_;
    for (state::KernelSlot& slot : state::g_kernels) slot.handle.store(0);
    state::g_sm_count.store(0);
    Gate::TearDown();
  }
  // A handle that the books know as a kernel of this class.
  CUfunction kernel(uint32_t resource_class) {
    const uint64_t handle = 0x500000 + 64 * ++n_;
    // Lives for ever, as in the library.
    auto* record = new state::KernelRecord{.loaded = {.hash = handle, .resource_class = resource_class}};
    state::KernelSlot& slot = state::g_kernels[state::kernel_slot_of(handle)];
    slot.record.store(record);
    slot.handle.store(handle);
    return reinterpret_cast<CUfunction>(handle);
  }
  const abi::Record& last_record() { return region->ring.slots[(region->ring.head - 1) % 64]; }
  void end_burst() {
    ASSERT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
    ASSERT_FALSE(busy());
  }
  driver_api::RealDriver saved_;
  static inline uint64_t n_ = 0;
};

TEST_F(Signals, ABurstHasTheClassOfItsKernelsAlsoIfACopyBeginsIt) {
  attach(Role::kProtected);
  const CUfunction compute = kernel(abi::kResourceCompute), memory = kernel(abi::kResourceMemory);
  for (int i = 0; i < 40; i++) {
    launch(nullptr, 1, compute);
    EXPECT_EQ(region->pulse.resource_class, uint32_t(abi::kResourceCompute));
    end_burst();
    EXPECT_EQ(last_record().resource_class, uint32_t(abi::kResourceCompute));
  }
  EXPECT_EQ(hook_cuMemcpyHtoDAsync_v2(0x1000, "x", 1, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(region->pulse.resource_class, uint32_t(abi::kResourceCompute));  // as the bursts before
  launch(nullptr, 1, memory);
  gate::sample_class();
  EXPECT_EQ(region->pulse.resource_class, uint32_t(abi::kResourceMemory));  // as it turned out
  end_burst();
  EXPECT_EQ(last_record().resource_class, uint32_t(abi::kResourceMemory));
}

TEST_F(Signals, AnUnknownKernelMakesNoClass) {
  attach(Role::kProtected);
  for (int i = 0; i < 40; i++) {  // forget what was learnt in other tests
    launch(nullptr, 1, kernel(abi::kResourceLatency));
    end_burst();
  }
  launch();
  gate::sample_class();
  end_burst();
  EXPECT_EQ(last_record().resource_class, uint32_t(abi::kResourceUnknown));
}

TEST_F(Signals, BestEffortLaunchesAreDescribedAndCounted) {
  attach(Role::kBestEffort);
  abi::SignalLine line{};
  link->signals = &line;
  lease(abi::kLeaseGranted, 1'000'000'000);
  gate::publish_signals(link);
  const uint64_t blocks = line.blocks_launched, uncut = line.uncut_launches;
  const CUfunction memory = kernel(abi::kResourceMemory);
  launch(nullptr, 50, memory);  // 128 threads: 16 blocks fit an SM
  EXPECT_EQ(line.resource_class, uint32_t(abi::kResourceMemory));
  EXPECT_EQ(line.wave_blocks, 0u);  // it has no variant
  EXPECT_EQ(line.launch_sms, 4u);
  launch(nullptr, 100'000, memory);
  EXPECT_EQ(line.launch_sms, 100u);
  launch(nullptr, 1);
  EXPECT_EQ(line.resource_class, uint32_t(abi::kResourceUnknown));
  gate::publish_signals(link);
  EXPECT_EQ(line.blocks_launched - blocks, 100'051u);
  EXPECT_EQ(line.uncut_launches - uncut, 1u);  // the wide one
}

// A GPU on which a launch costs 7 us and 1600 blocks, which fill it, 160 us more.
std::atomic<uint64_t> g_blocks{0};

TEST_F(Signals, TheCostOfASliceIsLearntFromLaunchesOfTwoSizes) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted, 1'000'000'000);
  auto& table = driver_api::mutable_real_for_tests();
  table.cuLaunchKernel = [](CUfunction, unsigned x, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, CUstream, void**, void**) {
    g_blocks = x;
    return CUDA_SUCCESS;
  };
  table.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
    *ms = (7 + 0.1f * float(g_blocks)) / 1000;
    return CUDA_SUCCESS;
  };
  const CUfunction f = kernel(abi::kResourceCompute);
  for (int i = 0; i < 400; i++) {
    launch(nullptr, i % 2 ? 8000 : 4800, f);  // five waves and three
    gate::harvest_samples();
  }
  EXPECT_NEAR(double(gate::slice_overhead_ns()), 7000, 700);
}

// Half a wave takes as long as a whole one here: no overhead, and no more time per block than of the whole.
TEST_F(Signals, LessThanAWaveSaysHowLongBlocksLastAndNothingElse) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted, 1'000'000'000);
  auto& table = driver_api::mutable_real_for_tests();
  static std::atomic<float> g_ms{0.75f};
  table.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
    *ms = g_ms;
    return CUDA_SUCCESS;
  };
  gate::Timing& t = *gate::timing_of(0xfeed);
  const uint64_t overhead = gate::slice_overhead_ns();
  auto sample = [&](uint64_t blocks) {
    gate::sample_end(gate::sample_begin(&t, {}, 1), {}, blocks, 64, CUDA_SUCCESS);
    gate::harvest_samples();
  };
  sample(8);
  EXPECT_EQ(t.block_ns, 750'000u);
  sample(64);
  const uint64_t block_ps = t.block_ps;
  EXPECT_EQ(block_ps / 1000, 11'718u);
  for (int i = 0; i < 50; i++) sample(i % 2 ? 16 : 40);
  EXPECT_EQ(t.block_ps, block_ps);
  EXPECT_EQ(gate::slice_overhead_ns(), overhead);
  g_ms = 1.5f;  // the clock dropped: even less than a wave takes longer now
  for (int i = 0; i < 20; i++) sample(32);
  EXPECT_GT(t.block_ps, 2 * block_ps);
  EXPECT_GT(t.block_ns, 750'000u);
}

// A kernel that is launched once is timed if that launch loads no code; a lazy driver loads it before the
// clock runs. What the driver cannot say is not guessed.
TEST_F(Signals, FirstLaunchesAreTimedOnceTheirCodeIsThere) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted, 1'000'000'000);
  static int asked, loads;
  static CUresult answer;
  static CUfunctionLoadingState state;
  asked = loads = 0;
  auto& table = driver_api::mutable_real_for_tests();
  table.cuFuncIsLoaded = [](CUfunctionLoadingState* out, CUfunction) {
    asked++;
    *out = state;
    return answer;
  };
  table.cuFuncLoad = [](CUfunction) {
    loads++;
    return CUDA_SUCCESS;
  };
  table.cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
    *ms = 1;
    return CUDA_SUCCESS;
  };
  struct {
    CUresult answer;
    CUfunctionLoadingState state;
    int loads, records;
  } const cases[] = {{CUDA_SUCCESS, CU_FUNCTION_LOADING_STATE_LOADED, 0, 1},
                     {CUDA_SUCCESS, CU_FUNCTION_LOADING_STATE_UNLOADED, 1, 1},
                     {CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, CU_FUNCTION_LOADING_STATE_LOADED, 0, 0}};
  for (const auto& c : cases) {
    asked = loads = 0;
    answer = c.answer;
    state = c.state;
    const uint32_t head = region->ring.head;
    launch(nullptr, 1, kernel(abi::kResourceCompute));
    EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);  // reads what was timed: no launch follows
    EXPECT_EQ(asked, 1);
    EXPECT_EQ(loads, c.loads);
    EXPECT_EQ(region->ring.head - head, uint32_t(c.records));
  }
  asked = 0;
  launch(nullptr, 1, reinterpret_cast<CUfunction>(uintptr_t{0x700000}));  // not in the books: anything
  EXPECT_EQ(asked, 0);
  const CUfunction known = kernel(abi::kResourceCompute);
  gate::timing_of(gate::timing_key({reinterpret_cast<uint64_t>(known), 1, 128, 0}))->block_ps = 1000;
  launch(nullptr, 1, known);
  EXPECT_EQ(asked, 0);  // an earlier process told
}

// More pilots than one are in flight before the first is measured: the others are no reason not to double.
TEST_F(Signals, PilotsOfOneSizeDoNotEndTheGrowth) {
  attach(Role::kBestEffort);
  lease(abi::kLeaseGranted, 1'000'000'000);
  static std::atomic<float> g_ms{0.75f};
  driver_api::mutable_real_for_tests().cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
    *ms = g_ms;
    return CUDA_SUCCESS;
  };
  gate::Timing& t = *gate::timing_of(0xbeef);
  auto sample = [&](uint64_t blocks, float ms) {
    g_ms = ms;
    gate::sample_end(gate::sample_begin(&t, {}, 1), {}, blocks, 64, CUDA_SUCCESS);
    gate::harvest_samples();
  };
  sample(8, 0.75f);
  sample(8, 0.74f);
  EXPECT_EQ(t.growing, 1u);
  sample(16, 0.75f);  // twice as much in the same time: there is more to gain
  EXPECT_EQ(t.growing, 1u);
  sample(32, 1.5f);  // nothing gained
  sample(32, 1.4f);
  EXPECT_EQ(t.growing, 0u);
}

}  // namespace
}  // namespace tessera::test
