// Cutting products: pieces cover C exactly once, and reading the operands through their pointers gives the same product.
#include "operations/split.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <vector>

#include "operations/split_groups.h"

namespace tessera::operations {
namespace {

using enum SplitFamily;

TEST(PiecesOf, APowerOfTwoThatFollowsTheSlices) {
  EXPECT_EQ(pieces_of(0, 100), 1);
  EXPECT_EQ(pieces_of(199, 100), 1);
  EXPECT_EQ(pieces_of(200, 100), 2);
  EXPECT_EQ(pieces_of(300, 100), 4);
  EXPECT_EQ(pieces_of(1'000, 100), 16);
  EXPECT_EQ(pieces_of(UINT64_MAX, 1), kMostPieces);
  EXPECT_EQ(pieces_of(1'000, 0), 1);
}

TEST(SplitOf, ByTheBatchElseAlongTheLongerSide) {
  EXPECT_EQ(split_of(kStridedBatch, {64, 64, 64, 10}, 4), (Split{SplitAxis::kBatch, 10, 3}));
  EXPECT_EQ(split_of(kStridedBatch, {64, 64, 64, 10}, 100), (Split{SplitAxis::kBatch, 10, 1}));
  EXPECT_EQ(split_of(kProduct, {256, 1000, 64, 1}, 2), (Split{SplitAxis::kColumns, 1000, 512}));
  EXPECT_EQ(split_of(kProduct, {1000, 256, 64, 1}, 4), (Split{SplitAxis::kRows, 1000, 256}));
  EXPECT_EQ(split_of(kProduct, {1000, 256, 64, 1}, 4)->pieces(), 4);
  EXPECT_EQ(split_of(kProduct, {INT64_MAX, 1, 1, 1}, 2)->pieces(), 2);
}

TEST(SplitOf, WhatIsOnePieceIsNotCut) {
  for (const GemmShape& shape :
       {GemmShape{128, 128, 64, 1}, GemmShape{0, 1000, 64, 1}, GemmShape{1000, 1000, 0, 1},
        GemmShape{1000, 1000, 64, 0}, GemmShape{-1, 1000, 64, 2}})
    EXPECT_EQ(split_of(kStridedBatch, shape, 4), std::nullopt);
  EXPECT_EQ(split_of(kProduct, {1000, 1000, 64, 1}, 1), std::nullopt);
  EXPECT_EQ(split_of(kStridedBatch, {1000, 1000, 64, 8}, 0), std::nullopt);
}

TEST(Leads, OfTheWholeCall) {
  const Matrix n{0, 8, 0, 32, false}, t{0, 8, 0, 32, true};
  EXPECT_TRUE(
      leading_dimensions_fit({8, 5, 9, 1}, n, t, n));  // columns of B as it lies there have 5 elements
  EXPECT_TRUE(leading_dimensions_fit({8, 5, 8, 1}, n, n, n));
  EXPECT_FALSE(leading_dimensions_fit({9, 5, 8, 1}, n, n, n));
  EXPECT_TRUE(leading_dimensions_fit({4, 8, 8, 1}, t, t, n));
  EXPECT_FALSE(leading_dimensions_fit({4, 9, 8, 1}, t, t, n));
}

// A new family or axis is cut by nobody until the table says how its arguments move.
TEST(SplitOf, AlongAxesThatHaveARowOnly) {
  constexpr Moves kNot = Moves::kNot, kStride = Moves::kByStride, kArray = Moves::kInArray,
                  kColumn = Moves::kByColumn, kRow = Moves::kByRow;
  const auto moves = [](SplitFamily family, SplitAxis axis) -> std::vector<Moves> {
    const SplitRow* row = split_row(family, axis);
    return row ? std::vector{row->a, row->b, row->c} : std::vector<Moves>{};
  };
  const std::vector<Moves> none, batch{kStride, kStride, kStride}, arrays{kArray, kArray, kArray},
      columns{kNot, kColumn, kColumn}, rows{kRow, kNot, kRow}, images{kStride, kNot, kStride};
  const struct {
    SplitFamily family;
    std::vector<Moves> batch, columns, rows;
  } expected[] = {{kProduct, none, columns, rows},     {kStridedBatch, batch, columns, rows},
                  {kPointerBatch, arrays, none, none}, {kGroups, arrays, none, none},
                  {kLayouts, batch, columns, rows},    {kConvolution, images, none, none}};
  for (const auto& [family, by_batch, by_columns, by_rows] : expected) {
    EXPECT_EQ(moves(family, SplitAxis::kBatch), by_batch);
    EXPECT_EQ(moves(family, SplitAxis::kColumns), by_columns);
    EXPECT_EQ(moves(family, SplitAxis::kRows), by_rows);
    for (const GemmShape& shape :
         {GemmShape{1000, 256, 64, 1}, GemmShape{256, 1000, 64, 1}, GemmShape{1000, 1000, 64, 9}}) {
      const auto split = split_of(family, shape, 4);
      EXPECT_TRUE(!split || split_row(family, split->axis));
      EXPECT_EQ(split.has_value(), shape.count > 1 ? !by_batch.empty() : !by_rows.empty());
    }
  }
}

TEST(SplitOf, ABiasThatCannotMoveStays) {
  const Matrix of_each{.stride = 1000, .bits = 16}, of_all{.bits = 16};
  EXPECT_EQ(split_of(kLayouts, {1000, 256, 64, 1}, 4, &of_all), (Split{SplitAxis::kColumns, 256, 128}));
  EXPECT_EQ(split_of(kLayouts, {1000, 128, 64, 1}, 4, &of_all), std::nullopt);
  EXPECT_EQ(split_of(kLayouts, {1000, 1000, 64, 9}, 4, &of_all), (Split{SplitAxis::kBatch, 9, 3}));
  EXPECT_EQ(split_of(kLayouts, {1000, 1000, 64, 9}, 4, &of_each), std::nullopt);
}

TEST(Moved, InAnArrayByPointers) {
  const Matrix array{.address = 0x1000, .leading = 7, .stride = 100, .bits = 16};
  EXPECT_EQ(moved(array, Moves::kInArray, {.product = 3}), 0x1000u + 3 * sizeof(void*));
}

std::optional<uint64_t> extent_of(const GemmShape& shape, const Matrix& c) {
  const auto region = region_of(shape, c);
  return region ? std::optional(region->extent()) : std::nullopt;
}
TEST(RegionOf, FromTheFirstToTheLastElement) {
  EXPECT_EQ(extent_of({3, 2, 1, 1}, {0, 5, 0, 32, false}), 4u * (5 + 3));
  EXPECT_EQ(extent_of({2, 3, 1, 1}, {0, 5, 0, 32, true}), 4u * (5 + 3));
  EXPECT_EQ(extent_of({3, 2, 1, 4}, {0, 5, 10, 16, false}), 2u * (30 + 8));
  EXPECT_EQ(extent_of({3, 2, 1, 4}, {0, 5, 7, 16, false}), std::nullopt);  // they overlap
  EXPECT_EQ(extent_of({3, 2, 1, 1}, {0, 2, 0, 32, false}), std::nullopt);
  EXPECT_EQ(extent_of({2, 3, 1, 1}, {0, 2, 0, 32, true}), std::nullopt);
  EXPECT_EQ(extent_of({3, INT64_MAX, 1, 1}, {0, INT64_MAX, 0, 64, false}), std::nullopt);
}

// Element bytes of 1 to 16, as indices: element e of an operand at `base` has the address base + e * bytes.
struct Random {
  int64_t in(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine); }
  std::mt19937 engine{7};
};

Matrix random_matrix(Random& random, uint64_t base, int64_t rows, int64_t columns, uint32_t bits) {
  Matrix x{base, 0, 0, bits, random.in(0, 1) == 1};
  x.leading = (x.transposed ? columns : rows) + random.in(0, 3);
  x.stride = x.leading * (x.transposed ? rows : columns) + random.in(0, 5);
  return x;
}

// The place of op(X)(row, column) of a product, by the definition of the interface.
uint64_t where(const Matrix& x, int64_t product, int64_t row, int64_t column) {
  const int64_t i = x.transposed ? column : row, j = x.transposed ? row : column;
  return x.address + uint64_t(product * x.stride + i + j * x.leading) * (x.bits / 8);
}

TEST(PieceOf, PiecesTogetherReadAndWriteWhatTheWholeDoes) {
  Random random;
  for (int round = 0; round < 300; round++) {
    GemmShape shape{random.in(1, 300), random.in(1, 300), random.in(1, 9), 1};
    if (random.in(0, 1)) shape = {random.in(1, 9), random.in(1, 9), random.in(1, 9), random.in(2, 20)};
    const SplitFamily family = shape.count == 1 ? kProduct : kStridedBatch;
    const auto split = split_of(family, shape, random.in(2, 20));
    if (!split) continue;
    const auto bits = [&] { return uint32_t(8) << random.in(0, 4); };
    const Matrix a = random_matrix(random, 0x1'0000'0000, shape.m, shape.k, bits());
    const Matrix b = random_matrix(random, 0x2'0000'0000, shape.k, shape.n, bits());
    const Matrix c = random_matrix(random, 0x3'0000'0000, shape.m, shape.n, bits());
    ASSERT_TRUE(leading_dimensions_fit(shape, a, b, c));
    int64_t covered = 0;
    for (int64_t i = 0; i < split->pieces(); i++) {
      const Piece p = piece_of(*split, shape, i);
      Matrix pa = a, pb = b, pc = c;
      const SplitRow& moves = *split_row(family, split->axis);
      pa.address = moved(a, moves.a, p), pb.address = moved(b, moves.b, p), pc.address = moved(c, moves.c, p);
      const int64_t at = i * split->step;
      const bool batch = split->axis == SplitAxis::kBatch, rows = split->axis == SplitAxis::kRows,
                 columns = split->axis == SplitAxis::kColumns;
      covered += batch ? p.count : rows ? p.m : p.n;
      ASSERT_TRUE(p.m > 0 && p.n > 0 && p.count > 0);
      for (const auto& [product, row, column, k] :
           {std::array<int64_t, 4>{0, 0, 0, 0},
            std::array<int64_t, 4>{p.count - 1, p.m - 1, p.n - 1, shape.k - 1}}) {
        const int64_t whole = product + (batch ? at : 0), i0 = row + (rows ? at : 0),
                      j0 = column + (columns ? at : 0);
        ASSERT_EQ(where(pa, product, row, k), where(a, whole, i0, k));
        ASSERT_EQ(where(pb, product, k, column), where(b, whole, k, j0));
        ASSERT_EQ(where(pc, product, row, column), where(c, whole, i0, j0));
      }
    }
    ASSERT_EQ(covered, split->extent);
  }
}

// Byte by byte: some pieces write the stretches of their region.
TEST(RegionOf, OfSomePieces) {
  Random random;
  for (int round = 0; round < 100; round++) {
    GemmShape shape{random.in(1, 300), random.in(1, 300), 1, 1};
    if (random.in(0, 1)) shape = {random.in(1, 9), random.in(1, 9), 1, random.in(2, 20)};
    const SplitFamily family = shape.count == 1 ? kProduct : kStridedBatch;
    const auto split = split_of(family, shape, random.in(2, 20));
    if (!split) continue;
    const Result result{family, shape, random_matrix(random, 64, shape.m, shape.n, 32)};
    const int64_t first = random.in(0, split->pieces() - 1), n = random.in(1, split->pieces() - first);
    const Region region = region_of(result, *split, first, n);
    std::vector<int> written(region_of(shape, result.c)->extent() + 64), expected(written.size());
    for (uint64_t o = 0; o < region.outer; o++)
      for (uint64_t i = 0; i < region.inner; i++)
        for (uint64_t b = 0; b < region.bytes; b++)
          written.at(region.address + o * region.outer_step + i * region.inner_step + b)++;
    for (int64_t index = first; index < first + n; index++) {
      const Piece p = piece_of(*split, shape, index);
      for (int64_t product = 0; product < p.count; product++)
        for (int64_t row = 0; row < p.m; row++)
          for (int64_t column = 0; column < p.n; column++)
            for (uint64_t b = 0; b < 4; b++)
              expected.at(where(result.c, p.product + product, p.row + row, p.column + column) + b)++;
    }
    ASSERT_EQ(written, expected);
  }
}

// Byte by byte: the stretches of a region are the elements of C.
TEST(RegionOf, IsEachElementOnce) {
  Random random;
  for (int round = 0; round < 200; round++) {
    const GemmShape shape{random.in(1, 9), random.in(1, 9), 1, random.in(1, 4)};
    const Matrix c = random_matrix(random, 64, shape.m, shape.n, uint32_t(8) << random.in(0, 3));
    const auto region = region_of(shape, c);
    ASSERT_TRUE(region);
    std::vector<int> written(region->extent() + 64), expected(written.size());
    for (uint64_t o = 0; o < region->outer; o++)
      for (uint64_t i = 0; i < region->inner; i++)
        for (uint64_t b = 0; b < region->bytes; b++)
          written.at(region->address + o * region->outer_step + i * region->inner_step + b)++;
    for (int64_t product = 0; product < shape.count; product++)
      for (int64_t row = 0; row < shape.m; row++)
        for (int64_t column = 0; column < shape.n; column++)
          for (uint64_t b = 0; b < c.bits / 8; b++) expected.at(where(c, product, row, column) + b)++;
    EXPECT_EQ(written, expected);
  }
}

// ---- groups

struct MadeGroups {
  std::vector<int> m, n, k, size;
  Groups<int> groups() const { return {m.data(), n.data(), k.data(), size.data(), int64_t(m.size())}; }
  void add(int m_, int n_, int k_, int size_) {
    m.push_back(m_), n.push_back(n_), k.push_back(k_), size.push_back(size_);
  }
};
std::vector<GroupPiece> pieces(const MadeGroups& made, uint64_t most) {
  std::vector<GroupPiece> all;
  EXPECT_TRUE(for_pieces(made.groups(), most, [&](const GroupPiece& piece) {
    all.push_back(piece);
    return true;
  }));
  return all;
}

TEST(SplitGroups, WholeGroupsTogetherAndALargeOneByItsProducts) {
  MadeGroups g;
  g.add(1, 1, 1, 3);
  g.add(2, 2, 1, 1);
  g.add(10, 1, 1, 5);
  g.add(1, 1, 1, 1);
  const auto is = [](const GroupPiece& p, int64_t group, int64_t groups, int64_t product, int64_t products) {
    return p.group == group && p.groups == groups && p.product == product && p.products == products;
  };
  const auto all = pieces(g, 20);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_TRUE(is(all[0], 0, 2, 0, 3));
  EXPECT_TRUE(is(all[1], 2, 1, 0, 2));
  EXPECT_TRUE(is(all[2], 2, 1, 2, 2));
  EXPECT_TRUE(is(all[3], 2, 1, 4, 1));
  EXPECT_TRUE(is(all[4], 3, 1, 0, 1));
  EXPECT_EQ(work_of(g.groups()), 3u + 4 + 50 + 1);
  EXPECT_EQ(work_of(g.groups(), all[0]), 7u);
}

TEST(SplitGroups, EveryProductIsInOnePieceAndNoneIsTooLargeButSingleProducts) {
  std::mt19937 random(3);
  const auto in = [&](int low, int high) { return std::uniform_int_distribution<>(low, high)(random); };
  for (int round = 0; round < 2000; round++) {
    MadeGroups g;
    for (int i = in(1, 8); i > 0; i--) g.add(in(1, 6), in(1, 6), in(1, 6), in(1, 6));
    const uint64_t most = uint64_t(in(1, 300));
    int64_t group = 0, product = 0;
    for (const GroupPiece& p : pieces(g, most)) {
      ASSERT_EQ(p.group, group);
      ASSERT_EQ(p.product, product);
      ASSERT_GT(p.products, 0);
      const uint64_t work = work_of(g.groups(), p);
      ASSERT_TRUE(work <= most || (p.groups == 1 && p.products == 1));
      if (p.groups > 1) {
        ASSERT_EQ(p.products, g.size[size_t(p.group)]);
        ASSERT_EQ(product, 0);
      }
      product += p.products;
      if (p.groups > 1 || product == g.size[size_t(group)]) group += p.groups, product = 0;
    }
    ASSERT_EQ(group, int64_t(g.m.size()));
  }
}

TEST(SplitGroups, NothingFollowsAPieceThatFails) {
  MadeGroups g;
  g.add(1, 1, 1, 9);
  int asked = 0;
  EXPECT_FALSE(for_pieces(g.groups(), 1, [&](const GroupPiece&) { return ++asked < 3; }));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace tessera::operations
