// Element types of matrix tests: small whole numbers, so that every sum is exact in every type.
#pragma once

#include <vector>

#include "tests/unit/softgpu_exec/instruction_case.h"

namespace tessera::softgpu::exec {

struct Type {
  const char* name;
  unsigned bits;
  U (*encode)(int);
  int low, high;  // values used
};
inline U half_bits(int x) {
  return to_half(x);
}
inline U brain_bits(int x) {
  return std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16;
}
inline U float_bits(int x) {
  return std::bit_cast<uint32_t>(static_cast<float>(x));
}
inline U double_bits(int x) {
  return f64(x);
}
inline U integer_bits(int x) {
  return static_cast<uint32_t>(x);
}
inline U byte_bits(int x) {
  return static_cast<uint8_t>(x);
}
// Sign, exponent, fraction of small whole numbers.
inline U small_bits(int x, int fraction_bits, int bias) {
  if (x == 0) return 0;
  int e = 0;
  unsigned m = static_cast<unsigned>(x < 0 ? -x : x);
  while (m >> (e + 1)) ++e;
  const unsigned fraction = (m << fraction_bits >> e) & ((1u << fraction_bits) - 1);
  return static_cast<U>((x < 0 ? 0x80u : 0u) | static_cast<unsigned>(e + bias) << fraction_bits | fraction);
}
inline U e4m3_bits(int x) {
  return small_bits(x, 3, 7);
}
inline U e5m2_bits(int x) {
  return small_bits(x, 2, 15);
}
inline const Type kF16{"f16", 16, half_bits, -8, 8}, kBf16{"bf16", 16, brain_bits, -8, 8},
    kTf32{"tf32", 32, float_bits, -8, 8}, kF32{"f32", 32, float_bits, -99, 99},
    kF64{"f64", 64, double_bits, -99, 99}, kS8{"s8", 8, byte_bits, -128, 127},
    kU8{"u8", 8, byte_bits, 0, 255}, kS32{"s32", 32, integer_bits, -1000, 1000},
    kE4m3{"e4m3", 8, e4m3_bits, -8, 8}, kE5m2{"e5m2", 8, e5m2_bits, -4, 4},
    kF16Sum{"f16", 16, half_bits, -9, 9};

inline std::vector<int> values(size_t n, const Type& t, unsigned seed) {
  std::vector<int> v(n);
  unsigned x = seed;
  for (int& y : v)
    y = t.low +
        static_cast<int>(((x = x * 1664525 + 1013904223) >> 8) % static_cast<unsigned>(t.high - t.low + 1));
  return v;
}

}  // namespace tessera::softgpu::exec
