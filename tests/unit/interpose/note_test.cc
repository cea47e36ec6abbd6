// Notes of libtessera_ops.so about a library call, as the launches under it see them.
#include "interpose/state/note.h"

#include <array>
#include <functional>
#include <set>

#include "admission/credit.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/rates.h"
#include "interpose/operations/split_counters.h"
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

 protected:
  static uint64_t describe(const Note* note, char* text, uint32_t bytes) {
    if (text) snprintf(text, bytes, "anything of %u", note->entry);
    return 0x5000 + note->entry;
  }
  static Note note_of(uint64_t flop, uint64_t bytes, int32_t type = 0, uint32_t entry = 0) {
    return {
        .flop = flop, .bytes = bytes, .entry = entry, .type = type, .name = "anything", .describe = describe};
  }
  // Another call with this note: what the reader wrote into the last one's is gone.
  void begin(Note& note) {
    note = note_of(note.flop, note.bytes, note.type, note.entry);
    reader->begin(&note);
  }
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
  Note note = note_of(2, 3);
  reader->begin(&note);
  EXPECT_EQ(t_note, &note);
  std::thread([] { EXPECT_EQ(t_note, nullptr); }).join();
  reader->end(&note);
  EXPECT_EQ(t_note, nullptr);
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
  Note compute_ = note_of(67'000'000'000, 1'000'000);
  Note memory_ = note_of(1'000'000, 480'000'000);
  abi::SignalLine line_{};

 private:
  driver_api::RealDriver before_;
  static inline uint64_t n_ = 0;
};

TEST_F(Operations, NothingMeasuredTheRooflineCountsWhereItIsLongerThanAnyKernelIsExpectedToTake) {
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);
  const uint64_t unknown = gate::g_learnt.unknown.load();
  begin(compute_);
  EXPECT_EQ(reserved_by(kernel()), 1'000'000u);
  EXPECT_EQ(gate::g_learnt.unknown.load(), unknown);
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);  // a helper: nothing more is known of it
  begin(memory_);
  EXPECT_EQ(reserved_by(kernel()),
            admission::kUnknownKernelNs);  // it takes 100 us at least, and perhaps much longer
  state::t_note = nullptr;
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);
}

// How far launches of one kernel, or of one kind of call, were from their roofline.
class Ratios : public Operations {
 protected:
  void SetUp() override {
    Operations::SetUp();
    null.hold(0);
    driver_api::mutable_real_for_tests().cuEventElapsedTime_v2 = [](float* ms, CUevent, CUevent) {
      *ms = g_took_ms;
      return CUDA_SUCCESS;
    };
  }
  // Its second launch is timed.
  void measured(Note note, CUfunction f, uint32_t blocks, float ms) {
    g_took_ms = ms;
    for (int i = 0; i < 2; i++) {
      begin(note);
      launch(nullptr, blocks, f);
      reader->end(&note);
      hook_cuCtxSynchronize();
    }
  }
  uint64_t expected(Note note, CUfunction f, uint32_t blocks = 4000) {
    null.hold(1);
    begin(note);
    const uint64_t before = in_flight();
    EXPECT_EQ(launch(nullptr, blocks, f), CUDA_SUCCESS);
    const uint64_t ns = in_flight() - before;
    reader->end(&note);
    null.hold(0);
    hook_cuCtxSynchronize();
    return ns;
  }
  // A kind of call of each test's own: what is learnt stays. 1 ms by the roofline, times `n`.
  static Note call(uint64_t n, operations::Entry entry) {
    return note_of(67'000'000'000 * n, 1'000'000, 0, uint32_t(entry));
  }
  static inline std::atomic<float> g_took_ms{1};
};

TEST_F(Ratios, OfOneKindOfCallCorrectTheRooflineOfTheNext) {
  using enum operations::Entry;
  measured(call(1, cublasSgemm_v2), kernel(), 4000, 16);
  EXPECT_EQ(expected(call(2, cublasSgemm_v2), kernel()), 32'000'000u);
  EXPECT_EQ(expected(call(2, cublasSgemmStridedBatched), kernel()), 32'000'000u);  // a product, too
  EXPECT_EQ(expected(call(2, cublasSsyrk_v2), kernel()), 2'000'000u);
  // Less than any kernel is expected to take: it is known now.
  EXPECT_EQ(expected(note_of(670'000'000, 1'000'000, 0, uint32_t(cublasSgemm_v2)), kernel()), 160'000u);
  // On a quarter of the SMs.
  EXPECT_EQ(expected(call(1, cublasSgemm_v2), kernel(), state::sm_count() / 4), 64'000'000u);
}

TEST_F(Ratios, OfAKernelOutrankThoseOfTheCall) {
  using enum operations::Entry;
  const CUfunction slow = kernel(), fast = kernel();
  measured(call(1, cublasSsymm_v2), slow, 4000, 16);
  measured(call(1, cublasSsymm_v2), fast, 4000, 2);
  EXPECT_EQ(expected(call(4, cublasSsymm_v2), slow, 9000), 64'000'000u);
  EXPECT_EQ(expected(call(4, cublasSsymm_v2), fast, 9000), 8'000'000u);
}

TEST_F(Ratios, HelpersSayNothingOfTheirKindOfCall) {
  const CUfunction helper = kernel();
  const Note note = call(1, operations::Entry::cublasSsyr2k_v2);
  g_took_ms = 0.0625f;
  for (int i = 0; i < 2; i++) {
    Note both = note;
    begin(both);
    launch(nullptr, 4000, kernel());  // not timed: its first
    launch(nullptr, 4000, helper);
    reader->end(&both);
    hook_cuCtxSynchronize();
  }
  EXPECT_EQ(expected(note, kernel()), 1'000'000u);
  EXPECT_EQ(expected(note, helper, 9000), 62'500u);
}

TEST_F(Operations, WhatWasMeasuredOutranksTheCall) {
  const CUfunction f = kernel();
  const auto key = gate::timing_key({reinterpret_cast<uint64_t>(f), 4000, 128, 0});
  gate::timing_of(key)->block_ps.store(10'000);
  begin(compute_);
  EXPECT_EQ(reserved_by(f), 40'000u);
}

TEST_F(Operations, TheClassIsTheCallsWhereTheKernelsIsNotKnown) {
  begin(compute_);
  launch(nullptr, 4000, kernel());
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceCompute));
  launch(nullptr, 4000, kernel(abi::kResourceLatency));
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceLatency));
  begin(memory_);
  launch(nullptr, 4000, kernel());
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceMemory));
  launch(nullptr, 4000);  // a handle that is in no table
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceMemory));
  state::t_note = nullptr;
  launch(nullptr, 4000, kernel());
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceUnknown));
}

