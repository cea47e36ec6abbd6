// May it start now, and if not, how does it wait: the rule by itself. That the gate obeys it is the business
// of tests/unit/interpose/rule_trace_test.cc.
#include "admission/rule.h"

#include <gtest/gtest.h>

#include <cstring>

#include "admission/burst_start.h"
#include "admission/credit.h"
#include "admission/wait.h"

namespace tessera::admission {
namespace {

constexpr uint64_t kNow = 10'000'000'000;

class Rule : public testing::Test {
 protected:
  Verdict judged() const { return judge(ask, lease, pulses, guard_ns, in_flight_ns, waited, kNow); }
  Ask ask{.estimate_ns = 100'000};
  LeaseView lease{.grant = Grant::kGranted, .expires_ns = kNow + 1, .window_ns = 1'000'000};
  PulseView pulse{.priority = 5, .busy_since_ns = kNow - 1'000, .idle_since_ns = kNow - 1'000'000};
  std::span<const PulseView> pulses{&pulse, 1};
  uint64_t guard_ns = 200'000, in_flight_ns = 0;
  Waited waited;
};

constexpr Verdict kGo{Action::kGo};

TEST_F(Rule, AnOpenLeaseLetsWorkStartUpToTheWindow) {
  EXPECT_EQ(judged(), kGo);
  in_flight_ns = 900'000;
  EXPECT_EQ(judged(), kGo);
  in_flight_ns = 900'001;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kWindow}));
  in_flight_ns = 0;
  ask.estimate_ns = 5'000'000;  // longer than the window: alone
  EXPECT_EQ(judged(), kGo);
}

TEST_F(Rule, UnmanagedWorkIsForwardedWhateverElseHolds) {
  waited.let_go = true;
  in_flight_ns = UINT64_MAX / 2;
  lease.grant = Grant::kFree;
  EXPECT_EQ(judged(), (Verdict{Action::kForward, Reason::kUnmanaged}));
  lease.grant = Grant::kHold;
  lease.passthrough = true;
  EXPECT_EQ(judged(), (Verdict{Action::kForward, Reason::kUnmanaged}));
}

TEST_F(Rule, AGrantPastItsEndIsAHold) {
  lease.expires_ns = kNow;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kLease}));
}

TEST_F(Rule, ABusyPulseOfAHigherLevelIsInTheWayAndOneJustIdle) {
  pulse.busy = true;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));
  pulse.busy_since_ns = kNow - 2 * abi::kPulseStaleNs;  // nobody beats any more
  EXPECT_EQ(judged(), kGo);
  pulse = {.priority = 5, .idle_since_ns = kNow - guard_ns + 1};
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));
  pulse.idle_since_ns = kNow + 1'000'000'000;  // a lie
  EXPECT_EQ(judged(), kGo);
  pulse = {.priority = 5, .busy = true, .busy_since_ns = kNow};
  lease.priority = 5;  // its own level
  EXPECT_EQ(judged(), kGo);
}

TEST_F(Rule, APackedLeaseIsForAnything) {
  pulse.busy = true;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));
  lease.packed = true;
  EXPECT_EQ(judged(), kGo);
}

