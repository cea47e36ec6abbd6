#include "operations/type.h"

#include <algorithm>
#include <array>

namespace tessera::operations {

uint32_t bits_of(Type type) {
  // By cudaDataType: see library_types.h. Real and complex of 16F 32F 64F 16BF, integers, then 8, 6 and 4 bits.
  constexpr std::array<uint8_t, 34> kBits = {
      32, 64, 16, 8,  64, 128, 32, 16,  8, 16,  // R_32F R_64F R_16F R_8I  C_32F C_64F C_16F C_8I  R_8U C_8U
      32, 64, 32, 64, 16, 32,  4,  8,   4, 8,   // R_32I C_32I R_32U C_32U R_16BF C_16BF R_4I C_4I R_4U C_4U
      16, 32, 16, 32, 64, 128, 64, 128, 8, 8,   // R_16I C_16I R_16U C_16U R_64I C_64I R_64U C_64U E4M3 E5M2
      8,  6,  6,  4,                            // UE8M0 E2M3 E3M2 E2M1
  };
  const auto number = static_cast<int32_t>(type);
  return number >= 0 && static_cast<size_t>(number) < kBits.size() ? kBits[static_cast<size_t>(number)] : 0;
}

bool is_complex(Type type) {
  constexpr std::array<int32_t, 14> kComplex = {4, 5, 6, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27};
  return std::ranges::binary_search(kComplex, static_cast<int32_t>(type));
}

Type type_of_cudnn(int32_t number) {
  constexpr std::array<int32_t, 22> kTypes = {
      // see cudnn_graph.h; 14 is a way of computing, no type of elements
      0, 1,  2,  3,  10, 3,  8,  8,  3,  14, 24,  // F32 F64 F16 I8 I32 I8x4 U8 U8x4 I8x32 BF16 I64
      8, 28, 29, -1, 30, 33, 16, 18, 12, 4,  5,   // boolean E4M3 E5M2 - UE8M0 E2M1 I4 U4 U32 C32F C64F
  };
  if (number < 0 || static_cast<size_t>(number) >= kTypes.size()) return Type::kFromArguments;
  return static_cast<Type>(kTypes[static_cast<size_t>(number)]);
}

std::string_view name_of(Type type) {
  constexpr std::array<std::string_view, 34> kNames = {
      // by cudaDataType, as in bits_of
      "f32", "f64",  "f16",  "i8",    "cf32", "cf64", "cf16",  "ci8",  "u8",   "cu8",  "i32", "ci32",
      "u32", "cu32", "bf16", "cbf16", "i4",   "ci4",  "u4",    "cu4",  "i16",  "ci16", "u16", "cu16",
      "i64", "ci64", "u64",  "cu64",  "e4m3", "e5m2", "ue8m0", "e2m3", "e3m2", "e2m1",
  };
  if (type == Type::kTF32) return "tf32";
  const auto number = static_cast<int32_t>(type);
  return number >= 0 && static_cast<size_t>(number) < kNames.size() ? kNames[static_cast<size_t>(number)]
                                                                    : "?";
}

}  // namespace tessera::operations