// By a lease that lets anything start beside a busy pulse. For leases of one class: confine_test.cc.
TEST_F(Operations, WhatStartsBesideABurstCountsByTheCallsClass) {
  abi::PulsePage page{};
  watch(&page, 5);
  ipc::LeaseTerms terms{.state = abi::kLeaseGranted, .packed = true};
  terms.expires_ns = base::now_ns() + 60'000'000'000;
  terms.window_ns = 100'000'000'000;
  terms.slice_ns = 1'000'000;
  terms.marker_spacing_ns = 1;
  terms.max_hold_ms = 5;
  ipc::lease_publish(region->lease, region->word, terms);
  ipc::pulse_set_busy(page, 1, 0, 1, base::now_ns());
  const auto launch_below = [&](Note& note) {
    begin(note);
    launch(nullptr, 5, kernel());
  };
  abi::OperationTotals totals{};
  link->operations = &totals;
  launch_below(compute_);
  EXPECT_EQ(totals.during_bursts[abi::kResourceCompute], 1u);
  launch_below(memory_);
  EXPECT_EQ(totals.during_bursts[abi::kResourceMemory], 1u);
  ipc::pulse_try_idle(page, 1, base::now_ns());
  launch_below(compute_);
  EXPECT_EQ(totals.during_bursts[abi::kResourceCompute], 1u);  // beside nothing
  link->operations = nullptr;
  state::g_state.n_watched.store(0);
}

TEST_F(Operations, NothingIsSaidOfACardThatNobodyDescribed) {
  gate::use_rates_of(kUnknownCard);
  begin(compute_);
  EXPECT_EQ(reserved_by(kernel()), admission::kUnknownKernelNs);
  EXPECT_EQ(line_.resource_class, uint32_t(abi::kResourceUnknown));
}

// The daemon's view of the counts.
class Counts : public Operations {
 protected:
  void SetUp() override {
    Operations::SetUp();
    link->operations = &table_.totals;
    link->operation_counts = table_.counts;
    link->operation_slots = kSlots;
  }
  const abi::OperationCounts& first() const {
    for (const abi::OperationCounts& c : table_.counts)
      if (c.ready) return c;
    return table_.counts[0];
  }
  void call(
      Note& note, const std::function<void()>& what = [] {}) {
    begin(note);
    what();
    reader->end(&note);
  }
  static constexpr uint32_t kSlots = 3, kMostSlots = 32;
  struct {
    abi::OperationTotals totals{};
    abi::OperationCounts counts[kMostSlots]{};
  } table_;
};

TEST_F(Counts, CallsOfOneFunctionAndTypeAreOneSlot) {
  Note large = note_of(UINT64_MAX, 10, 0, 7), small = note_of(2, 5, 0, 7);
  call(large);
  call(small);
  EXPECT_EQ(first().calls, 2u);
  EXPECT_EQ(first().flop[0], 1u);
  EXPECT_EQ(first().flop[1], 1u);  // it has wrapped once
  EXPECT_EQ(first().bytes[0], 15u);
  EXPECT_STREQ(first().name, "anything");
  EXPECT_EQ(first().gpu_ns, 0u);
  EXPECT_EQ(first().launches, 0u);
}

