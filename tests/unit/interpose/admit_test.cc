// Best-effort side: lease states, window, markers, holds.
#include <pthread.h>
#include <signal.h>

#include "admission/wait.h"
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using admission::Action;
using state::Role;
using namespace std::chrono_literals;

class Admit : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    attach(Role::kBestEffort);
    function = reinterpret_cast<CUfunction>(uintptr_t{0x100000} + 64 * next_function++);
  }
  bool granted() {
    return (ipc::load(region->lease.word, std::memory_order_acquire) & abi::kLeaseStateMask) ==
           abi::kLeaseGranted;
  }
  uint64_t driver_launches() { return null.calls("cuLaunchKernel"); }
  // A launch in another thread that is expected to wait; joined by the destructor.
  struct Launcher {
    std::atomic<int> done{0};
    std::thread thread;
    Launcher(Admit& test, int n = 1, CUstream s = nullptr)
        : thread([this, &test, n, s] {
            for (int i = 0; i < n; i++) test.launch(s);
            done = 1;
          }) {}
    ~Launcher() { thread.join(); }
  };
  static inline int next_function = 0;
};

TEST_F(Admit, MarkersAreAvailableOnTheNullDriver) {
  EXPECT_NE(gate::g_markers.host.load(), nullptr);
  EXPECT_EQ(gate::g_markers.use_events.load(), 0u);
}

TEST_F(Admit, FreeLeaseForwardsWithoutReservingOrMarking) {
  lease(abi::kLeaseFree);
  null.reset();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(driver_launches(), 1u);
  EXPECT_EQ(null.calls("cuStreamWriteValue32_v2"), 0u);
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(Admit, GrantedLaunchIsInFlightUntilItsMarkerArrives) {
  lease(abi::kLeaseGranted);
  null.hold(1);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(in_flight(), admission::kUnknownKernelNs);
  gate::poll_accounts();
  EXPECT_EQ(in_flight(), admission::kUnknownKernelNs);
  null.hold(0);
  EXPECT_TRUE(gate::poll_accounts());
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(region->usage.completed_ns, admission::kUnknownKernelNs);
}

TEST_F(Admit, MarkersComeAtTheSpacingAsked) {
  lease(abi::kLeaseGranted, 100'000'000, 1'000'000, uint32_t(4 * admission::kUnknownKernelNs));
  null.reset();
  null.hold(1);
  for (int i = 0; i < 8; i++) launch();
  EXPECT_EQ(null.calls("cuStreamWriteValue32_v2"), 2u);
}

TEST_F(Admit, PerThreadFamilyUsesItsOwnMarkersAndAccount) {
  lease(abi::kLeaseGranted);
  static std::vector<CUstream> marked;
  marked.clear();
  auto& table = driver_api::mutable_real_for_tests();
  const auto saved = table.cuStreamWriteValue32_v2;
  table.cuStreamWriteValue32_v2 = [](CUstream stream, CUdeviceptr, cuuint32_t, unsigned) {
    marked.push_back(stream);
    return CUDA_SUCCESS;
  };
  hook_cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  launch();
  table.cuStreamWriteValue32_v2 = saved;
  EXPECT_EQ(marked, (std::vector<CUstream>{CU_STREAM_PER_THREAD, nullptr}));
}

TEST_F(Admit, FullWindowWaitsForAMarker) {
  lease(abi::kLeaseGranted, 2 * admission::kUnknownKernelNs);
  null.hold(1);
  null.reset();
  launch();
  launch();
  Launcher third(*this);
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  EXPECT_EQ(driver_launches(), 2u);
  EXPECT_GT(region->usage.queued_ns, 0u);
  null.release(1);
  EXPECT_TRUE(eventually([&] { return third.done == 1; }));
  EXPECT_EQ(driver_launches(), 3u);
  EXPECT_EQ(in_flight(), 2 * admission::kUnknownKernelNs);
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(region->usage.queued_ns, 0u);
}

TEST_F(Admit, WorkLongerThanTheWindowRunsAlone) {
  lease(abi::kLeaseGranted, admission::kUnknownKernelNs / 2);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.hold_expired, 0u);
}

TEST_F(Admit, DriverErrorRollsTheReservationBack) {
  lease(abi::kLeaseGranted);
  auto& table = driver_api::mutable_real_for_tests();
  const auto saved = table.cuLaunchKernel;
  table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream, void**, void**) { return CUDA_ERROR_INVALID_VALUE; };
  EXPECT_EQ(launch(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(state::g_state.role.load(), Role::kBestEffort);
  table.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            CUstream, void**, void**) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  EXPECT_EQ(launch(), CUDA_ERROR_ILLEGAL_ADDRESS);  // its own code, unchanged
  table.cuLaunchKernel = saved;
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(state::g_state.role.load(), Role::kForward);  // sticky: pass through for good
}

