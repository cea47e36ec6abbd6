#include "operations/gemm.h"

#include <algorithm>
#include <array>
#include <limits>

namespace tessera::operations {
namespace {

constexpr auto kEntries = std::to_array<GemmEntry>({
#define TS_GEMM(symbol, form, type) {#symbol, GemmForm::form, Type::type},
#include "operations/gemm_entries.def"
});
static_assert(std::ranges::is_sorted(kEntries, {}, &GemmEntry::symbol));

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

constexpr uint64_t product(uint64_t x, uint64_t y) {
  uint64_t result = 0;
  return __builtin_mul_overflow(x, y, &result) ? kMost : result;
}

constexpr uint64_t sum(uint64_t x, uint64_t y) {
  uint64_t result = 0;
  return __builtin_add_overflow(x, y, &result) ? kMost : result;
}

// Of rows x columns elements, the last byte filled up: 4-bit types. Elements are taken by
// eight, so that bytes are exact where they fit 64 bits and their bits would not.
constexpr uint64_t matrix_bytes(uint64_t rows, uint64_t columns, uint32_t bits) {
  const uint64_t elements = product(rows, columns);
  if (elements == kMost) return kMost;
  return sum(product(elements / 8, bits), (elements % 8 * bits + 7) / 8);
}

}  // namespace

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

std::string_view name_of(Type type) {
  constexpr std::array<std::string_view, 34> kNames = {
      // by cudaDataType, as in bits_of
      "f32", "f64",  "f16",  "i8",    "cf32", "cf64", "cf16",  "ci8",  "u8",   "cu8",  "i32", "ci32",
      "u32", "cu32", "bf16", "cbf16", "i4",   "ci4",  "u4",    "cu4",  "i16",  "ci16", "u16", "cu16",
      "i64", "ci64", "u64",  "cu64",  "e4m3", "e5m2", "ue8m0", "e2m3", "e3m2", "e2m1",
  };
  const auto number = static_cast<int32_t>(type);
  return number >= 0 && static_cast<size_t>(number) < kNames.size() ? kNames[static_cast<size_t>(number)]
                                                                    : "?";
}

std::span<const GemmEntry> gemm_entries() {
  return kEntries;
}

const GemmEntry* find_gemm(std::string_view symbol) {
  if (symbol.ends_with("_64")) symbol.remove_suffix(3);
  const auto* row = std::ranges::lower_bound(kEntries, symbol, {}, &GemmEntry::symbol);
  return row != kEntries.end() && row->symbol == symbol ? row : nullptr;
}

Cost operator+(const Cost& x, const Cost& y) {
  return {sum(x.flop, y.flop), sum(x.bytes, y.bytes)};
}

std::optional<Cost> gemm_cost(const GemmShape& shape, const GemmTypes& types, bool reads_c) {
  const uint32_t a = bits_of(types.a), b = bits_of(types.b), c = bits_of(types.c);
  if (a == 0 || b == 0 || c == 0) return std::nullopt;
  if (shape.m < 0 || shape.n < 0 || shape.k < 0 || shape.count < 0) return std::nullopt;
  if (shape.m == 0 || shape.n == 0 || shape.count == 0) return Cost{};
  const auto m = static_cast<uint64_t>(shape.m), n = static_cast<uint64_t>(shape.n);
  const auto k = static_cast<uint64_t>(shape.k), count = static_cast<uint64_t>(shape.count);
  const uint64_t per_step = is_complex(types.c) ? 8 : 2;  // one multiplication and one addition
  const uint64_t flop = k == 0 ? 0 : product(product(product(m, n), k), per_step);
  const uint64_t written = matrix_bytes(m, n, c);
  const uint64_t read = sum(sum(matrix_bytes(m, k, a), matrix_bytes(k, n, b)), reads_c ? written : 0);
  return Cost{product(flop, count), product(sum(read, written), count)};
}

std::optional<Cost> gemm_cost(std::span<const GemmShape> groups, const GemmTypes& types, bool reads_c) {
  Cost all;
  for (const GemmShape& group : groups) {
    const std::optional<Cost> cost = gemm_cost(group, types, reads_c);
    if (!cost) return std::nullopt;
    all = all + *cost;
  }
  return all;
}

}  // namespace tessera::operations
