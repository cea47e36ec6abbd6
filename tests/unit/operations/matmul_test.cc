#include "operations/matmul.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <string>

namespace tessera::operations {
namespace {

// D is 3 x 5, the sum runs over 7: 210 FLOP; A 21, B 35, C and D 15 elements each.
Matmul product(Type all) {
  return {.shape = {.m = 3, .n = 5, .k = 7}, .a = {all}, .b = {all}, .c = {all}, .d = {all}};
}
Matmul with_epilogue(uint32_t epilogue) {
  Matmul out = product(Type::kF16);
  out.epilogue = epilogue;
  return out;
}

TEST(Matmul, CostOfAProductByType) {
  EXPECT_EQ(matmul_cost(product(Type::kF32)), (Cost{210, 4 * 86}));
  EXPECT_EQ(matmul_cost(product(Type::kComplexF32)), (Cost{840, 8 * 86}));
  Matmul mixed = product(Type::kE4M3);
  mixed.c = {Type::kBF16};
  mixed.d = {Type::kF32};
  EXPECT_EQ(matmul_cost(mixed), (Cost{210, 56 + 30 + 60}));
  mixed.shape.count = 4;
  EXPECT_EQ(matmul_cost(mixed), (Cost{840, 4 * 146}));
}

// By hand, of half precision: the product alone is 210 FLOP and 172 bytes.
TEST(Matmul, CostOfEveryEpilogue) {
  const struct {
    uint32_t number;
    Cost added;
  } rows[] = {
      {1, {0, 0}},      // as it is
      {2, {0, 0}},      // ReLU
      {4, {15, 6}},     // a bias of 3
      {6, {15, 6}},     // both
      {32, {0, 0}},     // GELU
      {36, {15, 6}},    // with a bias
      {130, {0, 2}},    // ReLU, 15 bits kept
      {134, {15, 8}},   // with a bias
      {136, {0, 2}},    // gradient of ReLU, by the bits
      {152, {15, 8}},   // and of a bias
      {160, {0, 30}},   // GELU, 15 numbers kept
      {164, {15, 36}},  // with a bias
      {192, {0, 30}},   // gradient of GELU
      {208, {15, 36}},  // and of a bias
      {256, {21, 6}},   // sums over the rows of A: 3 of 7
      {512, {35, 10}},  // over the columns of B: 5 of 7
  };
  for (const auto& [number, added] : rows)
    EXPECT_EQ(matmul_cost(with_epilogue(number)), (Cost{210, 172} + added)) << number;
  for (const uint32_t unknown : {0u, 3u, 8u, 16u, 128u, 255u, 768u, 0xffffffffu})
    EXPECT_EQ(matmul_cost(with_epilogue(unknown)), std::nullopt) << unknown;
}

TEST(Matmul, EpiloguesHaveTypesOfTheirOwn) {
  Matmul m = with_epilogue(164);
  m.vector_type = Type::kF32;
  EXPECT_EQ(matmul_cost(m), (Cost{225, 172 + 12 + 30}));
  m.auxiliary_type = Type::kE4M3;
  EXPECT_EQ(matmul_cost(m), (Cost{225, 172 + 12 + 15}));
  m.shape.count = 2;
  EXPECT_EQ(matmul_cost(m), (Cost{450, 2 * 199}));
  m.auxiliary_type = Type{999};
  EXPECT_EQ(matmul_cost(m), std::nullopt);
  Matmul of_complex = product(Type::kComplexF32);
  of_complex.epilogue = 4;
  EXPECT_EQ(matmul_cost(of_complex), (Cost{840 + 30, 8 * 86 + 24}));
}

// Every epilogue that the toolkit's header names has a row, and no other.
TEST(Matmul, KnowsEveryEpilogueOfTheHeader) {
  std::ifstream header(TESSERA_CUDA_ROOT "/include/cublasLt.h");
  if (!header) GTEST_SKIP() << "this toolkit has no cublasLt.h";
  const std::string text{std::istreambuf_iterator<char>(header), {}};
  std::set<std::string> declared, rows;
  const std::regex pattern(R"(\n  CUBLASLT_EPILOGUE_(\w+) = )");
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    declared.insert((*it)[1]);
#define TS_EPILOGUE(name, number, vector, auxiliary) rows.insert(#name);
#include "operations/epilogues.def"
  EXPECT_EQ(rows, declared);
}

// A 3 x 70, B 70 x 130, D 3 x 130, of 8 bits: 210 + 9100 + 2 * 390 = 10090 bytes.
TEST(Matmul, FactorsOfBlocksCount) {
  Matmul m = product(Type::kE4M3);
  m.shape = {.m = 3, .n = 130, .k = 70};
  const Cost bare{2 * 3 * 130 * 70, 10090};
  EXPECT_EQ(matmul_cost(m), bare);
  const auto of_a = [&](ScaleMode mode) {
    Matmul scaled = m;
    scaled.a.scale = mode;
    return matmul_cost(scaled);
  };
  EXPECT_EQ(of_a(ScaleMode::kBlocksOf16), (bare + Cost{0, 3 * 5}));
  EXPECT_EQ(of_a(ScaleMode::kBlocksOf32), (bare + Cost{0, 3 * 3}));
  EXPECT_EQ(of_a(ScaleMode::kVector), (bare + Cost{0, 4 * 3}));
  EXPECT_EQ(of_a(ScaleMode::kBlocksOf128), (bare + Cost{0, 4 * 3}));
  EXPECT_EQ(of_a(ScaleMode::kSquaresOf128), (bare + Cost{0, 4}));
  EXPECT_EQ(of_a(ScaleMode(6)), std::nullopt);
  EXPECT_EQ(of_a(ScaleMode(-1)), std::nullopt);
  Matmul b = m, d = m;
  b.b.scale = ScaleMode::kSquaresOf128;  // 130 columns are two squares
  EXPECT_EQ(matmul_cost(b), (bare + Cost{0, 8}));
  d.d.scale = ScaleMode::kBlocksOf32;  // along the 3 rows
  EXPECT_EQ(matmul_cost(d), (bare + Cost{0, 130}));
}

TEST(Matmul, NothingToDoAndNothingThatFits) {
  Matmul m = product(Type::kF32);
  m.shape.n = 0;
  EXPECT_EQ(matmul_cost(m), Cost{});
  m.shape.n = -1;
  EXPECT_EQ(matmul_cost(m), std::nullopt);
  m = product(Type::kF32);
  m.c.type = Type{-7};
  EXPECT_EQ(matmul_cost(m), std::nullopt);
  constexpr int64_t kLarge = std::numeric_limits<int64_t>::max();
  m = with_epilogue(164);
  m.shape = {kLarge, kLarge, kLarge, kLarge};
  EXPECT_EQ(matmul_cost(m)->flop, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(matmul_cost(m)->bytes, std::numeric_limits<uint64_t>::max());
}

// 3 x 5 numbers: one multiplication each; with B two more and an addition.
TEST(Transform, Costs) {
  Transform t{.rows = 3, .columns = 5, .types = {Type::kI8, Type::kI8, Type::kF32}};
  EXPECT_EQ(transform_cost(t), (Cost{15, 15 + 60}));
  t.has_b = true;
  EXPECT_EQ(transform_cost(t), (Cost{45, 15 + 15 + 60}));
  t.count = 2;
  EXPECT_EQ(transform_cost(t), (Cost{90, 180}));
  t.types.c = Type::kComplexF32;
  t.rows = -1;
  EXPECT_EQ(transform_cost(t), std::nullopt);
}

// cublasComputeType_t 68: single precision; 74, 75, 77: single by way of half, bfloat16, TF32.
TEST(Matmul, TheComputeTypeDecidesWhereItIsComputed) {
  for (const Type a : {Type::kF32, Type::kF16, Type::kE4M3, Type::kI8}) EXPECT_EQ(computed_as(68, a), a);
  EXPECT_EQ(computed_as(74, Type::kF32), Type::kF16);
  EXPECT_EQ(computed_as(75, Type::kF32), Type::kBF16);
  EXPECT_EQ(computed_as(77, Type::kF32), Type::kTF32);
  EXPECT_EQ(computed_as(77, Type::kBF16), Type::kBF16);
  EXPECT_EQ(computed_as(12345, Type::kF64), Type::kF64);
}

}  // namespace
}  // namespace tessera::operations
