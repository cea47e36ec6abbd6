// The cost of an operation. Plain data.
#pragma once

#include <cstdint>

namespace tessera::operations {

// Exact up to 2^64 - 1, and that beyond.
struct Cost {
  uint64_t flop = 0;
  uint64_t bytes = 0;
  bool operator==(const Cost&) const = default;
};
Cost operator+(const Cost& x, const Cost& y);

}  // namespace tessera::operations
