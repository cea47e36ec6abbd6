#include "operations/gemm.h"

#include <gtest/gtest.h>
#include <library_types.h>

#include <array>
#include <limits>
#include <random>
#include <vector>

#include "operations/family.h"

namespace tessera::operations {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

constexpr GemmTypes all(Type type) {
  return {type, type, type};
}

Type cuda(cudaDataType type) {
  return static_cast<Type>(type);
}

// Computed by hand: 2 * 3 * 5 * 7 = 210; A 3x7, B 7x5, C 3x5: 21 + 35 + 15 = 71 elements, 86 if C is read.
TEST(Gemm, CostOfOneProductByType) {
  const GemmShape shape{.m = 3, .n = 5, .k = 7};
  EXPECT_EQ(gemm_cost(shape, all(Type::kF32), false), (Cost{210, 284}));
  EXPECT_EQ(gemm_cost(shape, all(Type::kF32), true), (Cost{210, 344}));
  EXPECT_EQ(gemm_cost(shape, all(Type::kF64), true), (Cost{210, 688}));
  EXPECT_EQ(gemm_cost(shape, all(Type::kF16), true), (Cost{210, 172}));
  EXPECT_EQ(gemm_cost(shape, all(Type::kComplexF32), true), (Cost{840, 688}));
  EXPECT_EQ(gemm_cost(shape, all(Type::kComplexF64), false), (Cost{840, 1136}));
  EXPECT_EQ(gemm_cost(shape, all(Type::kU8), false), (Cost{210, 71}));
  // Half in, float out: (21 + 35) * 2 + 15 * 4.
  EXPECT_EQ(gemm_cost(shape, {Type::kF16, Type::kF16, Type::kF32}, false), (Cost{210, 172}));
  // 4 bits in, 32 out: 10.5 and 17.5 bytes become 11 and 18; 15 * 4 = 60.
  EXPECT_EQ(gemm_cost(shape, {cuda(CUDA_R_4I), cuda(CUDA_R_4I), cuda(CUDA_R_32I)}, false), (Cost{210, 89}));
}

TEST(Gemm, ABatchIsItsProducts) {
  const GemmShape shape{.m = 3, .n = 5, .k = 7, .count = 11};
  EXPECT_EQ(gemm_cost(shape, all(Type::kF32), true), (Cost{2310, 3784}));
}

TEST(Gemm, GroupsAddUp) {
  const std::vector<GemmShape> groups = {{.m = 3, .n = 5, .k = 7, .count = 2},
                                         {.m = 1, .n = 1, .k = 4, .count = 3}};
  // 2 * 210 + 3 * 8; (2 * 71 + 3 * 9) * 4
  EXPECT_EQ(gemm_cost(groups, all(Type::kF32), false), (Cost{444, 676}));
  EXPECT_EQ(gemm_cost(std::span<const GemmShape>(), all(Type::kF32), false), Cost{});
  const std::vector<GemmShape> bad = {{.m = 3, .n = 5, .k = 7}, {.m = 1, .n = -1, .k = 4}};
  EXPECT_EQ(gemm_cost(bad, all(Type::kF32), false), std::nullopt);
}

TEST(Gemm, NothingToDoCostsNothing) {
  EXPECT_EQ(gemm_cost(GemmShape{.m = 0, .n = 5, .k = 7}, all(Type::kF32), true), Cost{});
  EXPECT_EQ(gemm_cost(GemmShape{.m = 3, .n = 0, .k = 7}, all(Type::kF32), true), Cost{});
  EXPECT_EQ(gemm_cost(GemmShape{.m = 3, .n = 5, .k = 7, .count = 0}, all(Type::kF32), true), Cost{});
  // Without a sum C is scaled: read and written.
  EXPECT_EQ(gemm_cost(GemmShape{.m = 3, .n = 5, .k = 0}, all(Type::kF32), true), (Cost{0, 120}));
}

// Sizes that cannot overflow are computed without looking: to both sides of the limit the same as by the family's row.
TEST(Gemm, SmallAndLargeSizesAgree) {
  std::mt19937_64 random(5);
  const auto size = [&](uint64_t most_bits) {
    const uint64_t bits = 1 + random() % most_bits;
    return int64_t(random() >> (64 - bits));
  };
  for (int i = 0; i < 20'000; i++) {
    const GemmShape s{size(20), size(20), size(20), size(12)};
    const GemmTypes types{Type(random() % 34), Type(random() % 34), Type(random() % 34)};
    EXPECT_EQ(gemm_cost(s, types, true),
              family_cost(Family::kProduct, std::array{s.m, s.n, s.k}, s.count, types));
  }
  constexpr int64_t kMostSmall = (1 << 17) - 1, kMostCount = (1 << 10) - 1;
  for (const int64_t more : {0, 1}) {
    const GemmShape s{kMostSmall, kMostSmall, kMostSmall + more, kMostCount + more};
    for (const Type type : {Type::kF32, Type::kComplexF64})
      EXPECT_EQ(gemm_cost(s, all(type), true),
                family_cost(Family::kProduct, std::array{s.m, s.n, s.k}, s.count, all(type)));
  }
}

TEST(Gemm, RefusesWhatCublasRefuses) {
  for (const GemmShape& shape :
       {GemmShape{-1, 1, 1, 1}, GemmShape{1, -1, 1, 1}, GemmShape{1, 1, -1, 1}, GemmShape{1, 1, 1, -1}}) {
    EXPECT_EQ(gemm_cost(shape, all(Type::kF32), false), std::nullopt);
  }
  const GemmShape shape{.m = 3, .n = 5, .k = 7};
  EXPECT_EQ(gemm_cost(shape, all(Type::kFromArguments), false), std::nullopt);
  EXPECT_EQ(gemm_cost(shape, {Type::kF32, static_cast<Type>(99), Type::kF32}, false), std::nullopt);
  EXPECT_EQ(gemm_cost(shape, {Type::kF32, Type::kF32, static_cast<Type>(99)}, false), std::nullopt);
}

TEST(Gemm, ExactUpTo64BitsAndTheMostBeyond) {
  const int64_t big = int64_t{1} << 20;
  // 2 * 2^60; bytes of C alone are 2^42.
  EXPECT_EQ(gemm_cost(GemmShape{.m = big, .n = big, .k = big}, all(Type::kF32), false),
            (Cost{uint64_t{1} << 61, 3 * (uint64_t{1} << 42)}));
  // 2^61 bytes of C: its bits would not fit.
  const int64_t wide = int64_t{1} << 29;
  EXPECT_EQ(gemm_cost(GemmShape{.m = wide, .n = wide, .k = 0}, all(Type::kF64), false),
            (Cost{0, uint64_t{1} << 61}));
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(gemm_cost(GemmShape{most, most, most, most}, all(Type::kF64), true), (Cost{kMost, kMost}));
  EXPECT_EQ((Cost{kMost, 1} + Cost{1, 2}), (Cost{kMost, 3}));
}

}  // namespace
}  // namespace tessera::operations
