// The online estimators: robust to outliers, first launches and clock ramps, and bounded.
#include <gtest/gtest.h>

#include <cmath>

#include "base/units.h"
#include "scheduler_daemon/policy/estimate/busy_period.h"
#include "scheduler_daemon/policy/estimate/histogram.h"
#include "scheduler_daemon/policy/estimate/next_burst.h"
#include "scheduler_daemon/policy/slots.h"
#include "simulator/random.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;
using simulator::Random;

TEST(Histogram, QuantilesAreWithinABucket) {
  Random random(1);
  for (double median : {20.0, 3e3, 5e6, 2e9}) {
    Histogram h(4000);
    for (int i = 0; i < 4000; ++i) h.add(uint64_t(median * std::exp(0.5 * random.normal())));
    for (auto [q, z] : {std::pair{0.05, -1.645}, {0.5, 0.0}, {0.95, 1.645}})
      EXPECT_NEAR(double(h.quantile(q)) / (median * std::exp(0.5 * z)), 1, 0.12) << median << " " << q;
  }
}

TEST(Histogram, BucketsTileTheNumbersAndNothingOverflows) {
  for (size_t i = 0; i + 1 < Histogram::kBuckets; ++i) {
    EXPECT_EQ(Histogram::bucket(Histogram::lower(i)), i);
    EXPECT_EQ(Histogram::bucket(Histogram::lower(i + 1) - 1), i);
  }
  Histogram h;
  EXPECT_EQ(h.quantile(0.5), 0u);
  h.add(UINT64_MAX);
  h.add(0);
  EXPECT_EQ(h.quantile(0), 0u);
  EXPECT_GT(h.quantile(1), ms(1000));
}

