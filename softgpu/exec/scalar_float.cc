// Scalar floating-point handlers: every rounding mode, ftz, sat, NaN rule. Compiled with -frounding-math.
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include <cfenv>
#include <cmath>

#include "softgpu/exec/half.h"
#include "softgpu/exec/scalar.h"
#include "softgpu/exec/scalar_tables.h"

namespace tessera::softgpu::exec {
namespace {

using lane::each;
using lane::get;
using lane::put;

template <class T>
T flush(T x) {
  if constexpr (sizeof(T) == 4) return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
  return x;
}
template <class T>
T input(T x, const Op* op) {
  return op->flags & kFtz ? flush(x) : x;
}
template <class T>
T canonical(T x) {
  if constexpr (sizeof(T) == 4)
    if (x != x) return std::bit_cast<float>(0x7fffffffu);
  return x;
}
template <class T>
T output(T x, const Op* op) {
  if (op->flags & kFtz) x = flush(x);
  if (op->flags & kSat) return x > 0 ? (x < 1 ? x : T{1}) : T{0};
  if ((op->flags & kRelu) && !(x > 0)) x = x == x ? T{0} : x;
  return canonical(x);
}

template <class T, auto F>
const Op* unary(Warp& w, const Op* op) {
  return each(w, op,
              [&](unsigned i) { put<T>(w, op->d, i, output<T>(F(input(get<T>(w, op->a, i), op)), op)); });
}
template <class T, auto F>
const Op* binary(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    put<T>(w, op->d, i, output<T>(F(input(get<T>(w, op->a, i), op), input(get<T>(w, op->b, i), op)), op));
  });
}
template <class T, auto F>
const Op* ternary(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    put<T>(w, op->d, i,
           output<T>(F(input(get<T>(w, op->a, i), op), input(get<T>(w, op->b, i), op),
                       input(get<T>(w, op->c, i), op)),
                     op));
  });
}
#ifdef __x86_64__
// Without the older control register, which fesetround() writes, too.
unsigned rounding() {
  return _mm_getcsr();
}
void round_as(unsigned before, unsigned sub) {
  static constexpr unsigned kMode[] = {_MM_ROUND_NEAREST, _MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN, _MM_ROUND_UP,
                                       _MM_ROUND_NEAREST};
  _mm_setcsr((before & ~static_cast<unsigned>(_MM_ROUND_MASK)) | kMode[sub]);
}
void round_again(unsigned before) {
  _mm_setcsr(before);
}
#else
int rounding() {
  return fegetround();
}
void round_as(int, unsigned sub) {
  static constexpr int kMode[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD, FE_TONEAREST};
  fesetround(kMode[sub]);
}
void round_again(int before) {
  fesetround(before);
}
#endif
// Runs an arithmetic handler in the rounding mode of op->sub. A call through a pointer keeps the arithmetic
// between the two writes of the control register.
const Op* in_rounding_mode(Warp& w, const Op* op, Handler handler) {
  const auto before = rounding();
  round_as(before, op->sub);
  Handler volatile callee = handler;  // opaque: nothing moves across the call
  const Op* next = callee(w, op);
  round_again(before);
  return next;
}
template <Handler H>
const Op* rounded(Warp& w, const Op* op) {
  return op->sub == 0 ? H(w, op) : in_rounding_mode(w, op, H);
}

constexpr auto add = [](auto a, auto b) { return a + b; };
constexpr auto sub = [](auto a, auto b) { return a - b; };
constexpr auto mul = [](auto a, auto b) { return a * b; };
constexpr auto div = [](auto a, auto b) { return a / b; };
constexpr auto fma = [](auto a, auto b, auto c) { return std::fma(a, b, c); };
constexpr auto rcp = [](auto a) { return decltype(a){1} / a; };
constexpr auto sqrt = [](auto a) { return std::sqrt(a); };
constexpr auto rsqrt = [](auto a) {
  return static_cast<decltype(a)>(1.0 / std::sqrt(static_cast<double>(a)));
};
constexpr auto sin = [](auto a) { return static_cast<decltype(a)>(std::sin(static_cast<double>(a))); };
constexpr auto cos = [](auto a) { return static_cast<decltype(a)>(std::cos(static_cast<double>(a))); };
constexpr auto lg2 = [](auto a) { return static_cast<decltype(a)>(std::log2(static_cast<double>(a))); };
constexpr auto ex2 = [](auto a) { return static_cast<decltype(a)>(std::exp2(static_cast<double>(a))); };
constexpr auto tanh = [](auto a) { return static_cast<decltype(a)>(std::tanh(static_cast<double>(a))); };

