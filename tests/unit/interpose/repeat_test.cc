// The first part of the launch hooks (interpose/hooks/launch.cc): the same launch again, on credit, and protected launches.
#include <signal.h>
#include <sys/time.h>

#include <atomic>

#include "interpose/gate/ask.h"
#include "interpose/gate/credit.h"
#include "interpose/lifecycle/connection.h"
#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using state::Role;

struct Arguments {
  uint32_t grid[3] = {3, 5, 7}, block[3] = {32, 2, 4}, shared = 1024;
  CUfunction function = reinterpret_cast<CUfunction>(uintptr_t{0x777000});
  CUstream stream = nullptr;
  void** params = reinterpret_cast<void**>(uintptr_t{0x1234});
};

enum Form { kPlain, kPlainPerThread, kEx, kExPerThread };

CUresult call(Form form, const Arguments& a, CUlaunchAttribute* attribute = nullptr) {
  if (form == kPlain || form == kPlainPerThread)
    return (form == kPlain ? hook_cuLaunchKernel : hook_cuLaunchKernel_ptsz)(
        a.function, a.grid[0], a.grid[1], a.grid[2], a.block[0], a.block[1], a.block[2], a.shared, a.stream,
        a.params, nullptr);
  const CUlaunchConfig config{a.grid[0],  a.grid[1], a.grid[2], a.block[0], a.block[1],
                              a.block[2], a.shared,  a.stream,  attribute,  attribute ? 1u : 0u};
  return (form == kEx ? hook_cuLaunchKernelEx : hook_cuLaunchKernelEx_ptsz)(&config, a.function, a.params,
                                                                            nullptr);
}

