#include "interpose/state/clock.h"

#include <gtest/gtest.h>

namespace tessera::state {
namespace {

constexpr uint64_t kSecond = 1'000'000'000, kHz = 2'000'000'000;  // two ticks are a nanosecond

TEST(Clock, OfPairsThatWereReadInTwoGoesTheTightestCounts) {
  uint64_t tsc = 0;
  int reads = 0;
  const ClockPoint point = tightest_point(
      [&] {
        // Preempted in all tries but the sixth: before the time is read, or behind it.
        return tsc += ++reads == 11 || reads == 12 ? 20 : 1'000'000;
      },
      [&] {
        if (reads != 11 && reads % 2 == 1) tsc += 500'000;
        return tsc / 2;
      });
  EXPECT_LE(tsc / 2 - point.ns, 5'000'000u);
  EXPECT_NEAR(double(point.tsc) / 2, double(point.ns), 10);
}

TEST(Clock, GoesOnWhereItWasAndIsRightAgainAfterASecond) {
  const ClockPoint start{0, 0};
  const Calibration first = renewed(nullptr, start, {kHz, kSecond});
  EXPECT_EQ(first.at(kHz), kSecond);
  for (const int64_t late : {40'000, -40'000}) {
    const ClockPoint point{2 * kHz, uint64_t(2 * kSecond + late)};
    const Calibration next = renewed(&first, start, point);
    EXPECT_EQ(next.at(point.tsc), first.at(point.tsc));
    EXPECT_NEAR(double(next.at(3 * kHz)), double(point.ns) + kSecond * (1 + double(late) / (2 * kSecond)),
                10);
    EXPECT_GT(next.at(point.tsc + 100), next.at(point.tsc));
  }
}

TEST(Clock, JumpsWhereItIsFarOff) {
  const Calibration first = renewed(nullptr, {0, 0}, {kHz, kSecond});
  EXPECT_EQ(renewed(&first, {0, 0}, {2 * kHz, 3 * kSecond}).at(2 * kHz), 3 * kSecond);
}

TEST(Clock, IsTheTimeOfTheSystem) {
  calibrate_clock();
  for (const uint64_t begin = base::now_ns(); base::now_ns() - begin < 10'000'000;) {
  }
  calibrate_clock();
  uint64_t last = clock_ns();
  for (int i = 0; i < 1000; i++) {
    if (i % 100 == 0) calibrate_clock();
    const uint64_t before = base::now_ns(), now = clock_ns(), after = base::now_ns();
    EXPECT_GE(now, last);
    EXPECT_GE(now + 50'000, before);
    EXPECT_LE(now, after + 50'000);
    last = now;
  }
}

}  // namespace
}  // namespace tessera::state