// Sign operations do not canonicalise.
template <class T, bool kAbs>
const Op* sign(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const T a = input(get<T>(w, op->a, i), op);
    put<T>(w, op->d, i, kAbs ? std::fabs(a) : -a);
  });
}
// copysign d, a, b: magnitude of b, sign of a.
template <class T>
const Op* copysign(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    put<T>(w, op->d, i, std::copysign(get<T>(w, op->b, i), get<T>(w, op->a, i)));
  });
}
// sub: finite infinite number notanumber normal subnormal
template <class T>
const Op* testp(Warp& w, const Op* op) {
  Mask r = 0;
  each(w, op, [&](unsigned i) {
    const int kind = std::fpclassify(get<T>(w, op->a, i));
    bool yes = false;
    switch (op->sub) {
      case 0:
        yes = kind != FP_INFINITE && kind != FP_NAN;
        break;
      case 1:
        yes = kind == FP_INFINITE;
        break;
      case 2:
        yes = kind != FP_NAN;
        break;
      case 3:
        yes = kind == FP_NAN;
        break;
      case 4:
        yes = kind == FP_NORMAL;
        break;
      default:
        yes = kind == FP_SUBNORMAL;
        break;
    }
    r |= static_cast<Mask>(yes) << i;
  });
  Mask& d = *at<Mask>(w, op->d);
  d = (d & ~w.mask) | r;
  return op + 1;
}

template <class T, bool kMaximum>
T choose(T a, T b, unsigned flags) {
  if (a != a || b != b) {
    if (flags & kNanResult) return a != a ? a : b;
    return a != a ? b : a;
  }
  T r;
  if (a == b)
    r = std::signbit(a) == kMaximum ? b : a;
  else
    r = (a > b) == kMaximum ? a : b;
  return r;
}
template <class T, bool kMaximum>
T choose_xorsign(T a, T b, unsigned flags) {
  if (!(flags & kXorSign)) return choose<T, kMaximum>(a, b, flags);
  const bool negative = std::signbit(a) != std::signbit(b);
  const T r = choose<T, kMaximum>(std::fabs(a), std::fabs(b), flags);
  return negative ? -r : r;
}
template <class T, bool kMaximum>
const Op* minmax(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    T r = choose_xorsign<T, kMaximum>(input(get<T>(w, op->a, i), op), input(get<T>(w, op->b, i), op),
                                      op->flags);
    put<T>(w, op->d, i, canonical(r));
  });
}
template <bool kMaximum>
const Op* minmax3(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    float r = choose_xorsign<float, kMaximum>(input(get<float>(w, op->a, i), op),
                                              input(get<float>(w, op->b, i), op), op->flags);
    r = choose_xorsign<float, kMaximum>(r, input(get<float>(w, op->c, i), op), op->flags);
    put<float>(w, op->d, i, canonical(r));
  });
}

// --- f16, bf16 and their pairs: exact in double, packed once -----------------------------------------------

struct HalfTraits {
  static constexpr Format kFormat = kHalfFormat;
  static double widen(uint16_t x) { return half_to_float(x); }
  static constexpr uint16_t kLeastNormal = 0x0400;
};
struct BrainTraits {
  static constexpr Format kFormat = kBrainFormat;
  static double widen(uint16_t x) { return brain_to_float(x); }
  static constexpr uint16_t kLeastNormal = 0x0080;
};
template <class Traits>
uint16_t flush16(uint16_t x, const Op* op) {
  return (op->flags & kFtz) && (x & 0x7fff) < Traits::kLeastNormal ? x & 0x8000 : x;
}
template <class Traits>
uint16_t finish16(double r, const Op* op) {
  if (op->flags & kSat) r = r > 0 ? (r < 1 ? r : 1.0) : 0.0;
  if ((op->flags & kRelu) && !(r > 0) && r == r) r = 0.0;
  return flush16<Traits>(static_cast<uint16_t>(pack_float(r, Traits::kFormat)), op);
}
// F(a, b, c) on doubles; kPair: two halves of a 32-bit register.
template <class Traits, bool kPair, unsigned kArity, auto F>
const Op* half_op(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i);
    const uint32_t b = kArity > 1 ? get<uint32_t>(w, op->b, i) : 0;
    const uint32_t c = kArity > 2 ? get<uint32_t>(w, op->c, i) : 0;
    const auto one = [&](unsigned s) -> uint32_t {
      const auto in = [&](uint32_t x) {
        return Traits::widen(flush16<Traits>(static_cast<uint16_t>(x >> s), op));
      };
      return finish16<Traits>(F(in(a), in(b), in(c)), op);
    };
    put<uint32_t>(w, op->d, i, kPair ? one(0) | one(16) << 16 : one(0));
  });
}
constexpr auto add16 = [](double a, double b, double) { return multiply_add_odd(a, 1.0, b); };
constexpr auto sub16 = [](double a, double b, double) { return multiply_add_odd(a, 1.0, -b); };
constexpr auto mul16 = [](double a, double b, double) { return a * b; };
constexpr auto fma16 = [](double a, double b, double c) { return multiply_add_odd(a, b, c); };
constexpr auto ex216 = [](double a, double, double) { return std::exp2(a); };
constexpr auto tanh16 = [](double a, double, double) { return std::tanh(a); };

