// cvt between any two types: read a lane as an integer or an exact double, round once, saturate, write.
#include <algorithm>
#include <cmath>
#include <limits>

#include "softgpu/exec/half.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {
namespace {

using lane::get;
using lane::put;

bool is_float(Ty t) {
  return t >= Ty::kF16 && t <= Ty::kTf32;
}
bool is_signed(Ty t) {
  return t == Ty::kS8 || t == Ty::kS16 || t == Ty::kS32 || t == Ty::kS64;
}
unsigned bits_of(Ty t) {
  switch (t) {
    case Ty::kU8:
    case Ty::kS8:
      return 8;
    case Ty::kU16:
    case Ty::kS16:
    case Ty::kF16:
    case Ty::kBf16:
      return 16;
    case Ty::kU64:
    case Ty::kS64:
    case Ty::kF64:
      return 64;
    default:
      return 32;
  }
}

double read_float(Warp& w, const Op* op, unsigned i) {
  const bool ftz = op->flags & kFtz;
  switch (op->type2) {
    case Ty::kF16:
      return half_to_float(static_cast<uint16_t>(get<uint32_t>(w, op->a, i)));
    case Ty::kBf16:
      return brain_to_float(static_cast<uint16_t>(get<uint32_t>(w, op->a, i)));
    case Ty::kF64:
      return get<double>(w, op->a, i);
    default: {
      const float x = get<float>(w, op->a, i);
      return ftz && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
    }
  }
}
// The value as 128 bits holds every integer type.
__int128 read_integer(Warp& w, const Op* op, unsigned i) {
  switch (op->type2) {
    case Ty::kU8:
      return get<uint8_t>(w, op->a, i);
    case Ty::kS8:
      return get<int8_t>(w, op->a, i);
    case Ty::kU16:
      return get<uint16_t>(w, op->a, i);
    case Ty::kS16:
      return get<int16_t>(w, op->a, i);
    case Ty::kS32:
      return get<int32_t>(w, op->a, i);
    case Ty::kU64:
      return get<uint64_t>(w, op->a, i);
    case Ty::kS64:
      return get<int64_t>(w, op->a, i);
    default:
      return get<uint32_t>(w, op->a, i);
  }
}
double to_integral(double x, Rounding r) {
  switch (r) {
    case Rounding::kNearest:
      return std::nearbyint(x);
    case Rounding::kZero:
      return std::trunc(x);
    case Rounding::kDown:
      return std::floor(x);
    case Rounding::kUp:
      return std::ceil(x);
    case Rounding::kAway:
      return std::round(x);
  }
  return x;
}
__int128 limit(Ty t, bool upper) {
  const unsigned n = bits_of(t);
  if (is_signed(t)) return upper ? (__int128{1} << (n - 1)) - 1 : -(__int128{1} << (n - 1));
  return upper ? (__int128{1} << n) - 1 : 0;
}
void write_integer(Warp& w, const Op* op, unsigned i, __int128 x) {
  switch (op->type) {
    case Ty::kU8:
      return put<uint8_t>(w, op->d, i, static_cast<uint8_t>(x));
    case Ty::kS8:
      return put<int8_t>(w, op->d, i, static_cast<int8_t>(x));
    case Ty::kU16:
      return put<uint16_t>(w, op->d, i, static_cast<uint16_t>(x));
    case Ty::kS16:
      return put<int16_t>(w, op->d, i, static_cast<int16_t>(x));
    case Ty::kU64:
    case Ty::kS64:
      return put<uint64_t>(w, op->d, i, static_cast<uint64_t>(x));
    default:
      return put<uint32_t>(w, op->d, i, static_cast<uint32_t>(x));
  }
}
// Rounds a 128-bit integer to double without losing what packing needs (to odd beyond 53 bits).
double integer_to_odd(__int128 x) {
  const bool negative = x < 0;
  unsigned __int128 m = negative ? -static_cast<unsigned __int128>(x) : static_cast<unsigned __int128>(x);
  int shift = 0;
  bool sticky = false;
  while (m >> 53) sticky |= m & 1, m >>= 1, ++shift;
  const double r = std::ldexp(static_cast<double>(static_cast<uint64_t>(m) | sticky), shift);
  return negative ? -r : r;
}
// Nearest or directed rounding of a 128-bit integer to double.
double integer_to_double(__int128 x, Rounding rounding) {
  const bool negative = x < 0;
  unsigned __int128 m = negative ? -static_cast<unsigned __int128>(x) : static_cast<unsigned __int128>(x);
  int shift = 0;
  for (unsigned __int128 top = m; top >> 53; top >>= 1) ++shift;
  uint64_t q = static_cast<uint64_t>(m >> shift);
  const unsigned __int128 rest = m - (static_cast<unsigned __int128>(q) << shift);
  const unsigned __int128 half = shift ? static_cast<unsigned __int128>(1) << (shift - 1) : 0;
  const bool up = rest && (rounding == Rounding::kNearest ? rest > half || (rest == half && (q & 1))
                           : rounding == Rounding::kUp    ? !negative
                           : rounding == Rounding::kDown  ? negative
                                                          : false);
  const double r = std::ldexp(static_cast<double>(q + up), shift);
  return negative ? -r : r;
}
void write_float(Warp& w, const Op* op, unsigned i, double x) {
  const Rounding rounding = static_cast<Rounding>(op->sub);
  if (op->flags & kSat) x = x > 0 ? (x < 1 ? x : 1.0) : 0.0;
  if ((op->flags & kRelu) && !(x > 0) && x == x) x = 0.0;
  switch (op->type) {
    case Ty::kF16:
      return put<uint32_t>(w, op->d, i, pack_float(x, kHalfFormat, rounding, op->count == 2));
    case Ty::kBf16:
      return put<uint32_t>(w, op->d, i, pack_float(x, kBrainFormat, rounding, op->count == 2));
    case Ty::kTf32:
      return put<uint32_t>(w, op->d, i, pack_float(x, kTf32Format, rounding) << 13);
    case Ty::kF64:
      return put<double>(w, op->d, i, x);
    default: {
      uint32_t bits = pack_float(x, kSingleFormat, rounding);
      if ((op->flags & kFtz) && !(bits & 0x7f800000)) bits &= 0x80000000;
      return put<uint32_t>(w, op->d, i, bits);
    }
  }
}

}  // namespace

