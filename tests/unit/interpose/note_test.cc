// What libtessera_ops.so says of a library call, as the launches under it see it.
#include "interpose/state/note.h"

#include "interpose/gate/learnt.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/rates.h"
#include "tests/unit/interpose/harness.h"

extern "C" const tessera::operations::NoteReader* tessera_note_reader(uint32_t version) noexcept;

namespace tessera::test {
namespace {

using operations::kNoteVersion;
using operations::Note;
using state::Role;
using state::t_note;

class Notes : public Gate {
 public:
  void TearDown() override {
    t_note = nullptr;
    Gate::TearDown();
  }
  const operations::NoteReader* reader = tessera_note_reader(kNoteVersion);
};

TEST_F(Notes, OnlyAVersionThatIsKnownIsRead) {
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(tessera_note_reader(kNoteVersion + 1), nullptr);
  EXPECT_EQ(tessera_note_reader(0), nullptr);
}

TEST_F(Notes, AreWantedOfBestEffortClientsOnly) {
  for (const Role role : {Role::kForward, Role::kProtected, Role::kBestEffort}) {
    attach(role);
    EXPECT_EQ(*reader->role == reader->reading_role, role == Role::kBestEffort);
  }
}

TEST_F(Notes, BelongToTheThreadUntilTheCallEnds) {
  Note note{.flop = 2, .bytes = 3};
  reader->set_note(&note);
  EXPECT_EQ(t_note, &note);
  std::thread([] { EXPECT_EQ(t_note, nullptr); }).join();
  reader->set_note(nullptr);
  EXPECT_EQ(t_note, nullptr);
}

TEST_F(Notes, AreNotReadWhileACaptureIsOpen) {
  attach(Role::kBestEffort);
  const CUstream stream = new_stream();
  Note note{};
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  reader->set_note(&note);
  EXPECT_EQ(t_note, nullptr);
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  reader->set_note(&note);
  EXPECT_EQ(t_note, &note);
}

// On a card of the profiles, and on one that nobody described.
constexpr CUdevice kH200 = 40, kUnknownCard = 41;
CUresult name_of(char* name, int length, CUdevice device) {
  snprintf(name, size_t(length), "%s", device == kH200 ? "NVIDIA H200" : "Somebody's GPU");
  return CUDA_SUCCESS;
}

class Operations : public Notes {
 protected:
  void SetUp() override {
    Notes::SetUp();
    before_ = driver_api::real();
    driver_api::mutable_real_for_tests().cuDeviceGetName = name_of;
    gate::use_rates_of(kH200);
    attach(Role::kBestEffort);
    link->signals = &line_;
    lease(abi::kLeaseGranted, 100'000'000'000);
    null.hold(1);
  }
  void TearDown() override {
    Notes::TearDown();
    driver_api::mutable_real_for_tests() = before_;
    for (state::KernelSlot& slot : state::g_kernels) slot.handle.store(0);
  }
  // A kernel of which nothing is known but perhaps its class.
  static CUfunction kernel(uint32_t resource_class = abi::kResourceUnknown) {
    const uint64_t handle = 0x700000 + 64 * ++n_;
    auto* record = new state::KernelRecord{.loaded = {.hash = handle, .resource_class = resource_class}};
    state::KernelSlot& slot =
        state::g_kernels[state::kernel_slot_of(handle)];  // lives for ever, as in the library
    slot.record.store(record);
    slot.handle.store(handle);
    return reinterpret_cast<CUfunction>(handle);
  }
  uint64_t reserved_by(CUfunction f) {
    const uint64_t before = in_flight();
    EXPECT_EQ(launch(nullptr, 4000, f), CUDA_SUCCESS);
    return in_flight() - before;
  }
  // Single precision: 67 TFLOP/s, 4.8 TB/s.
  Note compute_{.flop = 67'000'000'000, .bytes = 1'000'000, .type = 0};
  Note memory_{.flop = 1'000'000, .bytes = 480'000'000, .type = 0};
  abi::SignalLine line_{};

 private:
  driver_api::RealDriver before_;
  static inline uint64_t n_ = 0;
};

TEST_F(Operations, AKernelWithoutHistoryIsExpectedToTakeTheWholeCall) {
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);
  const uint64_t unknown = gate::g_learnt.unknown.load();
  reader->set_note(&compute_);
  EXPECT_EQ(reserved_by(kernel()), 1'000'000u);
  EXPECT_EQ(gate::g_learnt.unknown.load(), unknown);
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);  // a helper: nothing more is known of it
  reader->set_note(&memory_);
  EXPECT_EQ(reserved_by(kernel()), 100'000u);
  reader->set_note(nullptr);
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);
}

TEST_F(Operations, WhatWasMeasuredOutranksTheCall) {
  const CUfunction f = kernel();
  const auto key = gate::timing_key({reinterpret_cast<uint64_t>(f), 4000, 128, 0});
  gate::timing_of(key)->block_ps.store(10'000);
  reader->set_note(&compute_);
  EXPECT_EQ(reserved_by(f), 40'000u);
  EXPECT_EQ(compute_.launches, 0u);  // it was not asked
}

TEST_F(Operations, TheClassIsTheCallsWhereTheKernelsIsNotKnown) {
  reader->set_note(&compute_);
  launch(nullptr, 4000, kernel());
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceCompute));
  launch(nullptr, 4000, kernel(abi::kResourceLatency));
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceLatency));
  reader->set_note(&memory_);
  launch(nullptr, 4000, kernel());
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceMemory));
  launch(nullptr, 4000);  // a handle that is in no table
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceMemory));
  reader->set_note(nullptr);
  launch(nullptr, 4000, kernel());
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceUnknown));
}

