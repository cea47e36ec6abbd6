// describe() of a product, where it is inline: for callers whose numbers are in registers. Hot path, any thread.
#pragma once

#include "interpose/operations/call.h"
#include "operations/family_work.h"

namespace tessera::library {

// C counts as read: whether beta is zero may stand in device memory.
[[gnu::always_inline]] inline bool describe_product(const Products& what, Operation* out) {
  const GemmShape& s = what.shape;
  const auto cost = operations::families::product_cost(s.m, s.n, s.k, s.count, what.types);
  if (!cost) return false;
  set_shape(out->shape, s.count, s.m, s.n, s.k);
  out->types.a = what.types.a, out->types.b = what.types.b, out->types.c = what.types.c;
  out->computed_as = what.computed_as;
  out->cost.flop = cost->flop, out->cost.bytes = cost->bytes;
  return true;
}

}  // namespace tessera::library
