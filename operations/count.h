// Numbers of FLOP, elements and bytes. Count: exact up to 2^64 - 1, that beyond, and never below 0. SmallCount: for sums and
// products that are known to be no larger. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace tessera::operations {

template <bool kSmall>
struct CountOf {
  uint64_t value = 0;

  using Count = CountOf;
  static constexpr bool kIsSmall = kSmall;
  static constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

  friend constexpr Count operator*(Count x, Count y) {
    if constexpr (kSmall) return {x.value * y.value};
    Count result;
    return __builtin_mul_overflow(x.value, y.value, &result.value) ? Count{kMost} : result;
  }
  friend constexpr Count operator+(Count x, Count y) {
    if constexpr (kSmall) return {x.value + y.value};
    Count result;
    return __builtin_add_overflow(x.value, y.value, &result.value) ? Count{kMost} : result;
  }
  friend constexpr Count operator-(Count x, Count y) {
    if (x.value == kMost) return x;  // more than fits stays so
    return {x.value > y.value ? x.value - y.value : 0};
  }
  friend constexpr Count operator/(Count x, uint64_t y) { return {x.value == kMost ? kMost : x.value / y}; }
  friend constexpr Count operator*(uint64_t x, Count y) { return Count{x} * y; }
  friend constexpr Count operator+(Count x, uint64_t y) { return x + Count{y}; }
  friend constexpr Count operator-(Count x, uint64_t y) { return x - Count{y}; }
  constexpr auto operator<=>(const Count&) const = default;
};
using Count = CountOf<false>;
using SmallCount = CountOf<true>;

template <class Count>
constexpr Count least(Count x, Count y) {
  return x < y ? x : y;
}
template <class Count>
constexpr Count largest(Count x, Count y) {
  return x < y ? y : x;
}

// Elements of this many bits, the last byte filled up. Elements of parts of bytes are taken by eight, so that bytes are exact
// where they fit 64 bits and their bits would not.
template <class Count>
constexpr Count bytes_of(Count elements, uint32_t bits) {
  if constexpr (Count::kIsSmall) return {(elements.value * bits + 7) / 8};
  if (bits % 8 == 0) return elements * Count{bits / 8};
  if (elements.value == Count::kMost) return elements;
  return Count{elements.value / 8} * Count{bits} + Count{(elements.value % 8 * bits + 7) / 8};
}

}  // namespace tessera::operations
