// Collectives of a gang: the test plays the daemon, and the other member by its page.
#include "interpose/gate/collectives.h"

#include "base/hash.h"
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using state::Role;

class Collectives : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    attach(Role::kBestEffort);
    collective = reinterpret_cast<CUfunction>(uintptr_t{0x500000} + 64 * next_function++);
    const auto handle = reinterpret_cast<uint64_t>(collective);
    auto* record = new state::KernelRecord{.loaded = {.hash = handle, .never_hold = true}};
    for (uint32_t at = state::kernel_slot_of(handle);; at = (at + 1) % state::kKernelSlots) {
      if (state::g_kernels[at].handle.load() > 1) continue;
      state::g_kernels[at].record.store(record);
      state::g_kernels[at].handle.store(handle);
      break;
    }
    page = new abi::GangPage{};  // leaked, as the library does
  }
  void TearDown() override {
    gate::leave_gang();
    Gate::TearDown();
  }
  CUresult reduce() { return launch(nullptr, 1, collective); }
  uint64_t begun() { return ipc::load(page->collectives.begun, std::memory_order_seq_cst); }
  // Counts of this process outlive a test.
  uint64_t join() {
    gate::join_gang(page, true);
    lease(abi::kLeaseFree);
    EXPECT_EQ(reduce(), CUDA_SUCCESS);
    return begun();
  }
  // Plays another member that begins a collective.
  void other_begins(uint64_t number) {
    std::atomic_ref(page->collectives.begun).store(number);
    std::atomic_ref(page->collectives.changes).fetch_add(1);
    base::futex_wake_all(&page->collectives.changes);
  }
  struct Reducer {
    std::atomic<bool> done{false};
    std::thread thread;
    explicit Reducer(Collectives& test) : thread([this, &test] { test.reduce(), done = true; }) {}
    ~Reducer() { thread.join(); }
  };
  static constexpr uint32_t kNeverExpiresMs = 3'600'000;

  abi::GangPage* page = nullptr;
  CUfunction collective = nullptr;
  static inline int next_function = 0;
};

TEST_F(Collectives, OfNoGangAreNeverHeld) {
  lease(abi::kLeaseHold, 0, 0, 1, kNeverExpiresMs);
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(begun(), 0u);
}

TEST_F(Collectives, AreCountedAlsoWhileTheGangRunsFree) {
  const uint64_t before = join();
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(begun(), before + 1);
  EXPECT_EQ(launch(), CUDA_SUCCESS);  // another kernel
  EXPECT_EQ(begun(), before + 1);
}

TEST_F(Collectives, TheFirstObeysTheLease) {
  const uint64_t before = join();
  lease(abi::kLeaseHold, 0, 0, 1, kNeverExpiresMs);
  Reducer reducer(*this);
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  EXPECT_FALSE(reducer.done);
  EXPECT_EQ(begun(), before);
  lease(abi::kLeaseGranted);
  EXPECT_TRUE(eventually([&] { return reducer.done.load(); }));
  EXPECT_EQ(begun(), before + 1);
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(ipc::load(page->collectives.waiting, std::memory_order_seq_cst), 0u);
}

TEST_F(Collectives, OneThatAnotherMemberHasBegunIsNotHeld) {
  const uint64_t before = join();
  lease(abi::kLeaseHold, 0, 0, 1, kNeverExpiresMs);
  other_begins(before + 2);
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(begun(), before + 2);
  {
    Reducer third(*this);
    ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
    other_begins(before + 3);
    EXPECT_TRUE(eventually([&] { return third.done.load(); }));
  }
  EXPECT_EQ(begun(), before + 3);
}

TEST_F(Collectives, AWatchedBurstHoldsTheFirst) {
  StoppedClock clock;  // the pulse does not go stale
  abi::PulsePage pulse{};
  watch(&pulse);
  const uint64_t before = join();
  lease(abi::kLeaseGranted, 2'000'000, 1'000'000, 1, kNeverExpiresMs);
  ipc::pulse_set_busy(pulse, 1, 0, 1, state::clock_ns());
  {
    Reducer reducer(*this);
    ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
    EXPECT_EQ(begun(), before);
    EXPECT_TRUE(ipc::pulse_try_idle(pulse, 1, state::clock_ns()));
    EXPECT_TRUE(eventually([&] { return reducer.done.load(); }));
  }
  EXPECT_EQ(begun(), before + 1);
}

TEST_F(Collectives, TheHoldLimitEndsAWait) {
  const uint64_t before = join();
  lease(abi::kLeaseHold, 0, 0, 1, 1);
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(begun(), before + 1);
}

TEST_F(Collectives, AMemberThatDoesNotCountFreesAll) {
  const uint64_t before = join();
  lease(abi::kLeaseHold, 0, 0, 1, kNeverExpiresMs);
  std::atomic_ref(page->collectives.uncounted).store(1);
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(begun(), before + 1);
  gate::leave_gang();
  EXPECT_EQ(reduce(), CUDA_SUCCESS);
  EXPECT_EQ(begun(), before + 1);
}

TEST_F(Collectives, WhoeverJoinsLateOrLeavesCannotCount) {
  gate::join_gang(page, false);
  EXPECT_EQ(page->collectives.uncounted, 1u);
  page->collectives.uncounted = 0;
  gate::join_gang(page, true);
  EXPECT_EQ(page->collectives.uncounted, 0u);
  gate::leave_gang();
  EXPECT_EQ(page->collectives.uncounted, 1u);
}

}  // namespace
}  // namespace tessera::test
