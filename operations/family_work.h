// The arithmetic of families.def. For family.cc and for gemm.cc, where the family is known when this is compiled. Pure.
#pragma once

#include "operations/count.h"
#include "operations/family.h"

namespace tessera::operations::families {

// The elements of one triangle of a square matrix: its diagonal and one side.
template <class Count>
constexpr Count triangle(Count order) {
  return order * (order + 1) / 2;
}

// Elements further than `width` off the main diagonal, to the side that `lines` of them cross: the first has `beyond` many,
// each next one less.
template <class Count>
constexpr Count outside(Count lines, Count beyond) {
  const Count n = least(lines, beyond);
  return n * (2 * beyond + 1 - n) / 2;
}

// Elements of an m x n matrix at most `below` diagonals below the main one and `above` above it.
template <class Count>
constexpr Count band(Count m, Count n, Count below, Count above) {
  return m * n - outside(m, n - (above + 1)) - outside(n, m - (below + 1));
}

template <class Count>
constexpr Count qr(Count m, Count n) {
  if (m > n) return n * (6 * m * n + 3 * n + 3 * m + 14 - 2 * n * n) / 3;
  return m * (6 * m * n + 9 * n + 14 - 2 * m * m - 3 * m) / 3;
}
template <class Count>
constexpr Count complex_qr(Count m, Count n) {
  if (m > n) return n * (24 * m * n + 12 * n + 18 * m + 74 - 8 * n * n) / 3;
  return m * (24 * m * n + 42 * n + 74 - 8 * m * m - 12 * m) / 3;
}

template <class Count>
struct Work {
  Count flop, a, b, c;
};

template <class Count>
[[gnu::always_inline]] inline Work<Count> work_of(Family family, bool is_of_complex, Count m, Count n,
                                                  Count k, Count l) {
  static_cast<void>(l);
  switch (family) {
#define TS_FAMILY(name, layout, n_dims, flop, complex_flop, a, b, c) \
  case Family::name:                                                 \
    return {is_of_complex ? complex_flop : flop, a, b, c};
#include "operations/families.def"
#define TS_LAYER(name, flop) case Family::name:
#include "operations/layers.def"
    return {};  // layers.h
  }
  return {};
}

// The cost for sizes of which none is below 0.
template <class Count>
[[gnu::always_inline]] inline Cost cost_in(Family family, const int64_t (&sizes)[4], int64_t count,
                                           const Types& types) {
  const auto number = [](int64_t n) { return Count{static_cast<uint64_t>(n)}; };
  const Work<Count> work = work_of(family, is_complex(types.a), number(sizes[0]), number(sizes[1]),
                                   number(sizes[2]), number(sizes[3]));
  if (work.c.value == 0) return Cost{};
  const Count bytes = bytes_of(work.a, bits_of(types.a)) + bytes_of(work.b, bits_of(types.b)) +
                      bytes_of(work.c, bits_of(types.c));
  return {(work.flop * number(count)).value, (bytes * number(count)).value};
}

constexpr bool are_known(const Types& types) {
  return bits_of(types.a) != 0 && bits_of(types.b) != 0 && bits_of(types.c) != 0;
}

// As family_cost().
[[gnu::always_inline]] inline std::optional<Cost> cost_of(Family family, std::span<const int64_t> sizes,
                                                          int64_t count, const Types& types) {
  if (!are_known(types) || count < 0 || sizes.size() > 4) return std::nullopt;
  int64_t size[4] = {};
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return std::nullopt;
    size[i] = sizes[i];
  }
  return cost_in<Count>(family, size, count, types);
}

// The same of a product. Sizes of most programs are small enough that nothing needs to be looked at for overflow:
// 8 mnk of count < 2^(3 + 3 * 17 + 10).
[[gnu::always_inline]] inline std::optional<Cost> product_cost(int64_t m, int64_t n, int64_t k, int64_t count,
                                                               const Types& types) {
  const int64_t sizes[4] = {m, n, k, 0};
  if (((m | n | k) >> 17 | count >> 10) != 0 || !are_known(types)) [[unlikely]]
    return cost_of(Family::kProduct, std::span(sizes).first(3), count, types);
  return cost_in<SmallCount>(Family::kProduct, sizes, count, types);
}

}  // namespace tessera::operations::families