TEST(Histogram, ForgetsWhatIsLongAgo) {
  Histogram h(64);
  for (int i = 0; i < 10'000; ++i) h.add(1000);
  for (int i = 0; i < 200; ++i) h.add(3000);
  EXPECT_NEAR(double(h.quantile(0.5)), 3000, 300);
}

// Work in flight of 167 us makes a collision worth 500 us of idle time.
constexpr Collision kCollision{.in_flight_ns = 167'000};

// Gaps behind bursts of given lengths.
struct Gaps {
  void add(uint64_t gap_ns, uint64_t burst_ns = us(800)) { next.add(gap_ns, burst_ns + gap_ns); }
  Hold hold(const Collision& collision = kCollision) const { return next.hold(collision, Tuning{}); }
  NextBurst next;
};

TEST(NextBurst, WaitsForHabitualGapsOnly) {
  Gaps tokens, random_arrivals, few;
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    tokens.add(i % 10 == 9 ? ms(50) : us(250));
    random_arrivals.add(uint64_t(random.exponential(double(ms(4)))) + 1);
  }
  few.add(us(250));
  EXPECT_GT(tokens.hold().wait_ns, us(250));
  EXPECT_LT(tokens.hold().wait_ns, us(500));
  EXPECT_EQ(random_arrivals.hold().wait_ns, 0u);
  EXPECT_EQ(few.hold().wait_ns, 0u);
  Tuning impatient;
  impatient.longest_gap_ns = us(100);
  EXPECT_EQ(tokens.next.hold(kCollision, impatient).wait_ns, 0u);  // longer than anybody may wait
}

// Gaps at random: work waits if a collision costs as much as the rest of a gap is worth.
TEST(NextBurst, WaitsLongerWhereAChangeIsDear) {
  Gaps gaps;
  Random random(3);
  for (int i = 0; i < 128; ++i) gaps.add(uint64_t(random.exponential(double(us(1500)))) + 1);
  EXPECT_EQ(gaps.hold().wait_ns, 0u);
  EXPECT_GT(gaps.hold({kCollision.in_flight_ns, ms(1)}).wait_ns, ms(1));
}

TEST(NextBurst, IsHeldForWhereARhythmBringsIt) {
  Gaps rhythm;
  for (int i = 0; i < 100; ++i) rhythm.add(ms(3));
  const Hold hold = rhythm.hold();
  EXPECT_EQ(hold.wait_ns, 0u);
  EXPECT_EQ(hold.from_ns, ms(3) - kCollision.in_flight_ns - Tuning{}.reaction_ns);
  EXPECT_EQ(hold.ends_by_ns, ms(3) - Tuning{}.reaction_ns);
  EXPECT_GT(hold.until_ns, ms(3));
  EXPECT_FALSE(hold.covers(ms(2)));
  EXPECT_TRUE(hold.covers(ms(3)));
  EXPECT_FALSE(hold.covers(ms(4)));  // it did not come: the rhythm has ended
}

// Requests come by a clock, and bursts take 1 to 3 ms: the gap behind one that took longer is shorter.
TEST(NextBurst, IsKnownFromTheBeginningOfTheOneBefore) {
  Gaps clock;
  for (uint64_t i = 0; i < 120; ++i) clock.add(ms(10) - ms(1 + i * 7 % 3), ms(1 + i * 7 % 3));
  const Hold hold = clock.hold();
  ASSERT_TRUE(hold.since_began);
  EXPECT_EQ(hold.ends_by_ns, ms(10) - Tuning{}.reaction_ns);
  EXPECT_TRUE(hold.after(ms(3)).covers(ms(7)));
  EXPECT_FALSE(hold.after(ms(1)).covers(ms(7)));
  EXPECT_TRUE(hold.after(ms(1)).covers(ms(9)));
}

// It thinks for the same time after each answer, however long that took.
TEST(NextBurst, IsKnownFromTheEndOfTheOneBefore) {
  Gaps thinks;
  for (uint64_t i = 0; i < 120; ++i) thinks.add(ms(7), ms(1 + i * 7 % 3));
  const Hold hold = thinks.hold();
  EXPECT_FALSE(hold.since_began);
  EXPECT_EQ(hold.ends_by_ns, ms(7) - Tuning{}.reaction_ns);
}

// Gaps that are waited out are used before a burst that comes by a clock, where processes run side by side.
TEST(NextBurst, LetsShortGapsBeUsedThatHaveARhythm) {
  Gaps rhythm, tokens;
  for (int i = 0; i < 120; ++i)
    rhythm.add(us(800)), tokens.add(us(i % 3 == 0 ? 400 : 800), us(i % 2 == 0 ? 700 : 900));
  const Collision beside{.in_flight_ns = us(60), .side_by_side = true}, in_turns{.in_flight_ns = us(60)};
  EXPECT_FALSE(rhythm.hold(beside).covers(us(100)));
  EXPECT_TRUE(rhythm.hold(beside).covers(us(750)));
  EXPECT_EQ(rhythm.hold(beside).ends_by_ns, us(800) - Tuning{}.reaction_ns);
  EXPECT_TRUE(rhythm.hold(in_turns).covers(us(100))) << "each burst would lose a change of process";
  EXPECT_TRUE(tokens.hold(beside).covers(us(350))) << "a third of the gaps is too short";
}

// Requests of several bursts that come with a rhythm: both holds.
TEST(NextBurst, WaitsOutShortGapsAndHoldsBeforeTheNextRequest) {
  Gaps gaps;
  for (int i = 0; i < 120; ++i) gaps.add(i % 3 == 0 ? ms(20) : us(200));
  const Hold hold = gaps.hold();
  EXPECT_TRUE(hold.covers(us(200)));
  EXPECT_FALSE(hold.covers(us(300)));
  EXPECT_FALSE(hold.covers(ms(19)));
  EXPECT_TRUE(hold.covers(ms(20)));
  EXPECT_EQ(hold.next_end_ns(us(300)), hold.from_ns);
}

TEST(GapModel, ForgetsOldGaps) {
  GapModel gaps;
  for (int i = 0; i < 1000; ++i) gaps.add(ms(3));
  for (uint64_t i = 0; i < Tuning{}.memory; ++i) gaps.add(us(250));
  EXPECT_EQ(gaps.total(), Tuning{}.memory);
  EXPECT_EQ(gaps.quantile_ns(1), us(250));
}

TEST(BusyPeriod, IsWhatOneLotOfWorkInFlightMakesLate) {
  BusyPeriod period;
  std::vector<uint64_t> found;
  const auto add = [&](uint64_t began_ns, uint64_t ended_ns) {
    period.add({began_ns, ended_ns}, us(100), ms(1), [&](uint64_t length_ns) { found.push_back(length_ns); });
  };
  add(us(1'000), us(1'500));
  add(us(1'000), us(2'000));  // it still ran
  add(us(2'000), us(3'000));  // a step of it
  add(us(3'050), us(4'000));  // nobody used the gap
  EXPECT_TRUE(found.empty());
  add(us(10'000), us(12'000));  // after a long gap
  EXPECT_EQ(found, std::vector{us(3'000)});
  add(us(12'500), us(14'500));  // the gap was used
  add(us(20'000), us(20'010));
  EXPECT_EQ(found, (std::vector{us(3'000), us(2'000)}));  // 4 ms of bursts, of which work made two late
}

TEST(Slots, StateFollowsItsClient) {
  Slots<int> slots;
  slots.follow({{.id = 5}, {.id = 6}, {.id = 7}});
  for (size_t i = 0; i < 3; ++i) slots[i] = int(i) + 5;
  slots.follow({{.id = 5}, {.id = 7}, {.id = 9}, {.id = 6}});
  EXPECT_EQ(slots[0], 5);
  EXPECT_EQ(slots[1], 7);
  EXPECT_EQ(slots[2], 0);
  EXPECT_EQ(slots[3], 6);
  slots.follow({});
  slots.follow({{.id = 5}});
  EXPECT_EQ(slots[0], 0);
}

}  // namespace
}  // namespace tessera::policy
