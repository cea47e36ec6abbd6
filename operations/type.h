// Element types of operands, by the numbers of cudaDataType. Pure; any thread.
// Source: library_types.h of CUDA 13.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::operations {

// Those named here are what entries.def and roofline.h use.
enum class Type : int32_t {
  kFromArguments = -1,
  kF32 = 0,
  kF64 = 1,
  kF16 = 2,
  kI8 = 3,
  kComplexF32 = 4,
  kComplexF64 = 5,
  kU8 = 8,
  kI32 = 10,
  kBF16 = 14,
  kI64 = 24,
  kE4M3 = 28,
  kE5M2 = 29,
  // No type of operands: single precision whose products are computed as TF32, on tensor cores.
  kTF32 = 1000,
};
// Real and complex of 16F 32F 64F 16BF, integers, then 8, 6 and 4 bits.
inline constexpr std::array<uint8_t, 34> kBitsOfTypes = {
    32, 64, 16, 8,  64, 128, 32, 16,  8, 16,  // R_32F R_64F R_16F R_8I  C_32F C_64F C_16F C_8I  R_8U C_8U
    32, 64, 32, 64, 16, 32,  4,  8,   4, 8,   // R_32I C_32I R_32U C_32U R_16BF C_16BF R_4I C_4I R_4U C_4U
    16, 32, 16, 32, 64, 128, 64, 128, 8, 8,   // R_16I C_16I R_16U C_16U R_64I C_64I R_64U C_64U E4M3 E5M2
    8,  6,  6,  4,                            // UE8M0 E2M3 E3M2 E2M1
};
// Bits of one element, both parts of a complex number together; 0: not a type that is known here.
constexpr uint32_t bits_of(Type type) {
  const auto number = static_cast<uint32_t>(type);
  return number < kBitsOfTypes.size() ? kBitsOfTypes[number] : 0;
}
constexpr bool is_complex(Type type) {
  constexpr uint64_t kComplex = [] {
    uint64_t set = 0;
    for (const int number : {4, 5, 6, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27}) set |= uint64_t{1} << number;
    return set;
  }();
  const auto number = static_cast<uint32_t>(type);
  return number < 64 && (kComplex >> number & 1) != 0;
}
// By cudnnDataType_t. Vectors of several 8-bit integers are those integers, as cuDNN counts their elements one by one.
Type type_of_cudnn(int32_t number);
// "f32", "bf16", "cf64" (complex), "i8", "e4m3", "tf32"; "?": not known here. Static.
std::string_view name_of(Type type);

// The types of the operands A, B and C; an operand that an operation does not have repeats one that it has.
struct Types {
  Type a, b, c;
  bool operator==(const Types&) const = default;
};

}  // namespace tessera::operations
