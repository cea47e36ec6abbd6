// Scalar integer, bit, predicate and selection handlers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "softgpu/exec/scalar.h"
#include "softgpu/exec/scalar_tables.h"

namespace tessera::softgpu::exec {
namespace {

using lane::each;
using lane::get;
using lane::put;

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
inline constexpr unsigned kBits = sizeof(T) * 8;
template <class T>
using Doubled =
    std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                       std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
// 16 x 16 -> 32 and 32 x 32 -> 64 bits
template <class T>
using Wider = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                 std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;

template <class T, auto F>
const Op* unary(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) { put<T>(w, op->d, i, F(get<T>(w, op->a, i), op)); });
}
template <class T, auto F>
const Op* binary(Warp& w, const Op* op) {
  return each(w, op,
              [&](unsigned i) { put<T>(w, op->d, i, F(get<T>(w, op->a, i), get<T>(w, op->b, i), op)); });
}
template <class T, auto F>
const Op* ternary(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    put<T>(w, op->d, i, F(get<T>(w, op->a, i), get<T>(w, op->b, i), get<T>(w, op->c, i), op));
  });
}
// Second operand is a 32-bit count.
template <class T, auto F>
const Op* shift(Warp& w, const Op* op) {
  return each(w, op,
              [&](unsigned i) { put<T>(w, op->d, i, F(get<T>(w, op->a, i), get<uint32_t>(w, op->b, i))); });
}
// 32-bit result of a value of type T.
template <class T, auto F>
const Op* to_count(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    put<uint32_t>(w, op->d, i, static_cast<uint32_t>(F(get<T>(w, op->a, i), op)));
  });
}

