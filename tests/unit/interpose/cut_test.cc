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
        ASSERT_LE(p.blocks(), budget ? budget : 1);
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

}  // namespace
}  // namespace tessera::cut
