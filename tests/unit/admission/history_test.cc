// Learning about a launch shape from samples.
#include "admission/history.h"

#include <gtest/gtest.h>

namespace tessera::admission {
namespace {

TEST(History, TheSmallerTimeIsTakenAtOnceTheLargerByAndBy) {
  History h;
  EXPECT_TRUE(add_sample(h, {100, 1'000'000, 64}, true));
  EXPECT_EQ(h.block_ps, 10'000'001u);
  EXPECT_TRUE(h.growing);  // one sample says nothing of other sizes
  EXPECT_TRUE(add_sample(h, {100, 800'000, 64}, false));
  EXPECT_EQ(h.block_ps, 8'000'001u);
  EXPECT_EQ(h.launch_ns, 800'000u);
  EXPECT_TRUE(add_sample(h, {100, 1'600'000, 64}, false));
  EXPECT_EQ(h.block_ps, (8'000'001u * 7 + 16'000'001u) / 8);
}

TEST(History, WhatDoesNotFillTheGpuSaysLittleUnlessItTakesLonger) {
  History h;
  add_sample(h, {64, 320'000, 64}, true);
  EXPECT_FALSE(add_sample(h, {40, 320'000, 64}, false));  // as long as a wave: what else
  EXPECT_FALSE(add_sample(h, {20, 100'000, 0}, false));   // the rest of a grid
  EXPECT_TRUE(add_sample(h, {40, 400'000, 64}, false));   // the clocks dropped
}

TEST(History, GrowsAsLongAsBlocksBecomeCheaper) {
  History h;
  add_sample(h, {8, 100'000, 64}, true);
  add_sample(h, {16, 110'000, 64}, false);
  EXPECT_TRUE(h.growing);
  add_sample(h, {32, 219'000, 64}, false);
  EXPECT_FALSE(h.growing);
  EXPECT_EQ(h.block_ns, 103'148u);  // the least, aged by two samples more
}

TEST(History, NothingKnownCountsAsTheDefaultAndNothingAsLessThanAGap) {
  EXPECT_EQ(expected_ns(0, 1'000), kUnknownKernelNs);
  EXPECT_EQ(expected_ns(1'000, 1), kLeastEstimateNs);
  EXPECT_EQ(expected_ns(1'000'000, 100), 100'000u);
}

TEST(SliceCost, IsWhatTwoSizesDoNotExplainByTheirBlocks) {
  SliceCost c;  // t = 7 us + waves * 100 us
  EXPECT_EQ(add_sample(c, 8, 807'000), 0u);
  EXPECT_EQ(add_sample(c, 4, 407'000), 7'000u);
  EXPECT_EQ(add_sample(c, 8, 807'000), 7'000u);
  EXPECT_EQ(add_sample(c, 16, 1'607'000), 0u);  // larger than ever: begin anew
  EXPECT_EQ(add_sample(c, 8, 807'000), 7'000u);
}

}  // namespace
}  // namespace tessera::admission
