#include "operations/gemm.h"

#include "operations/count.h"
#include "operations/family_work.h"

namespace tessera::operations {

Cost operator+(const Cost& x, const Cost& y) {
  return {(Count{x.flop} + Count{y.flop}).value, (Count{x.bytes} + Count{y.bytes}).value};
}

std::optional<Cost> gemm_cost(const GemmShape& shape, const GemmTypes& types, bool reads_c) {
  std::optional<Cost> cost = families::product_cost(shape.m, shape.n, shape.k, shape.count, types);
  if (!cost || reads_c) return cost;
  const auto number = [](int64_t x) { return Count{static_cast<uint64_t>(x)}; };
  const Count read = bytes_of(number(shape.m) * number(shape.n), bits_of(types.c)) * number(shape.count);
  cost->bytes = (Count{cost->bytes} - read).value;
  return cost;
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
