// `tessera` on single observations: what it reserves, packs and learns, and when it must not.
#include "scheduler_daemon/policy/tessera.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/units.h"
#include "scheduler_daemon/policy/burst_baseline.h"
#include "scheduler_daemon/policy/learnt/neighbour_cost.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;

struct Scenario {
  Parameters parameters;
  TesseraPolicy policy{parameters};
  Observation o{.now_ns = ms(100), .mps = true, .sm_count = 100};
  explicit Scenario(bool packing = false) : parameters{.packing = packing} {
    o.clients.push_back({.id = 1,
                         .priority = 7,
                         .busy = true,
                         .busy_since_ns = ms(99),
                         .resource_class = ResourceClass::kCompute,
                         .slowdown = 1,
                         .bursts = 1,
                         .burst_ns = ms(4)});
    o.clients.push_back({.id = 2,
                         .resource_class = ResourceClass::kMemory,
                         .waiting = true,
                         .waiting_since_ns = ms(99),
                         .queued_ns = us(100),
                         .launch_sms = 100,
                         .wave_blocks = 400});
  }
  Decision decide() {
    Decision d = policy.decide(o);
    o.clients[0].ended.clear();
    return d;
  }
  void end_burst() {
    ClientView& service = o.clients[0];
    service.ended.push_back({service.busy_since_ns, o.now_ns});
    service.busy = false;
    service.idle_since_ns = o.now_ns;
  }
  Lease lease() {
    o.now_ns += us(500);
    return decide().leases.at(1);
  }
  // Bursts with a gap after each.
  void gaps(int n, uint64_t gap_ns) {
    for (int i = 0; i < n; ++i) {
      end_burst();
      decide();
      o.now_ns += gap_ns;
      o.clients[0].busy = true;
      o.clients[0].busy_since_ns = o.now_ns;
      o.now_ns += ms(2);
      decide();
    }
  }
  // Bursts with this slowdown, each observed busy and measured; returns the last lease.
  Lease bursts(int n, double slowdown) {
    Lease last;
    for (int i = 0; i < n; ++i) {
      o.clients[0].bursts++;
      o.clients[0].slowdown = slowdown;
      last = lease();
    }
    return last;
  }
};

Scenario with_a_client_that_can_be_confined(bool packing = false) {
  Scenario w(packing);
  w.o.clients[1].can_confine = true;
  return w;
}

TEST(Tessera, SlowBurstsReserveSmsForTheService) {
  Scenario w = with_a_client_that_can_be_confined();
  w.o.sm_count = 108;
  EXPECT_EQ(w.bursts(1, 1.0).sm_limit, 0u);
  const uint32_t after_one = w.bursts(1, 1.3).sm_limit, after_ten = w.bursts(10, 1.3).sm_limit,
                 after_many = w.bursts(100, 1.3).sm_limit;
  EXPECT_LT(after_one, w.o.sm_count);
  EXPECT_GT(after_many, 0u);
  EXPECT_LT(after_ten, after_one);  // more where that is too little
  EXPECT_LT(after_many, after_ten);
  EXPECT_GE(after_many, uint32_t((1 - Tuning{}.most_reserve) * w.o.sm_count));
  EXPECT_GT(w.bursts(1000, 1.0).sm_limit, after_many);
  EXPECT_EQ(w.bursts(4000, 1.0).sm_limit, 0u);  // nobody suffers
}

TEST(Tessera, ReservesAStepAtOnceForPiecesThatTheFirstBurstCouldNotBear) {
  Scenario w = with_a_client_that_can_be_confined();
  w.o.sm_count = 108;
  w.o.clients[1].queued_ns = ms(1);
  EXPECT_EQ(w.bursts(100, 1.0).sm_limit,
            w.o.sm_count - kSmsPerStep);  // however short the bursts are
  w.o.clients[0].burst_ns = ms(40);
  EXPECT_EQ(w.lease().sm_limit, 0u);
}

TEST(Tessera, OfTheFirstBurstsOnlyThoseAreJudgedThatMostlyMetBestEffortWork) {
  const auto after_slow_ones = [](double own_slowdown) {
    Scenario w = with_a_client_that_can_be_confined();
    w.o.sm_count = 108;
    w.o.clients[0].own_slowdown = own_slowdown;
    return w.bursts(3, 1.5).sm_limit;
  };
  EXPECT_EQ(after_slow_ones(1.0), 0u) << "it may vary by itself";
  EXPECT_GT(after_slow_ones(0.2), 0u);
}

TEST(Tessera, WhoKeepsOffReservedSmsNeedNotBeNarrowUnlessThatIsInVain) {
  Scenario w = with_a_client_that_can_be_confined();
  const uint32_t narrow = Scenario().lease().long_width_percent;
  EXPECT_LT(narrow, 100u);
  EXPECT_EQ(w.lease().long_width_percent, 100u);
  EXPECT_EQ(w.bursts(200, 1.1).long_width_percent, 100u);  // slow, but not by much: the price of it
  EXPECT_GT(w.lease().sm_limit, 0u);
  EXPECT_EQ(w.bursts(int(Tuning{}.least_seen) - 1, 1.5).long_width_percent, 100u);  // chance
  EXPECT_EQ(w.bursts(2, 1.5).long_width_percent, narrow);
  const int again = int(Tuning{}.retry_every);
  EXPECT_EQ(w.bursts(again * 9 / 10, 1.0).long_width_percent, narrow);
  EXPECT_EQ(w.bursts(again / 5, 1.0).long_width_percent, 100u);  // tried again
}

// Something once in sixteen bursts, of which a look sees every second number only.
TEST(Every, IsDueOnceInSoManyHoweverFewAreSeen) {
  for (const uint64_t step : {1, 2, 3, 7}) {
    Every every;
    int due = 0;
    for (uint64_t bursts = step; bursts < 1600; bursts += step) {
      due += every.due(bursts, 16);
      every.note(bursts, 16);
    }
    EXPECT_GE(due, 70) << step;
    EXPECT_LE(due, 101) << step;
  }
  EXPECT_FALSE(Every().due(5, 0));
}

