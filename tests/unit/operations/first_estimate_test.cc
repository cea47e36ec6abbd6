#include "operations/first_estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tessera::operations {
namespace {

TEST(FirstEstimate, TheLogarithmIsExactAtPowersOfTwoCloseElsewhereAndUndone) {
  for (int e = -40; e <= 40; e++) EXPECT_EQ(log2_of(std::exp2(e)), int64_t{e} * 65536);
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; i++) {
    const double x = std::exp2(std::uniform_real_distribution<>(-30, 30)(random));
    EXPECT_NEAR(double(log2_of(x)) / 65536, std::log2(x), 0.09);
    EXPECT_NEAR(power_of(log2_of(x)) / x, 1, 1e-4);
    EXPECT_EQ(log2_of(power_of(log2_of(x))), log2_of(x));
  }
}

TEST(FirstEstimate, FewBlocksReachTheirSmsOnly) {
  EXPECT_EQ(reachable_ns(100, 4, 4), 100);
  EXPECT_EQ(reachable_ns(100, 1000, 4), 100);
  EXPECT_EQ(reachable_ns(100, 1, 4), 400);
  EXPECT_EQ(reachable_ns(100, 3, 132), 4400);
  EXPECT_EQ(reachable_ns(100, 3, 0), 100);  // not known how many there are
  EXPECT_EQ(reachable_ns(100, 0, 4), 100);
}

TEST(FirstEstimate, OneSampleIsBelieved) {
  const Ratio r = add_sample({}, 1000, 16'000);
  EXPECT_EQ(r, (Ratio{4 * 65536, 1}));
  EXPECT_EQ(times(r, 10), 160);
}

TEST(FirstEstimate, TimesAndTenthsCancelOut) {
  Ratio r{};
  for (int i = 0; i < 4; i++) r = add_sample(add_sample(r, 1000, 8000), 1000, 125);
  EXPECT_NEAR(times(r, 1000), 1000, 300);
}

TEST(FirstEstimate, TheLatestCountForMost) {
  Ratio r{};
  for (int i = 0; i < 100; i++) r = add_sample(r, 1000, 1000);
  for (int i = 0; i < 24; i++) r = add_sample(r, 1000, 64'000);
  EXPECT_NEAR(times(r, 1000), 64'000, 16'000);
  EXPECT_EQ(r.samples, kRatioSamples);
}

TEST(FirstEstimate, WhatIsNoTimeTeachesNothing) {
  const Ratio r = add_sample({}, 1000, 2000);
  EXPECT_EQ(add_sample(r, 0, 5), r);
  EXPECT_EQ(add_sample(r, -1, 5), r);
  EXPECT_EQ(add_sample(r, 5, 0), r);
}

TEST(FirstEstimate, TheFarthestApartFit) {
  Ratio r = add_sample({}, 1e-12, 1e19);
  EXPECT_GT(times(r, 1), 1e30);
  for (int i = 0; i < 100; i++) r = add_sample(r, 1e19, 1e-12);
  EXPECT_LT(times(r, 1), 1e-29);
}

// Kernels of which each takes another multiple of its roofline, spread over a factor of two: estimates are closer than any
// one number for all of them.
TEST(FirstEstimate, IsWithinTheSpreadOfWhatWasMeasured) {
  std::mt19937 random(2);
  std::uniform_real_distribution<> spread(-0.5, 0.5), size(0, 10);
  Ratio r{};
  for (int i = 0; i < 1000; i++) {
    const double roofline = std::exp2(size(random)), took = roofline * 12 * std::exp2(spread(random));
    if (i > 0) {
      EXPECT_LT(std::abs(std::log2(times(r, roofline) / took)), 1.1);
    }
    r = add_sample(r, roofline, took);
  }
}

}  // namespace
}  // namespace tessera::operations
