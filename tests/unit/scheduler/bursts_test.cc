// Slowdown and gaps out of burst records.
#include "scheduler_daemon/policy/burst_watch.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "scheduler_daemon/policy/overlap.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;

struct Bursts : ::testing::Test {
  BurstWatch watch;
  uint64_t now_ns = ms(1000);
  void burst(uint64_t length_ns, bool solo, bool packed = false, uint64_t gap_ns = ms(5),
             uint64_t signature = 1) {
    now_ns += gap_ns + length_ns;
    watch.add({signature, length_ns, now_ns, solo, packed});
  }
};

TEST_F(Bursts, NoBaselineNoSlowdown) {
  for (int i = 0; i < 10; ++i) burst(ms(4), false, true);
  EXPECT_EQ(watch.compared(), 0u);
  EXPECT_EQ(watch.take_slowdown(), 0);
  EXPECT_EQ(watch.baseline_ns(), 0u);
}

TEST_F(Bursts, SlowdownIsOverTheSoloLengthWhateverFirstLaunchesTook) {
  burst(ms(400), true);  // code was loaded
  for (int i = 0; i < 10; ++i) burst(ms(4), true);
  watch.take_slowdown();
  for (int i = 0; i < 4; ++i) burst(ms(5), false, true);
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.25);
  EXPECT_EQ(watch.baseline_ns(), ms(4));
  burst(ms(6), false, true);
  burst(ms(4), false, true);
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.25);  // mean of what came since
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.25);  // nothing new: the value before
  EXPECT_GE(watch.compared(), 14u);
}

TEST_F(Bursts, WhatNoNeighbourCanHaveCausedIsTheClientsOwn) {
  for (int i = 0; i < 5; ++i) burst(ms(4), true);
  watch.take_slowdown();
  now_ns += ms(11);
  watch.add({.signature = 1, .length_ns = ms(6), .end_ns = now_ns, .overlap_ns = ms(1)});
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.5);
  EXPECT_DOUBLE_EQ(watch.own_slowdown(), 1.25);
}

// Beyond what was in flight, which the burst waited for.
TEST_F(Bursts, WhatAChangeCostsIsLearntFromBurstsWithAndWithoutWorkBeforeThem) {
  const auto add = [&](uint64_t length_ns, uint64_t overlap_ns, bool after_work) {
    now_ns += ms(8);
    watch.add({.signature = 1,
               .length_ns = length_ns,
               .end_ns = now_ns,
               .solo = !after_work,
               .overlap_ns = overlap_ns,
               .after_work = after_work});
  };
  for (int i = 0; i < 10; ++i) add(us(1350), us(100), true);
  EXPECT_FALSE(watch.knows_change());
  for (int i = 0; i < 3; ++i) add(us(1000), 0, false);
  EXPECT_TRUE(watch.knows_change());
  EXPECT_EQ(watch.change_ns(), us(250));
  watch.take_slowdown();
  add(us(1350), us(100), true);
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.35);
  EXPECT_DOUBLE_EQ(watch.own_slowdown(), 1);  // a change is not its own
  add(us(2000), us(100), true);
  watch.take_slowdown();
  EXPECT_DOUBLE_EQ(watch.own_slowdown(), 1.4);  // more than two changes are
}

TEST(Overlap, WorkRanSinceTheBurstBefore) {
  EXPECT_FALSE(ran_since(100, {.end_ns = 90}));
  EXPECT_TRUE(ran_since(100, {.end_ns = 110}));
  EXPECT_TRUE(ran_since(100, {.any = true, .end_ns = 90}));
  EXPECT_TRUE(ran_since(100, {.measured = false}));
}

TEST(Overlap, IsUntilTheWorkRanDryOrTheWholeBurst) {
  // The burst: 100 to 200.
  EXPECT_EQ(overlap_ns(100, 200, {}), 0u);                                   // never ran
  EXPECT_EQ(overlap_ns(100, 200, {.end_ns = 90}), 0u);                       // ended before
  EXPECT_EQ(overlap_ns(100, 200, {.end_ns = 130}), 30u);                     // drained in it
  EXPECT_EQ(overlap_ns(100, 200, {.end_ns = 250}), 100u);                    // ran on, or again
  EXPECT_EQ(overlap_ns(100, 200, {true, true, 205, 130}), 30u);              // started again after it
  EXPECT_EQ(overlap_ns(100, 200, {true, true, 150, 130}), 100u);             // or in it
  EXPECT_EQ(overlap_ns(100, 200, {true, true, 205, 210}), 100u);             // torn
  EXPECT_EQ(overlap_ns(100, 200, {true, true, 0, 130}), 100u);               // nobody knows since when
  EXPECT_EQ(overlap_ns(100, 200, {.measured = false, .end_ns = 90}), 100u);  // nobody counts
  EXPECT_EQ(overlap_ns(200, 100, {.end_ns = 250}), 0u);
}

