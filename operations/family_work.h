// The arithmetic of families.def. For family.cc and for gemm.cc, where the family is known when this is compiled. Pure.
#pragma once

#include "operations/count.h"
#include "operations/family.h"

namespace tessera::operations::families {

// Of a square matrix: its diagonal and one side.
constexpr Count triangle(Count order) {
  return order * (order + 1) / 2;
}

// Elements further than `width` off the main diagonal, to the side that `lines` of them cross: the first has `beyond` many,
// each next one less.
constexpr Count outside(Count lines, Count beyond) {
  const Count n = least(lines, beyond);
  return n * (2 * beyond + 1 - n) / 2;
}

// Elements of an m x n matrix at most `below` diagonals below the main one and `above` above it.
constexpr Count band(Count m, Count n, Count below, Count above) {
  return m * n - outside(m, n - (above + 1)) - outside(n, m - (below + 1));
}

constexpr Count qr(Count m, Count n) {
  if (m > n) return n * (6 * m * n + 3 * n + 3 * m + 14 - 2 * n * n) / 3;
  return m * (6 * m * n + 9 * n + 14 - 2 * m * m - 3 * m) / 3;
}
constexpr Count complex_qr(Count m, Count n) {
  if (m > n) return n * (24 * m * n + 12 * n + 18 * m + 74 - 8 * n * n) / 3;
  return m * (24 * m * n + 42 * n + 74 - 8 * m * m - 12 * m) / 3;
}

struct Work {
  Count flop, a, b, c;
};

[[gnu::always_inline]] inline Work work_of(Family family, bool is_of_complex, Count m, Count n, Count k,
                                           Count l) {
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

// As family_cost().
[[gnu::always_inline]] inline std::optional<Cost> cost_of(Family family, std::span<const int64_t> sizes,
                                                          int64_t count, const Types& types) {
  const uint32_t a = bits_of(types.a), b = bits_of(types.b), c = bits_of(types.c);
  if (a == 0 || b == 0 || c == 0 || count < 0 || sizes.size() > 4) return std::nullopt;
  Count size[4] = {};
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) return std::nullopt;
    size[i] = {static_cast<uint64_t>(sizes[i])};
  }
  const Work work = work_of(family, is_complex(types.a), size[0], size[1], size[2], size[3]);
  if (work.c.value == 0) return Cost{};
  const Count times{static_cast<uint64_t>(count)};
  const Count bytes = bytes_of(work.a, a) + bytes_of(work.b, b) + bytes_of(work.c, c);
  return Cost{(work.flop * times).value, (bytes * times).value};
}

}  // namespace tessera::operations::families
