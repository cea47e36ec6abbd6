// The policies, one situation at a time, in virtual time.
#include <gtest/gtest.h>

#include "base/units.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;

ClientView best_effort(uint64_t id, bool waiting = false, uint64_t in_flight_ns = 0) {
  return {.id = id, .waiting = waiting, .in_flight_ns = in_flight_ns, .drained = in_flight_ns == 0};
}
ClientView guarded(uint64_t id, uint32_t priority, bool busy) {
  return {.id = id, .priority = priority, .busy = busy};
}
std::vector<Grant> grants(const Decision& d) {
  std::vector<Grant> all;
  for (const Lease& l : d.leases) all.push_back(l.grant);
  return all;
}
using Grants = std::vector<Grant>;
constexpr Grant kHold = Grant::kHold, kGranted = Grant::kGranted, kFree = Grant::kFree;

class Temporal : public ::testing::Test {
 protected:
  Decision decide(uint64_t now_ns, std::vector<ClientView> clients, bool mps = false) {
    return policy_->decide({.now_ns = now_ns, .mps = mps, .sm_count = 132, .clients = std::move(clients)});
  }
  Parameters parameters_;
  std::unique_ptr<Policy> policy_ = make_policy("temporal", parameters_);
};

TEST(Registry, KnowsItsNames) {
  for (const std::string& name : policy_names()) EXPECT_EQ(make_policy(name, {})->name(), name);
  EXPECT_EQ(make_policy("nonsense", {}), nullptr);
}

TEST(None, LeavesEverythingToTheHardware) {
  auto policy = make_policy("none", {});
  Decision d = policy->decide({.now_ns = 1, .clients = {best_effort(1, true), guarded(2, 7, true)}});
  EXPECT_EQ(grants(d), (Grants{kFree, kFree}));
  EXPECT_EQ(d.next_look_ns, 0u);
}

TEST_F(Temporal, NobodyOrOneIsFreeAndNeedsNoClock) {
  EXPECT_TRUE(decide(1, {}).leases.empty());
  Decision alone = decide(2, {best_effort(1)});
  EXPECT_EQ(grants(alone), Grants{kFree});
  EXPECT_EQ(alone.next_look_ns, 0u);
  EXPECT_EQ(grants(decide(4, {guarded(1, 1, true), guarded(2, 7, true)})), (Grants{kFree, kFree}));
}

TEST_F(Temporal, BestEffortKeepsItsLeaseBesideABusyProtectedClientBecauseItWatchesThePulse) {
  Decision d = decide(ms(1), {guarded(1, 7, true), best_effort(2, true)});
  EXPECT_EQ(grants(d), (Grants{kFree, kGranted}));
  EXPECT_EQ(d.leases[1].window_ns, parameters_.window_ns);
  EXPECT_EQ(d.leases[1].slice_ns, parameters_.slice_ns);
  EXPECT_EQ(d.leases[1].duration_ns, parameters_.lease_ns);
  EXPECT_EQ(d.next_look_ns, ms(1) + parameters_.lease_ns / 2);
}

TEST_F(Temporal, NudgesWaitersOnceWhenTheGuardTimeIsOver) {
  ClientView service = guarded(1, 7, true);
  decide(ms(1), {service, best_effort(2, true)});
  service.busy = false;
  service.idle_since_ns = ms(2);
  Decision early = decide(ms(2) + us(10), {service, best_effort(2, true)});
  EXPECT_FALSE(early.leases[1].nudge);
  EXPECT_EQ(early.next_look_ns, ms(2) + parameters_.guard_ns);
  Decision due = decide(early.next_look_ns, {service, best_effort(2, true)});
  EXPECT_TRUE(due.leases[1].nudge);
  EXPECT_FALSE(decide(ms(3), {service, best_effort(2, true)}).leases[1].nudge);
  service.busy = true;
  EXPECT_FALSE(decide(ms(4), {service, best_effort(2, true)}).leases[1].nudge);
}

TEST_F(Temporal, ABusyPulseThatNobodyWatchesIsObeyedByRevocation) {
  ClientView service = guarded(1, 7, true);
  service.watched = false;
  Decision d = decide(ms(1), {service, best_effort(2, true)});
  EXPECT_EQ(grants(d), (Grants{kFree, kHold}));
  EXPECT_LE(d.next_look_ns, ms(2));
  service.busy = false;
  EXPECT_EQ(grants(decide(ms(2), {service, best_effort(2, true)})), (Grants{kFree, kGranted}));
}