template <class T>
T saturate(Doubled<T> x) {
  return static_cast<T>(
      std::clamp<Doubled<T>>(x, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}
constexpr auto add = [](auto a, auto b, const Op* op) {
  using T = decltype(a);
  return op->flags & kSat ? saturate<T>(static_cast<Doubled<T>>(a) + b)
                          : static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
};
constexpr auto sub = [](auto a, auto b, const Op* op) {
  using T = decltype(a);
  return op->flags & kSat ? saturate<T>(static_cast<Doubled<T>>(a) - b)
                          : static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
};
template <class T>
constexpr T low_product(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
constexpr T high_product(T a, T b) {
  return static_cast<T>((static_cast<Doubled<T>>(a) * static_cast<Doubled<T>>(b)) >> kBits<T>);
}
constexpr auto mul = [](auto a, auto b, const Op*) { return low_product(a, b); };
constexpr auto mul_hi = [](auto a, auto b, const Op*) { return high_product(a, b); };
constexpr auto mad = [](auto a, auto b, auto c, const Op*) {
  return static_cast<decltype(a)>(static_cast<uint64_t>(low_product(a, b)) + static_cast<uint64_t>(c));
};
constexpr auto mad_hi = [](auto a, auto b, auto c, const Op* op) {
  using T = decltype(a);
  const T h = high_product(a, b);
  return op->flags & kSat ? saturate<T>(static_cast<Doubled<T>>(h) + c)
                          : static_cast<T>(static_cast<Unsigned<T>>(h) + static_cast<Unsigned<T>>(c));
};
template <class T>
constexpr int64_t low24(T x) {
  if constexpr (std::is_signed_v<T>)
    return static_cast<int32_t>(static_cast<uint32_t>(x) << 8) >> 8;
  else
    return static_cast<int64_t>(x & 0xffffff);
}
constexpr auto mul24 = [](auto a, auto b, const Op*) {
  return static_cast<decltype(a)>(low24(a) * low24(b));
};
constexpr auto mul24_hi = [](auto a, auto b, const Op*) {
  return static_cast<decltype(a)>((low24(a) * low24(b)) >> 16);
};
constexpr auto mad24 = [](auto a, auto b, auto c, const Op*) {
  return static_cast<decltype(a)>(static_cast<uint64_t>(low24(a) * low24(b)) + static_cast<uint64_t>(c));
};
constexpr auto mad24_hi = [](auto a, auto b, auto c, const Op* op) {
  using T = decltype(a);
  const int64_t h = (low24(a) * low24(b)) >> 16;
  if (op->flags & kSat) return saturate<T>(static_cast<Doubled<T>>(h) + c);
  return static_cast<T>(static_cast<uint64_t>(h) + static_cast<uint64_t>(c));
};
// Division by zero gives all ones (what the hardware's routine yields); no trap on the most negative value.
constexpr auto div = [](auto a, auto b, const Op*) {
  using T = decltype(a);
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::is_signed_v<T>)
    if (b == static_cast<T>(-1)) return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  return static_cast<T>(a / b);
};
constexpr auto rem = [](auto a, auto b, const Op*) {
  using T = decltype(a);
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>)
    if (b == static_cast<T>(-1)) return T{0};
  return static_cast<T>(a % b);
};
constexpr auto abs = [](auto a, const Op*) {
  using T = decltype(a);
  return static_cast<T>(a < 0 ? Unsigned<T>{0} - static_cast<Unsigned<T>>(a) : static_cast<Unsigned<T>>(a));
};
constexpr auto neg = [](auto a, const Op*) {
  using T = decltype(a);
  return static_cast<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
};
constexpr auto min = [](auto a, auto b, const Op* op) {
  using T = decltype(a);
  const T r = std::min(a, b);
  return op->flags & kRelu ? std::max(r, T{0}) : r;
};
constexpr auto max = [](auto a, auto b, const Op* op) {
  using T = decltype(a);
  const T r = std::max(a, b);
  return op->flags & kRelu ? std::max(r, T{0}) : r;
};
constexpr auto min3 = [](auto a, auto b, auto c, const Op*) { return std::min(std::min(a, b), c); };
constexpr auto max3 = [](auto a, auto b, auto c, const Op*) { return std::max(std::max(a, b), c); };
constexpr auto sad = [](auto a, auto b, auto c, const Op*) {
  using T = decltype(a);
  const Unsigned<T> difference = a < b ? static_cast<Unsigned<T>>(b) - static_cast<Unsigned<T>>(a)
                                       : static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b);
  return static_cast<T>(static_cast<Unsigned<T>>(c) + difference);
};
constexpr auto and_ = [](auto a, auto b, const Op*) { return static_cast<decltype(a)>(a & b); };
constexpr auto or_ = [](auto a, auto b, const Op*) { return static_cast<decltype(a)>(a | b); };
constexpr auto xor_ = [](auto a, auto b, const Op*) { return static_cast<decltype(a)>(a ^ b); };
constexpr auto not_ = [](auto a, const Op*) { return static_cast<decltype(a)>(~a); };
constexpr auto cnot = [](auto a, const Op*) { return static_cast<decltype(a)>(a == 0); };
constexpr auto mov = [](auto a, const Op*) { return a; };
constexpr auto shl = [](auto a, uint32_t n) {
  using T = decltype(a);
  return n >= kBits<T> ? T{0} : static_cast<T>(static_cast<uint64_t>(a) << n);
};
constexpr auto shr = [](auto a, uint32_t n) {
  using T = decltype(a);
  if constexpr (std::is_signed_v<T>)
    return static_cast<T>(a >> std::min(n, kBits<T> - 1));
  else
    return n >= kBits<T> ? T{0} : static_cast<T>(a >> n);
};
constexpr auto clz = [](auto a, const Op*) { return std::countl_zero(a); };
constexpr auto popc = [](auto a, const Op*) { return std::popcount(a); };
constexpr auto brev = [](auto a, const Op*) {
  decltype(a) r = 0;
  for (unsigned i = 0; i < kBits<decltype(a)>; ++i) r |= (a >> i & 1) << (kBits<decltype(a)> - 1 - i);
  return r;
};
constexpr auto bfind = [](auto a, const Op* op) -> uint32_t {
  using T = decltype(a);
  Unsigned<T> u = static_cast<Unsigned<T>>(a);
  if constexpr (std::is_signed_v<T>)
    if (a < 0) u = ~u;
  if (!u) return ~0u;
  const unsigned msb = kBits<T> - 1 - std::countl_zero(u);
  return op->sub ? kBits<T> - 1 - msb : msb;
};

