#include "operations/type.h"

#include <array>

namespace tessera::operations {

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