TEST_F(Temporal, WithMpsLeasesOverlap) {
  EXPECT_EQ(grants(decide(1, {best_effort(1, true), best_effort(2, true)}, true)),
            (Grants{kGranted, kGranted}));
}

TEST_F(Temporal, WithoutMpsTurnsPassOnlyAfterTheDrain) {
  decide(ms(1), {best_effort(1)});  // alone: free
  // The incumbent has the first turn: its unmeasured work cannot be proven drained at this moment.
  EXPECT_EQ(grants(decide(ms(50), {best_effort(1, false, us(100)), best_effort(2, true)})),
            (Grants{kGranted, kHold}));
  EXPECT_EQ(grants(decide(ms(60), {best_effort(1, false, us(100)), best_effort(2, true)})),
            (Grants{kGranted, kHold}));
  EXPECT_EQ(grants(decide(ms(71), {best_effort(1, true, us(100)), best_effort(2, true)})),
            (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(ms(72), {best_effort(1, true, us(50)), best_effort(2, true)})),
            (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(ms(73), {best_effort(1, true, 0), best_effort(2, true)})),
            (Grants{kHold, kGranted}));
}

TEST_F(Temporal, AHolderThatDiesPassesItsTurnAtOnce) {
  decide(ms(1), {best_effort(1, false, us(9)), best_effort(2, true), best_effort(3)});
  EXPECT_EQ(grants(decide(ms(2), {best_effort(2, true), best_effort(3)})), (Grants{kGranted, kHold}));
}

TEST_F(Temporal, AHolderThatNeverDrainsIsTakenForHung) {
  auto clients = [] { return std::vector{best_effort(1, true, us(100)), best_effort(2, true)}; };
  decide(0, clients());
  uint64_t now = ms(100);
  ASSERT_EQ(grants(decide(now, clients())), (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(now + parameters_.drain_timeout_ns - 1, clients())), (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(now + parameters_.drain_timeout_ns, clients())), (Grants{kHold, kGranted}));
}

