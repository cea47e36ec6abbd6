// How a grid is cut: pieces tile it exactly, in order, within the budget.
#include "interpose/slice/cluster.h"

#include <gtest/gtest.h>

namespace tessera::cut {
namespace {

TEST(Pieces, TileEveryGridInOrderWithoutOverlap) {
  const uint32_t grids[][3] = {{1, 1, 1}, {100, 1, 1}, {7, 5, 3},    {1, 64, 1},
                               {1, 1, 9}, {16, 16, 4}, {65535, 2, 1}};
  for (const auto& grid : grids) {
    const uint64_t total = uint64_t(grid[0]) * grid[1] * grid[2];
    for (uint64_t budget :
         {uint64_t(0), uint64_t(1), uint64_t(3), uint64_t(7), uint64_t(20), uint64_t(40), total}) {
      if (total / (budget ? budget : 1) > 4'000) continue;
      uint64_t next = 0;
      while (next < total) {
        const bool strict = budget % 2;
        const Piece p = next_piece(grid, next, {budget, 5, strict});
        const uint64_t most = budget ? budget : 1;
        ASSERT_LE(p.blocks() * 3, strict ? most * 3 : most * 4);  // a third more at most
        ASSERT_GT(p.blocks(), 0u);
        // Every block of the box, in linear order, follows the last one of the piece before.
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
TEST(Pieces, InClustersTileTheGrid) {
  const uint32_t clusters[][3] = {{1, 1, 1}, {13, 1, 1}, {5, 3, 1}, {3, 4, 2}};
  const Cluster shapes[] = {{{1, 1, 1}}, {{2, 1, 1}}, {{8, 1, 1}}, {{1, 2, 1}}, {{2, 2, 2}}, {{3, 1, 2}}};
  for (const auto& n : clusters)
    for (const Cluster& c : shapes) {
      const uint32_t grid[3] = {n[0] * c.shape[0], n[1] * c.shape[1], n[2] * c.shape[2]};
      const uint64_t total = uint64_t(grid[0]) * grid[1] * grid[2];
      for (const uint64_t budget : {uint64_t(1), uint64_t(5), uint64_t(16), uint64_t(50), total})
        for (const bool strict : {false, true}) {
          uint64_t done = 0, next = 0;
          while (done < total) {
            const Piece p = next_piece(grid, c, done, {budget, 6 * c.blocks(), strict});
            if (strict && budget >= c.blocks()) {
              ASSERT_LE(p.blocks(), budget);
            }
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

TEST(Clusters, ShapesOfLaunchAndFunction) {
  gate::KernelRecord kernel;
  gate::LaunchCall launch{nullptr, {12, 4, 2}, {32, 1, 1}, 0, {}, nullptr, nullptr, nullptr};
  CUlaunchAttribute attributes[2] = {};
  CUlaunchConfig config{};
  config.attrs = attributes;
  const auto shape = [&](unsigned n_attributes) {
    config.numAttrs = n_attributes;
    launch.config = n_attributes ? &config : nullptr;
    Cluster c;
    const bool known = cluster_of(launch, kernel, &c);
    return known ? std::vector<uint32_t>(c.shape, c.shape + 3) : std::vector<uint32_t>{};
  };
  const auto function_has = [&](int x, int y, int z, bool must_be_set = false) {
    const int of_function[3] = {x, y, z};
    uint64_t packed = 0;
    const bool possible = pack_cluster(of_function, must_be_set, &packed);
    kernel.cluster.store(packed);
    return possible;
  };
  using V = std::vector<uint32_t>;
  EXPECT_EQ(shape(0), (V{1, 1, 1}));
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim = {2, 4, 1};
  EXPECT_EQ(shape(1), (V{1, 1, 1}));
  EXPECT_EQ(shape(2), (V{2, 4, 1}));
  EXPECT_TRUE(function_has(3, 1, 2));
  EXPECT_EQ(shape(0), (V{3, 1, 2}));
  EXPECT_EQ(shape(2), V{});
  attributes[1].value.clusterDim = {3, 1, 2};
  EXPECT_EQ(shape(2), (V{3, 1, 2}));
  attributes[1].value.clusterDim = {2, 4, 1};
  EXPECT_TRUE(function_has(5, 1, 1));  // no divisor of the grid
  EXPECT_EQ(shape(0), V{});
  EXPECT_TRUE(function_has(0, 0, 0, true));  // the launch must say it
  EXPECT_EQ(shape(0), V{});
  EXPECT_EQ(shape(2), (V{2, 4, 1}));
  EXPECT_TRUE(function_has(2, 1, 1, true));
  EXPECT_EQ(shape(0), (V{2, 1, 1}));
  EXPECT_FALSE(function_has(2, 0, 1));
  EXPECT_FALSE(function_has(2, -1, 1));
  EXPECT_FALSE(function_has(70'000, 1, 1));
  attributes[1].value.clusterDim = {2, 0, 1};
  EXPECT_EQ(shape(2), V{});
  attributes[1].value.clusterDim = {2, 4, 1};
  attributes[0] = attributes[1];  // twice
  EXPECT_EQ(shape(2), V{});
}

TEST(Pieces, LessThanAWaveIsSharedEvenly) {
  const uint32_t row[3] = {16, 1, 1};
  EXPECT_EQ(next_piece(row, 0, {14}).blocks(), 16u);  // not 14 and then 2
  EXPECT_EQ(next_piece(row, 0, {12}).blocks(), 16u);  // nearer to 12 than 8
  EXPECT_EQ(next_piece(row, 0, {10}).blocks(), 8u);   // 8 and 8, not 10 and 6
  EXPECT_EQ(next_piece(row, 8, {10}).blocks(), 8u);
  EXPECT_EQ(next_piece(row, 0, {14, 0, true}).blocks(), 8u);  // never more than asked
  const uint32_t plane[3] = {16, 20, 1};
  EXPECT_EQ(next_piece(plane, 0, {48}).extent[1], 3u);  // seven parts of three rows; the last is two
  EXPECT_EQ(next_piece(plane, 0, {300}).extent[1], 20u);
}

TEST(Pieces, WholeWavesStayWhole) {
  const uint32_t row[3] = {1000, 1, 1};
  uint64_t waves = 0;  // that the GPU needs for all pieces, each begun one counted as a whole one
  for (uint64_t done = 0; done < 1000;) {
    const uint64_t n = next_piece(row, done, {320, 160, false}).blocks();
    waves += (n + 159) / 160;
    done += n;
  }
  EXPECT_EQ(waves, 7u);                                      // as many as of the uncut launch
  EXPECT_EQ(next_piece(row, 0, {640, 160}).blocks(), 640u);  // not two of 500: those are eight waves
  EXPECT_EQ(next_piece(row, 200, {640, 160}).blocks(),
            800u);  // little more than four waves: the rest with them
  EXPECT_EQ(next_piece(row, 800, {160, 160}).blocks(), 160u);  // but not two waves instead of one
}

TEST(BlocksPerSlice, NoPieceIsWiderThanANarrowLease) {
  const uint32_t grids[][3] = {{1000, 1, 1}, {7, 50, 3}, {16, 16, 4}};
  for (const auto& grid : grids) {
    const uint64_t total = uint64_t(grid[0]) * grid[1] * grid[2];
    for (uint32_t width = 1; width < 40; width++)
      for (uint64_t done = 0; done < total;) {
        const uint64_t budget = blocks_per_slice(total - done, 1'000'000, 1'000'000, 8, 16, width);
        const uint64_t n = next_piece(grid, done, {budget, 16, true}).blocks();
        ASSERT_LE(n, width);
        done += n;
      }
  }
}

// A kernel of which 64 blocks fill the GPU in 320 us.
class Measured : public testing::Test {
 protected:
  Measured() {
    t_.block_ps = 5'000'000;
    t_.sample_blocks = 64;
    t_.sample_ns = 320'000;
  }
  uint64_t blocks(uint64_t slice_ns) { return budget_of(t_, 1280, slice_ns, width_); }
  gate::Timing t_{};
  Width width_{.pilot = 8, .wave = 64, .most = 0, .long_percent = 75, .long_block_ns = 420'000};
};

TEST_F(Measured, WorkThatSharesTheGpuIsCutToTime) {
  t_.block_ns = 60'000;
  EXPECT_EQ(blocks(100'000), 20u);
  EXPECT_EQ(blocks(30'000), 12u);   // no slice is shorter than 60 us, whatever is in it
  EXPECT_EQ(blocks(300'000), 64u);  // a few more for a whole wave
  EXPECT_EQ(blocks(1'000'000), 192u);
}

TEST_F(Measured, WhereLessThanAWaveTakesAsLongItIsAWave) {
  t_.block_ns = 300'000;
  EXPECT_EQ(blocks(100'000), 64u);
  EXPECT_EQ(blocks(200'000), 64u);
}

TEST_F(Measured, LongBlocksLeaveRoom) {
  t_.block_ns = 430'000;
  EXPECT_EQ(blocks(300'000), 48u);
  EXPECT_EQ(blocks(1'000'000), 48u);
  width_.long_block_ns = 440'000;  // they are not long for this lease
  EXPECT_EQ(blocks(300'000), 64u);
  width_.long_block_ns = 100'000;  // the longer they last, the more room
  EXPECT_EQ(blocks(300'000), 22u);
  width_.long_block_ns = 10'000;
  EXPECT_EQ(blocks(300'000), 4u);
  width_.long_percent = 100;  // no room wanted
  EXPECT_EQ(blocks(300'000), 64u);
  width_.long_percent = 75;
  width_.long_block_ns = 400'000;
  width_.most = 5;  // and a packed one is narrower
  EXPECT_EQ(blocks(300'000), 5u);
}

TEST(BlocksPerSlice, FollowsTheMeasuredTimeAndWholeWaves) {
  EXPECT_EQ(blocks_per_slice(1000, 0, 1'000'000, 8, 16, 0), 8u);             // not measured: the pilot
  EXPECT_EQ(blocks_per_slice(1000, 100'000'000, 1'000'000, 8, 16, 0), 10u);  // below a wave: as measured
  EXPECT_EQ(blocks_per_slice(1000, 25'000'000, 1'000'000, 8, 16, 0), 32u);   // above: whole waves
  EXPECT_EQ(blocks_per_slice(1000, 25'000'000, 1'000'000, 8, 16, 5), 5u);    // a narrow lease
  EXPECT_EQ(blocks_per_slice(20, 25'000'000, 1'000'000, 8, 16, 0), 20u);     // never more than there are
  EXPECT_EQ(blocks_per_slice(20, UINT64_MAX, 1'000'000, 8, 16, 0), 1u);      // never none
}

}  // namespace
}  // namespace tessera::cut
