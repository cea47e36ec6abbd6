#include "operations/gemm.h"

#include <gtest/gtest.h>
#include <library_types.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace tessera::operations {
namespace {

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

constexpr GemmTypes all(Type type) {
  return {type, type, type};
}

Type cuda(cudaDataType type) {
  return static_cast<Type>(type);
}

TEST(Gemm, FindsNamesWithBothWidthsOfIntegers) {
  for (const char* name : {"cublasSgemm_v2", "cublasSgemm_v2_64"}) {
    const GemmEntry* row = find_gemm(name);
    ASSERT_NE(row, nullptr) << name;
    EXPECT_EQ(row->symbol, "cublasSgemm_v2");
    EXPECT_EQ(row->form, GemmForm::kOne);
    EXPECT_EQ(row->type, Type::kF32);
  }
  for (const char* name : {"", "_64", "cublasSgemm", "cublasSgemv_v2", "cublasZgemm_v2_64_64", "zzz"}) {
    EXPECT_EQ(find_gemm(name), nullptr) << name;
  }
}

// Form and type of every row, told by its name alone.
TEST(Gemm, RowsAreWhatTheirNamesSay) {
  for (const GemmEntry& row : gemm_entries()) {
    const std::string name(row.symbol);
    const auto says = [&](const char* word) { return name.find(word) != std::string::npos; };
    GemmForm form = GemmForm::kOne;
    if (says("StridedBatched"))
      form = GemmForm::kStrided;
    else if (says("GroupedBatched"))
      form = GemmForm::kGrouped;
    else if (says("Batched"))
      form = GemmForm::kPointers;
    EXPECT_EQ(row.form, form) << name;
    Type type = Type::kFromArguments;
    if (!says("Ex")) {
      const char letter = name.at(6);
      if (letter == 'S') type = Type::kF32;
      if (letter == 'D') type = Type::kF64;
      if (letter == 'H') type = Type::kF16;
      if (letter == 'U') type = Type::kU8;
      if (letter == 'C') type = Type::kComplexF32;
      if (letter == 'Z') type = Type::kComplexF64;
      EXPECT_NE(type, Type::kFromArguments) << name;
    }
    EXPECT_EQ(row.type, type) << name;
  }
}

// The table against the toolkit that this is built with: nothing missing, nothing that does not exist.
TEST(Gemm, TableHasEveryProductOfTheHeader) {
  std::ifstream header(TESSERA_CUDA_ROOT "/include/cublas_api.h");
  if (!header) GTEST_SKIP() << "this toolkit has no cublas_api.h";
  const std::string text{std::istreambuf_iterator<char>(header), {}};
  const std::regex declaration(R"(CUBLASWINAPI\s+(cublas\w*[gG]emm\w*)\s*\()");
  std::set<std::string> declared;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
    declared.insert((*it)[1]);
    EXPECT_NE(find_gemm((*it)[1].str()), nullptr) << (*it)[1];
  }
  EXPECT_GE(declared.size(), gemm_entries().size());
  for (const GemmEntry& row : gemm_entries()) {
    EXPECT_TRUE(declared.contains(std::string(row.symbol))) << row.symbol;
    const bool has_wide_form = row.type != Type::kU8;
    EXPECT_EQ(declared.contains(std::string(row.symbol) + "_64"), has_wide_form) << row.symbol;
  }
}

TEST(Gemm, TypesAreThoseOfTheHeader) {
  EXPECT_EQ(Type::kF32, cuda(CUDA_R_32F));
  EXPECT_EQ(Type::kF64, cuda(CUDA_R_64F));
  EXPECT_EQ(Type::kF16, cuda(CUDA_R_16F));
  EXPECT_EQ(Type::kU8, cuda(CUDA_R_8U));
  EXPECT_EQ(Type::kComplexF32, cuda(CUDA_C_32F));
  EXPECT_EQ(Type::kComplexF64, cuda(CUDA_C_64F));
  struct {
    cudaDataType real, complex;
    uint32_t bits;
  } const pairs[] = {
      {CUDA_R_16F, CUDA_C_16F, 16}, {CUDA_R_16BF, CUDA_C_16BF, 16}, {CUDA_R_32F, CUDA_C_32F, 32},
      {CUDA_R_64F, CUDA_C_64F, 64}, {CUDA_R_4I, CUDA_C_4I, 4},      {CUDA_R_4U, CUDA_C_4U, 4},
      {CUDA_R_8I, CUDA_C_8I, 8},    {CUDA_R_8U, CUDA_C_8U, 8},      {CUDA_R_16I, CUDA_C_16I, 16},
      {CUDA_R_16U, CUDA_C_16U, 16}, {CUDA_R_32I, CUDA_C_32I, 32},   {CUDA_R_32U, CUDA_C_32U, 32},
      {CUDA_R_64I, CUDA_C_64I, 64}, {CUDA_R_64U, CUDA_C_64U, 64},
  };
  for (const auto& pair : pairs) {
    EXPECT_EQ(bits_of(cuda(pair.real)), pair.bits) << pair.real;
    EXPECT_FALSE(is_complex(cuda(pair.real))) << pair.real;
    EXPECT_EQ(bits_of(cuda(pair.complex)), 2 * pair.bits) << pair.complex;
    EXPECT_TRUE(is_complex(cuda(pair.complex))) << pair.complex;
  }
  // Numbers of the newest: the macros of older toolkits lack them. 8 bits: 28 29 30; 6 bits: 31 32; 4 bits: 33.
  const uint32_t small[] = {8, 8, 8, 6, 6, 4};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(bits_of(static_cast<Type>(28 + i)), small[i]) << 28 + i;
    EXPECT_FALSE(is_complex(static_cast<Type>(28 + i)));
  }
  for (int unknown : {-1, -2, 34, 1000, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    EXPECT_EQ(bits_of(static_cast<Type>(unknown)), 0u) << unknown;
  }
}

TEST(Gemm, TypesHaveNames) {
  EXPECT_EQ(name_of(cuda(CUDA_R_32F)), "f32");
  EXPECT_EQ(name_of(cuda(CUDA_C_64F)), "cf64");
  EXPECT_EQ(name_of(cuda(CUDA_R_16BF)), "bf16");
  EXPECT_EQ(name_of(cuda(CUDA_R_8I)), "i8");
  EXPECT_EQ(name_of(cuda(CUDA_R_8U)), "u8");
  EXPECT_EQ(name_of(cuda(CUDA_C_64U)), "cu64");
  EXPECT_EQ(name_of(cuda(CUDA_R_8F_E4M3)), "e4m3");
  EXPECT_EQ(name_of(cuda(CUDA_R_8F_E5M2)), "e5m2");
  EXPECT_EQ(name_of(static_cast<Type>(33)), "e2m1");
  EXPECT_EQ(Type::kBF16, cuda(CUDA_R_16BF));
  EXPECT_EQ(Type::kI8, cuda(CUDA_R_8I));
  EXPECT_EQ(Type::kE4M3, cuda(CUDA_R_8F_E4M3));
  EXPECT_EQ(Type::kE5M2, cuda(CUDA_R_8F_E5M2));
  for (int unknown : {-1, 34, 1000}) EXPECT_EQ(name_of(static_cast<Type>(unknown)), "?");
  for (int known = 0; known < 34; ++known) {  // the names of complex types begin with c
    EXPECT_EQ(name_of(static_cast<Type>(known)).starts_with('c'),
              is_complex(static_cast<Type>(known)) || known == 15)
        << known;
  }
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
