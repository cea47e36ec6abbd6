#include "operations/gemm.h"

#include "operations/count.h"

namespace tessera::operations {

Cost operator+(const Cost& x, const Cost& y) {
  return {(Count{x.flop} + Count{y.flop}).value, (Count{x.bytes} + Count{y.bytes}).value};
}

std::optional<Cost> gemm_cost(const GemmShape& shape, const GemmTypes& types, bool reads_c) {
  const uint32_t a = bits_of(types.a), b = bits_of(types.b), c = bits_of(types.c);
  if (a == 0 || b == 0 || c == 0) return std::nullopt;
  if (shape.m < 0 || shape.n < 0 || shape.k < 0 || shape.count < 0) return std::nullopt;
  if (shape.m == 0 || shape.n == 0 || shape.count == 0) return Cost{};
  const Count m{static_cast<uint64_t>(shape.m)}, n{static_cast<uint64_t>(shape.n)};
  const Count k{static_cast<uint64_t>(shape.k)}, count{static_cast<uint64_t>(shape.count)};
  const uint64_t per_step = is_complex(types.c) ? 8 : 2;  // one multiplication and one addition
  const Count written = bytes_of(m * n, c);
  const Count read = bytes_of(m * k, a) + bytes_of(k * n, b) + (reads_c ? written : Count{});
  return Cost{(per_step * m * n * k * count).value, ((read + written) * count).value};
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