template <class T>
const Op* bfe(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const T a = get<T>(w, op->a, i);
    const unsigned pos = get<uint32_t>(w, op->b, i) & 0xff, len = get<uint32_t>(w, op->c, i) & 0xff;
    const unsigned msb = kBits<T> - 1;
    const auto bit = [&](unsigned n) { return static_cast<Unsigned<T>>(a) >> n & 1; };
    Unsigned<T> sign = 0;
    if constexpr (std::is_signed_v<T>)
      if (len) sign = bit(std::min(pos + len - 1, msb));
    Unsigned<T> r = sign ? ~Unsigned<T>{0} : 0;
    for (unsigned k = 0; k < len && k <= msb; ++k)
      if (pos + k <= msb) {
        r &= ~(Unsigned<T>{1} << k);
        r |= bit(pos + k) << k;
      }
    put<T>(w, op->d, i, static_cast<T>(r));
  });
}
// d = b with bits of a inserted; operands a, b, c = position, d2 = length (in extra order of the ISA:
// f,a,b,c,d).
template <class T>
const Op* bfi(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const T a = get<T>(w, op->a, i), b = get<T>(w, op->b, i);
    const unsigned pos = get<uint32_t>(w, op->c, i) & 0xff, len = get<uint32_t>(w, op->d2, i) & 0xff;
    T r = b;
    if (pos < kBits<T> && len) {
      const T ones = len >= kBits<T> ? ~T{0} : static_cast<T>((T{1} << len) - 1);
      const T mask = static_cast<T>(ones << pos);
      r = (b & ~mask) | ((a << pos) & mask);
    }
    put<T>(w, op->d, i, r);
  });
}
const Op* bmsk(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i);
    uint64_t r;
    if (op->sub) {  // clamp
      r = a >= 32 || b == 0 ? 0 : (b >= 32 ? 0xffffffffull : (1ull << b) - 1) << a;
    } else {
      a &= 31, b &= 31;
      r = ((1ull << b) - 1) << a;
    }
    put<uint32_t>(w, op->d, i, static_cast<uint32_t>(r));
  });
}
template <class T>
const Op* szext(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i);
    uint32_t n = get<uint32_t>(w, op->b, i);
    if (!op->sub) n &= 31;
    uint32_t r = a;
    if (n == 0)
      r = 0;
    else if (n < 32) {
      r = a & ((1u << n) - 1);
      if (std::is_signed_v<T> && a >> (n - 1) & 1) r |= ~0u << n;
    }
    put<uint32_t>(w, op->d, i, r);
  });
}
const Op* fns(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t mask = get<uint32_t>(w, op->a, i), base = get<uint32_t>(w, op->b, i);
    const int32_t offset = get<int32_t>(w, op->c, i);
    uint32_t r = ~0u;
    if (base < 32) {
      const int step = offset < 0 ? -1 : 1;
      int left = offset == 0 ? 1 : offset * step;
      if (offset == 0) {
        if (mask >> base & 1) r = base;
      } else {
        for (int bit = static_cast<int>(base); bit >= 0 && bit < 32; bit += step)
          if ((mask >> bit & 1) && --left == 0) {
            r = static_cast<uint32_t>(bit);
            break;
          }
      }
    }
    put<uint32_t>(w, op->d, i, r);
  });
}
template <bool kLeft>
const Op* funnel(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint64_t both =
        static_cast<uint64_t>(get<uint32_t>(w, op->b, i)) << 32 | get<uint32_t>(w, op->a, i);
    uint32_t n = get<uint32_t>(w, op->c, i);
    n = op->sub ? std::min(n, 32u) : n & 31;
    put<uint32_t>(w, op->d, i, static_cast<uint32_t>(kLeft ? (both << n) >> 32 : both >> n));
  });
}
const Op* lop3(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i),
                   c = get<uint32_t>(w, op->c, i);
    uint32_t r = 0;
    for (unsigned k = 0; k < 8; ++k)
      if (op->imm >> k & 1) r |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    put<uint32_t>(w, op->d, i, r);
  });
}
// Modes: 0 general, then f4e b4e rc8 ecl ecr rc16.
const Op* prmt(Warp& w, const Op* op) {
  static constexpr uint16_t kSelectors[7][4] = {{0, 0, 0, 0},
                                                {0x3210, 0x4321, 0x5432, 0x6543},
                                                {0x5670, 0x6701, 0x7012, 0x0123},
                                                {0x0000, 0x1111, 0x2222, 0x3333},
                                                {0x3210, 0x3211, 0x3222, 0x3333},
                                                {0x0000, 0x1110, 0x2210, 0x3210},
                                                {0x1010, 0x3232, 0x1010, 0x3232}};
  return each(w, op, [&](unsigned i) {
    const uint64_t both =
        static_cast<uint64_t>(get<uint32_t>(w, op->b, i)) << 32 | get<uint32_t>(w, op->a, i);
    const uint32_t c = get<uint32_t>(w, op->c, i);
    const uint32_t selector = op->sub ? kSelectors[op->sub][c & 3] : c;
    uint32_t r = 0;
    for (unsigned k = 0; k < 4; ++k) {
      const uint32_t s = selector >> (4 * k) & 0xf;
      uint32_t byte = both >> (8 * (s & 7)) & 0xff;
      if (!op->sub && s & 8) byte = byte & 0x80 ? 0xff : 0;
      r |= byte << (8 * k);
    }
    put<uint32_t>(w, op->d, i, r);
  });
}
const Op* dp4a(Warp& w, const Op* op) {
  const auto part = [](uint32_t x, unsigned k, bool is_signed) {
    const uint32_t byte = x >> (8 * k) & 0xff;
    return is_signed ? static_cast<int32_t>(static_cast<int8_t>(byte)) : static_cast<int32_t>(byte);
  };
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i);
    uint32_t r = get<uint32_t>(w, op->c, i);
    for (unsigned k = 0; k < 4; ++k)
      r += static_cast<uint32_t>(part(a, k, op->sub & 1) * part(b, k, op->sub & 2));
    put<uint32_t>(w, op->d, i, r);
  });
}
const Op* dp2a(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i) >> (op->sub & 4 ? 16 : 0);
    uint32_t r = get<uint32_t>(w, op->c, i);
    for (unsigned k = 0; k < 2; ++k) {
      const uint16_t x = static_cast<uint16_t>(a >> (16 * k));
      const uint8_t y = static_cast<uint8_t>(b >> (8 * k));
      const int32_t sx = op->sub & 1 ? static_cast<int16_t>(x) : x;
      const int32_t sy = op->sub & 2 ? static_cast<int8_t>(y) : y;
      r += static_cast<uint32_t>(sx * sy);
    }
    put<uint32_t>(w, op->d, i, r);
  });
}