const Op* convert_any(Warp& w, const Op* op) {
  const bool from_float = is_float(op->type2), to_float = is_float(op->type);
  const Rounding rounding = static_cast<Rounding>(op->sub);
  return lane::each(w, op, [&](unsigned i) {
    if (from_float && to_float) {
      double x = read_float(w, op, i);
      if (op->flags & kToInteger) x = to_integral(x, rounding);
      write_float(w, op, i, x);
    } else if (from_float) {
      // Out of range clamps always; NaN is 0.
      const double x = to_integral(read_float(w, op, i), rounding);
      const __int128 low = limit(op->type, false), high = limit(op->type, true);
      __int128 r;
      if (x != x)
        r = 0;
      else if (x >= static_cast<double>(high))
        r = high;
      else if (x <= static_cast<double>(low))
        r = low;
      else
        r = static_cast<__int128>(x);
      write_integer(w, op, i, r);
    } else if (to_float) {
      const __int128 x = read_integer(w, op, i);
      write_float(w, op, i, op->type == Ty::kF64 ? integer_to_double(x, rounding) : integer_to_odd(x));
    } else {
      __int128 x = read_integer(w, op, i);
      if (op->flags & kSat) x = std::clamp(x, limit(op->type, false), limit(op->type, true));
      write_integer(w, op, i, x);
    }
  });
}

}  // namespace tessera::softgpu::exec