TEST_F(Rule, WhatWouldNotEndBeforeTheNextBurstWaits) {
  ask.estimate_ns = 300'000;
  for (const uint64_t now :
       {kNow, uint64_t(UINT32_MAX) * 1'000 - 100'000}) {  // also where its low 32 bits wrap
    const auto judged_at = [&](uint64_t ends_by_ns) {
      lease.ends_by_us = ends_by_us(ends_by_ns);
      lease.expires_ns = now + 1'000'000;
      return judge(ask, lease, {}, 0, in_flight_ns, waited, now);
    };
    in_flight_ns = 0;
    EXPECT_EQ(judged_at(now + 301'000), kGo);
    EXPECT_EQ(judged_at(now + 298'000), (Verdict{Action::kWait, Reason::kLease}));
    EXPECT_EQ(judged_at(now - 1'000), (Verdict{Action::kWait, Reason::kLease}))
        << "nobody said when the next one comes";
    in_flight_ns = 100'000;
    EXPECT_EQ(judged_at(now + 301'000), (Verdict{Action::kWait, Reason::kLease}));
    EXPECT_EQ(judged_at(now + 402'000), kGo);
    lease.packed = true;  // it may run during bursts
    EXPECT_EQ(judged_at(now + 301'000), kGo);
    lease.packed = false;
  }
}

TEST_F(Rule, TheHoldLimitCountsWhatBroughtNoProgress) {
  lease.grant = Grant::kHold;
  after_wait(waited, Reason::kLease, kDefaultHoldNs - 1, false);
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kLease}));
  after_wait(waited, Reason::kLease, 1, false);
  EXPECT_EQ(judged(), (Verdict{Action::kLetGo, Reason::kLease}));
  after_start(waited);  // a slice went: anew
  EXPECT_EQ(judged().action, Action::kWait);
  EXPECT_EQ(waited.total_ns(), kDefaultHoldNs);
  lease.grant = Grant::kGranted;
  in_flight_ns = lease.window_ns;
  after_wait(waited, Reason::kWindow, kDefaultHoldNs, true);  // pacing: something completed
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kWindow}));
  after_wait(waited, Reason::kWindow, kDefaultHoldNs, false);
  EXPECT_EQ(judged(), (Verdict{Action::kLetGo, Reason::kWindow}));
}

TEST_F(Rule, WhatKeepsToSmsOfItsOwnStartsBesideABurst) {
  pulse.busy = true;
  pulse.heartbeat_ns = kNow;
  lease.confine_all = true;
  lease.burst_classes = 1u << abi::kResourceCompute;
  ask.resource_class = abi::kResourceCompute;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));  // it cannot be kept apart
  ask.may_confine = true;
  EXPECT_EQ(judged(), kGo);
  ask.resource_class = abi::kResourceMemory;  // not what the lease is for
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));
  ask.resource_class = abi::kResourceCompute;
  lease.burst_classes = 0;  // not during bursts
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));
  lease.burst_classes = 1u << abi::kResourceCompute;
  lease.confine_all = false;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kPulse}));
  lease.confine_all = true;
  in_flight_ns = lease.window_ns;
  EXPECT_EQ(judged(), (Verdict{Action::kWait, Reason::kWindow}));
}