template <class T>
const Op* mul_wide(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    put<Wider<T>>(w, op->d, i,
                  static_cast<Wider<T>>(get<T>(w, op->a, i)) * static_cast<Wider<T>>(get<T>(w, op->b, i)));
  });
}
template <class T>
const Op* mad_wide(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const auto product =
        static_cast<Wider<T>>(get<T>(w, op->a, i)) * static_cast<Wider<T>>(get<T>(w, op->b, i));
    put<Wider<T>>(w, op->d, i,
                  static_cast<Wider<T>>(static_cast<uint64_t>(product) +
                                        static_cast<uint64_t>(get<Wider<T>>(w, op->c, i))));
  });
}

// CC.CF is one bit per lane.
void set_carry(Warp& w, const Op* op, unsigned i, bool carry) {
  if (op->flags & kCarryOut) w.carry = (w.carry & ~(1u << i)) | static_cast<Mask>(carry) << i;
}
template <class T>
const Op* add_carry(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const auto sum = static_cast<Doubled<T>>(get<T>(w, op->a, i)) + get<T>(w, op->b, i) +
                     (op->flags & kCarryIn ? w.carry >> i & 1 : 0);
    put<T>(w, op->d, i, static_cast<T>(sum));
    set_carry(w, op, i, sum >> kBits<T>);
  });
}
template <class T>
const Op* sub_carry(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const auto right =
        static_cast<Doubled<T>>(get<T>(w, op->b, i)) + (op->flags & kCarryIn ? w.carry >> i & 1 : 0);
    const auto left = static_cast<Doubled<T>>(get<T>(w, op->a, i));
    put<T>(w, op->d, i, static_cast<T>(left - right));
    set_carry(w, op, i, left < right);
  });
}
// The high half depends on signedness: T carries it.
template <class T, bool kHigh>
const Op* mad_carry(Warp& w, const Op* op) {
  using U = Unsigned<T>;
  return each(w, op, [&](unsigned i) {
    const T a = get<T>(w, op->a, i), b = get<T>(w, op->b, i);
    const auto part = static_cast<Doubled<U>>(static_cast<U>(kHigh ? high_product(a, b) : low_product(a, b)));
    const auto sum =
        part + static_cast<U>(get<T>(w, op->c, i)) + (op->flags & kCarryIn ? w.carry >> i & 1 : 0);
    put<U>(w, op->d, i, static_cast<U>(sum));
    set_carry(w, op, i, sum >> kBits<T>);
  });
}