TEST(Overlap, BehindAClosedGateIsAQuantumAtMost) {
  const InFlight ran_on{.end_ns = 250};
  EXPECT_EQ(overlap_ns(100, 200, ran_on, {}), 100u);  // no gate
  EXPECT_EQ(overlap_ns(100, 200, ran_on, {.quantum_ns = 40, .longest_ns = 10}), 40u);
  EXPECT_EQ(overlap_ns(100, 200, ran_on, {.quantum_ns = 40, .longest_ns = 70}),
            70u);  // a kernel that is longer
  EXPECT_EQ(overlap_ns(100, 200, {.end_ns = 110}, {.quantum_ns = 40}), 10u);
}

TEST_F(Bursts, SignaturesHaveBaselinesOfTheirOwn) {
  for (int i = 0; i < 5; ++i) {
    burst(ms(4), true, false, ms(5), 1);
    burst(ms(40), true, false, ms(5), 2);
  }
  watch.take_slowdown();
  burst(ms(44), false, true, ms(5), 2);
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.1);
  burst(ms(4), false, true, ms(5), 3);  // never seen alone
  EXPECT_EQ(watch.baseline_ns(), 0u);
}

// A few slow prefills among many steps.
TEST_F(Bursts, KindsHaveMeansOfTheirOwn) {
  const auto of_kind = [&](uint32_t kind, uint64_t length_ns, bool solo) {
    now_ns += length_ns;
    watch.add({.signature = kind,
               .length_ns = length_ns,
               .end_ns = now_ns,
               .solo = solo,
               .kind = kind,
               .slo_ns = kind * ms(100)});
  };
  for (int i = 0; i < 5; ++i) of_kind(1, ms(40), true), of_kind(2, ms(4), true);
  watch.take_slowdown();
  EXPECT_TRUE(watch.kinds().empty());
  for (int i = 0; i < 9; ++i) of_kind(2, ms(4), false);
  of_kind(1, ms(60), false);
  const auto kinds = watch.kinds();
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[0].kind, 2u);
  EXPECT_DOUBLE_EQ(kinds[0].slowdown, 1);
  EXPECT_EQ(kinds[0].burst_ns, ms(4));
  EXPECT_EQ(kinds[0].slo_ns, ms(200));
  EXPECT_DOUBLE_EQ(kinds[1].slowdown, 1.5);
  EXPECT_DOUBLE_EQ(kinds[1].own_slowdown, 1.5);
  EXPECT_EQ(kinds[1].burst_ns, ms(40));
  EXPECT_DOUBLE_EQ(watch.take_slowdown(), 1.05);
}

TEST_F(Bursts, WhereNothingIsEverSoloUnpackedBurstsStandIn) {
  for (int i = 0; i < 8; ++i) burst(ms(4) + us(100), false, false);
  EXPECT_EQ(watch.baseline_ns(), ms(4) + us(100));
  EXPECT_EQ(watch.solo(), 0u);
  for (int i = 0; i < 3; ++i) burst(ms(4), true);  // the truth, as soon as there is one
  EXPECT_EQ(watch.baseline_ns(), ms(4));
}

// A request of a short burst and a long one.
TEST_F(Bursts, TheNextOneIsExpectedToBeWhatFollowedBefore) {
  EXPECT_EQ(watch.next_ns(), 0u);
  for (int i = 0; i < 5; ++i) {
    burst(us(300), true, false, us(80), 1);
    burst(ms(4), true, false, ms(5), 2);
  }
  EXPECT_EQ(watch.next_ns(), us(300));
  burst(us(300), true, false, us(80), 1);
  EXPECT_EQ(watch.next_ns(), ms(4));
  burst(ms(9), true, false, us(80), 3);  // never seen: what follows is not known either
  EXPECT_EQ(watch.next_ns(), watch.baseline_ns());
}

TEST_F(Bursts, EachIsToldOnceAndOfVeryManyTheLatest) {
  burst(ms(1), true, false, us(300));
  burst(ms(2), true, false, us(300));
  const auto two = watch.take_ended();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].ended_ns - two[0].began_ns, ms(1));
  EXPECT_EQ(two[1].began_ns - two[0].ended_ns, us(300));
  EXPECT_TRUE(watch.take_ended().empty());
  for (int i = 0; i < 10'000; ++i) burst(us(1) + uint64_t(i), true);
  const auto latest = watch.take_ended();
  EXPECT_LT(latest.size(), 5000u);
  EXPECT_EQ(latest.back().ended_ns - latest.back().began_ns, us(1) + 9999);
}

}  // namespace
}  // namespace tessera::policy
