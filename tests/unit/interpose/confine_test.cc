// Launches that cannot be cut keep off the SMs that the lease reserves, against the software GPU (132 SMs).
#include "interpose/slice/confine.h"

#include <sys/mman.h>

#include "interpose/gate/device_gate.h"
#include "interpose/state/note.h"
#include "ipc/channel/gate.h"
#include "tests/unit/interpose/soft.h"

namespace tessera {
namespace {

using driver_api::real;
constexpr uint32_t kSms = 132;
constexpr uint32_t kWide = 5'000;  // blocks of 32 threads, of which 4,224 at most are resident at once

CUstream g_launched_in = nullptr;
decltype(real().cuLaunchKernel) g_launch = nullptr;

class Confine : public test::Soft {
 public:
  void SetUp() override {
    setenv("TESSERA_SOFTGPU_LOCAL", TS_WIDE_GPU, 1);
    Soft::SetUp();
    lease(ipc::abi::kLeaseGranted, 1'000, 1'000);  // what the launches here take is more
    state::g_sm_count.store(kSms);
    ASSERT_EQ(hook_cuModuleLoadData(&module_, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
    stamp_ = function_of(module_, "stamp");
    state::find_kernel(stamp_)->variant.handle.store(state::kNoVariant);
    ASSERT_EQ(hook_cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    reserve(2);
    table_ = driver_api::real();
    g_launch = real().cuLaunchKernel;
    driver_api::mutable_real_for_tests().cuLaunchKernel =
        [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
           unsigned shared, CUstream s, void** params, void** extra) {
          g_launched_in = s;
          return g_launch(f, gx, gy, gz, bx, by, bz, shared, s, params, extra);
        };
  }
  void TearDown() override {
    driver_api::mutable_real_for_tests() = table_;
    reserve(0);
    EXPECT_EQ(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
    confine::forget(nullptr);
    EXPECT_EQ(hook_cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuModuleUnload(module_), CUDA_SUCCESS);
    Soft::TearDown();
  }
  // `confine_all`: launches keep off the reserve, and those of the named classes may start during bursts.
  void reserve(uint32_t steps, bool confine_all = false, uint32_t classes = 0) {
    ipc::store(region->lease.reserved_sms, uint16_t(steps * ipc::abi::kReserveStep),
               std::memory_order_relaxed);
    ipc::store(region->lease.rights, {.confine_all = confine_all, .burst_classes = uint8_t(classes)},
               std::memory_order_relaxed);
  }
  static constexpr uint32_t kAnyClass = 0xf;
  uint64_t confined() {
    ipc::abi::SignalLine line{};
    confine::publish(line);
    return line.confined_launches;
  }
  // out = 7; stamp adds to it; all in one stream. Right, and the SMs that the kernel could use.
  uint32_t sms_of_stamp(CUstream stream, uint32_t blocks = kWide) {
    CUdeviceptr out = zeros(size_t(blocks) * 32);
    uint32_t salt = 5;
    void* params[] = {&out, &salt};
    std::vector<uint32_t> words(size_t(blocks) * 32);
    EXPECT_EQ(hook_cuMemsetD32Async(out, 7, words.size(), stream), CUDA_SUCCESS);
    EXPECT_EQ(launch3(stamp_, {blocks, 1, 1}, 32, params, 0, nullptr, stream), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuMemcpyDtoHAsync_v2(words.data(), out, words.size() * 4, stream), CUDA_SUCCESS);
    EXPECT_EQ(hook_cuStreamSynchronize(stream), CUDA_SUCCESS);
    real().cuMemFree_v2(out);
    size_t wrong = 0;
    for (size_t i = 0; i < words.size(); i++)
      wrong += words[i] != 7 + uint32_t(i / 32) * 1000 + uint32_t(i % 32) + salt + blocks * 7 + 3;
    EXPECT_EQ(wrong, 0u);
    CUgreenCtx green = nullptr;
    CUdevResource sms{};
    EXPECT_EQ(real().cuStreamGetGreenCtx(g_launched_in, &green), CUDA_SUCCESS);
    if (!green) return kSms;
    EXPECT_EQ(real().cuGreenCtxGetDevResource(green, &sms, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
    return sms.sm.smCount;
  }

  driver_api::RealDriver table_;
  CUmodule module_ = nullptr;
  CUfunction stamp_ = nullptr;
  CUstream stream_ = nullptr;
};

TEST_F(Confine, ALongLaunchKeepsOffTheReservedSmsInTheOrderOfItsStream) {
  const uint64_t before = confined();
  for (CUstream stream : {stream_, CUstream(nullptr)})
    for (int i = 0; i < 3; i++) EXPECT_EQ(sms_of_stamp(stream), kSms - 16);
  EXPECT_EQ(confined() - before, 6u);
  reserve(3);  // grows
  EXPECT_EQ(sms_of_stamp(stream_), kSms - 24);
  reserve(0);  // the service sleeps
  EXPECT_EQ(sms_of_stamp(stream_), kSms);
  EXPECT_EQ(g_launched_in, stream_);
}

TEST_F(Confine, SlicesOfLongBlocksKeepOffThemToo) {
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
  CUfunction stamp = function_of(module, "stamp");  // one that may be cut
  std::swap(stamp_, stamp);
  lease(ipc::abi::kLeaseGranted, 50'000'000, 200);  // any block is longer
  reserve(0);
  for (int i = 0; i < 8; i++) EXPECT_EQ(sms_of_stamp(stream_), kSms);  // learnt
  const uint64_t n_slices = slices(), n_confined = confined();
  EXPECT_GT(n_slices, 8u);
  reserve(2);
  EXPECT_EQ(sms_of_stamp(stream_), kSms - 16);
  EXPECT_EQ(slices() - n_slices, confined() - n_confined);
  EXPECT_GT(confined() - n_confined, 1u);
  std::swap(stamp_, stamp);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Confine, ApartALaunchStartsWhileAPulseIsBusy) {
  ipc::abi::PulsePage service{};
  watch(&service);
  ipc::pulse_set_busy(service, 1, ipc::abi::kResourceMemory, 1, state::clock_ns());
  lease(ipc::abi::kLeaseGranted, 50'000'000, 200);
  CUdeviceptr out = zeros(size_t(kWide) * 32);
  uint32_t salt = 5;
  void* params[] = {&out, &salt};
  const auto holds_of_a_launch = [&] {
    const uint64_t before = std::atomic_ref(region->usage.holds).load();
    EXPECT_EQ(launch3(stamp_, {kWide, 1, 1}, 32, params, 0, nullptr, stream_), CUDA_SUCCESS);
    return std::atomic_ref(region->usage.holds).load() - before;
  };
  reserve(2, true, kAnyClass);
  const uint64_t n_confined = confined();
  EXPECT_EQ(holds_of_a_launch(), 0u);
  EXPECT_EQ(confined() - n_confined, 1u);
  reserve(2, true);  // the same lease, but of no class: it waits until the hold limit
  EXPECT_EQ(holds_of_a_launch(), 1u);
  reserve(2);  // not all are confined
  EXPECT_EQ(holds_of_a_launch(), 1u);
  ipc::pulse_try_idle(service, 1, state::clock_ns());
  state::g_state.n_watched.store(0);
  EXPECT_EQ(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
  real().cuMemFree_v2(out);
}

// With the gate on the device what may begin during bursts waits for another word than the rest.
TEST_F(Confine, ApartALaunchPassesAGateThatABurstClosed) {
  void* memory =
      mmap(nullptr, ipc::abi::kGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* page = static_cast<ipc::abi::GatePage*>(memory);  // leaked, as the library does
  page->word = page->burst_word = ipc::abi::kGateOpen;
  gate::adopt_device_gate(page);
  ASSERT_TRUE(gate::pin_device_gate(context));
  CUstream other = nullptr;
  ASSERT_EQ(real().cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUdeviceptr out = zeros(size_t(kWide) * 32);
  uint32_t salt = 5;
  void* params[] = {&out, &salt};
  const auto launch_to = [&](CUstream s) {
    return launch3(stamp_, {kWide, 1, 1}, 32, params, 0, nullptr, s);
  };
  lease(ipc::abi::kLeaseGranted, 50'000'000, 200);
  ipc::store(region->lease.quantum_us, uint16_t(20), std::memory_order_relaxed);
  ipc::close_gate(*page, 1, 7);
  reserve(2);
  EXPECT_EQ(launch_to(stream_), CUDA_SUCCESS);
  reserve(2, true, kAnyClass);
  uint64_t n_confined = confined();
  EXPECT_EQ(launch_to(stream_), CUDA_SUCCESS)
      << "the driver would make SMs of its own when the gate has opened";
  EXPECT_EQ(confined() - n_confined, 0u);
  ipc::reopen_gate(*page, 1, 7);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(launch_to(other), CUDA_SUCCESS);
  EXPECT_EQ(confined() - n_confined, 1u);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  ipc::close_gate(*page, 1, 7);
  reserve(2);
  EXPECT_EQ(launch_to(stream_), CUDA_SUCCESS);
  reserve(2, true, kAnyClass);
  n_confined = confined();
  EXPECT_EQ(launch_to(other), CUDA_SUCCESS);
  EXPECT_EQ(confined() - n_confined, 1u);
  EXPECT_EQ(hook_cuStreamSynchronize(other), CUDA_SUCCESS);
  EXPECT_EQ(real().cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  // One that may not begin now closes in on what follows it in its stream, whatever passed before.
  reserve(2);
  EXPECT_EQ(launch_to(other), CUDA_SUCCESS);
  ipc::reopen_gate(*page, 1, 7);
  EXPECT_EQ(hook_cuCtxSynchronize(), CUDA_SUCCESS);
  ipc::set_gate_turn(*page, 0);
  EXPECT_FALSE(ipc::passes_gate(page->word, 0) || ipc::passes_gate(page->burst_word, 0))
      << "another one's turn";
  gate::adopt_device_gate(nullptr);
  confine::stream_ends(other);
  real().cuStreamDestroy_v2(other);
  real().cuMemFree_v2(out);
}

// The lease is for compute-bound work. The kernel may be cut. It starts whole where it is short and as slices, as the
// library call above it says.
TEST_F(Confine, ApartWhatMayBeCutStartsByTheClassOfItsCall) {
  CUmodule module = nullptr;
  ASSERT_EQ(hook_cuModuleLoadData(&module, bytes_of("cut.ptx").data()), CUDA_SUCCESS);
  const CUfunction stamp = function_of(module, "stamp");
  const uint64_t hash = forget_class(stamp).loaded.hash;
  gate::timing_of(gate::timing_key({hash, kWide, 32, 0}))->block_ps.store(10'000);
  CUdeviceptr out = zeros(size_t(kWide) * 32);
  uint32_t salt = 5;
  void* params[] = {&out, &salt};
  ipc::abi::PulsePage service{};
  struct Seen {
    uint64_t holds, slices, confined;
  };
  const auto launched = [&](uint64_t slice_ns, operations::Note* note) -> Seen {
    lease(ipc::abi::kLeaseGranted, 50'000'000, slice_ns);
    reserve(2, true, 1u << ipc::abi::kResourceCompute);
    const uint64_t n_holds = std::atomic_ref(region->usage.holds).load(), n_slices = slices(),
                   n_confined = confined();
    ipc::pulse_set_busy(service, 1, ipc::abi::kResourceMemory, 1, state::clock_ns());
    state::t_note = note;
    EXPECT_EQ(launch3(stamp, {kWide, 1, 1}, 32, params, 0, nullptr, stream_), CUDA_SUCCESS);
    state::t_note = nullptr;
    EXPECT_EQ(hook_cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return {std::atomic_ref(region->usage.holds).load() - n_holds, slices() - n_slices,
            confined() - n_confined};
  };
  constexpr uint64_t kLongNs = 1'000'000'000, kShortNs = 10'000;
  launched(kShortNs, nullptr);  // its slices are measured
  watch(&service);
  operations::Note product{.flop = 1'000'000'000, .bytes = 1'000};
  const Seen whole = launched(kLongNs, &product), cut = launched(kShortNs, &product);
  EXPECT_EQ(whole.holds, 0u);
  EXPECT_EQ(whole.slices, 0u);
  EXPECT_EQ(whole.confined, 1u);
  EXPECT_EQ(cut.holds, 0u);
  EXPECT_GT(cut.slices, 0u);
  EXPECT_EQ(cut.confined, cut.slices);
  for (const uint64_t slice_ns : {kLongNs, kShortNs}) EXPECT_EQ(launched(slice_ns, nullptr).holds, 1u);
  state::g_state.n_watched.store(0);
  real().cuMemFree_v2(out);
  EXPECT_EQ(hook_cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(Confine, BlocksThatMayWaitForEachOtherKeepTheWholeGpu) {
  EXPECT_EQ(sms_of_stamp(stream_, 4'224), kSms);  // one wave, as far as anybody can tell
  EXPECT_EQ(sms_of_stamp(stream_, 4'225), kSms - 16);
}

TEST_F(Confine, StreamsThatTheProgramPlacedItselfAreLeftAlone) {
  CUdevResource whole{}, half{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx own = nullptr;
  CUstream placed = nullptr;
  unsigned n = 1;
  ASSERT_EQ(real().cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  ASSERT_EQ(real().cuDevSmResourceSplitByCount(&half, &n, &whole, nullptr, 0, 64), CUDA_SUCCESS);
  ASSERT_EQ(real().cuDevResourceGenerateDesc(&description, &half, 1), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGreenCtxCreate(&own, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGreenCtxStreamCreate(&placed, own, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  EXPECT_EQ(sms_of_stamp(placed), 64u);
  EXPECT_EQ(g_launched_in, placed);
  EXPECT_EQ(hook_cuStreamDestroy_v2(placed), CUDA_SUCCESS);
  EXPECT_EQ(real().cuGreenCtxDestroy(own), CUDA_SUCCESS);
}

// A green context's face as a context, in which markers and samples were made.
TEST_F(Confine, WhatWasMadeInAGreenContextEndsWithIt) {
  CUdevResource whole{}, half{};
  CUdevResourceDesc description = nullptr;
  CUgreenCtx green = nullptr;
  CUcontext face = nullptr, before = nullptr;
  unsigned n = 1;
  ASSERT_EQ(real().cuCtxGetCurrent(&before), CUDA_SUCCESS);
  ASSERT_EQ(real().cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM), CUDA_SUCCESS);
  ASSERT_EQ(real().cuDevSmResourceSplitByCount(&half, &n, &whole, nullptr, 0, 64), CUDA_SUCCESS);
  ASSERT_EQ(real().cuDevResourceGenerateDesc(&description, &half, 1), CUDA_SUCCESS);
  ASSERT_EQ(real().cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), CUDA_SUCCESS);
  ASSERT_EQ(real().cuCtxFromGreenCtx(&face, green), CUDA_SUCCESS);
  track::context_ended(nullptr);
  ASSERT_EQ(hook_cuCtxSetCurrent(face), CUDA_SUCCESS);
  EXPECT_EQ(gate::g_markers.context.load(), face);
  EXPECT_EQ(hook_cuGreenCtxDestroy(green), CUDA_SUCCESS);
  EXPECT_EQ(gate::g_markers.context.load(), nullptr);
  EXPECT_EQ(gate::g_markers.host.load(), nullptr);
  ASSERT_EQ(hook_cuCtxSetCurrent(before), CUDA_SUCCESS);
  EXPECT_EQ(gate::g_markers.context.load(), before);
}

TEST_F(Confine, ADriverWithoutGreenContextsLaunchesAsTheProgramSaid) {
  EXPECT_TRUE(confine::possible(0));
  auto& table = driver_api::mutable_real_for_tests();
  table.cuGreenCtxCreate = [](CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  for (int i = 0; i < 2; i++) EXPECT_EQ(sms_of_stamp(stream_), kSms);
  table.cuDeviceGetDevResource = [](CUdevice, CUdevResource*, CUdevResourceType) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  EXPECT_FALSE(confine::possible(0));
}

TEST_F(Confine, ALaunchThatIsRefusedThereGoesWhereTheProgramSentIt) {
  static CUstream own;
  static int n_refused;
  own = stream_;
  n_refused = 0;
  driver_api::mutable_real_for_tests().cuLaunchKernel =
      [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, CUstream s, void** params, void** extra) {
        g_launched_in = s;
        if (s != own && ++n_refused) return CUDA_ERROR_INVALID_CONTEXT;
        return g_launch(f, gx, gy, gz, bx, by, bz, shared, s, params, extra);
      };
  const uint64_t before = confined();
  for (int i = 0; i < 3; i++) EXPECT_EQ(sms_of_stamp(stream_), kSms);
  EXPECT_EQ(n_refused, 1);  // not tried again
  EXPECT_EQ(confined(), before);
}

TEST_F(Confine, StreamsThatEndAndSizesThatChangeLeaveTheirPlaceToOthers) {
  for (int i = 0; i < 20; i++) {
    CUstream stream = nullptr;
    ASSERT_EQ(hook_cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(sms_of_stamp(stream), kSms - 16) << i;
    EXPECT_EQ(hook_cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  }
  for (int stream = 0; stream < 2; stream++)
    for (uint32_t steps = 1; steps <= 12; steps++) {
      reserve(steps);
      EXPECT_EQ(sms_of_stamp(stream == 0 ? stream_ : nullptr), kSms - 8 * steps);
    }
}

TEST_F(Confine, NothingOfItOutlivesItsContext) {
  EXPECT_EQ(sms_of_stamp(stream_), kSms - 16);
  const CUstream ours = g_launched_in;
  CUgreenCtx green = nullptr;
  confine::forget(context);
  EXPECT_NE(real().cuStreamGetGreenCtx(ours, &green), CUDA_SUCCESS);  // destroyed
  EXPECT_EQ(sms_of_stamp(stream_), kSms - 16);                        // made anew
}

TEST_F(Confine, MoreStreamsThanThereArePathsRunWhereTheyAre) {
  std::vector<CUstream> streams(20);
  uint32_t n_confined = 0;
  for (CUstream& s : streams) {
    ASSERT_EQ(hook_cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    n_confined += sms_of_stamp(s) != kSms;
  }
  EXPECT_EQ(n_confined, 16u);
  for (CUstream s : streams) EXPECT_EQ(hook_cuStreamDestroy_v2(s), CUDA_SUCCESS);
}

}  // namespace
}  // namespace tessera