// Beside a busy pulse, by a lease for compute-bound work only.
TEST_F(Operations, PackingAsksForTheCallsClass) {
  abi::PulsePage page{};
  watch(&page, 5);
  ipc::LeaseTerms terms{
      .state = abi::kLeaseGranted, .packed = true, .packed_classes = 1u << abi::kResourceCompute};
  terms.expires_ns = base::now_ns() + 60'000'000'000;
  terms.window_ns = 100'000'000'000;
  terms.slice_ns = 1'000'000;
  terms.width_blocks = 10;
  terms.marker_spacing_ns = 1;
  terms.max_hold_ms = 5;
  ipc::lease_publish(region->lease, region->word, terms);
  ipc::pulse_set_busy(page, 1, 0, 1, base::now_ns());
  const auto held_by = [&](Note& note) {
    reader->set_note(&note);
    const uint64_t before = region->usage.hold_expired;
    launch(nullptr, 5, kernel());
    return region->usage.hold_expired - before;
  };
  EXPECT_EQ(held_by(compute_), 0u);
  EXPECT_EQ(held_by(memory_), 1u);
  state::g_state.n_watched.store(0);
}

TEST_F(Operations, NothingIsSaidOfACardThatNobodyDescribed) {
  gate::use_rates_of(kUnknownCard);
  reader->set_note(&compute_);
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceUnknown));
}

TEST_F(Operations, GarbageIsBounded) {
  Note garbage{.flop = UINT64_MAX, .bytes = UINT64_MAX, .type = 0};
  state::t_note = &garbage;
  EXPECT_LE(gate::expected_of_operation(), gate::kLongestTransferNs);
  Note tiny{.flop = 2, .bytes = 12, .type = 0};
  state::t_note = &tiny;
  EXPECT_EQ(gate::expected_of_operation(), admission::kLeastEstimateNs);
  Note unknown_type{.flop = 2, .bytes = 12, .type = 99};
  state::t_note = &unknown_type;
  EXPECT_EQ(gate::expected_of_operation(), 0u);
}

}  // namespace
}  // namespace tessera::test
