#include "operations/gemm.h"

#include <limits>

namespace tessera::operations {
namespace {

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
