// Each family by hand; tests/loader counts every function of cuBLAS step by step beside that.
#include "operations/family.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "operations/gemm.h"

namespace tessera::operations {
namespace {

constexpr Types each(Type type) {
  return {type, type, type};
}

struct Case {
  Family family;
  std::vector<int64_t> sizes;
  uint64_t flop, complex_flop;
  uint64_t elements;  // of one type: bytes of f32 are four times as many, those of cf32 eight times
};

TEST(Family, CostsByHand) {
  const Case cases[] = {
      {Family::kProduct, {3, 5, 7}, 2 * 105, 8 * 105, 21 + 35 + 2 * 15},
      {Family::kSymmetricProduct, {3, 5, 3}, 2 * 45, 8 * 45, 6 + 15 + 30},
      {Family::kTriangularProduct, {3, 5, 3}, 45, 15 * 14, 6 + 15 + 15},  // each column: 1, 3, 5 FLOP
      {Family::kTriangularSolve, {3, 5, 5}, 75, 15 * 22, 15 + 30},
      {Family::kRankK, {3, 7}, 2 * 6 * 7, 8 * 6 * 7, 21 + 12},
      {Family::kRankKOfTwo, {3, 7}, 2 * 6 * 7, 8 * 6 * 7, 21 + 21 + 12},
      {Family::kRank2K, {3, 7}, 4 * 6 * 7, 16 * 6 * 7, 21 + 21 + 12},
      {Family::kMatrixSum, {3, 5}, 45, 15 * 14, 45},
      {Family::kMatrixScaled, {3, 5}, 15, 90, 30},
      {Family::kDiagonalProduct, {3, 5, 5}, 15, 90, 15 + 5 + 15},
      {Family::kRepack, {3}, 0, 0, 12},
      {Family::kMatrixVector, {3, 5}, 30, 120, 15 + 5 + 6},
      {Family::kBandVector, {3, 5, 1, 0}, 2 * 5, 8 * 5, 5 + 5 + 6},
      {Family::kBandVector, {3, 5, 9, 9}, 30, 120, 15 + 5 + 6},  // wider than the matrix
      {Family::kSymmetricVector, {3}, 18, 72, 6 + 3 + 6},
      {Family::kSymmetricBandVector, {3, 1}, 2 * 7, 8 * 7, 5 + 3 + 6},
      {Family::kTriangularVector, {3}, 1 + 3 + 5, 6 * 6 + 2 * 3, 6 + 6},
      {Family::kTriangularBandVector, {3, 1}, 1 + 3 + 3, 6 * 5 + 2 * 2, 5 + 6},
      {Family::kTriangularBandVector, {3, 0}, 3, 18, 3 + 6},
      {Family::kOuterProduct, {3, 5}, 30, 120, 3 + 5 + 30},
      {Family::kSymmetricOuterProduct, {3}, 12, 48, 3 + 12},
      {Family::kSymmetricOuterProduct2, {3}, 24, 96, 3 + 3 + 12},
      {Family::kCopy, {9}, 0, 0, 18},
      {Family::kSwap, {9}, 0, 0, 36},
      {Family::kScale, {9}, 9, 54, 18},
      {Family::kScaleByReal, {9}, 9, 18, 18},
      {Family::kAddScaled, {9}, 18, 72, 27},
      {Family::kDot, {9}, 18, 72, 19},
      {Family::kNorm, {9}, 18, 36, 10},
      {Family::kAbsoluteSum, {9}, 9, 18, 10},
      {Family::kExtreme, {9}, 0, 9, 10},
      {Family::kRotate, {9}, 54, 180, 36},
      {Family::kRotateByReal, {9}, 54, 108, 36},
      {Family::kLu, {3}, 3 + 10, 6 * 3 + 8 * 5, 3 + 18},  // 3 divisions, 5 steps
      {Family::kLuInverse, {2}, 8, 6 * 6 + 2 * 2, 4 + 2 + 4},
      {Family::kLuSolve, {3, 2}, 2 * 15, 2 * 66, 9 + 3 + 12},
      {Family::kInverse, {2}, 3 + 8, 14 + 40, 4 + 4},
      {Family::kQr, {1, 1}, 8, 6 * 6 + 2 * 2, 1 + 2},
      {Family::kLeastSquares, {1, 1, 1}, 8 + 6, 40 + 28, 2 + 2},
  };
  std::set<Family> tried;
  for (const Case& c : cases) {
    const int name = static_cast<int>(c.family);
    tried.insert(c.family);
    EXPECT_EQ(family_cost(c.family, c.sizes, 1, each(Type::kF32)), (Cost{c.flop, 4 * c.elements})) << name;
    EXPECT_EQ(family_cost(c.family, c.sizes, 1, each(Type::kComplexF32)),
              (Cost{c.complex_flop, 8 * c.elements}))
        << name;
    EXPECT_EQ(family_cost(c.family, c.sizes, 11, each(Type::kF32)), (Cost{11 * c.flop, 44 * c.elements}))
        << name;
  }
  constexpr int kFamilies = 0
#define TS_FAMILY(name, layout, n_dims, flop, complex_flop, a, b, c) +1
#include "operations/families.def"
      ;
  EXPECT_EQ(tried.size(), kFamilies);
}

TEST(Family, OperandsHaveTheirTypes) {
  // 9 complex numbers in, 1 real one out; halves in, floats out.
  const std::vector<int64_t> nine = {9}, three_by_five = {3, 5};
  EXPECT_EQ(family_cost(Family::kNorm, nine, 1, {Type::kComplexF32, Type::kComplexF32, Type::kF32}),
            (Cost{36, 76}));
  EXPECT_EQ(family_cost(Family::kMatrixVector, three_by_five, 1, {Type::kF16, Type::kF16, Type::kF32}),
            (Cost{30, 2 * 20 + 4 * 6}));
}

TEST(Family, AProductIsAProduct) {
  const GemmShape shape{.m = 3, .n = 5, .k = 7, .count = 11};
  const std::vector<int64_t> sizes = {3, 5, 7};
  const Types types{Type::kF16, Type::kI8, Type::kF32};
  EXPECT_EQ(family_cost(Family::kProduct, sizes, 11, types), gemm_cost(shape, types, true));
}

TEST(Family, NothingToDoCostsNothingAndNonsenseHasNoCost) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (uint32_t i = 0; i <= static_cast<uint32_t>(Family::kLeastSquares); ++i) {
    const auto family = static_cast<Family>(i);
    const int64_t zeros[4] = {}, negative[4] = {-1, 1, 1, 1}, huge[4] = {most, most, most, most};
    const auto none = family_cost(family, zeros, 1, each(Type::kF32));
    ASSERT_TRUE(none) << i;
    EXPECT_EQ(none->flop, 0u) << i;
    EXPECT_EQ(family_cost(family, negative, 1, each(Type::kF32)), std::nullopt) << i;
    EXPECT_EQ(family_cost(family, zeros, -1, each(Type::kF32)), std::nullopt) << i;
    EXPECT_EQ(family_cost(family, zeros, 1, each(Type::kFromArguments)), std::nullopt) << i;
    EXPECT_TRUE(family_cost(family, huge, most, each(Type::kComplexF64))) << i;
  }
  const std::vector<int64_t> five(5);
  EXPECT_EQ(family_cost(Family::kCopy, five, 1, each(Type::kF32)), std::nullopt);
}

}  // namespace
}  // namespace tessera::operations