template <class T>
const Op* selp(Warp& w, const Op* op) {
  Mask p = *at<Mask>(w, op->c);
  if (op->flags & kNegate) p = ~p;
  return each(w, op, [&](unsigned i) { put<T>(w, op->d, i, get<T>(w, p >> i & 1 ? op->a : op->b, i)); });
}
// type2 of the third operand: s32 or f32
template <class T>
const Op* slct(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    bool first;
    if (op->type2 == Ty::kF32) {
      float c = get<float>(w, op->c, i);
      first = c >= 0;  // NaN chooses b; a subnormal flushed or not keeps the sign test for -0
      if ((op->flags & kFtz) && std::fpclassify(c) == FP_SUBNORMAL) first = true;
    } else {
      first = get<int32_t>(w, op->c, i) >= 0;
    }
    put<T>(w, op->d, i, get<T>(w, first ? op->a : op->b, i));
  });
}

// Packed pairs of 16-bit integers.
template <class T, auto F>
const Op* pairs(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i);
    const auto part = [&](unsigned s) {
      return static_cast<uint32_t>(
          static_cast<uint16_t>(F(static_cast<T>(a >> s), static_cast<T>(b >> s), op)));
    };
    put<uint32_t>(w, op->d, i, part(0) | part(16) << 16);
  });
}

