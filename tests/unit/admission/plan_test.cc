// The next part of a launch to go out, and its length for the account.
#include "admission/plan.h"

#include <gtest/gtest.h>

#include <random>

#include "base/units.h"

namespace tessera::admission {
namespace {

// 1000 blocks of 100 us on 108 SMs, 8 at once on each.
PlannedLaunch wide_launch() {
  return {.grid = {1000, 1, 1},
          .blocks = 1000,
          .sm_count = 108,
          .wave_blocks = 864,
          .expected_ns = 3'000 * base::kNsPerUs,
          .block_ps = 3'000'000,
          .may_confine = true,
          .slice_occupancy = {216, 864}};
}

LeaseView granted() {
  return {.grant = Grant::kGranted,
          .window_ns = 500 * base::kNsPerUs,
          .slice_ns = 200 * base::kNsPerUs,
          .long_block_ns = 200 * base::kNsPerUs};
}

TEST(Plan, WhatCannotBeCutGoesWhole) {
  const Plan p = plan(wide_launch(), {}, granted());
  EXPECT_FALSE(p.sliced);
  EXPECT_EQ(p.box.blocks(), 1000u);
  EXPECT_EQ(p.sms, 0u);
  EXPECT_EQ(p.estimate_ns, 3'000 * base::kNsPerUs);
}

TEST(Plan, OnFewerSmsItCountsAsLonger) {
  LeaseView lease = granted();
  lease.reserved_sms = 27;  // a quarter
  const Plan p = plan(wide_launch(), {}, lease);
  EXPECT_EQ(p.sms, 81u);
  EXPECT_EQ(p.estimate_ns, 4'000 * base::kNsPerUs);
  EXPECT_EQ(plan(wide_launch(), {.no_sms = true}, lease).sms, 0u);
  EXPECT_EQ(plan(wide_launch(), {.let_go = true}, lease).sms, 0u);
  PlannedLaunch fits = wide_launch();  // into the SMs that are left
  fits.grid[0] = 640, fits.blocks = 640;
  EXPECT_EQ(plan(fits, {}, lease).sms, 81u);
  EXPECT_EQ(plan(fits, {}, lease).estimate_ns, 3'000 * base::kNsPerUs);
  PlannedLaunch in_clusters = wide_launch();
  in_clusters.may_confine = false;
  EXPECT_EQ(plan(in_clusters, {}, lease).sms, 0u);
}

TEST(Plan, WhatCanBeCutAndWasNeverTimedIsTimedOnAllSms) {
  LeaseView lease = granted();
  lease.reserved_sms = 27;
  lease.slice_ns = 0;  // nothing is cut
  PlannedLaunch l = wide_launch();
  l.may_cut = true;
  EXPECT_EQ(plan(l, {}, lease).sms, 81u);
  l.block_ps = 0;
  EXPECT_EQ(plan(l, {}, lease).sms, 0u);
}

TEST(Plan, SlicesOfLongBlocksOnFewerSmsCountAsLonger) {
  LeaseView lease = granted();
  PlannedLaunch l = wide_launch();
  l.may_cut = true;
  l.sliced = {.block_ps = 3'000'000, .block_ns = 400 * base::kNsPerUs, .sample_blocks = 864};
  const Plan on_all = plan(l, {}, lease);
  ASSERT_TRUE(on_all.sliced);
  lease.reserved_sms = 27;
  const Plan on_some = plan(l, {}, lease);
  ASSERT_TRUE(on_some.sliced);
  EXPECT_EQ(on_some.sms, 81u);
  EXPECT_LE(on_some.wave_blocks, 648u);
  EXPECT_GE(on_some.estimate_ns, on_some.box.blocks() * 4'000);
  l.one_by_one = true;
  EXPECT_EQ(plan(l, {}, lease).sms, 0u);
}

TEST(Plan, WhatWasLetGoGoesInOnePiece) {
  PlannedLaunch l = wide_launch();
  l.may_cut = true;
  EXPECT_TRUE(plan(l, {}, granted()).sliced);
  EXPECT_FALSE(plan(l, {.let_go = true}, granted()).sliced);
  const Plan rest = plan(l, {.done = 216, .let_go = true}, granted());
  EXPECT_TRUE(rest.sliced);  // a part was sent: the original cannot go any more
  EXPECT_EQ(rest.box.blocks(), 784u);
  LeaseView free = granted();
  free.grant = Grant::kFree;
  EXPECT_FALSE(plan(l, {}, free).sliced);
  EXPECT_EQ(plan(l, {.done = 216}, free).box.blocks(), 784u);
}

// Whatever changes on the way, the boxes of a launch are its grid, in order.
TEST(Plan, PiecesTileTheGrid) {
  std::mt19937 random(11);
  const auto up_to = [&](uint32_t n) { return uint32_t(random() % n); };
  for (int round = 0; round < 2'000; round++) {
    PlannedLaunch l{.grid = {1 + up_to(200), 1 + up_to(20), 1 + up_to(4)},
                    .sm_count = 108,
                    .wave_blocks = 864,
                    .expected_ns = 10'000 * base::kNsPerUs,
                    .block_ps = 1 + up_to(50'000'000),
                    .may_cut = true,
                    .may_confine = up_to(2) == 0,
                    .slice_occupancy = {216, uint64_t(up_to(2)) * 864}};
    l.blocks = uint64_t(l.grid[0]) * l.grid[1] * l.grid[2];
    Progress progress;
    while (progress.done < l.blocks) {
      LeaseView lease = granted();
      lease.slice_ns = up_to(500) * base::kNsPerUs;
      lease.reserved_sms = up_to(2) * 16;
      lease.confine_all = up_to(2) == 0;
      progress.let_go = up_to(10) == 0;
      progress.no_sms = up_to(4) == 0;
      if (up_to(3) == 0) l.sliced = {.block_ps = 1 + up_to(50'000'000), .block_ns = up_to(1'000'000)};
      Plan p = plan(l, progress, lease);
      if (!p.sliced) {
        ASSERT_EQ(progress.done, 0u);
        break;
      }
      if (p.sms == 0) p = probed(l, progress, lease, p, up_to(9));
      const uint64_t first =
          p.box.origin[0] + uint64_t(l.grid[0]) * (p.box.origin[1] + uint64_t(l.grid[1]) * p.box.origin[2]);
      ASSERT_EQ(first, progress.done);
      for (int i = 0; i < 3; i++) ASSERT_LE(p.box.origin[i] + p.box.extent[i], l.grid[i]);
      ASSERT_GT(p.estimate_ns, 0u);
      progress.done += p.box.blocks();
      ASSERT_LE(progress.done, l.blocks);
    }
  }
}

TEST(Plan, HoldsUnderALeaseThatSaysTheSame) {
  const LeaseView lease = granted();
  const auto holds_with = [&](auto change) {
    LeaseView other = lease;
    change(other);
    return same_plans(lease, other);
  };
  EXPECT_TRUE(holds_with([](auto& l) { l.word++, l.expires_ns = 7, l.packed = true, l.priority = 3; }));
  EXPECT_TRUE(holds_with([](auto& l) { l.grant = Grant::kHold; }));
  EXPECT_FALSE(holds_with([](auto& l) { l.grant = Grant::kFree; }));
  EXPECT_FALSE(holds_with([](auto& l) { l.slice_ns = 0; }));
  EXPECT_FALSE(holds_with([](auto& l) { l.window_ns++; }));
  EXPECT_FALSE(holds_with([](auto& l) { l.reserved_sms = 16; }));
  EXPECT_FALSE(holds_with([](auto& l) { l.confine_all = true; }));
}

}  // namespace
}  // namespace tessera::admission