class Repeat : public Gate, public ::testing::WithParamInterface<Form> {
 protected:
  void SetUp() override {
    Gate::SetUp();
    lifecycle::register_membarrier();
    if (state::g_state.symmetric)
      GTEST_SKIP() << "no membarrier(2) here: no launch is repeated without asking";
    stream = new_stream();
    arguments.stream = stream;
    null.record(1);
  }
  void TearDown() override {
    null.record(0);
    state::g_state.symmetric = 1;
    Gate::TearDown();
  }
  gate::Timing* timing(const Arguments& a) {
    const uint64_t blocks = uint64_t(a.grid[0]) * a.grid[1] * a.grid[2];
    return gate::timing_of(gate::timing_key(
        {reinterpret_cast<uint64_t>(a.function), blocks, a.block[0] * a.block[1] * a.block[2], a.shared}));
  }
  // A best-effort client with a window, to which launches of `arguments` are short and long known.
  void attach_best_effort() {
    attach(Role::kBestEffort);
    know(arguments);
    state::t_thread.timed_at = UINT64_MAX;
    gate::withdraw_events();
    lease(abi::kLeaseGranted, kWindowNs, 1'000'000, 500'000);
  }
  void know(const Arguments& a) {
    gate::Timing* t = timing(a);
    t->block_ps = kNs * 1000 / (uint64_t(a.grid[0]) * a.grid[1] * a.grid[2]) + 1;
    t->estimate_ns = kNs;
    t->samples = 8;
  }
  state::Credit& credit() { return state::t_thread.slot->credit; }
  // Makes what is launched once more a repetition.
  void first_launch() {
    ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
    ASSERT_GT(credit().left_ns.load(), 8 * kNs);
    ASSERT_EQ(state::t_thread.memo.epoch, state::g_state.epoch.load());
  }
  // How much a launch takes of the credit.
  uint64_t paid(const Arguments& a) {
    const uint64_t before = credit().left_ns;
    EXPECT_EQ(call(GetParam(), a), CUDA_SUCCESS);
    return before - credit().left_ns;
  }
  void expect_driver_got(const Arguments& a) {
    const TesseraNullLaunch seen = null.last();
    for (int i = 0; i < 3; i++) {
      EXPECT_EQ(seen.grid[i], a.grid[i]);
      EXPECT_EQ(seen.block[i], a.block[i]);
    }
    EXPECT_EQ(seen.shared_bytes, a.shared);
    EXPECT_EQ(seen.function, a.function);
    EXPECT_EQ(seen.stream, a.stream);
    EXPECT_EQ(seen.params, a.params);
  }
  static constexpr uint64_t kNs = 5'000, kWindowNs = 2'000'000;
  CUstream stream = nullptr;
  Arguments arguments;
};

TEST_P(Repeat, ARepetitionPaysWhatTheFirstWasExpectedToTake) {
  attach_best_effort();
  first_launch();
  const uint64_t one = paid(arguments), launches = state::t_thread.slot->launches,
                 blocks = state::t_thread.slot->blocks;
  EXPECT_GE(one, kNs);
  timing(arguments)->block_ps = timing(arguments)->block_ps * 2;  // seen when the credit is spent
  const uint64_t number = null.last().number;
  Arguments other = arguments;
  other.params = reinterpret_cast<void**>(uintptr_t{0x4321});
  EXPECT_EQ(paid(other), one);
  expect_driver_got(other);
  EXPECT_EQ(null.last().number, number + 1);
  EXPECT_EQ(state::t_thread.slot->launches, launches + 1);
  EXPECT_EQ(state::t_thread.slot->blocks, blocks + 3 * 5 * 7);
  EXPECT_EQ(credit().in_gate, 0u);
}

// Launches without a look-up are counted by outcome when their thread comes by again.
TEST_P(Repeat, RepetitionsCountAsWhatTheFirstWas) {
  attach_best_effort();
  first_launch();
  const state::OutcomeCount& counted = state::t_thread.slot->outcomes[abi::kOutcomeOther];
  const uint64_t launches = counted.launches, gpu_ns = counted.gpu_ns;
  const uint64_t one = paid(arguments);
  EXPECT_EQ(paid(arguments), one);
  EXPECT_EQ(state::t_thread.memo.repeats, 2u);
  Arguments other = arguments;
  other.shared++;
  know(other);
  EXPECT_EQ(call(GetParam(), other), CUDA_SUCCESS);
  EXPECT_EQ(counted.launches, launches + 3);
  EXPECT_EQ(counted.gpu_ns, gpu_ns + 3 * one);
  EXPECT_EQ(state::t_thread.memo.repeats, 0u);
}

TEST_P(Repeat, AnyOtherArgumentIsAnotherLaunch) {
  attach_best_effort();
  using Change = void (*)(Arguments&);
  const Change changes[] = {
      [](Arguments& a) { a.grid[0]++; },
      [](Arguments& a) { a.grid[1]++; },
      [](Arguments& a) { a.grid[2]++; },
      [](Arguments& a) { a.block[0]++; },
      [](Arguments& a) { a.block[1]++; },
      [](Arguments& a) { a.block[2]++; },
      [](Arguments& a) { a.shared++; },
      [](Arguments& a) { a.function = reinterpret_cast<CUfunction>(uintptr_t{0x778000}); },
      [](Arguments& a) { a.stream = new_stream(); }};
  for (const Change change : changes) {
    Arguments other = arguments;
    change(other);
    know(other);
    first_launch();
    call(GetParam(), other);
    expect_driver_got(other);
    EXPECT_EQ(state::t_thread.memo.function, other.function);  // it was asked about, and is the latest now,
    EXPECT_EQ(state::t_thread.memo.stream, other.stream);      // not taken for the first
    EXPECT_EQ(state::t_thread.memo.grid[2], other.grid[2]);
    EXPECT_EQ(state::t_thread.memo.block[2], other.block[2]);
    EXPECT_EQ(state::t_thread.memo.shared_bytes, other.shared);
    gate::reclaim_credits();
  }
}

TEST_P(Repeat, ALaunchWithAttributesIsAskedAbout) {
  if (GetParam() != kEx && GetParam() != kExPerThread) return;  // it has none
  attach_best_effort();
  first_launch();
  timing(arguments)->block_ps = timing(arguments)->block_ps * 2;
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  const uint64_t before = credit().left_ns;
  EXPECT_EQ(call(GetParam(), arguments, &attribute), CUDA_SUCCESS);
  EXPECT_GE(before - credit().left_ns, 2 * kNs);
}

TEST_P(Repeat, CreditOfAnotherStreamDoesNotPay) {
  if (GetParam() != kEx && GetParam() != kExPerThread) return;
  attach_best_effort();
  first_launch();
  const uint64_t key = credit().account_key;
  Arguments other = arguments;
  other.stream = new_stream();
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  EXPECT_EQ(call(GetParam(), other, &attribute), CUDA_SUCCESS);  // no launch that is remembered
  EXPECT_NE(credit().account_key, key);
  const uint64_t spent = credit().spent_ns;
  EXPECT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  EXPECT_EQ(credit().account_key, key);
  EXPECT_LE(credit().spent_ns, spent);
}

// Whatever the rule looked at and is different now. Each makes the credit void, so that the launch is asked about.
TEST_P(Repeat, AnyChangeOfWhatTheRuleSawEndsIt) {
  attach_best_effort();
  static abi::PulsePage pages[state::kWatched];
  for (uint32_t peers = 0; peers <= gate::kPeersOfARepeat + 1; peers++) {
    for (uint32_t i = 0; i < peers; i++) {
      state::g_state.watch[i].priority = 5;
      state::g_state.watch[i].page = &pages[i];
    }
    state::g_state.n_watched = peers;
    state::begin_epoch();
    const auto ends = [&](const char* what, auto&& change) {
      gate::reclaim_credits();
      ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
      ASSERT_EQ(state::t_thread.memo.epoch == state::g_state.epoch, peers <= gate::kPeersOfARepeat) << what;
      const uint64_t launched = in_flight() - credit().left_ns;
      change();
      ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
      EXPECT_GT(in_flight() - credit().left_ns + region->usage.completed_ns, launched) << what;
      EXPECT_EQ(credit().in_gate, 0u) << what;
      EXPECT_EQ(credit().word, ipc::load(region->lease.word, std::memory_order_relaxed)) << what;
      for (uint32_t i = 0; i < peers; i++) EXPECT_EQ(credit().peers[i].burst, pages[i].burst) << what;
    };
    ends("lease", [&] { lease(abi::kLeaseGranted, kWindowNs, 1'000'000, 500'000); });
    ends("epoch", [&] { state::begin_epoch(); });
    for (uint32_t i = 0; i < peers; i++) ends("burst", [&] { pages[i].burst++; });
  }
}

TEST_P(Repeat, ABusyPeerHoldsIt) {
  const StoppedClock clock;  // no hold expires, no pulse gets stale
  attach_best_effort();
  static abi::PulsePage pages[2];
  for (uint32_t i = 0; i < 2; i++) {
    state::g_state.watch[i].priority = 5;
    state::g_state.watch[i].page = &pages[i];
  }
  state::g_state.n_watched = 2;
  state::begin_epoch();
  for (abi::PulsePage& page : pages) {
    first_launch();
    ipc::store(page.busy_since_ns, state::clock_ns(), std::memory_order_relaxed);
    ipc::store(page.busy, 1u,
               std::memory_order_release);  // without another burst, as when an end is taken back
    const uint64_t number = null.last().number;
    std::thread idle([&] {
      EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
      EXPECT_EQ(null.last().number, number);
      ipc::store(page.busy, 0u, std::memory_order_release);
    });
    EXPECT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
    idle.join();
    EXPECT_EQ(null.last().number, number + 1);
    EXPECT_EQ(credit().in_gate, 0u);
  }
}

TEST_P(Repeat, CreditThatDoesNotSufficeIsLeftAlone) {
  attach_best_effort();
  null.hold(1);  // nothing ends
  first_launch();
  credit().left_ns = 100;
  const uint64_t in_flight_before = in_flight();
  EXPECT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  EXPECT_GT(in_flight(), in_flight_before);  // reserved by asking
  EXPECT_EQ(credit().left_ns % 100, 0u);
  EXPECT_GE(credit().left_ns, 100u);
  null.hold(0);
}

// Completed work is credited to later launches: the window's word is touched once, and no more of it is ever in flight.
TEST_P(Repeat, CreditIsRenewedByWhatHasEnded) {
  attach_best_effort();
  first_launch();
  const uint64_t completed = region->usage.completed_ns, number = null.last().number;
  constexpr int kLaunches = 1'000;
  for (int i = 0; i < kLaunches; i++) {
    ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
    ASSERT_LE(in_flight(), admission::kMostCreditNs + kNs);
    if (i >= kLaunches / 2) {
      ASSERT_EQ(in_flight(), admission::kMostCreditNs);
    }
  }
  EXPECT_EQ(null.last().number, number + kLaunches);
  EXPECT_EQ(credit().in_gate, 0u);
  // All but the latest share of it.
  EXPECT_GE(region->usage.completed_ns + admission::kMostCreditNs, completed + kLaunches * kNs);
  gate::reclaim_credits();
  while (gate::query_accounts()) {
  }
  EXPECT_EQ(in_flight(), 0u);
  EXPECT_GE(region->usage.completed_ns, completed + kLaunches * kNs);
}

TEST_P(Repeat, CreditIsNotRenewedByWhatStillRuns) {
  attach_best_effort();
  null.hold(1);
  first_launch();
  for (uint64_t before = in_flight(); in_flight() == before;) {
    ASSERT_GT(credit().left_ns + credit().spent_ns, 0u);
    ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  }
  // Asked again, and what was launched counts until it has ended.
  EXPECT_LE(in_flight(), kWindowNs);
  EXPECT_EQ(region->usage.completed_ns, 0u);
  null.hold(0);
}

TEST_P(Repeat, RenewedCreditEndsWithTheLease) {
  StoppedClock clock;
  attach_best_effort();
  lease(abi::kLeaseGranted, kWindowNs, 1'000'000, 500'000, 1, 1'000'000);
  first_launch();
  const uint64_t share = credit().left_ns;
  for (uint64_t i = 0; i < 3 * share / kNs; i++) ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  clock.move(region->lease.expires_ns - state::clock_ns() + 1);
  // The rest of the credit may go, then the launches are held.
  uint64_t went = 0;
  std::thread again([&] {
    EXPECT_TRUE(eventually([&] { return waiting() == 1; }));
    went = null.last().number;
    lease(abi::kLeaseGranted, kWindowNs);
  });
  const uint64_t number = null.last().number;
  for (uint64_t i = 0; i < 2 * share / kNs; i++) ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  again.join();
  EXPECT_LE((went - number) * kNs, share);
}

// Each thread has its part of the window, also one that comes late, and together they never have more than it.
TEST_P(Repeat, ThreadsShareTheWindow) {
  attach_best_effort();
  lease(abi::kLeaseGranted, 400'000, 1'000'000, 500'000);
  gate::reclaim_credits();  // of tests before, in this thread
  constexpr uint32_t kThreads = 3;
  std::atomic<uint32_t> round{0};
  std::atomic<uint64_t> left[kThreads] = {};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; t++)
    threads.emplace_back([&, t] {
      Arguments mine = arguments;
      mine.stream = new_stream();
      state::t_thread.timed_at = UINT64_MAX;
      for (uint32_t r = 0; r < 4 * kThreads; r++) {
        while (round.load() < r) std::this_thread::yield();
        if (r % kThreads != t) continue;
        for (int i = 0; i < 300; i++) {
          EXPECT_EQ(call(GetParam(), mine), CUDA_SUCCESS);
          EXPECT_LE(in_flight(), 400'000u);
        }
        left[t] = credit().left_ns.load() + credit().spent_ns.load();
        round++;
      }
      while (round.load() < 4 * kThreads) std::this_thread::yield();
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& part : left) {
    EXPECT_GT(part.load(), 4 * kNs);
    EXPECT_LE(part.load(), 400'000 / kThreads);
  }
  EXPECT_EQ(state::g_state.credits.load(), 0u);  // they ended
  gate::reclaim_credits();
  while (gate::query_accounts() || gate::poll_accounts()) {
  }
  EXPECT_EQ(in_flight(), 0u);
}

// The driver calls back into the library: that launch goes straight through, and the outer one stays inside.
TEST_P(Repeat, ALaunchInsideTheLaunchIsForwarded) {
  attach_best_effort();
  first_launch();
  auto& table = driver_api::mutable_real_for_tests();
  static decltype(driver_api::RealDriver::cuLaunchKernel) plain;
  static decltype(driver_api::RealDriver::cuLaunchKernelEx) ex;
  static struct {
    Form form;
    Arguments arguments;
    int depth;
    uint64_t inside;
  } outer;
  outer = {GetParam(), arguments, 0, 0};
  static const auto call_back = [] {
    if (outer.depth++ != 0) return;
    EXPECT_EQ(call(outer.form, outer.arguments), CUDA_SUCCESS);
    outer.inside = state::t_thread.slot->credit.in_gate;
  };
  const auto saved = table;
  plain = table.cuLaunchKernel;
  ex = table.cuLaunchKernelEx;
  table.cuLaunchKernel = table.cuLaunchKernel_ptsz =
      [](CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
         unsigned shared, CUstream s, void** params, void** extra) {
        call_back();
        return plain(f, gx, gy, gz, bx, by, bz, shared, s, params, extra);
      };
  table.cuLaunchKernelEx =
      table.cuLaunchKernelEx_ptsz = [](const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
        call_back();
        return ex(c, f, params, extra);
      };
  const uint64_t number = null.last().number, one = paid(arguments);
  table = saved;
  EXPECT_EQ(null.last().number, number + 2);
  EXPECT_LT(one, 2 * kNs);  // paid once
  EXPECT_NE(outer.inside, 0u);
  EXPECT_EQ(credit().in_gate, 0u);
}

TEST_P(Repeat, AFailedLaunchIsPaidBack) {
  attach_best_effort();
  first_launch();
  auto& table = driver_api::mutable_real_for_tests();
  const auto saved = table;
  static CUresult answer;
  table.cuLaunchKernel =
      table.cuLaunchKernel_ptsz = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, CUstream, void**, void**) { return answer; };
  table.cuLaunchKernelEx =
      table.cuLaunchKernelEx_ptsz = [](const CUlaunchConfig*, CUfunction, void**, void**) { return answer; };
  const uint64_t left = credit().left_ns, spent = credit().spent_ns;
  answer = CUDA_ERROR_INVALID_VALUE;
  EXPECT_EQ(call(GetParam(), arguments), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(credit().left_ns, left);
  EXPECT_EQ(credit().spent_ns, spent);
  EXPECT_EQ(state::g_state.role.load(), Role::kBestEffort);
  answer = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_EQ(call(GetParam(), arguments), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(state::g_state.role.load(), Role::kForward);  // sticky
  EXPECT_EQ(credit().in_gate, 0u);
  table = saved;
}

// The thread's own credit is not what a longer launch waits for.
TEST_P(Repeat, CreditGivesWayToALongerLaunch) {
  attach_best_effort();
  first_launch();
  gate::Wait wait;
  gate::Reservation reservation;
  EXPECT_EQ(gate::ask({.estimate_ns = kWindowNs - 2 * kNs}, {stream, driver_api::Flavour::kLegacy}, wait,
                      reservation),
            admission::Action::kGo);
  EXPECT_EQ(region->usage.holds, 0u);
  EXPECT_EQ(credit().left_ns, 0u);
}

Form g_form_of_handler;
Arguments g_arguments_of_handler;
std::atomic<uint32_t> g_handled{0};

// A handler may launch between any two instructions of a launch. Then each is counted, as begun and as ended.
TEST_P(Repeat, AProtectedLaunchLosesNoCountToASignalHandlerThatLaunches) {
  attach(Role::kProtected);
  g_form_of_handler = GetParam();
  g_arguments_of_handler = arguments;
  g_handled = 0;
  ASSERT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  struct sigaction launches = {}, before;
  launches.sa_handler = [](int) {
    EXPECT_EQ(call(g_form_of_handler, g_arguments_of_handler), CUDA_SUCCESS);
    ++g_handled;
  };
  ASSERT_EQ(sigaction(SIGALRM, &launches, &before), 0);
  const itimerval often{{0, 50}, {0, 50}}, never{};
  const state::StreamCount& count = *state::t_thread.count;
  uint64_t begun = count.begun, called = 0;
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  for (; g_handled < 500 && called < 20'000'000; ++called)
    EXPECT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(count.begun - begun, called + g_handled);
  EXPECT_EQ(count.begun, count.ended);
}

TEST_P(Repeat, AProtectedLaunchReachesTheDriverAndIsCounted) {
  attach(Role::kProtected);
  for (uint32_t i = 0; i < 4; i++) {
    Arguments a = arguments;
    a.stream = i < 2 ? stream : nullptr;
    a.grid[0] += i;
    EXPECT_EQ(call(GetParam(), a), CUDA_SUCCESS);
    expect_driver_got(a);
    EXPECT_EQ(state::t_thread.slot->last_function, reinterpret_cast<uint64_t>(a.function));
    const state::StreamCount& count = *state::t_thread.count;
    EXPECT_EQ(count.begun, count.ended);
    EXPECT_EQ(count.begun - count.completed, i % 2 + 1);
  }
  EXPECT_TRUE(busy());
  const uint64_t launches = state::t_thread.slot->launches;
  // Idle again: the next launch announces itself, and is counted once.
  gate::forgive_all();
  EXPECT_TRUE(gate::try_idle());
  EXPECT_EQ(call(GetParam(), arguments), CUDA_SUCCESS);
  EXPECT_TRUE(busy());
  EXPECT_EQ(state::t_thread.slot->launches, launches + 1);
  EXPECT_EQ(state::t_thread.count->begun, state::t_thread.count->ended);
  EXPECT_EQ(state::t_thread.count->begun - state::t_thread.count->completed, 1u);
}

constexpr const char* kNames[] = {"Plain", "PlainPerThread", "Ex", "ExPerThread"};
INSTANTIATE_TEST_SUITE_P(Forms, Repeat, ::testing::Values(kPlain, kPlainPerThread, kEx, kExPerThread),
                         [](const auto& param) { return kNames[param.param]; });

}  // namespace
}  // namespace tessera::test