// A service with bursts of one length. While best-effort work may run anywhere the burst goes `cost` slower; the fourth that
// met such work is `by_chance` longer, for another reason.
struct DuringBurst {
  int bursts_beside = 0;       // of the latest hundred, for more than half of them
  double share = 0;            // of their time
  double slowdown = 0;         // mean of them
  double slowest = 0;          // of all
  uint64_t latest_end_ns = 0;  // of work during a burst, after its beginning
  uint64_t window_ns = 0;      // of the latest lease for such work
};
DuringBurst after_bursts_beside_which_work_costs(double cost, uint64_t piece_ns, uint64_t gap_ns = ms(4),
                                                 uint64_t burst_ns = ms(4), int n = 400,
                                                 double by_chance = 0) {
  Scenario w;
  ClientView& service = w.o.clients[0];
  ClientView& trainer = w.o.clients[1];
  w.parameters.packing = true;
  TesseraPolicy policy(w.parameters);
  service.busy = false;
  DuringBurst out;
  trainer.queued_ns = piece_ns;
  const auto decide = [&] {
    const Decision d = policy.decide(w.o);
    service.ended.clear();
    return d;
  };
  int met = 0;  // bursts
  for (int i = 0; i < n; ++i) {
    w.o.now_ns += gap_ns;
    service.next_burst_ns = service.burst_ns = burst_ns;
    service.busy = true;
    const uint64_t began_ns = service.busy_since_ns = w.o.now_ns;
    double beside_ns = 0;
    double left_ns = double(burst_ns);
    while (left_ns > 0) {
      Decision d = decide();
      const uint64_t until_ns = std::clamp(d.next_look_ns, w.o.now_ns + us(10), w.o.now_ns + us(500));
      const bool together = d.leases[1].together;
      const double rate = together ? 1 / (1 + cost) : 1;
      const uint64_t step_ns = std::min(until_ns - w.o.now_ns, uint64_t(left_ns / rate) + 1);
      left_ns -= double(step_ns) * rate;
      w.o.now_ns += step_ns;
      if (!together) continue;
      beside_ns += double(step_ns);
      out.latest_end_ns = std::max(out.latest_end_ns, w.o.now_ns - began_ns);
      out.window_ns = d.leases[1].window_ns;
    }
    met += beside_ns > 0;
    if (beside_ns > 0 && met == 4) w.o.now_ns += uint64_t(by_chance * double(burst_ns));
    const double length_ns = double(w.o.now_ns - began_ns);
    service.ended.push_back({began_ns, w.o.now_ns});
    service.busy = false;
    service.idle_since_ns = w.o.now_ns;
    ++service.bursts;
    service.slowdown = length_ns / double(burst_ns);
    service.own_slowdown = beside_ns > 0 ? 0 : service.slowdown;  // all of it may have met the work
    out.slowest = std::max(out.slowest, service.slowdown);
    if (i >= n - 100) {
      out.bursts_beside += beside_ns > length_ns / 2;
      out.share += beside_ns / length_ns / 100;
      out.slowdown += service.slowdown / 100;
    }
    decide();
  }
  return out;
}

TEST(Tessera, WorkRunsAnywhereBesideBurstsThatAreHardlyLongerForIt) {
  const DuringBurst beside = after_bursts_beside_which_work_costs(0.01, us(100));
  EXPECT_GE(beside.bursts_beside, 90);
  EXPECT_LT(beside.slowest, 1.02);
  // Bursts were measured beside all that it does: what is in flight when one begins is no further cost.
  EXPECT_EQ(beside.window_ns, Parameters{}.window_ns);
}

TEST(Tessera, WorkRunsAnywhereBesideShortBurstsToo) {
  const DuringBurst beside = after_bursts_beside_which_work_costs(0.01, us(20), ms(4), us(400));
  EXPECT_GE(beside.bursts_beside, 90);
  EXPECT_LT(beside.slowest, 1.02);
}

// Each trial that cost little is followed by the next one: of few long requests one in eight would take minutes.
TEST(Tessera, WorkThatCostsLittleHasItsTrialsInARow) {
  EXPECT_GE(after_bursts_beside_which_work_costs(0.01, us(100), ms(300), ms(300), 20).bursts_beside, 10);
  EXPECT_LE(after_bursts_beside_which_work_costs(0.3, us(100), ms(300), ms(300), 20).bursts_beside, 0);
}

// The cost is bearable in the mean, but not for certain: it is tried further, as often as before.
TEST(Tessera, OneSlowBurstAmongTheFirstTrialsDoesNotEndThem) {
  const auto after = [](double cost) {
    return after_bursts_beside_which_work_costs(cost, us(100), ms(4), ms(4), 400, 0.07);
  };
  EXPECT_GE(after(0.005).bursts_beside, 90);
  EXPECT_LE(after(0.3).bursts_beside, 2);
}

TEST(Tessera, WorkThatCostsMoreIsTriedBesideTheEndsOfFewBursts) {
  for (const double cost : {0.3, 1.0, 4.0}) {
    const DuringBurst beside = after_bursts_beside_which_work_costs(cost, us(100));
    EXPECT_LE(beside.bursts_beside, 2) << cost;
    EXPECT_LE(beside.slowest, 1.101) << cost;
  }
}

TEST(Tessera, WorkIsStoppedSoThatItsPiecesEndBeforeABurstIsLate) {
  const DuringBurst beside = after_bursts_beside_which_work_costs(0.3, us(300));
  EXPECT_GT(beside.latest_end_ns, 0u);
  EXPECT_LE(beside.latest_end_ns + us(300), uint64_t(ms(4) * 1.05) + us(10));
}

