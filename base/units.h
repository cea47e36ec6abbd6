// Units of time and size as plain integer helpers; the unit is in the name of every variable (`_ns`,
// `_bytes`).
#pragma once

#include <cstdint>

namespace tessera::base {

constexpr uint64_t kNsPerUs = 1'000;
constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kNsPerS = 1'000'000'000;
constexpr uint64_t kMiB = 1024 * 1024;

constexpr uint64_t us(uint64_t n) {
  return n * kNsPerUs;
}
constexpr uint64_t ms(uint64_t n) {
  return n * kNsPerMs;
}

}  // namespace tessera::base