TEST_F(Counts, WhatFindsNoSlotIsCountedAsSuch) {
  for (int32_t type = 0; type < 5; type++) {
    Note note = note_of(1, 1, type);
    call(note);
    call(note);
  }
  std::set<int32_t> types;
  for (uint32_t i = 0; i < kSlots; i++) {
    EXPECT_EQ(table_.counts[i].calls, 2u);
    types.insert(table_.counts[i].type);
  }
  EXPECT_EQ(types, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(table_.totals.further_calls, 4u);
}

TEST_F(Counts, LaunchesBelowACallAreItsTimeAndClass) {
  call(compute_, [&] { launch(nullptr, 4000, kernel()); });
  EXPECT_EQ(first().launches, 1u);
  EXPECT_EQ(first().gpu_ns, 1'000'000u);
  EXPECT_EQ(first().resource_class, uint32_t(abi::kResourceCompute));
  launch(nullptr, 4000, kernel());  // below none
  EXPECT_EQ(first().launches, 1u);
}

TEST_F(Counts, WhatWasCapturedIsNotCounted) {
  const CUstream stream = new_stream();
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  call(compute_, [&] { EXPECT_EQ(launch(stream, 4000, kernel()), CUDA_SUCCESS); });
  call(compute_, [&] {
    EXPECT_EQ(hook_cuLaunchCooperativeKernel(kernel(), 4, 1, 1, 32, 1, 1, 0, stream, nullptr), CUDA_SUCCESS);
  });
  EXPECT_EQ(first().calls, 0u);
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  call(compute_, [&] { EXPECT_EQ(launch(stream, 4000, kernel()), CUDA_SUCCESS); });
  EXPECT_EQ(first().calls, 1u);
}

// They go out on credit, without a look at the note (interpose/hooks/launch.cc).
TEST_F(Counts, TheLatestLaunchOnceMoreCountsToo) {
  const CUfunction f = kernel();
  const auto key = gate::timing_key({reinterpret_cast<uint64_t>(f), 4000, 128, 0});
  gate::timing_of(key)->block_ps.store(1'000);
  gate::timing_of(key)->samples.store(100);
  constexpr uint64_t kCalls = 50, kPerCall = 20;
  launch(nullptr, 4000, f);
  for (uint64_t i = 0; i < kCalls; i++) {
    call(compute_, [&] {
      for (uint64_t n = 0; n < kPerCall; n++) launch(nullptr, 4000, f);
    });
  }
  EXPECT_EQ(first().launches, kCalls * kPerCall);
  EXPECT_EQ(first().gpu_ns, kCalls * kPerCall * 4'000);
}

TEST_F(Counts, NothingIsMeasuredWhileThereIsNothingToMeasure) {
  lease(abi::kLeaseFree);
  call(compute_, [&] { launch(nullptr, 4000, kernel()); });
  EXPECT_EQ(first().launches, 1u);
  EXPECT_EQ(first().gpu_ns, 0u);
}

// Whether threads have slots of their own, or there is no room for that.
TEST_F(Counts, NoCallOfManyThreadsIsLost) {
  constexpr uint64_t kThreads = 4, kCalls = 2000;
  for (const uint32_t slots : {kMostSlots, 3 * uint32_t(kThreads)}) {
    table_ = {};
    link->operation_slots = slots;
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; i++)
      threads.emplace_back([&] {
        for (uint64_t n = 0; n < kCalls; n++) {
          Note note = note_of(uint64_t{1} << 63, 5, int32_t(n % 2));
          reader->begin(&note);
          reader->end(&note);
        }
      });
    for (std::thread& thread : threads) thread.join();
    uint64_t calls = 0, bytes = 0;
    double flop = 0;
    for (const abi::OperationCounts& c : table_.counts)
      calls += c.calls, flop += double(c.flop[1]) * 0x1p64 + double(c.flop[0]), bytes += c.bytes[0];
    EXPECT_DOUBLE_EQ(flop, 0x1p63 * double(kThreads * kCalls));
    EXPECT_EQ(calls, kThreads * kCalls);
    EXPECT_EQ(bytes, 5 * kThreads * kCalls);
    EXPECT_EQ(table_.totals.further_calls, 0u);
  }
}

// libtessera_ops.so asks these before it cuts a call.
TEST_F(Counts, WhoSplitsAsksForTheSliceAndCounts) {
  lease(abi::kLeaseGranted, 2'000'000, 123'456);
  EXPECT_EQ(reader->slice_ns(), 123'456u);
  lease(abi::kLeaseFree, 2'000'000, 123'456);
  EXPECT_EQ(reader->slice_ns(), 0u);
  lease(abi::kLeaseHold, 2'000'000, 123'456);
  EXPECT_EQ(reader->slice_ns(), 123'456u);  // it will wait, and be granted again
  state::g_state.captures.fetch_add(1);
  EXPECT_EQ(reader->slice_ns(), 0u);
  state::g_state.captures.fetch_sub(1);
  EXPECT_EQ(reader->expected_ns(&compute_), 1'000'000u);
  reader->count(library::kSplitCalls, 2);
  reader->count(library::kSplitPieces, 3);
  reader->count(library::kSplitProven, 4);
  reader->count(library::kSplitUnequal, 5);
  reader->count(library::kKeptUnproven, 6);
  reader->count(library::kKeptUnequal, 7);
  reader->count(library::kKeptForm, 8);
  reader->count(library::kNarrowedCalls, 9);
  reader->count(library::kKeptShort, 10);
  reader->count(library::kKeptFree, 11);
  reader->count(1000, 9);
  const abi::OperationTotals& t = table_.totals;
  EXPECT_EQ(
      (std::array{t.split_calls, t.split_pieces, t.split_proven, t.split_unequal, t.kept_unproven,
                  t.kept_unequal, t.kept_form, t.narrowed_calls, t.kept_short, t.kept_free, t.further_calls}),
      (std::array<uint64_t, 11>{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0}));
}

TEST_F(Operations, CallsAreLeftTheSmsThatTheLeaseDoesNotReserve) {
  const auto reserve = [&](uint32_t state, uint32_t sms) {
    ipc::LeaseTerms terms{.state = state, .reserved_sms = sms};
    terms.expires_ns = base::now_ns() + 60'000'000'000;
    ipc::lease_publish(region->lease, region->word, terms);
  };
  const uint32_t all = state::sm_count();
  ASSERT_GT(all, 16u);
  EXPECT_EQ(reader->sms(1'000'000), 0u);
  reserve(abi::kLeaseGranted, 16);
  EXPECT_EQ(reader->sms(1'000'000), all - 16);
  EXPECT_EQ(reader->sms(admission::kShortLaunchNs), 0u);  // no launch so short is kept off them
  state::g_state.captures.fetch_add(1);
  EXPECT_EQ(reader->sms(1'000'000), 0u);
  state::g_state.captures.fetch_sub(1);
  reserve(abi::kLeaseFree, 16);
  EXPECT_EQ(reader->sms(1'000'000), 0u);
}

TEST_F(Operations, WhoSplitsIsToldOfBusyPulsesAndCaptures) {
  abi::PulsePage page{};
  watch(&page, 5);
  EXPECT_EQ(reader->undisturbed(), 1u);
  ipc::pulse_set_busy(page, 1, 0, 1, base::now_ns());
  EXPECT_EQ(reader->undisturbed(), 0u);
  ipc::pulse_try_idle(page, 1, base::now_ns());
  EXPECT_EQ(reader->undisturbed(), 1u);
  state::g_state.captures.fetch_add(1);
  EXPECT_EQ(reader->undisturbed(), 0u);
  state::g_state.captures.fetch_sub(1);
  state::g_state.n_watched.store(0);
}

TEST_F(Operations, WhoSplitsIsCalledWhereTheProgramHasWaited) {
  static int calls = 0;
  static const operations::Listener kListener = {
      .waited = [] { calls++; }, .context_ended = [](const void*) {}, .memory_short = [] { return 0u; }};
  reader->listen(&kListener);
  const CUstream stream = new_stream();
  EXPECT_EQ(hook_cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(calls, 1);
  hook_cuStreamQuery(stream);  // has not waited
  attach(Role::kProtected);
  EXPECT_EQ(hook_cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(calls, 1);
  state::g_listener.store(nullptr);
}

TEST_F(Operations, ADaemonWithoutATableIsNotTold) {
  ASSERT_EQ(link->operations, nullptr);
  begin(compute_);
  reader->end(&compute_);
}

TEST_F(Operations, GarbageIsBounded) {
  const auto expected = [](Note note) {
    t_note = &note;
    return gate::expected_below_call(0, 4000);
  };
  EXPECT_LE(expected({.flop = UINT64_MAX, .bytes = UINT64_MAX}), gate::kLongestTransferNs);
  EXPECT_LE(expected({.flop = UINT64_MAX, .bytes = UINT64_MAX, .entry = UINT32_MAX}),
            gate::kLongestTransferNs);
  EXPECT_EQ(expected({.flop = 2, .bytes = 12}), 0u);
  EXPECT_EQ(expected({.flop = UINT64_MAX, .bytes = 12, .type = 99}), 0u);
}

}  // namespace
}  // namespace tessera::test