TEST_F(Temporal, TheTimeOfADrainIsItsOwners) {
  // Both want the GPU all the time; what the first has in flight takes as long to drain as its turn.
  bool draining = false;
  uint64_t now = 0, granted_ns[2] = {}, drain_since = 0;
  while (now < ms(10'000)) {
    const bool drained = draining && now - drain_since >= ms(20);
    std::vector clients = {best_effort(1, true, drained ? 0 : us(100)), best_effort(2, true)};
    clients[0].used_ns = clients[1].used_ns = now;
    const Decision d = decide(now, clients);
    for (size_t i : {0, 1})
      if (d.leases[i].grant == kGranted) granted_ns[i] += us(500);
    if (d.leases[0].grant == kGranted) draining = false;
    if (d.leases[0].grant == kHold && !draining) draining = true, drain_since = now;
    now += us(500);
  }
  EXPECT_NEAR(double(granted_ns[1]) / double(granted_ns[0]), 2, 0.3);
}

TEST_F(Temporal, WhoseDrainsAreOverdueIsWaitedForLessLongAndPaysMore) {
  auto clients = [](uint32_t overdue) {
    std::vector c = {best_effort(1, true, us(100)), best_effort(2, true)};
    if (overdue != 0) c[1].in_flight_ns = us(100);  // it works, now that it may
    c[0].overdue_drains = overdue;
    return c;
  };
  decide(0, clients(0));
  uint64_t now = ms(100);
  ASSERT_EQ(grants(decide(now, clients(0))), (Grants{kHold, kHold}));
  now += parameters_.drain_timeout_ns;
  Decision d = decide(now, clients(0));
  EXPECT_EQ(grants(d), (Grants{kHold, kGranted}));
  EXPECT_TRUE(d.leases[0].overdue);
  EXPECT_FALSE(d.leases[1].overdue);
  EXPECT_FALSE(decide(now, clients(1)).leases[0].overdue);  // said once
  // Twice the second that nobody worked.
  for (const uint64_t end = now + ms(1950); now < end; now += ms(5))
    ASSERT_EQ(grants(decide(now, clients(1))), (Grants{kHold, kGranted})) << now - end;
  ASSERT_TRUE([&] {
    for (const uint64_t end = now + ms(1000); now < end; now += ms(1))
      if (decide(now, clients(1)).leases[0].grant == kGranted) return true;
    return false;
  }());
  now += ms(100);
  ASSERT_EQ(grants(decide(now, clients(1))), (Grants{kHold, kHold}));
  const uint64_t given_up_ns = now + (parameters_.drain_timeout_ns >> Tuning{}.patience_shift);
  EXPECT_EQ(grants(decide(given_up_ns - 1, clients(1))), (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(given_up_ns, clients(1))), (Grants{kHold, kGranted}));
}

TEST_F(Temporal, AnIdleHolderLosesItsTurnAfterTheGrace) {
  decide(0, {best_effort(1, false, us(9)), best_effort(2)});
  EXPECT_EQ(grants(decide(ms(10), {best_effort(1, false, us(9)), best_effort(2, true)})),
            (Grants{kGranted, kHold}));
  EXPECT_EQ(grants(decide(ms(11), {best_effort(1), best_effort(2, true)})), (Grants{kGranted, kHold}));
  EXPECT_EQ(grants(decide(ms(12), {best_effort(1), best_effort(2, true)})), (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(ms(12), {best_effort(1), best_effort(2, true)})), (Grants{kHold, kGranted}));
}

TEST_F(Temporal, AHolderStoppedInsideAWaitingLaunchCostsTheGraceOnly) {
  // It looks as if it wanted its turn, gets it, and does nothing with it.
  decide(0, {best_effort(1, true), best_effort(2, true)});
  EXPECT_EQ(grants(decide(ms(1), {best_effort(1, true), best_effort(2, true)})), (Grants{kGranted, kHold}));
  EXPECT_EQ(grants(decide(ms(2), {best_effort(1, true), best_effort(2, true)})), (Grants{kHold, kHold}));
  EXPECT_EQ(grants(decide(ms(2), {best_effort(1, true), best_effort(2, true)})), (Grants{kHold, kGranted}));
}

TEST_F(Temporal, WhileAProtectedClientIsBusyTheHolderIsNeitherChargedNorIdle) {
  ClientView service = guarded(9, 7, false);
  decide(0, {service, best_effort(1), best_effort(2)});
  service.busy = true;
  service.busy_since_ns = us(1);
  Decision d = decide(ms(15), {service, best_effort(1, true), best_effort(2, true)});
  EXPECT_EQ(d.leases[1].grant, kGranted);  // idle for 15 ms, but it had to be
}

// Earliest deadline first, among those that the gate can hold and that are not ahead of their share.
TEST_F(Temporal, TheEarliestDeadlineHasTheNextTurn) {
  auto with_slo = [](uint64_t id, uint64_t waiting_since_ns, uint64_t slo_ns) {
    ClientView c = best_effort(id, true);
    c.waiting_since_ns = waiting_since_ns;
    c.slo_ns = slo_ns;
    return c;
  };
  auto clients = [&](uint64_t in_flight_ns) {
    return std::vector{best_effort(1, true, in_flight_ns), with_slo(2, ms(1), 0), with_slo(3, ms(2), ms(30)),
                       with_slo(4, ms(5), ms(20))};
  };
  decide(0, {best_effort(1, false, us(9))});  // the incumbent
  decide(1, clients(us(9)));
  ASSERT_EQ(decide(ms(25), clients(us(9))).leases[0].grant, kHold);
  EXPECT_EQ(grants(decide(ms(26), clients(0))), (Grants{kHold, kHold, kHold, kGranted}));
}

TEST_F(Temporal, AnSloDoesNotBuyMoreThanTheShare) {
  uint64_t turns[2] = {};
  ClientView a = best_effort(1, true, us(9)), b = best_effort(2, true, us(9));
  a.slo_ns = ms(1);
  for (uint64_t now = 0; now < ms(2000); now += ms(1)) {
    a.waiting_since_ns = b.waiting_since_ns = now;
    Decision d = decide(now, {a, b});
    turns[0] += d.leases[0].grant == kGranted;
    turns[1] += d.leases[1].grant == kGranted;
    a.drained = d.leases[0].grant == kHold;
    b.drained = d.leases[1].grant == kHold;
  }
  EXPECT_NEAR(double(turns[0]) / double(turns[0] + turns[1]), 0.5, 0.05);
}

TEST_F(Temporal, ManyWaitersGetShorterTurnsSoThatNoneHitsTheHoldLimit) {
  std::vector<ClientView> clients;
  for (uint64_t id = 1; id <= 21; ++id) clients.push_back(best_effort(id, true, id == 1 ? us(100) : 0));
  decide(0, clients);
  EXPECT_EQ(decide(ms(2), clients).leases[0].grant, kGranted);
  EXPECT_EQ(decide(ms(5), clients).leases[0].grant, kHold);  // 200 ms / 2 / 2 / 20 waiters = 2.5 ms
}

}  // namespace
}  // namespace tessera::policy
