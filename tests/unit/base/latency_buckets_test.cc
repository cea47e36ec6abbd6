#include "base/latency_buckets.h"

#include <gtest/gtest.h>

#include <array>

namespace tessera::base {
namespace {

TEST(LatencyBuckets, EachBeginsWhereTheOneBeforeEnds) {
  for (uint32_t i = 0; i + 1 < kLatencyBuckets; i++) {
    const uint64_t end_ns = latency_bucket_end_ns(i);
    EXPECT_EQ(latency_bucket(end_ns - 1), i) << end_ns;
    EXPECT_EQ(latency_bucket(end_ns), i + 1) << end_ns;
    if (i == 0 || i + 2 == kLatencyBuckets) continue;
    EXPECT_LE(latency_bucket_end_ns(i + 1) - end_ns, end_ns / 8) << end_ns;
  }
}

TEST(LatencyBuckets, WhatIsShorterOrLongerIsInTheFirstOrLast) {
  EXPECT_EQ(latency_bucket(0), 0u);
  EXPECT_EQ(latency_bucket((1u << kLatencyFirstBit) - 1), 0u);
  EXPECT_EQ(latency_bucket(uint64_t(1) << kLatencyLastBit), kLatencyBuckets - 1);
  EXPECT_EQ(latency_bucket(UINT64_MAX), kLatencyBuckets - 1);
  EXPECT_EQ(latency_bucket_end_ns(0), uint64_t(1) << kLatencyFirstBit);
  EXPECT_EQ(latency_bucket_end_ns(kLatencyBuckets - 1), UINT64_MAX);
}

TEST(LatencyBuckets, AQuantileIsTheBucketThatHoldsIt) {
  std::array<uint64_t, kLatencyBuckets> counts{};
  EXPECT_EQ(latency_quantile(counts, 0.5), 0u);
  counts[10] = 98, counts[20] = 1, counts[30] = 1;
  EXPECT_EQ(latency_quantile(counts, 0), 10u);
  EXPECT_EQ(latency_quantile(counts, 0.98), 10u);
  EXPECT_EQ(latency_quantile(counts, 0.99), 20u);
  EXPECT_EQ(latency_quantile(counts, 1), 30u);
}

}  // namespace
}  // namespace tessera::base