// Nobody can stop them, so the first of them is beside the 400th burst: then p99 does not show what it cost.
TEST(Tessera, PiecesThatOutlastATrialAreTriedBesideOneBurstInFourHundred) {
  for (const uint64_t piece_ns : {us(1100), ms(6)}) {
    const auto after = [&](double cost, int n) {
      return after_bursts_beside_which_work_costs(cost, piece_ns, ms(4), ms(4), n);
    };
    EXPECT_EQ(after(0.01, 400).latest_end_ns, 0u) << piece_ns;
    EXPECT_GE(after(0.01, 2000).bursts_beside, 90) << piece_ns;
    EXPECT_LE(after(1.0, 2000).bursts_beside, 1) << piece_ns;
  }
}

TEST(Tessera, AServiceThatIsNeverIdleGivesWhatTheTargetPaysFor) {
  for (const double cost : {0.15, 0.3}) {
    const DuringBurst beside = after_bursts_beside_which_work_costs(cost, us(100), 0);
    EXPECT_GT(beside.share, 0.015 / cost) << cost;
    EXPECT_LT(beside.slowdown, 1.05) << cost;
    EXPECT_LE(beside.slowest, 1.101) << cost;
  }
}

TEST(Tessera, ReservesNothingWithoutEveryCondition) {
  struct {
    const char* what;
    void (*change)(Scenario*);
  } const kCases[] = {{"no way to confine it", [](Scenario* w) { w->o.clients[1].can_confine = false; }},
                      {"no MPS", [](Scenario* w) { w->o.mps = false; }},
                      {"the service sleeps", [](Scenario* w) {
                         w->gaps(40, ms(5));
                         w->end_burst();
                         w->o.now_ns += ms(2000);
                       }}};
  for (const auto& c : kCases) {
    Scenario w = with_a_client_that_can_be_confined();
    EXPECT_NE(w.bursts(60, 1.3).sm_limit, 0u);
    c.change(&w);
    EXPECT_EQ(w.lease().sm_limit, 0u) << c.what;
  }
}

// ---- packing

Scenario with_a_client_of_few_blocks(bool packing = false) {
  Scenario w = with_a_client_that_can_be_confined(packing);
  w.o.sm_count = 108;
  w.o.clients[1].launch_sms = 16;
  w.lease();
  w.o.now_ns += ms(200);  // its widest launch of late is the narrow one
  w.o.clients[1].waiting_since_ns = w.o.now_ns;
  w.lease();
  return w;
}

TEST(Tessera, WorkOfFewBlocksRunsBesideBurstsOnSmsOfItsOwn) {
  Scenario w = with_a_client_of_few_blocks();
  w.o.clients[0].bursts = 1;
  const Lease lease = w.lease();
  EXPECT_EQ(lease.grant, Grant::kGranted);
  EXPECT_TRUE(lease.confine_all);
  EXPECT_FALSE(lease.packed);
  EXPECT_EQ(lease.sm_limit, 20u);  // a fifth, in steps of 8 that are left
  EXPECT_EQ(lease.burst_classes, 1u << uint32_t(ResourceClass::kMemory));
}

// Their baseline is of one or two bursts.
TEST(Tessera, TheFirstFewBurstsDoNotEndWorkOfFewBlocks) {
  Scenario w = with_a_client_of_few_blocks();
  EXPECT_TRUE(w.bursts(10, 1.05).confine_all);
}

TEST(Tessera, WorkOfFewBlocksThatCostTooMuchIsTriedAgainBesideOneBurstInFourHundred) {
  Scenario w = with_a_client_of_few_blocks();
  EXPECT_FALSE(w.bursts(40, 1.05).confine_all);
  int tried = 0;
  for (int i = 0; i < 800; ++i) tried += w.bursts(1, 1.05).confine_all;
  EXPECT_EQ(tried, 2);
}

TEST(Tessera, WorkThatLosesNothingOnSmsOfItsOwnIsTriedNowhereElse) {
  Scenario w = with_a_client_of_few_blocks(true);
  w.o.clients[0].next_burst_ns = ms(4);
  for (int i = 0; i < 100; ++i) {
    w.o.clients[0].busy_since_ns = w.o.now_ns;
    w.bursts(1, 1.0);
    for (int look = 0; look < 7; ++look) EXPECT_FALSE(w.lease().together) << i;
  }
}

// Work anywhere is tried beside the end of a burst that had packed work before: the trial counts.
TEST(Tessera, ATrialOfWorkAnywhereIsJudgedWhateverRanBeforeIt) {
  const Tuning t;
  ProtectedClientState state(t);
  ClientView service{.busy = true, .busy_since_ns = ms(1), .burst_ns = ms(10)};
  bool slow = false;
  for (uint64_t n = 1; n <= 2; ++n) {
    service.bursts = n;
    service.slowdown = 1;
    const size_t packed = size_t(ResourceClass::kMemory);
    state.note_during_bursts(service, ms(1), ms(7), packed, 0.8);
    if (n == 2) state.note_during_bursts(service, ms(7), ms(11), kAnywhere, 1);
    state.observe(service, ms(1), ms(11), {}, 0.05, {}, t, &slow);
  }
  EXPECT_EQ(state.cost[kAnywhere].judged(), 1u);
}

TEST(Tessera, NothingRunsBesideBurstsWithoutEveryCondition) {
  struct {
    const char* what;
    void (*change)(Scenario*);
  } const kCases[] = {{"no baseline", [](Scenario* w) { w->o.clients[0].burst_ns = 0; }},
                      {"bursts too short", [](Scenario* w) { w->o.clients[0].burst_ns = us(300); }},
                      {"no way to confine it", [](Scenario* w) { w->o.clients[1].can_confine = false; }},
                      {"wide", [](Scenario* w) { w->o.clients[1].launch_sms = 60; }},
                      {"width not known", [](Scenario* w) { w->o.clients[1].launch_sms = 0; }},
                      {"no MPS", [](Scenario* w) { w->o.mps = false; }},
                      {"solo burst", [](Scenario* w) { w->o.clients[0].bursts = 50; }},
                      {"a second service without a baseline", [](Scenario* w) {
                         w->o.clients.push_back(w->o.clients[0]);
                         w->o.clients.back().id = 3;
                         w->o.clients.back().burst_ns = 0;
                       }}};
  for (const auto& c : kCases) {
    Scenario w = with_a_client_of_few_blocks();
    w.o.clients[0].bursts = 1;
    c.change(&w);
    EXPECT_FALSE(w.lease().confine_all) << c.what;
  }
}

