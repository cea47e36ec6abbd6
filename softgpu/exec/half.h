// Small float formats by exact arithmetic in double: unpack to double, compute exactly or rounded to odd,
// pack once. Used by the scalar handlers and by mma; pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "softgpu/exec/op.h"

namespace tessera::softgpu::exec {

struct Format {
  int exponent_bits, mantissa_bits;
  bool finite = false;  // e4m3: no infinities, all ones is NaN
};
inline constexpr Format kHalfFormat{5, 10}, kBrainFormat{8, 7}, kSingleFormat{8, 23}, kTf32Format{8, 10},
    kE4m3Format{4, 3, true}, kE5m2Format{5, 2};

// The double nearest to nothing but itself: rounds x once into the format. NaN gives the canonical 0x7f..f.
inline uint32_t pack_float(double x, Format f, Rounding rounding = Rounding::kNearest,
                           bool saturate_finite = false) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const bool negative = bits >> 63;
  const int width = f.exponent_bits + f.mantissa_bits;
  const uint32_t sign = static_cast<uint32_t>(negative) << width;
  const uint32_t all_ones = (1u << width) - 1;
  const uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  const uint32_t largest = f.finite ? all_ones - 1 : infinity - 1;
  if (x != x) return all_ones;
  if (std::isinf(x)) return sign | (saturate_finite ? largest : f.finite ? all_ones : infinity);
  if (x == 0) return sign;
  int e = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  uint64_t m = bits & ((uint64_t{1} << 52) - 1);
  if (e == -1023) {
    const int lead = std::countl_zero(m) - 11;
    m <<= lead;
    e = -1022 - lead;
  } else {
    m |= uint64_t{1} << 52;
  }
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int least = 1 - bias;
  int shift = 52 - f.mantissa_bits + (e < least ? least - e : 0);
  if (shift > 62) shift = 62;
  uint64_t q = m >> shift;
  const uint64_t rest = m & ((uint64_t{1} << shift) - 1), half = uint64_t{1} << (shift - 1);
  bool up = false;
  switch (rounding) {
    case Rounding::kNearest:
      up = rest > half || (rest == half && (q & 1));
      break;
    case Rounding::kZero:
      break;
    case Rounding::kDown:
      up = negative && rest;
      break;
    case Rounding::kUp:
      up = !negative && rest;
      break;
    case Rounding::kAway:
      up = rest >= half;
      break;
  }
  q += up;
  uint64_t out =
      e < least ? q
                : (static_cast<uint64_t>(e + bias) << f.mantissa_bits) + q - (uint64_t{1} << f.mantissa_bits);
  if (out > largest) {
    const bool to_infinity = rounding == Rounding::kNearest || rounding == Rounding::kAway ||
                             (rounding == Rounding::kUp && !negative) ||
                             (rounding == Rounding::kDown && negative);
    out = saturate_finite || !to_infinity ? largest : f.finite ? all_ones : infinity;
  }
  return sign | static_cast<uint32_t>(out);
}

inline double unpack_float(uint32_t bits, Format f) {
  const int width = f.exponent_bits + f.mantissa_bits;
  const bool negative = bits >> width & 1;
  const uint32_t exponent = bits >> f.mantissa_bits & ((1u << f.exponent_bits) - 1);
  const uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  double r;
  if (f.finite ? (bits & ((1u << width) - 1)) == (1u << width) - 1 : exponent == (1u << f.exponent_bits) - 1)
    r = f.finite || mantissa ? std::nan("") : HUGE_VAL;
  else if (exponent == 0)
    r = std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  else
    r = std::ldexp(mantissa | 1u << f.mantissa_bits, static_cast<int>(exponent) - bias - f.mantissa_bits);
  return negative ? -r : r;
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00)
    return std::bit_cast<float>(magnitude == 0x7c00 ? sign | 0x7f800000u : 0x7fffffffu);
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;  // exact, also for subnormals
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}
inline float brain_to_float(uint16_t b) {
  return std::bit_cast<float>(static_cast<uint32_t>(b) << 16);
}
inline uint16_t float_to_half(double x) {
  return static_cast<uint16_t>(pack_float(x, kHalfFormat));
}
inline uint16_t float_to_brain(double x) {
  return static_cast<uint16_t>(pack_float(x, kBrainFormat));
}

// a*b+c rounded to odd in double, for a and b with at most 24 significant bits: packing it afterwards rounds
// once.
inline double multiply_add_odd(double a, double b, double c) {
  const double product = a * b;  // exact
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (c - back);
  uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (error != 0 && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return std::bit_cast<double>(bits);
}

}  // namespace tessera::softgpu::exec
