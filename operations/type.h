// Element types of operands, by the numbers of cudaDataType. Pure; any thread.
// Source: library_types.h of CUDA 13.
#pragma once

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
// Bits of one element, both parts of a complex number together; 0: not a type that is known here.
uint32_t bits_of(Type type);
bool is_complex(Type type);
// By cudnnDataType_t. Vectors of several 8-bit integers are those integers, as cuDNN counts their elements one by one.
Type type_of_cudnn(int32_t number);
// "f32", "bf16", "cf64" (complex), "i8", "e4m3", "tf32"; "?": not known here. Static.
std::string_view name_of(Type type);

// Of the operands A, B and C; those that an operation does not have repeat one that it has.
struct Types {
  Type a, b, c;
  bool operator==(const Types&) const = default;
};

}  // namespace tessera::operations
