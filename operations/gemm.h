// Computes the cost of a matrix product from its arguments alone: FLOP and bytes.
// Pure: no CUDA call, clock, allocation or I/O; any thread. Does not check what cuBLAS checks (leading
// dimensions, combinations of types): a call that cuBLAS refuses launches nothing, and its cost means nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "operations/cost.h"
#include "operations/type.h"

namespace tessera::operations {

using GemmTypes = Types;

// C is m x n, the sum runs over k, `count` times (batch, or size of a group).
struct GemmShape {
  int64_t m = 0, n = 0, k = 0, count = 1;
};

// By the family kProduct (families.def), which has C read and written; less C once if it is not read (beta is zero).
// The 3m forms of complex products count as the others, though they need fewer FLOP. Every operand of a batch counts, also if
// a stride of 0 names the same one again. Nothing for a negative size or a type that is not known.
std::optional<Cost> gemm_cost(const GemmShape& shape, const GemmTypes& types, bool reads_c);
// Sum over the groups of a grouped call.
std::optional<Cost> gemm_cost(std::span<const GemmShape> groups, const GemmTypes& types, bool reads_c);

}  // namespace tessera::operations
