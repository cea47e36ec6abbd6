// How a grid is cut: pieces tile it exactly, in order, within the budget.
#include "interpose/slice/cut.h"

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
        const Piece p = next_piece(grid, next, budget);
        ASSERT_LE(p.blocks() * 4, (budget ? budget : 1) * 5);  // a quarter more at most
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

TEST(Pieces, SharesAreEven) {
  const uint32_t row[3] = {16, 1, 1};
  EXPECT_EQ(next_piece(row, 0, 14).blocks(), 16u);  // not 14 and then 2
  EXPECT_EQ(next_piece(row, 0, 12).blocks(), 8u);   // 8 and 8, not 12 and 4
  EXPECT_EQ(next_piece(row, 8, 12).blocks(), 8u);
  const uint32_t plane[3] = {16, 20, 1};
  EXPECT_EQ(next_piece(plane, 0, 48).extent[1], 3u);  // seven parts of three rows; the last is two
  EXPECT_EQ(next_piece(plane, 0, 300).extent[1], 20u);
}

TEST(BlocksPerSlice, NoPieceIsWiderThanANarrowLease) {
  const uint32_t grids[][3] = {{1000, 1, 1}, {7, 50, 3}, {16, 16, 4}};
  for (const auto& grid : grids) {
    const uint64_t total = uint64_t(grid[0]) * grid[1] * grid[2];
    for (uint32_t width = 1; width < 40; width++)
      for (uint64_t done = 0; done < total;) {
        const uint64_t budget = blocks_per_slice(total - done, 1'000'000, 1'000'000, 8, 16, width);
        const uint64_t n = next_piece(grid, done, budget).blocks();
        ASSERT_LE(n, width);
        done += n;
      }
  }
}

TEST(LongBlocks, AreSeenOnSlicesOfAtMostHalfAWave) {
  gate::Timing t{};
  EXPECT_FALSE(has_long_blocks(t, 1'000'000, 64));
  t.sample_blocks = 64;  // a full wave of short blocks takes long too
  t.sample_ns = 3'000'000;
  EXPECT_FALSE(has_long_blocks(t, 1'000'000, 64));
  t.sample_blocks = 8;
  t.sample_ns = 2'900'000;
  EXPECT_TRUE(has_long_blocks(t, 1'000'000, 64));
  t.sample_blocks = 64;  // remembered when slices are waves again
  EXPECT_TRUE(has_long_blocks(t, 1'000'000, 64));
  EXPECT_FALSE(has_long_blocks(t, 3'000'000, 64));  // for a longer slice they are not
}

TEST(BlocksPerSlice, FollowsTheMeasuredTimeAndWholeWaves) {
  EXPECT_EQ(blocks_per_slice(1000, 0, 1'000'000, 8, 16, 0), 8u);             // not measured: the pilot
  EXPECT_EQ(blocks_per_slice(1000, 100'000'000, 1'000'000, 8, 16, 0), 10u);  // below a wave: as measured
  EXPECT_EQ(blocks_per_slice(1000, 25'000'000, 1'000'000, 8, 16, 0), 32u);   // above: whole waves
  EXPECT_EQ(blocks_per_slice(1000, 25'000'000, 1'000'000, 8, 16, 5), 4u);    // a narrow lease
  EXPECT_EQ(blocks_per_slice(20, 25'000'000, 1'000'000, 8, 16, 0), 20u);     // never more than there are
  EXPECT_EQ(blocks_per_slice(20, UINT64_MAX, 1'000'000, 8, 16, 0), 1u);      // never none
}

}  // namespace
}  // namespace tessera::cut