template <class T>
void integers(ScalarTable& t, Ty ty) {
  using O = Operation;
  t.set(O::kMov, ty, unary<T, mov>);
  t.set(O::kAdd, ty, binary<T, add>);
  t.set(O::kSub, ty, binary<T, sub>);
  t.set(O::kMul, ty, binary<T, mul>);
  t.set(O::kMulHi, ty, binary<T, mul_hi>);
  t.set(O::kMad, ty, ternary<T, mad>);
  t.set(O::kMadHi, ty, ternary<T, mad_hi>);
  t.set(O::kDiv, ty, binary<T, div>);
  t.set(O::kRem, ty, binary<T, rem>);
  t.set(O::kNeg, ty, unary<T, neg>);
  t.set(O::kMin, ty, binary<T, min>);
  t.set(O::kMax, ty, binary<T, max>);
  t.set(O::kSad, ty, ternary<T, sad>);
  t.set(O::kAnd, ty, binary<T, and_>);
  t.set(O::kOr, ty, binary<T, or_>);
  t.set(O::kXor, ty, binary<T, xor_>);
  t.set(O::kNot, ty, unary<T, not_>);
  t.set(O::kCnot, ty, unary<T, cnot>);
  t.set(O::kShl, ty, shift<T, shl>);
  t.set(O::kShr, ty, shift<T, shr>);
  t.set(O::kSelp, ty, selp<T>);
  t.set(O::kSlct, ty, slct<T>);
  if constexpr (std::is_signed_v<T>) t.set(O::kAbs, ty, unary<T, abs>);
  if constexpr (sizeof(T) < 8) {
    t.set(O::kMulWide, ty, mul_wide<T>);
    t.set(O::kMadWide, ty, mad_wide<T>);
  }
  if constexpr (sizeof(T) >= 4) {
    t.set(O::kClz, ty, to_count<Unsigned<T>, clz>);
    t.set(O::kPopc, ty, to_count<Unsigned<T>, popc>);
    t.set(O::kBrev, ty, unary<Unsigned<T>, brev>);
    t.set(O::kBfind, ty, to_count<T, bfind>);
    t.set(O::kBfe, ty, bfe<T>);
    t.set(O::kBfi, ty, bfi<Unsigned<T>>);
    t.set(O::kAddCarry, ty, add_carry<Unsigned<T>>);
    t.set(O::kSubCarry, ty, sub_carry<Unsigned<T>>);
    t.set(O::kMadCarry, ty, mad_carry<T, false>);
    t.set(O::kMadHiCarry, ty, mad_carry<T, true>);
  }
  if constexpr (sizeof(T) == 4) {
    t.set(O::kMul24, ty, binary<T, mul24>);
    t.set(O::kMul24Hi, ty, binary<T, mul24_hi>);
    t.set(O::kMad24, ty, ternary<T, mad24>);
    t.set(O::kMad24Hi, ty, ternary<T, mad24_hi>);
    t.set(O::kMin3, ty, ternary<T, min3>);
    t.set(O::kMax3, ty, ternary<T, max3>);
    t.set(O::kShfLeft, ty, funnel<true>);
    t.set(O::kShfRight, ty, funnel<false>);
    t.set(O::kLop3, ty, lop3);
    t.set(O::kPrmt, ty, prmt);
    t.set(O::kDp4a, ty, dp4a);
    t.set(O::kDp2a, ty, dp2a);
    t.set(O::kBmsk, ty, bmsk);
    t.set(O::kSzext, ty, szext<T>);
    t.set(O::kFns, ty, fns);
  }
}

}  // namespace

const Op* add_pairs(Warp& w, const Op* op) {
  return op->sub ? pairs<int16_t, add>(w, op) : pairs<uint16_t, add>(w, op);
}
const Op* min_pairs(Warp& w, const Op* op) {
  return op->sub ? pairs<int16_t, min>(w, op) : pairs<uint16_t, min>(w, op);
}
const Op* max_pairs(Warp& w, const Op* op) {
  return op->sub ? pairs<int16_t, max>(w, op) : pairs<uint16_t, max>(w, op);
}

// Absolute differences of count parts; sub bit 0: a signed, 1: b signed, 2: sum of the parts added to c.
const Op* absolute_differences(Warp& w, const Op* op) {
  const unsigned bits = 32u / op->count;
  const auto part = [&](uint32_t x, unsigned k, bool is_signed) -> int64_t {
    const uint32_t top = x << (32 - bits * (k + 1));
    return is_signed ? static_cast<int32_t>(top) >> (32 - bits) : static_cast<int64_t>(top >> (32 - bits));
  };
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i);
    uint32_t merged = 0, sum = get<uint32_t>(w, op->c, i);
    for (unsigned k = 0; k < op->count; ++k) {
      const int64_t difference = part(a, k, op->sub & 1) - part(b, k, op->sub & 2);
      const uint32_t magnitude = static_cast<uint32_t>(difference < 0 ? -difference : difference);
      merged |= (magnitude & ((1u << bits) - 1)) << (bits * k);
      sum += magnitude;
    }
    put<uint32_t>(w, op->d, i, op->sub & 4 ? sum : merged);
  });
}

void add_integer_handlers(ScalarTable& t) {
  integers<uint16_t>(t, Ty::kU16);
  integers<int16_t>(t, Ty::kS16);
  integers<uint32_t>(t, Ty::kU32);
  integers<int32_t>(t, Ty::kS32);
  integers<uint64_t>(t, Ty::kU64);
  integers<int64_t>(t, Ty::kS64);
  t.set(Operation::kMov, Ty::kU8, unary<uint8_t, mov>);
  t.set(Operation::kMov, Ty::kS8, unary<int8_t, mov>);
}

}  // namespace tessera::softgpu::exec