template <class Traits, bool kPair, bool kMaximum>
const Op* half_minmax(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i), b = get<uint32_t>(w, op->b, i);
    const auto one = [&](unsigned s) -> uint32_t {
      const auto in = [&](uint32_t x) {
        return Traits::widen(flush16<Traits>(static_cast<uint16_t>(x >> s), op));
      };
      return static_cast<uint16_t>(
          pack_float(choose_xorsign<double, kMaximum>(in(a), in(b), op->flags), Traits::kFormat));
    };
    put<uint32_t>(w, op->d, i, kPair ? one(0) | one(16) << 16 : one(0));
  });
}
template <class Traits, bool kPair, bool kAbs>
const Op* half_sign(Warp& w, const Op* op) {
  return each(w, op, [&](unsigned i) {
    const uint32_t a = get<uint32_t>(w, op->a, i);
    const auto one = [&](unsigned s) -> uint32_t {
      const uint16_t x = flush16<Traits>(static_cast<uint16_t>(a >> s), op);
      return static_cast<uint16_t>(kAbs ? x & 0x7fff : x ^ 0x8000);
    };
    put<uint32_t>(w, op->d, i, kPair ? one(0) | one(16) << 16 : one(0));
  });
}

template <class T>
void floats(ScalarTable& t, Ty ty) {
  using O = Operation;
  t.set(O::kAdd, ty, rounded<binary<T, add>>);
  t.set(O::kSub, ty, rounded<binary<T, sub>>);
  t.set(O::kMul, ty, rounded<binary<T, mul>>);
  t.set(O::kDiv, ty, rounded<binary<T, div>>);
  t.set(O::kFma, ty, rounded<ternary<T, fma>>);
  t.set(O::kRcp, ty, rounded<unary<T, rcp>>);
  t.set(O::kSqrt, ty, rounded<unary<T, sqrt>>);
  t.set(O::kRsqrt, ty, unary<T, rsqrt>);
  t.set(O::kAbs, ty, sign<T, true>);
  t.set(O::kNeg, ty, sign<T, false>);
  t.set(O::kMin, ty, minmax<T, false>);
  t.set(O::kMax, ty, minmax<T, true>);
  t.set(O::kCopysign, ty, copysign<T>);
  t.set(O::kTestp, ty, testp<T>);
}
template <class Traits, bool kPair>
void halves(ScalarTable& t, Ty ty) {
  using O = Operation;
  t.set(O::kAdd, ty, half_op<Traits, kPair, 2, add16>);
  t.set(O::kSub, ty, half_op<Traits, kPair, 2, sub16>);
  t.set(O::kMul, ty, half_op<Traits, kPair, 2, mul16>);
  t.set(O::kFma, ty, half_op<Traits, kPair, 3, fma16>);
  t.set(O::kEx2, ty, half_op<Traits, kPair, 1, ex216>);
  t.set(O::kTanh, ty, half_op<Traits, kPair, 1, tanh16>);
  t.set(O::kMin, ty, half_minmax<Traits, kPair, false>);
  t.set(O::kMax, ty, half_minmax<Traits, kPair, true>);
  t.set(O::kAbs, ty, half_sign<Traits, kPair, true>);
  t.set(O::kNeg, ty, half_sign<Traits, kPair, false>);
}

}  // namespace

const Op* op_rounded(Warp& w, const Op* op) {
  return in_rounding_mode(w, op, reinterpret_cast<Handler>(const_cast<Op*>(op->target)));
}

void add_float_handlers(ScalarTable& t) {
  using O = Operation;
  floats<float>(t, Ty::kF32);
  floats<double>(t, Ty::kF64);
  t.set(O::kSin, Ty::kF32, unary<float, sin>);
  t.set(O::kCos, Ty::kF32, unary<float, cos>);
  t.set(O::kLg2, Ty::kF32, unary<float, lg2>);
  t.set(O::kEx2, Ty::kF32, unary<float, ex2>);
  t.set(O::kTanh, Ty::kF32, unary<float, tanh>);
  t.set(O::kMin3, Ty::kF32, minmax3<false>);
  t.set(O::kMax3, Ty::kF32, minmax3<true>);
  halves<HalfTraits, false>(t, Ty::kF16);
  halves<HalfTraits, true>(t, Ty::kF16x2);
  halves<BrainTraits, false>(t, Ty::kBf16);
  halves<BrainTraits, true>(t, Ty::kBf16x2);
}

}  // namespace tessera::softgpu::exec