TEST_F(Admit, HeldLaunchTellsTheDaemonAndStartsWithTheGrant) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  null.reset();
  Launcher held(*this);
  ASSERT_TRUE(eventually([&] { return waiting() == 1 && g_notices > 0; }));
  EXPECT_EQ(driver_launches(), 0u);
  EXPECT_NE(region->usage.waiting_since_ns, 0u);
  lease(abi::kLeaseGranted);
  EXPECT_TRUE(eventually([&] { return held.done == 1; }));
  EXPECT_EQ(region->usage.hold_expired, 0u);
  EXPECT_EQ(region->usage.holds, 1u);
  EXPECT_EQ(region->usage.preemptions, 1u);
  EXPECT_GT(region->usage.held_ns, 0u);
  EXPECT_EQ(region->usage.waiting_since_ns, 0u);
}

TEST_F(Admit, GrantPastItsEndIsAHold) {
  lease(abi::kLeaseGranted, 2'000'000, 1'000'000, 1, 10'000, 0);
  Launcher held(*this);
  ASSERT_TRUE(eventually([&] { return waiting() == 1 && g_notices > 0; }));
  lease(abi::kLeaseGranted);
  EXPECT_TRUE(eventually([&] { return held.done == 1; }));
}

TEST_F(Admit, HoldLimitLaunchesAnyway) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 5);
  const uint64_t before = base::now_ns();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_GE(base::now_ns() - before, 5'000'000u);
  EXPECT_EQ(region->usage.hold_expired, 1u);
}

TEST_F(Admit, DaemonLossReleasesWaitingLaunches) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  Launcher held(*this);
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  lose_daemon();
  EXPECT_TRUE(eventually([&] { return held.done == 1; }));
  EXPECT_EQ(region->usage.hold_expired, 0u);
  EXPECT_EQ(waiting(), 0u);
}

TEST_F(Admit, HoldOnDaemonLossIsBoundedByTheHoldLimit) {
  state::set_link(&state::g_daemonless_hold);
  const uint64_t before = base::now_ns();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_GE(base::now_ns() - before, 200'000'000u);
}

TEST_F(Admit, PassthroughSwitchEndsAWait) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  Launcher held(*this);
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  ipc::store(region->lease.rights, {.passthrough = 1}, std::memory_order_relaxed);
  EXPECT_TRUE(eventually([&] { return held.done == 1; }));
}

TEST_F(Admit, BusyPulseOfAHigherLevelHolds) {
  abi::PulsePage page{};
  watch(&page, 5);
  lease(abi::kLeaseGranted, 2'000'000, 1'000'000, 1, 10'000);
  ipc::pulse_set_busy(page, 1, 0, 1, base::now_ns());
  null.reset();
  {
    Launcher held(*this);
    ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
    EXPECT_EQ(driver_launches(), 0u);
    // The daemon is told when it lasts: whose pulse that is may be dying.
    EXPECT_TRUE(eventually([&] { return g_notices == 1; }));
    ipc::pulse_try_idle(page, 1, base::now_ns());
    EXPECT_TRUE(eventually([&] { return held.done == 1; }));
  }
  EXPECT_EQ(region->usage.preemptions, 1u);
  EXPECT_EQ(g_notices, 1u);
  state::g_state.n_watched.store(0);
}

TEST_F(Admit, StalePulseLowerLevelAndPackedLeaseDoNotHold) {
  abi::PulsePage page{};
  watch(&page, 5);
  lease(abi::kLeaseGranted);
  ipc::pulse_set_busy(page, 1, 0, 1, base::now_ns() - 2 * abi::kPulseStaleNs);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.holds, 0u);
  ipc::pulse_set_busy(page, 2, 0, 2, base::now_ns());
  ipc::store(region->lease.rights, {.priority = 5}, std::memory_order_relaxed);  // its own level
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  ipc::store(region->lease.rights, {.packed = 1}, std::memory_order_relaxed);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.holds, 0u);
  state::g_state.n_watched.store(0);
}

