#include "operations/type.h"

#include <gtest/gtest.h>
#include <library_types.h>

#include <limits>

namespace tessera::operations {
namespace {

Type numbered(cudaDataType type) {
  return static_cast<Type>(type);
}

TEST(Type, TypesAreThoseOfTheHeader) {
  EXPECT_EQ(Type::kF32, numbered(CUDA_R_32F));
  EXPECT_EQ(Type::kF64, numbered(CUDA_R_64F));
  EXPECT_EQ(Type::kF16, numbered(CUDA_R_16F));
  EXPECT_EQ(Type::kU8, numbered(CUDA_R_8U));
  EXPECT_EQ(Type::kComplexF32, numbered(CUDA_C_32F));
  EXPECT_EQ(Type::kComplexF64, numbered(CUDA_C_64F));
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
    EXPECT_EQ(bits_of(numbered(pair.real)), pair.bits) << pair.real;
    EXPECT_FALSE(is_complex(numbered(pair.real))) << pair.real;
    EXPECT_EQ(bits_of(numbered(pair.complex)), 2 * pair.bits) << pair.complex;
    EXPECT_TRUE(is_complex(numbered(pair.complex))) << pair.complex;
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

TEST(Type, TypesHaveNames) {
  EXPECT_EQ(name_of(numbered(CUDA_R_32F)), "f32");
  EXPECT_EQ(name_of(numbered(CUDA_C_64F)), "cf64");
  EXPECT_EQ(name_of(numbered(CUDA_R_16BF)), "bf16");
  EXPECT_EQ(name_of(numbered(CUDA_R_8I)), "i8");
  EXPECT_EQ(name_of(numbered(CUDA_R_8U)), "u8");
  EXPECT_EQ(name_of(numbered(CUDA_C_64U)), "cu64");
  EXPECT_EQ(name_of(numbered(CUDA_R_8F_E4M3)), "e4m3");
  EXPECT_EQ(name_of(numbered(CUDA_R_8F_E5M2)), "e5m2");
  EXPECT_EQ(name_of(static_cast<Type>(33)), "e2m1");
  EXPECT_EQ(Type::kBF16, numbered(CUDA_R_16BF));
  EXPECT_EQ(Type::kI8, numbered(CUDA_R_8I));
  EXPECT_EQ(Type::kE4M3, numbered(CUDA_R_8F_E4M3));
  EXPECT_EQ(Type::kE5M2, numbered(CUDA_R_8F_E5M2));
  for (int unknown : {-1, 34, 999, 1001}) EXPECT_EQ(name_of(static_cast<Type>(unknown)), "?");
  EXPECT_EQ(name_of(Type::kTF32), "tf32");
  for (int known = 0; known < 34; ++known) {  // the names of complex types begin with c
    EXPECT_EQ(name_of(static_cast<Type>(known)).starts_with('c'),
              is_complex(static_cast<Type>(known)) || known == 15)
        << known;
  }
}

TEST(Type, OfCudnn) {
  EXPECT_EQ(type_of_cudnn(0), Type::kF32);
  EXPECT_EQ(type_of_cudnn(2), Type::kF16);
  EXPECT_EQ(type_of_cudnn(5), Type::kI8);  // four of them
  EXPECT_EQ(type_of_cudnn(9), Type::kBF16);
  EXPECT_EQ(type_of_cudnn(12), Type::kE4M3);
  EXPECT_EQ(type_of_cudnn(20), Type::kComplexF32);
  for (const int number : {-1, 14, 22, 1000})
    EXPECT_EQ(type_of_cudnn(number), Type::kFromArguments) << number;
  for (int number = 0; number < 22; ++number)
    EXPECT_EQ(bits_of(type_of_cudnn(number)) != 0, number != 14) << number;
}

}  // namespace
}  // namespace tessera::operations
