// How a launch is cut: how many blocks a slice has, and boxes that tile the grid exactly, in order.
#include "admission/slices.h"

#include <gtest/gtest.h>

namespace tessera::admission {
namespace {

TEST(Boxes, TileEveryGridInOrderWithoutOverlap) {
  const uint32_t grids[][3] = {{1, 1, 1}, {100, 1, 1}, {7, 5, 3},    {1, 64, 1},
                               {1, 1, 9}, {16, 16, 4}, {65535, 2, 1}};
  for (const auto& grid : grids) {
    const uint64_t total = uint64_t(grid[0]) * grid[1] * grid[2];
    for (uint64_t budget :
         {uint64_t(0), uint64_t(1), uint64_t(3), uint64_t(7), uint64_t(20), uint64_t(40), total}) {
      if (total / (budget ? budget : 1) > 4'000) continue;
      uint64_t next = 0;
      while (next < total) {
        const Box p = next_box(grid, next, {budget, 5});
        const uint64_t most = budget ? budget : 1;
        ASSERT_LE(p.blocks() * 3, most * 4);  // a third more at most
        ASSERT_GT(p.blocks(), 0u);
        // Every block of the box, in linear order, follows the last one of the box before.
        uint64_t at = next;
        for (uint32_t z = 0; z < p.extent[2]; z++)
          for (uint32_t y = 0; y < p.extent[1]; y++)
            for (uint32_t x = 0; x < p.extent[0]; x++, at++)
              ASSERT_EQ((uint64_t(p.origin[2] + z) * grid[1] + p.origin[1] + y) * grid[0] + p.origin[0] + x,
                        at);
        for (int d = 0; d < 3; d++) ASSERT_LE(p.origin[d] + p.extent[d], grid[d]);
        next += p.blocks();
      }
      ASSERT_EQ(next, total);
    }
  }
}

// Whole clusters, each once, in the order of their numbers.
TEST(Boxes, InClustersTileTheGrid) {
  const uint32_t clusters[][3] = {{1, 1, 1}, {13, 1, 1}, {5, 3, 1}, {3, 4, 2}};
  const Cluster shapes[] = {{{1, 1, 1}}, {{2, 1, 1}}, {{8, 1, 1}}, {{1, 2, 1}}, {{2, 2, 2}}, {{3, 1, 2}}};
  for (const auto& n : clusters)
    for (const Cluster& c : shapes) {
      const uint32_t grid[3] = {n[0] * c.shape[0], n[1] * c.shape[1], n[2] * c.shape[2]};
      const uint64_t total = uint64_t(grid[0]) * grid[1] * grid[2];
      for (const uint64_t budget : {uint64_t(1), uint64_t(5), uint64_t(16), uint64_t(50), total}) {
        uint64_t done = 0, next = 0;
        while (done < total) {
          const Box p = next_box(grid, c, done, {budget, 6 * c.blocks()});
          for (int axis = 0; axis < 3; axis++) {
            ASSERT_EQ(p.origin[axis] % c.shape[axis], 0u);
            ASSERT_EQ(p.extent[axis] % c.shape[axis], 0u);
            ASSERT_GT(p.extent[axis], 0u);
            ASSERT_LE(p.origin[axis] + p.extent[axis], grid[axis]);
          }
          for (uint32_t z = p.origin[2]; z < p.origin[2] + p.extent[2]; z += c.shape[2])
            for (uint32_t y = p.origin[1]; y < p.origin[1] + p.extent[1]; y += c.shape[1])
              for (uint32_t x = p.origin[0]; x < p.origin[0] + p.extent[0]; x += c.shape[0])
                ASSERT_EQ((z / c.shape[2] * n[1] + y / c.shape[1]) * n[0] + x / c.shape[0], next++);
          done += p.blocks();
        }
        ASSERT_EQ(done, total);
        ASSERT_EQ(next, total / c.blocks());
      }
    }
}

TEST(Boxes, LessThanAWaveIsSharedEvenly) {
  const uint32_t row[3] = {16, 1, 1};
  EXPECT_EQ(next_box(row, 0, {14}).blocks(), 16u);  // not 14 and then 2
  EXPECT_EQ(next_box(row, 0, {12}).blocks(), 16u);  // nearer to 12 than 8
  EXPECT_EQ(next_box(row, 0, {10}).blocks(), 8u);   // 8 and 8, not 10 and 6
  EXPECT_EQ(next_box(row, 8, {10}).blocks(), 8u);
  const uint32_t plane[3] = {16, 20, 1};
  EXPECT_EQ(next_box(plane, 0, {48}).extent[1], 3u);  // seven parts of three rows; the last is two
  EXPECT_EQ(next_box(plane, 0, {300}).extent[1], 20u);
}

TEST(Boxes, WholeWavesStayWhole) {
  const uint32_t row[3] = {1000, 1, 1};
  uint64_t waves = 0;  // that the GPU needs for all boxes, each begun one counted as a whole one
  for (uint64_t done = 0; done < 1000;) {
    const uint64_t n = next_box(row, done, {320, 160}).blocks();
    waves += (n + 159) / 160;
    done += n;
  }
  EXPECT_EQ(waves, 7u);                                    // as many as of the uncut launch
  EXPECT_EQ(next_box(row, 0, {640, 160}).blocks(), 640u);  // not two of 500: those are eight waves
  EXPECT_EQ(next_box(row, 200, {640, 160}).blocks(),
            800u);  // little more than four waves: the rest with them
  EXPECT_EQ(next_box(row, 800, {160, 160}).blocks(), 160u);  // but not two waves instead of one
}

LeaseView lease(uint64_t slice_ns) {
  return {.grant = Grant::kGranted, .slice_ns = slice_ns, .long_block_ns = slice_ns};
}

// A kernel of which 64 blocks fill the GPU in 320 us.
class Measured : public testing::Test {
 protected:
  uint64_t blocks(uint64_t slice_ns) {
    lease_.slice_ns = slice_ns;
    return slice_blocks(history_, 0, 1280, lease_, {8, 64});
  }
  History history_{.block_ps = 5'000'000, .sample_blocks = 64, .sample_ns = 320'000};
  LeaseView lease_{.grant = Grant::kGranted, .long_width_percent = 75, .long_block_ns = 420'000};
};

TEST_F(Measured, WorkThatSharesTheGpuIsCutToTime) {
  history_.block_ns = 60'000;
  EXPECT_EQ(blocks(100'000), 20u);
  EXPECT_EQ(blocks(30'000), 12u);   // no slice is shorter than 60 us, whatever is in it
  EXPECT_EQ(blocks(300'000), 64u);  // a few more for a whole wave
  EXPECT_EQ(blocks(1'000'000), 192u);
}

TEST_F(Measured, WhereLessThanAWaveTakesAsLongItIsAWave) {
  history_.block_ns = 300'000;
  EXPECT_EQ(blocks(100'000), 64u);
  EXPECT_EQ(blocks(200'000), 64u);
}

TEST_F(Measured, SlicesOfLongBlocksAreEven) {
  history_.block_ns = 430'000;
  lease_.long_width_percent = 100;
  const Occupancy reserved{8, 54};                                   // of 64 that fill the whole GPU
  EXPECT_EQ(slice_blocks(history_, 0, 128, lease_, reserved), 43u);  // three slices, as of 54, 54 and 20
  EXPECT_EQ(slice_blocks(history_, 0, 85, lease_, reserved), 43u);
  EXPECT_EQ(slice_blocks(history_, 0, 42, lease_, reserved), 42u);
  EXPECT_EQ(slice_blocks(history_, 0, 108, lease_, reserved), 54u);
}

TEST_F(Measured, LongBlocksLeaveRoom) {
  history_.block_ns = 430'000;
  EXPECT_EQ(blocks(300'000), 48u);
  EXPECT_EQ(blocks(1'000'000), 48u);
  lease_.long_block_ns = 440'000;  // they are not long for this lease
  EXPECT_EQ(blocks(300'000), 64u);
  lease_.long_block_ns = 100'000;  // the longer they last, the more room
  EXPECT_EQ(blocks(300'000), 22u);
  lease_.long_block_ns = 10'000;
  EXPECT_EQ(blocks(300'000), 4u);
  lease_.long_width_percent = 100;  // no room wanted
  EXPECT_EQ(blocks(300'000), 64u);
}

TEST_F(Measured, GrowsWhileBlocksBecomeCheaperAndThereIsRoom) {
  history_ = {.block_ps = 20'000'000, .sample_blocks = 8, .sample_ns = 160'000, .growing = true};
  EXPECT_EQ(blocks(400'000), 20u);
  history_.block_ps = 40'000'000;
  EXPECT_EQ(blocks(400'000), 16u);  // twice the sample
  history_.sample_blocks = 40;
  EXPECT_EQ(blocks(400'000), 64u);  // twice would be more than a wave: a wave
  history_.growing = false;
  EXPECT_EQ(blocks(400'000), 10u);
}

TEST_F(Measured, IsNeverLongerThanTheWindow) {
  lease_.window_ns = 100'000;
  EXPECT_EQ(blocks(1'000'000), 20u);
}

TEST(SliceBlocks, FollowsTheMeasuredTimeAndWholeWaves) {
  const auto blocks = [](uint64_t left, uint64_t block_ps) {
    return slice_blocks({}, block_ps, left, lease(1'000'000), {8, 16});
  };
  EXPECT_EQ(blocks(1000, 0), 8u);             // not measured: the pilot
  EXPECT_EQ(blocks(1000, 100'000'000), 10u);  // below a wave: as measured
  EXPECT_EQ(blocks(1000, 25'000'000), 32u);   // above: whole waves
  EXPECT_EQ(blocks(20, 25'000'000), 20u);     // never more than there are
  EXPECT_EQ(blocks(20, UINT64_MAX), 1u);      // never none
}

TEST(WorthCutting, LongerThanASliceOrMoreThanTwoPilotsWhereThatIsNotKnown) {
  const LeaseView granted = lease(1'000'000);
  EXPECT_TRUE(worth_cutting(100, 10'000'010, 8, granted));
  EXPECT_FALSE(worth_cutting(100, 10'000'000, 8, granted));
  EXPECT_TRUE(worth_cutting(17, 0, 8, granted));
  EXPECT_FALSE(worth_cutting(16, 0, 8, granted));
  EXPECT_FALSE(worth_cutting(1, UINT64_MAX, 8, granted));
  EXPECT_FALSE(worth_cutting(100, UINT64_MAX / 200, 8, {.grant = Grant::kFree, .slice_ns = 1}));
}

TEST(ProbeBlocks, EveryFourthTimedSliceIsHalfInWholeWaves) {
  EXPECT_EQ(probe_blocks(4, 96, 16), 48u);
  EXPECT_EQ(probe_blocks(8, 80, 16), 32u);
  EXPECT_EQ(probe_blocks(5, 96, 16), 96u);
  EXPECT_EQ(probe_blocks(0, 96, 16), 96u);
  EXPECT_EQ(probe_blocks(4, 31, 16), 31u);
}

}  // namespace
}  // namespace tessera::admission