TEST(Tessera, WhatMakesBurstsSlowerThanTheTargetIsNotPacked) {
  const auto packed_of_200 = [](double slowdown) {
    Scenario w = with_a_client_of_few_blocks();
    int packed = 0;
    for (int i = 0; i < 200; ++i) {
      w.o.now_ns += ms(4);  // all of it beside the narrow client, if that may run
      w.o.clients[1].waiting_since_ns = w.o.now_ns;
      packed += w.bursts(1, slowdown).confine_all;
    }
    return packed;
  };
  EXPECT_GT(packed_of_200(1.01), 180);
  EXPECT_LT(packed_of_200(1.3), 20);
}

// Leases of a client that fills the GPU, after a number of bursts of 4 ms with gaps of 4 ms: while a burst runs, and between.
struct Learnt310 {
  Lease beside, between;
  int times_during_bursts = 0;
};
Learnt310 after_bursts_that_cost(double per_gpu, double spread = 0) {
  Scenario w = with_a_client_that_can_be_confined(true);
  ClientView& service = w.o.clients[0];
  Learnt310 last;
  for (int i = 0; i < 310; ++i) {
    w.end_burst();
    w.decide();
    w.o.now_ns += us(3'750);  // the next burst is near
    last.between = w.decide().leases[1];
    w.o.now_ns += us(250);
    service.busy = true;
    service.busy_since_ns = w.o.now_ns;
    last.beside = w.decide().leases[1];
    w.o.now_ns += ms(4);
    ++service.bursts;
    service.slowdown = i % 2 == 0 ? 1 + spread : 1 - spread;
    if (!last.beside.confine_all) continue;
    ++last.times_during_bursts;
    service.slowdown += per_gpu * last.beside.sm_limit / w.o.sm_count;
  }
  return last;
}

TEST(Tessera, WideWorkRunsBesideBurstsAsWideAsTheTargetPaysFor) {
  const Learnt310 cheap = after_bursts_that_cost(0.02), dearer = after_bursts_that_cost(0.1);
  EXPECT_TRUE(cheap.beside.confine_all);
  EXPECT_TRUE(dearer.beside.confine_all);
  EXPECT_LT(dearer.beside.sm_limit, cheap.beside.sm_limit);
  // Between bursts on more of them; what would start there during a burst waits.
  EXPECT_TRUE(dearer.between.confine_all);
  EXPECT_GT(dearer.between.sm_limit, dearer.beside.sm_limit);
  EXPECT_EQ(dearer.between.burst_classes & 1u << uint32_t(ResourceClass::kMemory), 0u);
}

TEST(Tessera, WideWorkThatCostsTooMuchIsNotTriedForLong) {
  const Learnt310 dear = after_bursts_that_cost(0.6);
  EXPECT_FALSE(dear.beside.confine_all);
  EXPECT_FALSE(dear.between.confine_all);
}

TEST(Tessera, NothingIsTriedWhereBurstsVaryTooMuchToTellWhatItCosts) {
  EXPECT_GT(after_bursts_that_cost(0.06, 0.002).times_during_bursts, 100);
  EXPECT_LT(after_bursts_that_cost(0.06, 0.2).times_during_bursts, 5);
}

TEST(Tessera, WhatOutlastsABurstIsNotPacked) {
  const auto times_confined = [](uint64_t piece_ns) {
    Scenario w = with_a_client_that_can_be_confined(true);
    w.o.clients[1].queued_ns = piece_ns;
    int n = 0;
    for (int i = 0; i < 100; ++i) n += w.bursts(1, 1.0).confine_all;
    return n;
  };
  EXPECT_GT(times_confined(us(100)), 0);
  EXPECT_EQ(times_confined(ms(4)), 0);
}

TEST(NeighbourCost, IsTheSlopeOfExcessOverWidth) {
  const Tuning t;
  NeighbourCost cost;
  for (int i = 0; i < 100; ++i)
    cost.judge(i % 2 == 0 ? 0.2 : 0.4, i % 2 == 0 ? 0.02 : 0.04, false, false, true, t);
  EXPECT_NEAR(cost.upper(t), 0.1, 0.005);
  EXPECT_NEAR(cost.widest(0.05, t), 0.5, 0.03);
  EXPECT_EQ(cost.widest(0, t), 0);
  EXPECT_TRUE(cost.too_dear(t.least_sms, 0.005));
  EXPECT_FALSE(cost.too_dear(t.least_sms, 0.05));
}

TEST(NeighbourCost, IsUncertainWhereBurstsVary) {
  const Tuning t;
  NeighbourCost cost;
  for (int i = 0; i < 100; ++i) cost.judge(0.2, 0.02 + (i % 2 == 0 ? 0.2 : -0.2), false, false, true, t);
  EXPECT_LT(cost.widest(0.05, t), 0.3);
}

TEST(NeighbourCost, ABurstThatFoundNoSmFreeLimitsTheWidth) {
  const Tuning t;
  NeighbourCost cost;
  for (int i = 0; i < 50; ++i) cost.judge(0.8, 0.01, false, false, true, t);
  EXPECT_EQ(cost.widest(0.05, t), t.most_width);
  cost.judge(0.8, 0.01, true, true, true, t);
  EXPECT_LT(cost.widest(0.05, t), 0.8);
}

TEST(Tessera, WaitsOutTheGapsThatTheServiceMakesInsideARequest) {
  Scenario w;
  for (int i = 0; i < 21; ++i) w.gaps(1, i % 3 == 0 ? us(100) : us(800));
  ClientView& hp = w.o.clients[0];
  // Held before the burst ends: gates start by themselves soon after it.
  EXPECT_EQ(w.decide().leases[1].grant, Grant::kHold);
  w.end_burst();
  w.o.now_ns += us(400);
  Decision d = w.decide();
  EXPECT_EQ(d.leases[1].grant, Grant::kHold);
  for (int looks = 0; looks < 8 && d.leases[1].grant == Grant::kHold; ++looks) {
    w.o.now_ns = d.next_look_ns + 1;
    d = w.decide();
  }
  EXPECT_EQ(d.leases[1].grant, Grant::kGranted);
  EXPECT_GE(w.o.now_ns, hp.idle_since_ns + us(800));
  EXPECT_LE(w.o.now_ns, hp.idle_since_ns + us(1200));
}

TEST(Tessera, WorkEndsBeforeABurstThatComesWithARhythm) {
  Scenario w;
  w.gaps(20, ms(3));
  EXPECT_NE(w.decide().leases[1].grant, Grant::kHold);  // it may start when the burst ends
  w.end_burst();
  Decision d = w.decide();
  EXPECT_TRUE(d.leases[0].timed);
  EXPECT_FALSE(d.leases[0].quiet);  // somebody has to hear of that end
  EXPECT_EQ(d.leases[1].grant, Grant::kGranted);
  const uint64_t begins_ns = w.o.now_ns + ms(3);
  while (w.o.now_ns < begins_ns && d.leases[1].grant == Grant::kGranted) {
    w.o.now_ns = d.next_look_ns;
    d = w.decide();
  }
  EXPECT_EQ(d.leases[1].grant, Grant::kHold);
  EXPECT_EQ(d.leases[1].held_by, HeldBy::kGap);
  EXPECT_LE(w.o.now_ns, begins_ns - us(175));  // what is in flight ends, after the daemon woke
  EXPECT_GE(w.o.now_ns, begins_ns - us(300));
}

// Nothing can stop a kernel: one that would not end before the next burst does not begin, and the gate on the device, which
// cannot read a clock, lets shorter classes begin while that burst comes nearer. Told before the gap begins.
TEST(Tessera, LongWorkEndsBeforeABurstThatComesWithARhythm) {
  Scenario w;
  ClientView& be = w.o.clients[1];
  be.gate_on_device = true;
  be.waiting = true;
  be.queued_ns = ms(1);
  w.o.clients[0].next_burst_ns = ms(2);
  w.gaps(20, ms(3));
  const uint64_t ends_by_ns = w.o.now_ns + ms(3) - Tuning{}.reaction_ns;
  EXPECT_EQ(w.decide().leases[1].ends_by_ns, ends_by_ns);
  w.end_burst();
  Decision d = w.decide();
  EXPECT_EQ(d.leases[1].ends_by_ns, ends_by_ns);
  EXPECT_EQ(d.leases[1].length_class, base::kLongestClass) << "everything that there is fits";
  uint32_t classes = 0;
  while (d.leases[1].grant == Grant::kGranted) {
    const uint32_t before = d.leases[1].length_class;
    const uint32_t least = base::length_class(d.leases[1].quantum_ns);
    const uint64_t longest_ns = before == base::kLongestClass ? ms(1) : base::kLongestOfClass[before];
    EXPECT_TRUE(before == least || longest_ns <= ends_by_ns - w.o.now_ns) << before;
    EXPECT_GE(before, least) << "quanta begin until all are held";
    w.o.now_ns = d.next_look_ns;
    d = w.decide();
    classes += d.leases[1].grant == Grant::kGranted && d.leases[1].length_class < before;
  }
  EXPECT_GE(classes, 3u);
  be.queued_ns = ms(20);  // it fits into no gap
  w.gaps(1, ms(3));
  w.end_burst();
  EXPECT_EQ(w.decide().leases[1].ends_by_ns, 0u) << "it begins when a gap does";
  w.o.now_ns += ms(1);
  EXPECT_NE(w.decide().leases[1].ends_by_ns, 0u);
}

// A kernel that fits into no short gap waits for the hold limit, and then into bursts. Its client gets none of them for a while.
TEST(Tessera, LeavesShortGapsToWorkThatFitsThem) {
  Scenario w;
  ClientView& be = w.o.clients[1];
  be.waiting = true;
  const auto in_the_next_gap = [&](int n, uint64_t queued_ns) {
    be.queued_ns = queued_ns;
    w.gaps(n, us(800));
    w.end_burst();
    return w.decide().leases[1];
  };
  EXPECT_EQ(in_the_next_gap(40, us(50)).grant, Grant::kGranted);
  EXPECT_EQ(in_the_next_gap(1, ms(5)).grant, Grant::kHold);
  const Lease later = in_the_next_gap(100, us(50));
  EXPECT_EQ(later.grant, Grant::kHold) << "it brings such a kernel again";
  EXPECT_EQ(later.held_by, HeldBy::kGap);
  EXPECT_EQ(in_the_next_gap(600, us(50)).grant, Grant::kGranted);
}

// One gap in many says what bursts lose to the work in the others, where processes take turns on the GPU.
TEST(Tessera, LeavesAGapAloneToLearnWhatAChangeCosts) {
  for (const bool mps : {false, true}) {
    Scenario w;
    w.o.mps = mps;
    int held = 0;
    for (int burst = 0; burst < 100; ++burst) {
      w.gaps(1, ms(20));
      ++w.o.clients[0].bursts;
      w.end_burst();
      w.o.now_ns += ms(1);
      held += w.decide().leases[1].grant == Grant::kHold;
      w.o.now_ns += ms(1);  // none waits for ever for a burst that does not come
      EXPECT_EQ(w.decide().leases[1].grant, Grant::kGranted);
      w.o.clients[0].busy = true;
      w.o.clients[0].busy_since_ns = w.o.now_ns;
      w.o.now_ns += ms(2);
    }
    EXPECT_EQ(held > 0, !mps) << held;
    EXPECT_LE(held, 10);
  }
}

TEST(Tessera, WhileNoBurstIsExpectedWorkRunsAsIfNothingWereProtected) {
  Scenario w;
  auto window_after = [&](uint64_t idle_ns) {
    w.end_burst();
    w.o.now_ns += idle_ns;
    return w.decide().leases[1].window_ns;
  };
  w.gaps(10, ms(20));
  EXPECT_LT(window_after(ms(1)), w.parameters.window_ns / 2);  // too few gaps to know of a rhythm
  w.gaps(20, ms(20));
  EXPECT_EQ(window_after(ms(1)), w.parameters.window_ns);
  w.gaps(1, us(10));  // no rhythm any more
  EXPECT_LT(window_after(ms(1)), w.parameters.window_ns / 2);
  EXPECT_EQ(window_after(ms(600)), w.parameters.window_ns);  // not at work at all
}

// A block that outlasts the time until the next burst is as harmful as at any other time.
TEST(Tessera, WhileNoBurstIsExpectedBlocksThatWouldMeetItStillLeaveRoom) {
  Scenario w;
  w.gaps(40, ms(20));
  w.end_burst();
  w.o.now_ns += ms(17);
  const Lease shortly_before = w.decide().leases[1];
  EXPECT_GT(shortly_before.long_block_ns, 0u);
  EXPECT_LE(shortly_before.long_block_ns, ms(3));
  EXPECT_LT(shortly_before.long_width_percent, 100u);
  w.o.now_ns += ms(600);  // it sleeps
  EXPECT_EQ(w.decide().leases[1].long_block_ns, 0u);
}

TEST(Tessera, StartsAtOnceInGapsThatAreLong) {
  Scenario w;
  w.gaps(20, ms(20));
  EXPECT_EQ(w.decide().leases[1].grant, Grant::kGranted);
  w.end_burst();
  w.o.now_ns += us(10);
  EXPECT_EQ(w.decide().leases[1].grant, Grant::kGranted);
  EXPECT_LT(w.policy.gate_guard_ns(w.parameters), w.parameters.guard_ns);
}

TEST(Tessera, WakesAndWatchesShortlyBeforeTheBurstEnds) {
  Scenario w;
  w.gaps(20, ms(20));
  w.o.clients[0].busy_since_ns = w.o.now_ns - ms(1);  // of 4
  Decision d = w.decide();
  EXPECT_EQ(d.leases[1].spin_ns, 0u);
  EXPECT_LT(d.next_look_ns, w.o.now_ns + ms(3));
  w.o.now_ns += ms(3) - us(50);
  EXPECT_GT(w.decide().leases[1].spin_ns, 0u);
}

TEST(Tessera, InFlightIsAShareOfTheBurstUnlessSlicingWouldCostTooMuch) {
  Scenario w;
  const uint64_t of_a_short_burst = w.lease().window_ns;
  EXPECT_LT(of_a_short_burst, us(200));  // 5 % of 4 ms
  w.o.clients[0].burst_ns = ms(40);
  const Lease of_a_long_burst = w.lease();
  EXPECT_NEAR(double(of_a_long_burst.window_ns), 10.0 * double(of_a_short_burst), 1e4);
  w.o.clients[1].slice_overhead_ns = us(5);
  const Tuning t;
  EXPECT_GE(w.lease().slice_ns, us(5) * t.slice_per_overhead);  // the time in flight allows it
  EXPECT_LT(w.lease().slice_ns, of_a_long_burst.window_ns);
  w.o.clients[0].burst_ns = ms(1);
  EXPECT_EQ(w.lease().slice_ns, t.reaction_ns);  // it allows less: the bound comes first
  w.o.clients[1].slice_overhead_ns = us(50);
  EXPECT_EQ(w.lease().slice_ns, us(50) * t.slice_per_overhead);  // but not more than that
}

// Requests of three bursts with gaps of 0.3 ms, 20 ms apart: what is in flight delays the request, not its shortest burst.
TEST(Tessera, InFlightIsAShareOfTheRequestThatItMakesLate) {
  const auto window_ns = [](uint64_t first_ns, uint64_t second_ns, uint64_t third_ns, int requests = 40) {
    Scenario w;
    w.o.clients[0].burst_ns = first_ns;  // as the latest that was measured
    for (int i = 0; i < requests; ++i) {
      uint64_t gap_ns = ms(20);
      for (uint64_t length_ns : {first_ns, second_ns, third_ns}) {
        w.o.now_ns += gap_ns;
        w.o.clients[0].busy_since_ns = w.o.now_ns;
        w.o.now_ns += length_ns;
        w.end_burst();
        w.decide();
        gap_ns = us(300);
      }
    }
    w.o.clients[0].busy = true;
    return w.decide().leases.at(1).window_ns;
  };
  EXPECT_GT(window_ns(us(20), ms(20), us(20)), us(500));
  EXPECT_GT(window_ns(us(20), ms(20), us(20), 3), us(200)) << "also of few requests";
  EXPECT_LT(window_ns(us(20), us(20), us(20)), us(200));
}

TEST(Tessera, MoreMayBeInFlightWhereBurstsVaryByThemselves) {
  Scenario steady, varied;
  for (int i = 0; i < 100; ++i) {
    steady.o.clients[0].own_slowdown = 1;
    steady.bursts(1, 1.0);
    varied.o.clients[0].own_slowdown = i % 5 == 0 ? 1.5 : 1.0;
    varied.bursts(1, i % 5 == 0 ? 1.5 : 1.0);
  }
  EXPECT_NEAR(double(varied.lease().window_ns), Tuning{}.more_where_varied * double(steady.lease().window_ns),
              1e3);
}

TEST(Tessera, MoreMayBeInFlightOfWorkOfFewBlocks) {
  Scenario w;
  Tuning off;
  off.few_blocks = false;
  TesseraPolicy without(w.parameters, off);
  const auto window_ns = [&](TesseraPolicy* policy) { return policy->decide(w.o).leases[1].window_ns; };
  w.o.clients[1].launch_sms = w.o.sm_count;
  const uint64_t of_wide_ns = window_ns(&w.policy);
  EXPECT_EQ(window_ns(&without), of_wide_ns);
  w.o.clients[1].launch_sms = w.o.sm_count / 5;
  w.o.now_ns += ms(50);
  EXPECT_EQ(window_ns(&w.policy), of_wide_ns);  // it had a wide one lately
  w.o.now_ns += ms(60);
  EXPECT_EQ(window_ns(&w.policy), 5 * of_wide_ns);
  EXPECT_EQ(window_ns(&without), of_wide_ns);
  w.o.clients[1].launch_sms = 0;  // not known
  EXPECT_EQ(window_ns(&w.policy), of_wide_ns);
  w.o.now_ns += ms(110);
  w.o.clients[1].launch_sms = 1;
  EXPECT_EQ(window_ns(&w.policy), w.parameters.window_ns);  // never more than configured
}

TEST(Tessera, LeavesMoreRoomSoThatOneBurstInAHundredIsTooSlow) {
  Scenario w;
  const uint64_t first_ns = w.lease().long_block_ns;
  EXPECT_LT(w.lease().long_width_percent, 100u);
  const auto slow_ones = [&](int n, int every) {
    for (int i = 0; i < n; ++i) w.bursts(1, i % every == 0 ? 1.2 : 1.0);
  };
  slow_ones(160, 20);
  EXPECT_LT(w.lease().long_block_ns, first_ns / 2);
  const double narrow = w.policy.block_scale(1);
  slow_ones(1000, 100);  // as wanted
  EXPECT_NEAR(w.policy.block_scale(1), narrow, 0.2 * narrow);
  w.bursts(10, 1.5);  // one cause, not ten
  EXPECT_GT(w.policy.block_scale(1), 0.7 * narrow);
  slow_ones(5000, 1000);
  EXPECT_GT(w.lease().long_block_ns, first_ns);
}

TEST(Tessera, SearchesForTheScaleWhereNoBurstIsSlow) {
  Scenario w;
  w.bursts(100, 1.0);
  EXPECT_GT(w.policy.block_scale(1), 2);  // far from where one in a hundred is slow
  w.bursts(400, 1.0);
  const double most = w.policy.block_scale(1);
  EXPECT_GT(most, 3);
  EXPECT_LE(most, 1 / Tuning{}.least_scale);
  w.bursts(1, 1.2);
  EXPECT_LT(w.policy.block_scale(1), std::sqrt(most));  // too far
  w.bursts(10, 1.2);                                    // what was searched for is taken back in a row
  EXPECT_LT(w.policy.block_scale(1), 1);
  EXPECT_GT(w.policy.block_scale(1), 0.5);  // below the first guess a row is one cause
  const double found = w.policy.block_scale(1);
  w.bursts(int(Tuning{}.retry_every), 1.0);
  EXPECT_LT(w.policy.block_scale(1), 2 * found);  // three slow ones might have been among them
  w.bursts(100, 1.0);
  EXPECT_GT(w.policy.block_scale(1), 3 * found);
}

TEST(Tessera, DoesNotSearchBesideACrowd) {
  Scenario w;
  for (uint64_t id = 100; id < 103; ++id) {
    w.o.clients.push_back(w.o.clients[1]);
    w.o.clients.back().id = id;
  }
  w.bursts(300, 1.0);
  EXPECT_GT(w.policy.block_scale(1), 1);
  EXPECT_LT(w.policy.block_scale(1), 2);
}

// The same bursts, once slow by themselves and once because of what they met.
TEST(Tessera, LeavesMoreRoomOnlyForWhatNeighboursCanHaveCaused) {
  Scenario own, met;
  for (int i = 0; i < 600; ++i) {
    const double slowdown = i % 5 == 0 ? 1.2 : 1.0;
    own.o.clients[0].own_slowdown = slowdown;
    own.bursts(1, slowdown);
    met.o.clients[0].own_slowdown = 1;
    met.bursts(1, slowdown);
  }
  EXPECT_GE(own.policy.block_scale(1), 1);
  EXPECT_LT(met.policy.block_scale(1), 0.3);
  for (int i = 0; i < 600; ++i) {  // slower than its own slow ones
    own.o.clients[0].own_slowdown = i % 5 == 0 ? 1.2 : 1.0;
    own.bursts(1, i % 5 == 0 ? 1.3 : 1.0);
  }
  EXPECT_LT(own.policy.block_scale(1), 0.3);
  Scenario rare;  // slower than p99 of its own, but nobody's fault
  for (int i = 0; i < 900; ++i) {
    const double slowdown = i % 150 == 149 ? 1.3 : 1.0;
    rare.o.clients[0].own_slowdown = slowdown;
    rare.bursts(1, slowdown);
  }
  EXPECT_GT(rare.policy.block_scale(1), 0.9 / Tuning{}.least_scale);  // searched for: none was slow
}

// Prefills and steps of a decoder: what one kind suffers is not hidden by the other, nor excused by how that varies.
TEST(Tessera, JudgesEachKindOfBurstByItself) {
  const auto scale_after = [](KindSlowdown prefill, KindSlowdown step) {
    Scenario w;
    for (int i = 0; i < 300; ++i) {
      w.o.clients[0].kinds = {prefill, step};
      // By themselves prefills take half as long again now and then.
      if (prefill.own_slowdown != 0 && i % 5 == 0)
        w.o.clients[0].kinds[0].slowdown = w.o.clients[0].kinds[0].own_slowdown = 1.5;
      w.bursts(1, 1.03);  // the mean of all
    }
    return w.policy.block_scale(1);
  };
  const auto burst = [](uint32_t kind, double slowdown, double own = 1, uint64_t slo_ns = 0) {
    return KindSlowdown{kind, slo_ns, ms(29), slowdown, own};
  };
  EXPECT_GE(scale_after(burst(1, 1.0), burst(2, 1.0)), 1);
  EXPECT_LT(scale_after(burst(1, 1.3, 0), burst(2, 1.0, 0)), 1);
  EXPECT_LT(scale_after(burst(1, 1.0), burst(2, 1.2)), 1);
  EXPECT_GE(scale_after(burst(1, 1.2), burst(2, 1.0)), 1) << "no slower than its own slow ones";
  // An SLO is kept where the target would not keep it, and buys nobody more than the target.
  EXPECT_GE(scale_after(burst(1, 1.0), burst(2, 1.045)), 1);
  EXPECT_LT(scale_after(burst(1, 1.0), burst(2, 1.045, 1, ms(30))), 1);
  EXPECT_LT(scale_after(burst(1, 1.0), burst(2, 1.2, 1, ms(100))), 1);
  EXPECT_GE(scale_after(burst(1, 1.0), burst(2, 1.045, 1, ms(20))), 1) << "it was never kept alone";
}

TEST(Tessera, BlamesNobodyBeforeItKnowsHowMuchBurstsVary) {
  Scenario w;
  w.o.clients[0].own_slowdown = 1;
  w.bursts(19, 1.5);
  EXPECT_EQ(w.policy.block_scale(1), 1);
  w.bursts(2, 1.5);
  EXPECT_LT(w.policy.block_scale(1), 1);
}

TEST(Tessera, CountsNoBurstAsSlowThatIsLateByLessThanCanBeKept) {
  Scenario shortest, longer;
  shortest.o.clients[0].burst_ns = us(300);
  longer.o.clients[0].burst_ns = ms(4);
  for (int i = 0; i < 200; ++i) {
    shortest.bursts(1, i % 5 == 0 ? 1.1 : 1.0);
    longer.bursts(1, i % 5 == 0 ? 1.1 : 1.0);
  }
  EXPECT_GE(shortest.policy.block_scale(1), 1);
  EXPECT_LT(longer.policy.block_scale(1), 0.5);
}

TEST(Tessera, LetsOneSliceGoBeforeAHoldExpires) {
  Scenario w;
  w.o.clients[1].waiting_since_ns = w.o.now_ns;
  EXPECT_FALSE(w.lease().packed);
  w.o.now_ns += uint64_t(double(w.parameters.max_hold_ns) * Tuning{}.forestall_at);
  const Lease last = w.lease();
  EXPECT_EQ(last.grant, Grant::kGranted);
  EXPECT_TRUE(last.packed);
  w.o.clients[1].waiting_since_ns = w.o.now_ns;  // it went, and the next one waits
  EXPECT_FALSE(w.lease().packed);
}

// Three best-effort clients that fill the GPU.
Scenario beside_an_idle_service() {
  Scenario w;
  w.o.clients[0].busy = false;
  w.o.clients[0].idle_since_ns = ms(99);
  w.o.clients[0].burst_ns = 0;
  for (uint64_t id : {3, 4}) {
    w.o.clients.push_back(w.o.clients[1]);
    w.o.clients.back().id = id;
  }
  return w;
}

TEST(Tessera, AsManyAtOnceAsFillTheGpuEachInTurn) {
  Scenario w = beside_an_idle_service();
  const auto running = [&] {
    w.o.now_ns += ms(1);
    std::vector<size_t> out;
    const Decision d = w.decide();
    for (size_t i = 1; i < d.leases.size(); ++i)
      if (d.leases[i].grant == Grant::kGranted) out.push_back(i);
    return out;
  };
  int turns[4] = {};
  for (int i = 0; i < 60; ++i) {
    for (auto& c : w.o.clients) c.waiting_since_ns = w.o.now_ns;  // nobody waits for long
    const auto now = running();
    ASSERT_EQ(now.size(), 1u);
    ++turns[now[0]];
    w.o.clients[now[0]].used_ns += ms(1);
  }
  for (size_t i = 1; i < 4; ++i) EXPECT_NEAR(turns[i], 20, 5);
  for (auto& c : w.o.clients) c.launch_sms = 30;
  EXPECT_EQ(running().size(), 3u);  // 90 of 100 SMs
  for (auto& c : w.o.clients) c.launch_sms = 60;
  EXPECT_EQ(running().size(), 2u);
  for (auto& c : w.o.clients) c.launch_sms = 100;
  w.o.clients[2].used_ns += ms(8);
  EXPECT_NE(running(), std::vector<size_t>{2});
  w.o.clients[2].waiting_since_ns -= w.parameters.max_hold_ns * 3 / 4;
  EXPECT_EQ(running(), std::vector<size_t>{2});  // ahead, but held for so long that it goes first
}

// One of two runs until it is ahead. The third must not wait for that one, which may not start.
TEST(Tessera, WhoIsHeldForBeingAheadKeepsNobodyOut) {
  Scenario w = beside_an_idle_service();
  for (int i = 0; i < 400; ++i) {
    w.o.now_ns += ms(1);
    for (auto& c : w.o.clients) c.waiting_since_ns = w.o.now_ns;
    w.o.clients[3].waiting = i % 7 < 4;  // comes and goes
    const Decision d = w.decide();
    const auto runs = [&](size_t k) {
      return d.leases[k].grant == Grant::kGranted && w.o.clients[k].waiting;
    };
    EXPECT_TRUE(runs(1) || runs(2) || runs(3)) << i;
    for (size_t k = 1; k < 4; ++k)
      if (runs(k)) w.o.clients[k].used_ns += us(300) * k;
  }
}

TEST(BurstBaseline, MedianOfSoloBurstsPerSignature) {
  BurstBaseline b;
  EXPECT_EQ(b.add(1, 100, true), 0);
  b.add(1, 5000, true);  // an outlier
  EXPECT_NEAR(b.add(1, 100, true), 1, 1e-9);
  EXPECT_NEAR(b.add(1, 130, false), 1.3, 1e-9);
  EXPECT_EQ(b.add(2, 130, false), 0);                       // another signature is_known nothing yet
  for (uint64_t s = 3; s < 10'000; ++s) b.add(s, 1, true);  // bounded
  EXPECT_EQ(b.add(1, 100, false), 0);
}

}  // namespace
}  // namespace tessera::policy