// Under a busy pulse: a packed lease lets anything start beside it, also while it waits.
TEST_F(Admit, APackedLeaseEndsTheWaitForABusyPulse) {
  abi::PulsePage page{};
  watch(&page, 5);
  ipc::pulse_set_busy(page, 1, 0, 1, base::now_ns());
  const auto ask = [] {
    gate::Wait wait;
    gate::Reservation reservation;
    return gate::ask({1'000}, {}, wait, reservation);
  };
  const auto publish = [&](bool packed, uint32_t max_hold_ms) {
    ipc::LeaseTerms terms{.state = abi::kLeaseGranted, .packed = packed, .tell_busy = true};
    terms.expires_ns = base::now_ns() + 60'000'000'000;
    terms.window_ns = 2'000'000;
    terms.slice_ns = 1'000'000;
    terms.marker_spacing_ns = 1;
    terms.max_hold_ms = max_hold_ms;
    ipc::lease_publish(region->lease, region->word, terms);
  };
  publish(false, 5);
  EXPECT_EQ(ask(), Action::kLetGo);  // held, until its limit
  publish(false, 60'000);
  g_notices = 0;
  std::atomic<int> answer{-1};
  std::thread waits([&] { answer = int(ask()); });
  EXPECT_TRUE(eventually([&] { return waiting() == 1 && g_notices == 1; }));  // the daemon wanted to know
  publish(true, 60'000);
  EXPECT_TRUE(eventually([&] { return answer == int(Action::kGo); }));
  waits.join();
  EXPECT_EQ(waiting(), 0u);
  state::g_state.n_watched.store(0);
}

// `launches` runs in a thread that ends inside the driver's launch.
template <class F>
void end_in_launch(F&& launches) {
  auto& real = driver_api::mutable_real_for_tests();
  const auto before = real.cuLaunchKernel;
  pthread_t thread;
  ASSERT_EQ(
      pthread_create(
          &thread, nullptr, [](void* f) -> void* { return (*static_cast<F*>(f))(), nullptr; }, &launches),
      0);
  pthread_join(thread, nullptr);
  EXPECT_NE(real.cuLaunchKernel, before);
  real.cuLaunchKernel = before;
}

// Launches of 10 us: what the thread reserved ahead pays for most of them.
class ShortLaunches : public Admit {
 protected:
  void SetUp() override {
    Admit::SetUp();
    stream = new_stream();
    const auto hash = reinterpret_cast<uint64_t>(function);
    gate::Timing* timing = gate::timing_of(gate::timing_key({hash, 1, 128, 0}));
    timing->block_ps = kNs * 1000;
    timing->estimate_ns = kNs;
    timing->samples = 8;                    // known: timed seldom,
    state::t_thread.timed_at = UINT64_MAX;  // and here never by this thread,
    gate::withdraw_events();                // nor by others, so that the estimate stays
    lease(abi::kLeaseGranted, kWindowNs, 1'000'000, 500'000);
  }
  uint64_t credit_left() {
    const state::ThreadSlot* slot = state::t_thread.slot;
    return slot ? slot->credit.left_ns.load() : 0;
  }
  static constexpr uint64_t kNs = 10'000, kWindowNs = 2'000'000;
  CUstream stream = nullptr;
};

TEST_F(ShortLaunches, CreditIsReservedWithALaunchAndSpentByTheNext) {
  launch(stream);
  const uint64_t credit = credit_left(), reserved = in_flight();
  ASSERT_GE(credit, 4 * kNs);
  EXPECT_EQ(reserved, kNs + credit);
  for (uint64_t i = 0; i < credit / kNs; i++) {
    launch(stream);
    EXPECT_EQ(in_flight(), reserved);
  }
  launch(stream);
  EXPECT_EQ(credit_left(), credit);  // what was left over still counts
  gate::settle_credit(*state::t_thread.slot);
  EXPECT_EQ(in_flight() % kNs, 0u);  // launches only
}

TEST_F(ShortLaunches, AFullWindowLeavesNoRoomForCredit) {
  null.hold(1);
  for (uint64_t i = 1; i <= kWindowNs / kNs; i++) {
    launch(stream);
    ASSERT_LE(in_flight(), kWindowNs);
    EXPECT_EQ(i * kNs + credit_left(), in_flight());
  }
  null.hold(0);
}

TEST_F(ShortLaunches, AHoldVoidsCreditAndReclaimingEmptiesTheWindow) {
  launch(stream);
  lease(abi::kLeaseHold, kWindowNs, 1'000'000, 1, 10'000);
  null.reset();
  Launcher held(*this);
  EXPECT_TRUE(eventually([&] { return waiting() == 1 && in_flight() == 0; }));
  EXPECT_EQ(driver_launches(), 0u);
  lease(abi::kLeaseGranted, kWindowNs);
}

// A reclaimer that settles a slot between the two steps of its thread, which counts itself and then adds.
TEST_F(ShortLaunches, CreditOfAThreadThatIsNotCountedIsReclaimed) {
  launch(stream);
  ASSERT_NE(credit_left(), 0u);
  ASSERT_EQ(state::t_thread.slot->credit.counted.exchange(0), 1u);
  state::g_state.credits.fetch_sub(1);
  EXPECT_TRUE(gate::reclaim_kept_credits());
  EXPECT_EQ(credit_left(), 0u);
}

TEST_F(ShortLaunches, NothingIsLostWhileThreadsAndAReclaimerRace) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      const CUstream streams[] = {new_stream(), new_stream()};
      for (int n = 0; n < 4'000; n++) launch(streams[n / 100 % 2]);
    });
  }
  std::thread reclaimer([&] {
    while (!stop) {
      gate::reclaim_credits();
      std::this_thread::yield();
    }
  });
  for (auto& t : threads) t.join();
  stop = true;
  reclaimer.join();
  gate::reclaim_credits();
  gate::query_accounts();
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(region->usage.completed_ns, 4 * 4'000 * kNs);
}

TEST_F(Admit, TheHoldLimitBeginsAnewWithEverySliceThatStarts) {
  StoppedClock clock;
  gate::Wait wait;
  // Asks for a slice while the lease is a hold; `meanwhile` is done once it waits, and until it has an
  // answer.
  const auto ask = [&](auto&& meanwhile) {
    lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 50);
    std::atomic<int> answer{-1};
    std::thread asks([&] {
      gate::Reservation reservation;
      answer = int(gate::ask({1'000}, {}, wait, reservation));
    });
    EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
    meanwhile();
    EXPECT_TRUE(eventually([&] {
      if (!granted()) clock.move(10'000'000);
      return answer != -1;
    }));
    asks.join();
    return Action(answer.load());
  };
  for (int i = 0; i < 5; i++)
    EXPECT_EQ(ask([&] {
                clock.move(40'000'000);
                lease(abi::kLeaseGranted);
              }),
              Action::kGo);
  EXPECT_EQ(wait.so_far().held_ns, 0u);
  EXPECT_GT(wait.so_far().served_ns, 100'000'000u);  // 200, but for moves between two stretches of a wait
  EXPECT_EQ(region->usage.hold_expired, 0u);
  EXPECT_EQ(ask([] {}), Action::kLetGo);  // nothing started for as long as the limit
  EXPECT_EQ(region->usage.hold_expired, 1u);
}

TEST_F(Admit, TheNextMarkerIsExpectedByTheEstimates) {
  lease(abi::kLeaseGranted, 100'000'000);
  EXPECT_EQ(gate::next_marker_in_ns(state::clock_ns()), admission::kNoMarker);
  null.hold(1);
  const uint64_t before = state::clock_ns();
  launch();
  launch();
  // The first of two: its estimate after it was launched.
  const int64_t expected = int64_t(admission::kUnknownKernelNs);
  const uint64_t after = state::clock_ns();
  EXPECT_LE(gate::next_marker_in_ns(after), expected);
  EXPECT_GE(gate::next_marker_in_ns(after), expected - int64_t(after - before));
  EXPECT_LT(gate::next_marker_in_ns(after + 1'000'000), 0);  // overdue
  null.release(1);
  EXPECT_TRUE(gate::poll_accounts());
  // The second one began when the first was seen to end.
  const uint64_t seen = state::clock_ns();
  EXPECT_GE(gate::next_marker_in_ns(after), expected - int64_t(seen - after));
  null.hold(0);
  EXPECT_TRUE(gate::poll_accounts());
  EXPECT_EQ(gate::next_marker_in_ns(state::clock_ns()), admission::kNoMarker);
}

TEST_F(Admit, ThePlanSaysWhichBlocksAreLong) {
  lease(abi::kLeaseGranted);
  EXPECT_EQ(gate::current_lease().long_block_ns, 1'000'000u);  // not said: longer than a slice
  EXPECT_EQ(gate::current_lease().long_width_percent, 100u);
  ipc::LeaseTerms terms{.state = abi::kLeaseGranted, .long_width_percent = 60, .long_block_us = 1400};
  ipc::lease_publish(region->lease, region->word, terms);
  EXPECT_EQ(gate::current_lease().long_block_ns, 1'400'000u);
  EXPECT_EQ(gate::current_lease().long_width_percent, 60u);
}

TEST_F(Admit, TheMomentsWhenTheWindowBeganToFillAndRanEmptyArePublished) {
  abi::SignalLine signals{};
  link->signals = &signals;
  lease(abi::kLeaseGranted);
  null.hold(1);
  const uint64_t began = state::clock_ns();
  launch();
  const uint64_t since = signals.in_flight_since_ns;
  EXPECT_GE(since, began);
  launch();  // behind the first one
  EXPECT_EQ(signals.in_flight_since_ns, since);
  EXPECT_EQ(signals.in_flight_end_ns, 0u);
  null.hold(0);
  const uint64_t before = state::clock_ns();
  gate::poll_accounts();
  EXPECT_GE(signals.in_flight_end_ns, before);
  EXPECT_LE(signals.in_flight_end_ns, state::clock_ns());
}

TEST_F(Admit, JustIdlePulseIsGuarded) {
  attach(Role::kBestEffort, 5'000'000);
  abi::PulsePage page{};
  watch(&page, 5);
  lease(abi::kLeaseGranted);
  const uint64_t idle_at = base::now_ns();
  ipc::store(page.idle_since_ns, idle_at, std::memory_order_relaxed);
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_GE(base::now_ns(), idle_at + 5'000'000 - 100'000);  // two clocks: a little slack
  EXPECT_EQ(region->usage.holds, 1u);
  ipc::store(page.idle_since_ns, base::now_ns() + 1'000'000'000'000, std::memory_order_relaxed);  // a lie
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.holds, 1u);
  state::g_state.n_watched.store(0);
}

TEST_F(Admit, DrainIsAcknowledgedOnceNothingIsInFlight) {
  lease(abi::kLeaseGranted);
  null.hold(1);
  launch();
  lease(abi::kLeaseHold);
  gate::acknowledge_drain();
  EXPECT_NE(region->usage.drained_word, region->word);
  null.hold(0);
  gate::poll_accounts();
  gate::acknowledge_drain();
  EXPECT_EQ(region->usage.drained_word, region->word);
  EXPECT_EQ(g_notices, 1u);
  gate::acknowledge_drain();
  EXPECT_EQ(g_notices, 1u);  // one notice per hold
}

TEST_F(Admit, SynchroniseCompletesUnmarkedWork) {
  lease(abi::kLeaseGranted, 100'000'000, 1'000'000, 1'000'000'000);
  CUstream s = new_stream();
  launch(s);
  launch();
  EXPECT_EQ(in_flight(), 2 * admission::kUnknownKernelNs);
  hook_cuStreamSynchronize(s);
  EXPECT_EQ(in_flight(), admission::kUnknownKernelNs);
  hook_cuCtxSynchronize();
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(Admit, QueriesFindUnmarkedWork) {
  lease(abi::kLeaseGranted, 100'000'000, 1'000'000, 1'000'000'000);
  launch(new_stream());
  null.hold(1);
  EXPECT_FALSE(gate::query_accounts());
  null.hold(0);
  EXPECT_TRUE(gate::query_accounts());
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(Admit, WindowNeverBlocksForeverWhenMarkersAreFarApart) {
  lease(abi::kLeaseGranted, 3 * admission::kUnknownKernelNs, 1'000'000, 1'000'000'000, 10'000);
  for (int i = 0; i < 40; i++) EXPECT_EQ(launch(new_stream()), CUDA_SUCCESS);
  EXPECT_EQ(region->usage.hold_expired, 0u);
}

// More streams with work than accounts, and nobody synchronises.
class ManyStreams : public Admit {
 protected:
  static constexpr uint64_t kNs = admission::kUnknownKernelNs;
  static constexpr int kFurther = 7;
  static bool has_account(CUstream s) { return gate::account_of({s})->key.load() != 0; }
  // So many launches are left that nobody can ask about.
  void fill() {
    lease(abi::kLeaseGranted, 1'000 * kNs, 1'000'000, 1, 20);
    null.hold(1);
    for (int further = 0; further < kFurther; further += !has_account(streams.back())) {
      streams.push_back(new_stream());
      EXPECT_EQ(launch(streams.back()), CUDA_SUCCESS);
    }
    null.hold(0);
    gate::poll_accounts();
  }
  void TearDown() override {
    for (CUstream s : streams) hook_cuStreamDestroy_v2(s);
    Admit::TearDown();
  }
  std::vector<CUstream> streams;
};

TEST_F(ManyStreams, WhatFoundNoAccountEndsByItsEstimates) {
  StoppedClock clock;
  fill();
  gate::query_accounts();
  EXPECT_EQ(in_flight(), kFurther * kNs);
  clock.move(kNs);
  EXPECT_TRUE(gate::query_accounts());
  EXPECT_EQ(in_flight(), (kFurther - 1) * kNs);
  EXPECT_EQ(hook_cuStreamBeginCapture_v2(streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  clock.move((kFurther - 1) * kNs);
  EXPECT_TRUE(gate::query_accounts());  // nothing is asked, so a capture does not matter
  EXPECT_EQ(in_flight(), 0u);
  CUgraph graph = nullptr;
  hook_cuStreamEndCapture(streams[0], &graph);
  EXPECT_EQ(region->usage.completed_ns, streams.size() * kNs);
}

TEST_F(ManyStreams, LaunchesDoNotWaitForTheHoldLimit) {
  fill();
  lease(abi::kLeaseGranted, 3 * kNs, 1'000'000, 1, 10'000);
  for (size_t i = 0; i < 3 * streams.size(); i++) {
    EXPECT_EQ(launch(streams[i % streams.size()]), CUDA_SUCCESS);
    ASSERT_EQ(region->usage.hold_expired, 0u);
  }
}

TEST_F(ManyStreams, AnAccountThatIsAnothersByNowGetsNoMarker) {
  lease(abi::kLeaseGranted);
  const CUstream before = new_stream();
  launch(before);
  gate::poll_accounts();
  gate::StreamAccount* account = gate::account_of({before});
  fill();  // takes over all that are at rest
  ASSERT_NE(account->key.load(), gate::account_key({before}));
  null.reset();
  gate::account_launched(account, {before}, kNs, 0);
  EXPECT_EQ(null.calls("cuStreamWriteValue32_v2"), 0u);
}

TEST_F(ManyStreams, OneThatWaitsForMemoryHidesNoWorkOfOthers) {
  fill();
  null.hold(1);
  for (CUstream s : streams) launch(s);
  ASSERT_FALSE(has_account(streams.back()));
  hook_cuStreamWaitValue32_v2(streams.back(), 0x1000, 1, 0);
  const uint64_t before = in_flight();
  launch(streams.back());
  EXPECT_EQ(in_flight(), before + kNs);
  null.hold(0);
}

TEST_F(Admit, ANewStreamCountsAlthoughOneBeforeItWaitedForMemory) {
  lease(abi::kLeaseGranted, 100'000'000);
  null.hold(1);
  CUstream s = new_stream();
  hook_cuStreamWaitValue32_v2(s, 0x1000, 1, 0);
  gate::StreamAccount* account = gate::account_of({s});
  hook_cuStreamDestroy_v2(s);
  s = new_stream();
  launch(s);
  ASSERT_EQ(gate::account_of({s}), account);
  EXPECT_EQ(in_flight(), admission::kUnknownKernelNs);
  null.hold(0);
}

// A thread launches in its own default stream, without a marker, and goes on to something else.
TEST_F(Admit, AnotherThreadsDefaultStreamDrainsByItsEstimates) {
  StoppedClock clock;
  lease(abi::kLeaseGranted, 100'000'000, 1'000'000, 1'000'000'000);
  std::thread([&] {
    hook_cuLaunchKernel_ptsz(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
  }).join();
  lease(abi::kLeaseHold);
  gate::query_accounts();
  gate::acknowledge_drain();
  EXPECT_NE(region->usage.drained_word, region->word);
  clock.move(admission::kUnknownKernelNs);
  gate::query_accounts();
  gate::acknowledge_drain();
  EXPECT_EQ(region->usage.drained_word, region->word);
}

TEST_F(Admit, ContextDestructionDropsTheWindow) {
  lease(abi::kLeaseGranted);
  null.hold(1);
  launch();
  EXPECT_GT(in_flight(), 0u);
  track::context_ended(nullptr);
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(gate::g_markers.host.load(), nullptr);
  null.hold(0);
}

TEST_F(Admit, CapturingStreamIsForwardedOnly) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  CUstream s = new_stream();
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  null.reset();
  EXPECT_EQ(launch(s), CUDA_SUCCESS);  // although the lease is a hold
  EXPECT_EQ(driver_launches(), 1u);
  EXPECT_EQ(null.calls("cuStreamWriteValue32_v2"), 0u);
  EXPECT_EQ(null.calls("cuEventRecord"), 0u);
  EXPECT_FALSE(state::enter_driver());  // nothing of ours may enter now
  CUgraph graph = nullptr;
  EXPECT_EQ(hook_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
  EXPECT_TRUE(state::enter_driver());
  state::leave_driver();
}

TEST_F(Admit, CaptureThatEndsWithItsStreamIsNotCountedForEver) {
  CUstream s = new_stream();
  hook_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(state::g_state.captures.load(), 1u);
  hook_cuStreamDestroy_v2(s);
  EXPECT_EQ(state::g_state.captures.load(), 0u);
}

TEST_F(Admit, WorkBehindAWaitIsNotInFlight) {
  lease(abi::kLeaseGranted);
  CUstream s = new_stream();
  hook_cuStreamWaitValue32_v2(s, 0x1000, 1, 0);
  launch(s);
  EXPECT_EQ(in_flight(), 0u);
  hook_cuMemsetD8Async(0x1000, 0, size_t(1) << 30, s);
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(Admit, WorkBehindAWaitThatIsOverIsInFlight) {
  lease(abi::kLeaseGranted, 100'000'000);
  null.hold(1);
  CUstream s = new_stream();
  hook_cuStreamWaitValue32_v2(s, 0x1000, 1, 0);
  launch(s);
  EXPECT_EQ(in_flight(), 0u);
  null.hold(0);
  EXPECT_EQ(hook_cuStreamSynchronize(s), CUDA_SUCCESS);
  null.hold(1);
  launch(s);
  EXPECT_NE(in_flight(), 0u);
  null.hold(0);
}

TEST_F(Admit, WorkBehindWhatIsNoWaitIsInFlight) {
  lease(abi::kLeaseGranted, 100'000'000);
  null.hold(1);
  CUstream s = new_stream();
  CUstreamBatchMemOpParams ops[2] = {};
  ops[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  ops[1].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  EXPECT_EQ(hook_cuStreamBatchMemOp_v2(s, 2, ops, 0), CUDA_SUCCESS);
  auto& real = driver_api::mutable_real_for_tests();
  const auto before = real.cuStreamWaitValue32_v2;
  real.cuStreamWaitValue32_v2 = [](CUstream, CUdeviceptr, cuuint32_t, unsigned) {
    return CUDA_ERROR_NOT_SUPPORTED;
  };
  EXPECT_EQ(hook_cuStreamWaitValue32_v2(s, 0x1000, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
  real.cuStreamWaitValue32_v2 = before;
  ASSERT_EQ(hook_cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  hook_cuStreamWaitValue32_v2(s, 0x1000, 1, 0);  // of the graph
  CUgraph graph = nullptr;
  ASSERT_EQ(hook_cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
  launch(s);
  EXPECT_NE(in_flight(), 0u);
  null.hold(0);
}

TEST_F(Admit, CancelledThreadFinishesItsHeldLaunchFirst) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  null.reset();
  std::atomic<bool> launched{false};
  struct Arguments {
    Admit* test;
    std::atomic<bool>* launched;
  } arguments{this, &launched};
  pthread_t thread;
  pthread_create(
      &thread, nullptr,
      [](void* p) -> void* {
        auto* a = static_cast<Arguments*>(p);
        a->test->launch();
        *a->launched = true;
        for (;;) pthread_testcancel();
      },
      &arguments);
  ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
  pthread_cancel(thread);
  lease(abi::kLeaseGranted);
  void* result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(launched);
  EXPECT_EQ(driver_launches(), 1u);
  EXPECT_EQ(waiting(), 0u);
}

// Nobody knows whether the driver has it: it counts until its stream is seen to be empty.
TEST_F(Admit, ALaunchInWhichItsThreadEndsIsSeenToEnd) {
  lease(abi::kLeaseGranted);
  const CUstream stream = new_stream();
  end_in_launch([&] {
    driver_api::mutable_real_for_tests().cuLaunchKernel = end_thread;
    launch(stream);
  });
  EXPECT_NE(in_flight(), 0u);
  hook_cuStreamSynchronize(stream);
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(state::g_state.inside, 0u);
}

TEST_F(ShortLaunches, ALaunchOnCreditInWhichItsThreadEndsIsSeenToEnd) {
  end_in_launch([&] {
    state::t_thread.timed_at = UINT64_MAX;
    launch(stream);
    ASSERT_NE(credit_left(), 0u);
    driver_api::mutable_real_for_tests().cuLaunchKernel = end_thread;
    launch(stream);
  });
  EXPECT_NE(in_flight(), 0u);
  hook_cuStreamSynchronize(stream);
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(Admit, ALaunchThatASignalHandlerJumpsOutOfIsSeenToEnd) {
  lease(abi::kLeaseGranted);
  const CUstream stream = new_stream();
  {
    JumpOut jump;
    for (int i = 0; i < 3; i++) jump.of([&] { launch(stream); });
  }
  null.hold(1);
  launch(stream);  // is held and counted as ever
  EXPECT_EQ(in_flight(), 4 * admission::kUnknownKernelNs);
  null.hold(0);
  hook_cuStreamSynchronize(stream);
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(waiting(), 0u);
}

TEST_F(ShortLaunches, ALaunchOnCreditThatASignalHandlerJumpsOutOfIsSeenToEnd) {
  for (int i = 0; i < 3; i++) {
    launch(stream);
    ASSERT_NE(credit_left(), 0u);
    JumpOut jump;
    jump.of([&] { launch(stream); });
    EXPECT_NE(state::t_thread.slot->credit.in_gate, 0u);
  }
  const uint64_t left = credit_left();
  launch(stream);
  EXPECT_NE(credit_left(), left) << "it passes the gate";
  EXPECT_EQ(state::t_thread.slot->credit.in_gate, 0u);
  hook_cuStreamSynchronize(stream);
  gate::reclaim_credits();
  EXPECT_EQ(in_flight(), 0u);
}

TEST_F(Admit, AHeldLaunchThatASignalHandlerJumpsOutOfWaitsNoMore) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  static sigjmp_buf back;
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) { siglongjmp(back, 1); };
  sigaction(SIGUSR1, &action, &old);
  {
    std::atomic<int> step{0};
    std::thread thread([&] {
      if (sigsetjmp(back, 1) == 0) launch();
      step = 1;
      while (step == 1) sched_yield();
      launch();
    });
    ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
    pthread_kill(thread.native_handle(), SIGUSR1);
    ASSERT_TRUE(eventually([&] { return step == 1; }));
    lease(abi::kLeaseGranted);
    step = 2;
    thread.join();
  }
  EXPECT_EQ(waiting(), 0u);
  EXPECT_EQ(region->usage.queued_ns, 0u);
  EXPECT_EQ(state::g_state.waiters, 0u);
  sigaction(SIGUSR1, &old, nullptr);
}

// Its frames lie above those that it interrupts, as if they had been left.
TEST_F(Admit, ALaunchOnASignalHandlersOwnStackIsForwarded) {
  lease(abi::kLeaseGranted);
  static Admit* self;
  static uint64_t added;
  self = this;
  constexpr size_t kStack = 2 << 20;  // a sanitizer needs one
  std::vector<char> stacks(2 * kStack);
  struct sigaction action {
  }, old{};
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = [](int) {
    const uint64_t before = self->in_flight();
    self->launch();
    added = self->in_flight() - before;
  };
  sigaction(SIGUSR1, &action, &old);
  pthread_attr_t lower;
  pthread_attr_init(&lower);
  pthread_attr_setstack(&lower, stacks.data(), kStack);
  auto& real = driver_api::mutable_real_for_tests();
  const auto before =
      std::exchange(real.cuLaunchKernel, [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                            unsigned, unsigned, CUstream, void**, void**) {
        static std::atomic<int> calls{0};
        if (calls++ == 0) raise(SIGUSR1);
        return CUDA_SUCCESS;
      });
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &lower,
                [](void* stack) -> void* {
                  const stack_t own{.ss_sp = stack, .ss_flags = 0, .ss_size = kStack};
                  stack_t theirs;  // a sanitizer's
                  EXPECT_EQ(sigaltstack(&own, &theirs), 0);
                  EXPECT_EQ(self->launch(), CUDA_SUCCESS);
                  EXPECT_EQ(sigaltstack(&theirs, nullptr), 0);
                  return nullptr;
                },
                stacks.data() + kStack),
            0);
  pthread_join(thread, nullptr);
  real.cuLaunchKernel = before;
  EXPECT_EQ(added, 0u);
  sigaction(SIGUSR1, &old, nullptr);
}

std::atomic<int> g_signals{0};

TEST_F(Admit, SignalsInterruptNothingAndMayLaunch) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 10'000);
  static Admit* self;
  self = this;
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {
    self->launch();  // nested in a held launch: forwarded at once
    g_signals++;
  };
  sigaction(SIGUSR1, &action, &old);
  g_signals = 0;
  null.reset();
  {
    Launcher held(*this);
    ASSERT_TRUE(eventually([&] { return waiting() == 1; }));
    for (int i = 1; i <= 5; i++) {
      pthread_kill(held.thread.native_handle(), SIGUSR1);
      ASSERT_TRUE(eventually([&] { return g_signals == i; }));
    }
    EXPECT_EQ(held.done, 0);
    EXPECT_EQ(driver_launches(), 5u);
    lease(abi::kLeaseGranted);
    EXPECT_TRUE(eventually([&] { return held.done == 1; }));
  }
  EXPECT_EQ(driver_launches(), 6u);
  sigaction(SIGUSR1, &old, nullptr);
}

TEST_F(Admit, ErrnoIsTheProgramsOwn) {
  lease(abi::kLeaseHold, 2'000'000, 1'000'000, 1, 3);
  errno = 4711;
  launch();
  EXPECT_EQ(errno, 4711);
}

TEST_F(Admit, EightThreadsLeaveAnExactWindow) {
  lease(abi::kLeaseGranted, 4 * admission::kUnknownKernelNs);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&, i] {
      CUstream s = i % 2 ? new_stream() : nullptr;
      for (int k = 0; k < 300; k++) launch(s);
      hook_cuStreamSynchronize(s);
    });
  }
  for (auto& t : threads) t.join();
  gate::poll_accounts();
  gate::query_accounts();
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_EQ(region->usage.hold_expired, 0u);
  EXPECT_EQ(waiting(), 0u);
}

}  // namespace
}  // namespace tessera::test
