// What a cuBLAS matrix product costs, from its arguments alone: FLOP and bytes.
// Pure: no CUDA call, clock, allocation or I/O; any thread. Does not check what cuBLAS checks (leading
// dimensions, combinations of types): a call that cuBLAS refuses launches nothing, and its cost means nothing.
// Source of names and types: cublas_api.h and library_types.h of CUDA 13.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tessera::operations {

// An element type: the number that cudaDataType gives it. Those named here are what gemm_entries.def and roofline.h use.
enum class Type : int32_t {
  kFromArguments = -1,
  kF32 = 0,
  kF64 = 1,
  kF16 = 2,
  kI8 = 3,
  kComplexF32 = 4,
  kComplexF64 = 5,
  kU8 = 8,
  kBF16 = 14,
  kE4M3 = 28,
  kE5M2 = 29,
};
// Bits of one element, both parts of a complex number together; 0: not a type that is known here.
uint32_t bits_of(Type type);
bool is_complex(Type type);
// "f32", "bf16", "cf64" (complex), "i8", "e4m3"; "?": not known here. Static.
std::string_view name_of(Type type);

enum class GemmForm : uint8_t { kOne, kStrided, kPointers, kGrouped };

struct GemmEntry {
  std::string_view symbol;  // static
  GemmForm form;
  Type type;
};
std::span<const GemmEntry> gemm_entries();
// The row of an exported name, with or without _64; null if it is not a matrix product.
const GemmEntry* find_gemm(std::string_view symbol);

struct GemmTypes {
  Type a, b, c;
};

// C is m x n, the sum runs over k, `count` times (batch, or size of a group).
struct GemmShape {
  int64_t m = 0, n = 0, k = 0, count = 1;
};

// Exact up to 2^64 - 1, and that beyond.
struct Cost {
  uint64_t flop = 0;
  uint64_t bytes = 0;
  bool operator==(const Cost&) const = default;
};
Cost operator+(const Cost& x, const Cost& y);

// Each product: 2mnk FLOP, of complex numbers 8mnk (also by the 3m forms, which need fewer); bytes of A, B and
// the written C, and of C once more if it is read (beta is not zero). Every operand of a batch counts, also if
// a stride of 0 names the same one again. Nothing for a negative size or a type that is not known.
std::optional<Cost> gemm_cost(const GemmShape& shape, const GemmTypes& types, bool reads_c);
// Sum over the groups of a grouped call.
std::optional<Cost> gemm_cost(std::span<const GemmShape> groups, const GemmTypes& types, bool reads_c);

}  // namespace tessera::operations