TEST(Lease, EveryFieldIsBounded) {
  abi::LeaseLine line{};
  line.word = 3 | 40;
  memset(&line.rights, 0xff, sizeof line.rights);
  line.long_block_us = ~uint16_t(0);
  line.max_hold_ms = line.watch_spin_us = line.long_width_percent = UINT16_MAX;
  line.slo_us = UINT32_MAX;
  const LeaseView v = decode(line);
  EXPECT_EQ(v.grant, Grant::kHold);  // the state that nobody uses
  EXPECT_EQ(v.word, 43u);
  EXPECT_EQ(v.max_hold_ns, kMostHoldMs * 1'000'000);
  EXPECT_EQ(v.watch_spin_ns, kMostSpinUs * 1'000);
  EXPECT_EQ(v.long_width_percent, 100u);
  EXPECT_EQ(v.long_block_ns, uint64_t(UINT16_MAX) * 1'000);
  EXPECT_EQ(v.burst_classes, 15u);
  const LeaseView zero = decode({});
  EXPECT_EQ(zero.grant, Grant::kHold);
  EXPECT_EQ(zero.max_hold_ns, kDefaultHoldNs);
  EXPECT_EQ(zero.long_width_percent, 100u);
}

TEST(Wait, WatchesWhereTheEndIsNearAndSleepsWhereItIsFar) {
  const LeaseView lease{.watch_spin_ns = 7};
  const auto plan = [&](Reason reason, int64_t marker_ns, uint64_t in_flight_ns = 0, uint64_t held_ns = 0) {
    return plan_wait(reason, lease, {.held_ns = held_ns}, in_flight_ns, marker_ns);
  };
  EXPECT_EQ(plan(Reason::kWindow, 400'000).sleep_ns, kWindowSleepNs);
  EXPECT_EQ(plan(Reason::kWindow, 50'000).watch_ns, uint64_t(50'000 + kOverdueNs));
  EXPECT_EQ(plan(Reason::kWindow, 50'000).sleep_ns, 0u);
  EXPECT_GT(plan(Reason::kWindow, -10'000'000).sleep_ns, kWindowSleepNs);
  EXPECT_EQ(plan(Reason::kWindow, kNoMarker).watch_ns, kWindowWatchNs);
  EXPECT_EQ(plan(Reason::kLease, kNoMarker).watch_ns, 7u);
  EXPECT_EQ(plan(Reason::kLease, kNoMarker).sleep_ns, kMostSleepNs);
  EXPECT_EQ(plan(Reason::kLease, kNoMarker, 1).sleep_ns, kDrainSleepNs);
  EXPECT_EQ(plan(Reason::kPulse, kNoMarker).sleep_ns, kPulseSleepNs);
  EXPECT_EQ(plan(Reason::kPulse, kNoMarker, 0, 1'000'000'000).sleep_ns, kMostSleepNs);
}

TEST(Wait, TheDaemonIsToldOfWhatItCanChange) {
  EXPECT_TRUE(daemon_should_know(Reason::kLease, {}, {}));
  EXPECT_FALSE(daemon_should_know(Reason::kWindow, {}, {}));
  EXPECT_FALSE(daemon_should_know(Reason::kPulse, {}, {}));
  EXPECT_TRUE(daemon_should_know(Reason::kPulse, {.tell_busy = true}, {}));
  EXPECT_TRUE(daemon_should_know(Reason::kPulse, {}, {.held_ns = kTellAfterNs}));
}

TEST(Credit, IsAnEqualPartOfTheWindow) {
  EXPECT_EQ(credit_share_ns(300'000, 1), 150'000u);
  EXPECT_EQ(credit_share_ns(300'000, 8), 33'333u);
  EXPECT_EQ(credit_share_ns(16'000'000, 1), kMostCreditNs);
  for (uint32_t n = 1; n <= 256; n++) EXPECT_LT(credit_share_ns(300'000, n) * n, 300'000u);
}

TEST(Credit, IsWantedForSeveralShortLaunches) {
  EXPECT_EQ(credit_wanted_ns(300'000, 150'000, 0, 10'000), 150'000u);
  EXPECT_EQ(credit_wanted_ns(90'000, 150'000, 0, 10'000), 90'000u);        // no more is free
  EXPECT_EQ(credit_wanted_ns(291'000, 150'000, 9'000, 10'000), 141'000u);  // what is left counts
  EXPECT_EQ(credit_wanted_ns(290'000, 150'000, 10'000, 10'000), 0u);       // enough is left
  EXPECT_EQ(credit_wanted_ns(300'000, 35'000, 0, 10'000), 0u);             // three launches: not worth it
  EXPECT_EQ(credit_wanted_ns(0, 150'000, 5'000, 10'000), 0u);
}

TEST(BurstStart, TheHigherLevelThenTheEarlierDeadlineGoesFirst) {
  const BurstStart own{.priority = 3, .slo_ns = 5'000'000, .arrived_ns = kNow};
  PulseView peer{.priority = 4, .busy = true, .busy_since_ns = kNow - 1'000'000};
  EXPECT_TRUE(goes_first(peer, 0, own, kNow));
  peer.priority = 3;
  EXPECT_FALSE(goes_first(peer, 0, own, kNow));
  EXPECT_TRUE(goes_first(peer, 5'000'000, own, kNow));
  EXPECT_FALSE(goes_first(peer, 6'000'000, own, kNow));
  peer.busy = false;
  EXPECT_FALSE(goes_first(peer, 1, own, kNow));
  EXPECT_EQ(most_defer_ns(200, 0), 200u);
  EXPECT_EQ(most_defer_ns(200, 100), 100u);
}

}  // namespace
}  // namespace tessera::admission
