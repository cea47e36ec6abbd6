// Vector handlers for the operations that kernels spend their time in; compiled three times (AVX-512, AVX2,
// x86-64-v2) with TS_ISA and TS_ISA_NAMESPACE set. What is missing here falls back to the scalar handlers,
// which define the meaning; tests compare both. Nothing here may call library code: its inline copies would
// carry this unit's instruction set into the whole program.
#include "softgpu/exec/simd.h"

#ifdef __clang__  // knows no `GCC ivdep`
#pragma clang diagnostic ignored "-Wunknown-pragmas"
#endif

namespace tessera::softgpu::exec::TS_ISA_NAMESPACE {
namespace {

template <class T>
struct BitsOf {
  using U = uint32_t;
  using S = int32_t;
};
template <>
struct BitsOf<double> {
  using U = uint64_t;
  using S = int64_t;
};
template <>
struct BitsOf<uint64_t> {
  using U = uint64_t;
  using S = int64_t;
};
template <>
struct BitsOf<int64_t> {
  using U = uint64_t;
  using S = int64_t;
};

// --- integer and bit operations ----------------------------------------------------------------------------

#define TS_BINARY(name, expression)                                                \
  template <class T>                                                               \
  const Op* name(Warp& w, const Op* op) {                                          \
    map2(                                                                          \
        w, at<T>(w, op->d), at<T>(w, op->a), at<T>(w, op->b),                      \
        [](auto a, auto b) __attribute__((always_inline)) { return expression; }); \
    return op + 1;                                                                 \
  }
TS_BINARY(add, a + b)
TS_BINARY(sub, a - b)
TS_BINARY(mul, a* b)
TS_BINARY(and_, a& b)
TS_BINARY(or_, a | b)
TS_BINARY(xor_, a ^ b)
TS_BINARY(min_, a < b ? a : b)
TS_BINARY(max_, a > b ? a : b)
#undef TS_BINARY

template <class T>
const Op* mov(Warp& w, const Op* op) {
  map1(
      w, at<T>(w, op->d), at<T>(w, op->a), [](auto a) __attribute__((always_inline)) { return a; });
  return op + 1;
}
template <class T>
const Op* not_(Warp& w, const Op* op) {
  map1(
      w, at<T>(w, op->d), at<T>(w, op->a), [](auto a) __attribute__((always_inline)) { return ~a; });
  return op + 1;
}
template <class T>
const Op* neg(Warp& w, const Op* op) {
  map1(
      w, at<T>(w, op->d), at<T>(w, op->a), [](auto a) __attribute__((always_inline)) { return -a; });
  return op + 1;
}
template <class T>
const Op* mad(Warp& w, const Op* op) {
  map3(
      w, at<T>(w, op->d), at<T>(w, op->a), at<T>(w, op->b), at<T>(w, op->c),
      [](auto a, auto b, auto c) __attribute__((always_inline)) { return a * b + c; });
  return op + 1;
}
template <class T, class Wide>
const Op* mul_wide(Warp& w, const Op* op) {
  const T *a = at<T>(w, op->a), *b = at<T>(w, op->b);
  map_mixed(
      w, at<Wide>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
        return __builtin_convertvector(load<Vec64Lanes<T>>(a + i), Vec<Wide>) *
               __builtin_convertvector(load<Vec64Lanes<T>>(b + i), Vec<Wide>);
      });
  return op + 1;
}
template <class T, class Wide>
const Op* mad_wide(Warp& w, const Op* op) {
  const T *a = at<T>(w, op->a), *b = at<T>(w, op->b);
  const Wide* c = at<Wide>(w, op->c);
  map_mixed(
      w, at<Wide>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
        return __builtin_convertvector(load<Vec64Lanes<T>>(a + i), Vec<Wide>) *
                   __builtin_convertvector(load<Vec64Lanes<T>>(b + i), Vec<Wide>) +
               load<Vec<Wide>>(c + i);
      });
  return op + 1;
}
template <class T, class Wide>
const Op* mul_hi(Warp& w, const Op* op) {
  const T *a = at<T>(w, op->a), *b = at<T>(w, op->b);
  map_mixed(
      w, at<T>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
        auto product = __builtin_convertvector(load<Vec64Lanes<T>>(a + i), Vec<Wide>) *
                       __builtin_convertvector(load<Vec64Lanes<T>>(b + i), Vec<Wide>);
        return __builtin_convertvector(product >> 32, Vec64Lanes<T>);
      });
  return op + 1;
}
// Shift counts are 32-bit and clamp at the width.
template <class T>
const Op* shl32(Warp& w, const Op* op) {
  map2(
      w, at<T>(w, op->d), at<T>(w, op->a), at<T>(w, op->b),
      [](auto a, auto b) __attribute__((always_inline)) { return b < 32 ? a << (b & 31) : a - a; });
  return op + 1;
}
const Op* shr_u32(Warp& w, const Op* op) {
  map2(
      w, at<uint32_t>(w, op->d), at<uint32_t>(w, op->a), at<uint32_t>(w, op->b),
      [](auto a, auto b) __attribute__((always_inline)) { return b < 32 ? a >> (b & 31) : a - a; });
  return op + 1;
}
const Op* shr_s32(Warp& w, const Op* op) {
  map2(
      w, at<uint32_t>(w, op->d), at<uint32_t>(w, op->a), at<uint32_t>(w, op->b),
      [](auto a, auto b) __attribute__((always_inline)) {
        auto n = b < 32 ? b : (b - b) + 31;
        return (Vec<uint32_t>)((Vec<int32_t>)a >> (Vec<int32_t>)n);
      });
  return op + 1;
}
template <class T, class F>
TS_INLINE void shift64(Warp& w, const Op* op, F f) {
  const T* a = at<T>(w, op->a);
  const uint32_t* b = at<uint32_t>(w, op->b);
  map_mixed(
      w, at<T>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
        return f(load<Vec<T>>(a + i),
                 __builtin_convertvector(load<Vec64Lanes<uint32_t>>(b + i), Vec<uint64_t>));
      });
}
const Op* shl64(Warp& w, const Op* op) {
  shift64<uint64_t>(
      w, op, [](auto a, auto b) __attribute__((always_inline)) { return b < 64 ? a << (b & 63) : a - a; });
  return op + 1;
}
const Op* shr_u64(Warp& w, const Op* op) {
  shift64<uint64_t>(
      w, op, [](auto a, auto b) __attribute__((always_inline)) { return b < 64 ? a >> (b & 63) : a - a; });
  return op + 1;
}
const Op* shr_s64(Warp& w, const Op* op) {
  shift64<int64_t>(
      w, op, [](auto a, auto b) __attribute__((always_inline)) {
        return a >> (Vec<int64_t>)(b < 64 ? b : (b - b) + 63);
      });
  return op + 1;
}
template <class T>
const Op* selp(Warp& w, const Op* op) {
  T* d = at<T>(w, op->d);
  const T *a = at<T>(w, op->a), *b = at<T>(w, op->b);
  Mask p = *at<Mask>(w, op->c);
  if (op->flags & kNegate) p = ~p;
  constexpr unsigned n = kVectorBytes / sizeof(T);
  const Mask m = w.mask;
  if (d != b)
    for (unsigned i = 0; i < kLanes; i += n) {
      alignas(64) T chosen[n];
      store(chosen, load<Vec<T>>(b + i));
      store_masked(chosen, load<Vec<T>>(a + i), p >> i);
      store_masked(d + i, load<Vec<T>>(chosen), m >> i);
    }
  else
    for (unsigned i = 0; i < kLanes; i += n) store_masked(d + i, load<Vec<T>>(a + i), (p & m) >> i);
  return op + 1;
}

// --- comparisons -------------------------------------------------------------------------------------------

TS_INLINE void write_predicates(Warp& w, const Op* op, Mask r) {
  const Mask m = w.mask;
  Mask second = ~r;
  if (op->flags & (kBoolAnd | kBoolOr | kBoolXor)) {
    Mask c = *at<Mask>(w, op->c);
    if (op->flags & kNegate) c = ~c;
    const Mask first = r;
    r = op->flags & kBoolAnd ? first & c : op->flags & kBoolOr ? first | c : first ^ c;
    second = op->flags & kBoolAnd ? ~first & c : op->flags & kBoolOr ? ~first | c : ~first ^ c;
  }
  Mask* d = at<Mask>(w, op->d);
  *d = (*d & ~m) | (r & m);
  if (op->flags & kSecond) {
    Mask* d2 = at<Mask>(w, op->d2);
    *d2 = (*d2 & ~m) | (second & m);
  }
}
#define TS_COMPARE(expression) \
  compare2(                    \
      a, b, [](auto x, auto y) __attribute__((always_inline)) { return expression; })
#if TS_ISA == 512
// The instruction that leaves a mask; the compiler makes vectors of comparisons first.
template <int kHow, class T>
TS_INLINE Mask compared(const T* a, const T* b) {
  Mask r = 0;
  for (unsigned i = 0; i < kLanes; i += 64 / sizeof(T)) {
    Mask part;
    if constexpr (T(0.5) != 0)
      part = sizeof(T) == 4 ? Mask{_mm512_cmp_ps_mask(load<__m512>(a + i), load<__m512>(b + i), kHow)}
                            : Mask{_mm512_cmp_pd_mask(load<__m512d>(a + i), load<__m512d>(b + i), kHow)};
    else if constexpr (T(-1) > T(0))
      part = sizeof(T) == 4 ? Mask{_mm512_cmp_epu32_mask(load<__m512i>(a + i), load<__m512i>(b + i), kHow)}
                            : Mask{_mm512_cmp_epu64_mask(load<__m512i>(a + i), load<__m512i>(b + i), kHow)};
    else
      part = sizeof(T) == 4 ? Mask{_mm512_cmp_epi32_mask(load<__m512i>(a + i), load<__m512i>(b + i), kHow)}
                            : Mask{_mm512_cmp_epi64_mask(load<__m512i>(a + i), load<__m512i>(b + i), kHow)};
    r |= part << i;
  }
  return r;
}
#define TS_COMPARE_INT(how, expression) compared<how>(a, b)
#define TS_COMPARE_FLOAT(how, expression) compared<how>(a, b)
#else
#define TS_COMPARE_INT(how, expression) TS_COMPARE(expression)
#define TS_COMPARE_FLOAT(how, expression) TS_COMPARE(expression)
#endif
template <class T>
const Op* setp_int(Warp& w, const Op* op) {
  const T *a = at<T>(w, op->a), *b = at<T>(w, op->b);
  Mask r = 0;
  switch (static_cast<Compare>(op->sub)) {
    case Compare::kEq:
      r = TS_COMPARE_INT(_MM_CMPINT_EQ, x == y);
      break;
    case Compare::kNe:
      r = TS_COMPARE_INT(_MM_CMPINT_NE, x != y);
      break;
    case Compare::kLt:
      r = TS_COMPARE_INT(_MM_CMPINT_LT, x < y);
      break;
    case Compare::kLe:
      r = TS_COMPARE_INT(_MM_CMPINT_LE, x <= y);
      break;
    case Compare::kGt:
      r = TS_COMPARE_INT(_MM_CMPINT_NLE, x > y);
      break;
    default:
      r = TS_COMPARE_INT(_MM_CMPINT_NLT, x >= y);
      break;
  }
  write_predicates(w, op, r);
  return op + 1;
}
// 16-bit values live in 32-bit lanes with unspecified upper halves: compare them shifted to the top.
template <class T>
const Op* setp_int16(Warp& w, const Op* op) {
  const T *a = at<T>(w, op->a), *b = at<T>(w, op->b);
  Mask r = 0;
  switch (static_cast<Compare>(op->sub)) {
    case Compare::kEq:
      r = TS_COMPARE((x << 16) == (y << 16));
      break;
    case Compare::kNe:
      r = TS_COMPARE((x << 16) != (y << 16));
      break;
    case Compare::kLt:
      r = TS_COMPARE((x << 16) < (y << 16));
      break;
    case Compare::kLe:
      r = TS_COMPARE((x << 16) <= (y << 16));
      break;
    case Compare::kGt:
      r = TS_COMPARE((x << 16) > (y << 16));
      break;
    default:
      r = TS_COMPARE((x << 16) >= (y << 16));
      break;
  }
  write_predicates(w, op, r);
  return op + 1;
}

template <class T, class V>
TS_INLINE V flush(V x) {
  using U = typename BitsOf<T>::U;
  if constexpr (sizeof(T) == 8) {
    return x;
  } else {
    auto bits = (Vec<U>)x;
    auto tiny = (bits & 0x7f800000u) == 0;
    return (V)(tiny ? bits & 0x80000000u : bits);
  }
}
template <class T>
const Op* setp_float(Warp& w, const Op* op) {
  const T *pa = at<T>(w, op->a), *pb = at<T>(w, op->b);
  alignas(64) T fa[kLanes], fb[kLanes];
  const T *a = pa, *b = pb;
  if (op->flags & kFtz) {
    constexpr unsigned n = kVectorBytes / sizeof(T);
    for (unsigned i = 0; i < kLanes; i += n) {
      store(fa + i, flush<T>(load<Vec<T>>(pa + i)));
      store(fb + i, flush<T>(load<Vec<T>>(pb + i)));
    }
    a = fa;
    b = fb;
  }
  Mask r = 0;
  switch (static_cast<Compare>(op->sub)) {
    case Compare::kEq:
      r = TS_COMPARE_FLOAT(_CMP_EQ_OQ, x == y);
      break;
    case Compare::kNe:
      r = TS_COMPARE_FLOAT(_CMP_NEQ_OQ, (x < y) | (x > y));
      break;
    case Compare::kLt:
      r = TS_COMPARE_FLOAT(_CMP_LT_OQ, x < y);
      break;
    case Compare::kLe:
      r = TS_COMPARE_FLOAT(_CMP_LE_OQ, x <= y);
      break;
    case Compare::kGt:
      r = TS_COMPARE_FLOAT(_CMP_GT_OQ, x > y);
      break;
    case Compare::kGe:
      r = TS_COMPARE_FLOAT(_CMP_GE_OQ, x >= y);
      break;
    case Compare::kEqu:
      r = ~TS_COMPARE_FLOAT(_CMP_NEQ_OQ, (x < y) | (x > y));
      break;
    case Compare::kNeu:
      r = ~TS_COMPARE_FLOAT(_CMP_EQ_OQ, x == y);
      break;
    case Compare::kLtu:
      r = ~TS_COMPARE_FLOAT(_CMP_GE_OQ, x >= y);
      break;
    case Compare::kLeu:
      r = ~TS_COMPARE_FLOAT(_CMP_GT_OQ, x > y);
      break;
    case Compare::kGtu:
      r = ~TS_COMPARE_FLOAT(_CMP_LE_OQ, x <= y);
      break;
    case Compare::kGeu:
      r = ~TS_COMPARE_FLOAT(_CMP_LT_OQ, x < y);
      break;
    case Compare::kNum:
      r = TS_COMPARE_FLOAT(_CMP_ORD_Q, (x == x) & (y == y));
      break;
    case Compare::kNan:
      r = ~TS_COMPARE_FLOAT(_CMP_ORD_Q, (x == x) & (y == y));
      break;
  }
  write_predicates(w, op, r);
  return op + 1;
}
#undef TS_COMPARE

// --- floating point ----------------------------------------------------------------------------------------

// f32 results: NaN becomes 0x7fffffff; .sat clamps to [0,1] with NaN -> 0. f64 keeps NaN payloads.
template <class T, class V>
TS_INLINE V finish(V r) {
  if constexpr (sizeof(T) == 4) {
    auto bits = (Vec<uint32_t>)r;
    return (V)(r == r ? bits : (bits & 0) + 0x7fffffffu);
  } else {
    return r;
  }
}
template <class T, class V>
TS_INLINE V finish_modified(V r, unsigned flags) {
  if (flags & kFtz) r = flush<T>(r);
  if (flags & kSat) {
    V zero = r - r;
    zero = (V)((Vec<typename BitsOf<T>::U>)zero & 0);
    V one = zero + static_cast<T>(1);
    r = r > zero ? (r < one ? r : one) : zero;
    return r;
  }
  return finish<T>(r);
}
#define TS_FLOAT2(name, expression)                                                             \
  template <class T>                                                                            \
  const Op* name(Warp& w, const Op* op) {                                                       \
    T* d = at<T>(w, op->d);                                                                     \
    const T *pa = at<T>(w, op->a), *pb = at<T>(w, op->b);                                       \
    const unsigned flags = op->flags;                                                           \
    if (!(flags & (kFtz | kSat)))                                                               \
      map2(                                                                                     \
          w, d, pa, pb,                                                                         \
          [](auto a, auto b) __attribute__((always_inline)) { return finish<T>(expression); }); \
    else                                                                                        \
      map2(                                                                                     \
          w, d, pa, pb, [flags](auto a, auto b) __attribute__((always_inline)) {                \
            if (flags & kFtz) a = flush<T>(a), b = flush<T>(b);                                 \
            return finish_modified<T>(expression, flags);                                       \
          });                                                                                   \
    return op + 1;                                                                              \
  }
TS_FLOAT2(fadd, a + b)
TS_FLOAT2(fsub, a - b)
TS_FLOAT2(fmul, a* b)
TS_FLOAT2(fdiv, a / b)
#undef TS_FLOAT2

template <class V>
TS_INLINE V root(V a) {
  constexpr bool k32 = sizeof(a[0]) == 4;
#if TS_ISA == 512
  if constexpr (k32)
    return (V)_mm512_sqrt_ps((__m512)a);
  else
    return (V)_mm512_sqrt_pd((__m512d)a);
#elif TS_ISA == 256
  if constexpr (k32)
    return (V)_mm256_sqrt_ps((__m256)a);
  else
    return (V)_mm256_sqrt_pd((__m256d)a);
#else
  if constexpr (k32)
    return (V)_mm_sqrt_ps((__m128)a);
  else
    return (V)_mm_sqrt_pd((__m128d)a);
#endif
}
#define TS_FLOAT1(name, expression)                                                           \
  template <class T>                                                                          \
  const Op* name(Warp& w, const Op* op) {                                                     \
    const unsigned flags = op->flags;                                                         \
    map1(                                                                                     \
        w, at<T>(w, op->d), at<T>(w, op->a), [flags](auto a) __attribute__((always_inline)) { \
          if (flags & kFtz) a = flush<T>(a);                                                  \
          auto one = (decltype(a))((Vec<typename BitsOf<T>::U>)a & 0) + static_cast<T>(1);    \
          (void)one;                                                                          \
          return finish_modified<T>(expression, flags);                                       \
        });                                                                                   \
    return op + 1;                                                                            \
  }
TS_FLOAT1(frcp, one / a)
TS_FLOAT1(fsqrt, root(a))
#undef TS_FLOAT1

template <class T>
const Op* fneg(Warp& w, const Op* op) {
  using U = typename BitsOf<T>::U;
  const bool ftz = op->flags & kFtz;
  map1(
      w, at<T>(w, op->d), at<T>(w, op->a), [ftz](auto a) __attribute__((always_inline)) {
        if (ftz) a = flush<T>(a);
        return (decltype(a))((Vec<U>)a ^ (U{1} << (sizeof(T) * 8 - 1)));
      });
  return op + 1;
}
template <class T>
const Op* fabs_(Warp& w, const Op* op) {
  using U = typename BitsOf<T>::U;
  const bool ftz = op->flags & kFtz;
  map1(
      w, at<T>(w, op->d), at<T>(w, op->a), [ftz](auto a) __attribute__((always_inline)) {
        if (ftz) a = flush<T>(a);
        return (decltype(a))((Vec<U>)a & ~(U{1} << (sizeof(T) * 8 - 1)));
      });
  return op + 1;
}
// A NaN operand yields the other one; -0 is less than +0.
template <class T, bool kMaximum>
const Op* fminmax(Warp& w, const Op* op) {
  using U = typename BitsOf<T>::U;
  const bool ftz = op->flags & kFtz;
  map2(
      w, at<T>(w, op->d), at<T>(w, op->a),
      at<T>(w, op->b), [ftz](auto a, auto b) __attribute__((always_inline)) {
        if (ftz) a = flush<T>(a), b = flush<T>(b);
        auto ia = (Vec<U>)a, ib = (Vec<U>)b;
        auto r = kMaximum ? (a > b ? ia : ib) : (a < b ? ia : ib);
        r = a == b ? (kMaximum ? ia & ib : ia | ib) : r;
        r = a == a ? r : ib;
        r = b == b ? r : ia;
        return finish<T>((decltype(a))r);
      });
  return op + 1;
}
#if TS_ISA >= 256
template <class V>
TS_INLINE V fused(V a, V b, V c) {
  constexpr bool k32 = sizeof(a[0]) == 4;
#if TS_ISA == 512
  if constexpr (k32)
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  else
    return (V)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#else
  if constexpr (k32)
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  else
    return (V)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#endif
}
template <class T>
const Op* ffma(Warp& w, const Op* op) {
  T* d = at<T>(w, op->d);
  const T *pa = at<T>(w, op->a), *pb = at<T>(w, op->b), *pc = at<T>(w, op->c);
  const unsigned flags = op->flags;
  if (!(flags & (kFtz | kSat)))
    map3(
        w, d, pa, pb, pc,
        [](auto a, auto b, auto c) __attribute__((always_inline)) { return finish<T>(fused(a, b, c)); });
  else
    map3(
        w, d, pa, pb, pc, [flags](auto a, auto b, auto c) __attribute__((always_inline)) {
          if (flags & kFtz) a = flush<T>(a), b = flush<T>(b), c = flush<T>(c);
          return finish_modified<T>(fused(a, b, c), flags);
        });
  return op + 1;
}

// 2^x: x = n + f with |f| <= 1/2, degree-7 polynomial of 2^f (error below 1 ulp), scaled in two steps so that
// subnormal results round once.
const Op* ex2_f32(Warp& w, const Op* op) {
  const unsigned flags = op->flags;
  map1(
      w, at<float>(w, op->d), at<float>(w, op->a), [flags](auto x) __attribute__((always_inline)) {
        using F = decltype(x);
        using I = Vec<int32_t>;
        if (flags & kFtz) x = flush<float>(x);
        F y = x < 130.0f ? x : (F)((I)x & 0) + 130.0f;  // also catches NaN, restored at the end
        y = y > -160.0f ? y : (F)((I)y & 0) - 160.0f;
        F shifted = y + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
        I n = (I)shifted - 0x4b400000;
        F f = y - (shifted - 12582912.0f);
        F p = (F)((I)f & 0) + 1.52527338e-5f;
        p = fused(p, f, (F)((I)f & 0) + 1.54035304e-4f);
        p = fused(p, f, (F)((I)f & 0) + 1.33335581e-3f);
        p = fused(p, f, (F)((I)f & 0) + 9.61812911e-3f);
        p = fused(p, f, (F)((I)f & 0) + 5.55041087e-2f);
        p = fused(p, f, (F)((I)f & 0) + 2.40226507e-1f);
        p = fused(p, f, (F)((I)f & 0) + 6.93147181e-1f);
        p = fused(p, f, (F)((I)f & 0) + 1.0f);
        I half = n >> 1;
        F r = p * (F)((half + 127) << 23) * (F)((n - half + 127) << 23);
        if (flags & kFtz) r = flush<float>(r);
        I bits = (I)r;
        bits = x == x ? bits : (bits & 0) + 0x7fffffff;
        return (F)bits;
      });
  return op + 1;
}
#endif

// --- conversions -------------------------------------------------------------------------------------------

// Same lane count, any element sizes of 4 or 8 bytes; default rounding (nearest to float, none to wider
// integers).
template <class D, class A>
const Op* convert(Warp& w, const Op* op) {
  const A* a = at<A>(w, op->a);
  if constexpr (sizeof(D) == 4 && sizeof(A) == 4)
    map1(
        w, at<D>(w, op->d), a,
        [](auto x) __attribute__((always_inline)) { return __builtin_convertvector(x, Vec<D>); });
  else
    map_mixed(
        w, at<D>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
          return __builtin_convertvector(load<Vec64Lanes<A>>(a + i), Vec64Lanes<D>);
        });
  return op + 1;
}
// cvt.f32.f32 with .ftz and .sat, and between f32 and f64.
const Op* f32_to_f32(Warp& w, const Op* op) {
  const unsigned flags = op->flags;
  map1(
      w, at<float>(w, op->d), at<float>(w, op->a), [flags](auto a) __attribute__((always_inline)) {
        if (flags & kFtz) a = flush<float>(a);
        return finish_modified<float>(a, flags);
      });
  return op + 1;
}
const Op* f32_to_f64(Warp& w, const Op* op) {
  const float* a = at<float>(w, op->a);
  alignas(64) float flushed[kLanes];
  if (op->flags & kFtz) {
    for (unsigned i = 0; i < kLanes; i += kLanes32) store(flushed + i, flush<float>(load<Vec<float>>(a + i)));
    a = flushed;
  }
  map_mixed(
      w, at<double>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
        return __builtin_convertvector(load<Vec64Lanes<float>>(a + i), Vec<double>);
      });
  return op + 1;
}
const Op* f64_to_f32(Warp& w, const Op* op) {
  const double* a = at<double>(w, op->a);
  alignas(64) float narrow[kLanes];
  for (unsigned i = 0; i < kLanes; i += kLanes64)
    store(narrow + i, __builtin_convertvector(load<Vec<double>>(a + i), Vec64Lanes<float>));
  const unsigned flags = op->flags;
  map1(
      w, at<float>(w, op->d),
      narrow, [flags](auto x) __attribute__((always_inline)) { return finish_modified<float>(x, flags); });
  return op + 1;
}
// From 8 and 16-bit values in 32-bit lanes.
template <class D, class S, unsigned kShift>
const Op* convert_narrow(Warp& w, const Op* op) {
  const S* a = at<S>(w, op->a);
  if constexpr (sizeof(D) == 4)
    map1(
        w, at<D>(w, op->d), a, [](auto x) __attribute__((always_inline)) {
          return __builtin_convertvector((x << kShift) >> kShift, Vec<D>);
        });
  else
    map_mixed(
        w, at<D>(w, op->d), [&](unsigned i) __attribute__((always_inline)) {
          return __builtin_convertvector((load<Vec64Lanes<S>>(a + i) << kShift) >> kShift, Vec64Lanes<D>);
        });
  return op + 1;
}
// Truncating, saturating, NaN -> 0.
const Op* f32_to_s32(Warp& w, const Op* op) {
  map1(
      w, at<int32_t>(w, op->d), at<float>(w, op->a), [](auto x) __attribute__((always_inline)) {
        using I = Vec<int32_t>;
        I r = __builtin_convertvector(x, I);
        r = x >= 2147483648.0f ? (r & 0) + 0x7fffffff : r;
        return x == x ? r : (r & 0);
      });
  return op + 1;
}
#if TS_ISA == 512
const Op* f16_to_f32(Warp& w, const Op* op) {
  map1(
      w, at<float>(w, op->d), at<uint32_t>(w, op->a), [](auto x) __attribute__((always_inline)) {
        return finish<float>((Vec<float>)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x)));
      });
  return op + 1;
}
const Op* f32_to_f16(Warp& w, const Op* op) {
  const unsigned flags = op->flags;
  map1(
      w, at<uint32_t>(w, op->d), at<float>(w, op->a), [flags](auto x) __attribute__((always_inline)) {
        if (flags & kFtz) x = flush<float>(x);
        auto r = (Vec<uint32_t>)_mm512_cvtepu16_epi32(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
        return x == x ? r : (r & 0) + 0x7fff;
      });
  return op + 1;
}
#endif
const Op* bf16_to_f32(Warp& w, const Op* op) {
  map1(
      w, at<float>(w, op->d), at<uint32_t>(w, op->a),
      [](auto x) __attribute__((always_inline)) { return finish<float>((Vec<float>)(x << 16)); });
  return op + 1;
}
const Op* f32_to_bf16(Warp& w, const Op* op) {
  map1(
      w, at<uint32_t>(w, op->d), at<float>(w, op->a), [](auto x) __attribute__((always_inline)) {
        auto bits = (Vec<uint32_t>)x;
        auto r = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        return x == x ? r : (r & 0) + 0x7fff;
      });
  return op + 1;
}

// --- memory ------------------------------------------------------------------------------------------------

struct Pattern {
  uint64_t begin;  // address of lane 0 as if it were active (consecutive), or of the one element (uniform)
  bool consecutive, uniform;
};
// How the active lanes' addresses lie. First lane decides the base; mask is not empty.
template <class A>
TS_INLINE Pattern pattern(Warp& w, const Op* op, unsigned stride) {
  const A* a = at<A>(w, op->a);
  const Mask m = w.mask;
  const unsigned first = __builtin_ctz(m);
  const A start = a[first];
  const A base = start - static_cast<A>(first * stride);
  Mask off = 0, differ = ~0u;
  constexpr unsigned n = kVectorBytes / sizeof(A);
  for (unsigned i = 0; i < kLanes; i += n) {
    Vec<A> x = load<Vec<A>>(a + i);
    Vec<A> index;
    if constexpr (sizeof(A) == 8)
      index = lane_index64();
    else
      index = lane_index32();
    off |= unequal(x, (index + static_cast<A>(i)) * static_cast<A>(stride) + base) << i;
  }
  if (off & m) {
    differ = 0;
    for (unsigned i = 0; i < kLanes; i += n) {
      const Vec<A> x = load<Vec<A>>(a + i);
      differ |= unequal(x, (x & 0) + start) << i;
    }
  }
  Pattern p;
  p.uniform = !(differ & m);
  p.consecutive = !(off & m);
  const A lowest = start + static_cast<A>(op->imm);  // wraps with the address
  p.begin = uint64_t{lowest} - (p.uniform && !p.consecutive ? 0 : uint64_t{first} * stride);
  return p;
}

template <class R>
struct Storage {
  using T = uint32_t;
};
template <>
struct Storage<uint64_t> {
  using T = uint64_t;
};
template <>
struct Storage<int8_t> {
  using T = int32_t;
};
template <>
struct Storage<int16_t> {
  using T = int32_t;
};

// Lane registers of a vector access.
TS_INLINE uint32_t element(const Op* op, unsigned k) {
  return k == 0 ? op->d : k == 1 ? op->d2 : k == 2 ? op->b : op->c;
}
template <class E, class S, unsigned kCount>
TS_INLINE void load_lanes_full(Warp& w, const Op* op, const E* p) {
  S* d[kCount];
  for (unsigned k = 0; k < kCount; ++k) d[k] = at<S>(w, element(op, k));
  for (unsigned k = 0; k < kCount; ++k) {
    S* out = d[k];
#pragma GCC ivdep
    for (unsigned i = 0; i < kLanes; ++i) out[i] = p[i * kCount + k];
  }
}
template <class E, class S, unsigned kCount>
TS_INLINE void store_lanes_full(Warp& w, const Op* op, E* p) {
  const S* s[kCount];
  for (unsigned k = 0; k < kCount; ++k) s[k] = at<S>(w, element(op, k));
#pragma GCC ivdep
  for (unsigned i = 0; i < kLanes; ++i)
    for (unsigned k = 0; k < kCount; ++k) p[i * kCount + k] = static_cast<E>(s[k][i]);
}
// Every active lane on its own; addresses are host addresses and checked.
template <class E, class S, unsigned kCount, class Get>
TS_INLINE void load_lanes(Warp& w, const Op* op, Mask m, Get get) {
  S* d[kCount];
  for (unsigned k = 0; k < kCount; ++k) d[k] = at<S>(w, element(op, k));
  // A single result may share storage with the address: each lane's address is read before the lane is
  // written.
  const auto one = [&](unsigned i) __attribute__((always_inline)) {
    const E* p = reinterpret_cast<const E*>(get(i));
    for (unsigned k = 0; k < kCount; ++k) d[k][i] = p[k];
  };
  if (m == ~0u) {
#pragma GCC unroll 8
    for (unsigned i = 0; i < kLanes; ++i) one(i);
  } else {
    for (Mask left = m; left; left &= left - 1) one(__builtin_ctz(left));
  }
}
template <class E, class S, unsigned kCount, class Get>
TS_INLINE void store_lanes(Warp& w, const Op* op, Mask m, Get get) {
  const S* s[kCount];
  for (unsigned k = 0; k < kCount; ++k) s[k] = at<S>(w, element(op, k));
  for (Mask left = m; left; left &= left - 1) {
    unsigned i = __builtin_ctz(left);
    E* p = reinterpret_cast<E*>(get(i));
    for (unsigned k = 0; k < kCount; ++k) p[k] = static_cast<E>(s[k][i]);
  }
}
// First and last byte of a consecutive access by the lanes of m.
TS_INLINE uint64_t low(uint64_t base, Mask m, unsigned stride) {
  return base + __builtin_ctz(m) * stride;
}
TS_INLINE uint64_t high(uint64_t base, Mask m, unsigned stride) {
  return base + (32 - __builtin_clz(m)) * stride;
}

// Active lanes whose address (less the start of the range) is beyond `most` or misaligned.
template <class A>
TS_INLINE Mask outside(Warp& w, const Op* op, A begin, A most, unsigned stride) {
  const A* a = at<A>(w, op->a);
  const A shift = static_cast<A>(op->imm) - begin;
  Mask bad = 0;
  constexpr unsigned n = kVectorBytes / sizeof(A);
  for (unsigned i = 0; i < kLanes; i += n) {
    const Vec<A> x = load<Vec<A>>(a + i);
    bad |= bits_of((x + shift > most) | (((x + static_cast<A>(op->imm)) & static_cast<A>(stride - 1)) != 0))
           << i;
  }
  return bad & w.mask;
}
template <class A>
TS_INLINE uint64_t count_sectors(Warp& w, const Op* op, unsigned bytes) {
  const A* a = at<A>(w, op->a);
#if TS_ISA == 512
  // Aligned accesses of at most 16 bytes: none spans two sectors.
  if (w.mask == ~0u && sizeof(A) == 8) {
    const __m512i shift = _mm512_set1_epi64(op->imm);
    __m512i before = _mm512_set1_epi64(-1);
    unsigned changes = 0;
    for (unsigned i = 0; i < kLanes; i += 8) {
      const __m512i s = _mm512_srli_epi64(_mm512_add_epi64(_mm512_loadu_si512(a + i), shift), 5);
      changes += static_cast<unsigned>(
          __builtin_popcount(_mm512_cmpneq_epi64_mask(s, _mm512_alignr_epi64(s, before, 7))));
      before = s;
    }
    return changes * uint64_t{32};
  }
#endif
  uint64_t last = ~uint64_t{0}, n = 0;
  for (Mask left = w.mask; left; left &= left - 1) {
    uint64_t x = (a[__builtin_ctz(left)] + static_cast<uint64_t>(op->imm));
    uint64_t s = x >> 5;
    n += s != last;
    last = (x + bytes - 1) >> 5;
    n += last != s;
  }
  return n * 32;
}

// Blocks 16 threads wide: each half of a warp reads a run of 32-bit elements, or one. All lanes are active.
// False if they lie otherwise, or not all in memory.
TS_INLINE bool load_halves(Warp& w, const Op* op) {
  constexpr unsigned half = kLanes / 2;
  const uint64_t* a = at<uint64_t>(w, op->a);
  uint64_t begin[2], end[2];
  bool uniform[2];
  for (unsigned h = 0; h < 2; ++h) {
    const uint64_t start = a[h * half];
    Mask off = 0, differ = 0;
    for (unsigned i = 0; i < half; i += kLanes64) {
      const Vec<uint64_t> x = load<Vec<uint64_t>>(a + h * half + i), same = Vec<uint64_t>{} + start;
      off |= unequal(x, (lane_index64() + i) * 4 + same);
      differ |= unequal(x, same);
    }
    if (off && differ) return false;
    uniform[h] = off;
    begin[h] = start + static_cast<uint64_t>(op->imm);
    end[h] = begin[h] + (off ? 4 : half * 4);
    if ((begin[h] & 3) || !check_range(w, begin[h], end[h], false, op->cache)) return false;
  }
  const bool meet = begin[1] >> 5 == (end[0] - 1) >> 5;
  view(w).global_bytes += sectors(begin[0], end[0]) + sectors(begin[1], end[1]) - (meet ? 32 : 0);
  for (unsigned h = 0; h < 2; ++h) {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(begin[h]);
    uint32_t* d = at<uint32_t>(w, op->d) + h * half;
    for (unsigned i = 0; i < half; i += kLanes32)
      store(d + i, uniform[h] ? Vec<uint32_t>{} + *from : load<Vec<uint32_t>>(from + i));
  }
  return true;
}

template <class E, unsigned kCount, bool kStore>
const Op* global(Warp& w, const Op* op) {
  using S = typename Storage<E>::T;
  constexpr unsigned stride = sizeof(E) * kCount;
  if (!w.mask) return op + 1;
  const Mask m = w.mask;
  Pattern p = pattern<uint64_t>(w, op, stride);
  if (p.consecutive) {
    const uint64_t lo = low(p.begin, m, stride), hi = high(p.begin, m, stride);
    if (__builtin_expect((lo & (stride - 1)) || !check_range(w, lo, hi, kStore, op->cache), 0))
      return kStore ? store_any(w, op) : load_any(w, op);
    view(w).global_bytes += sectors(lo, hi);
    const uint64_t begin = p.begin;
    auto get = [begin](unsigned i) __attribute__((always_inline)) {
      return begin + i * stride;
    };
    if constexpr (kStore) {
      if (m == ~0u)
        store_lanes_full<E, S, kCount>(w, op, reinterpret_cast<E*>(p.begin));
      else
        store_lanes<E, S, kCount>(w, op, m, get);
    } else {
      if (m == ~0u)
        load_lanes_full<E, S, kCount>(w, op, reinterpret_cast<const E*>(p.begin));
      else
        load_lanes<E, S, kCount>(w, op, m, get);
    }
    return op + 1;
  }
  if (p.uniform && !kStore) {
    if (__builtin_expect(
            (p.begin & (stride - 1)) || !check_range(w, p.begin, p.begin + stride, false, op->cache), 0))
      return load_any(w, op);
    view(w).global_bytes += 32;
    const E* from = reinterpret_cast<const E*>(p.begin);
    E value[kCount];
    for (unsigned k = 0; k < kCount; ++k) value[k] = from[k];
    for (unsigned k = 0; k < kCount; ++k) {
      S* d = at<S>(w, element(op, k));
      constexpr unsigned n = kVectorBytes / sizeof(S);
      Vec<S> v = Vec<S>{} + static_cast<S>(value[k]);
      for (unsigned i = 0; i < kLanes; i += n) store_masked(d + i, v, m >> i);
    }
    return op + 1;
  }
  if constexpr (!kStore && kCount == 1 && sizeof(E) == 4)
    if (m == ~0u && load_halves(w, op)) return op + 1;
  // All lanes inside the range that this instruction used last; else lane by lane.
  const MemoryView& v = view(w);
  const CachedRange& r = v.ranges[op->cache];
  if (r.end - r.begin < stride || (kStore && !r.writable) ||
      v.generation != __atomic_load_n(v.generation_now, __ATOMIC_RELAXED) ||
      outside<uint64_t>(w, op, r.begin, r.end - r.begin - stride, stride))
    return kStore ? store_any(w, op) : load_any(w, op);
  view(w).global_bytes += count_sectors<uint64_t>(w, op, stride);
  const uint64_t* a = at<uint64_t>(w, op->a);
  const uint64_t imm = static_cast<uint64_t>(op->imm);
  auto get = [ a, imm ](unsigned i) __attribute__((always_inline)) {
    return a[i] + imm;
  };
  if constexpr (kStore)
    store_lanes<E, S, kCount>(w, op, m, get);
  else
    load_lanes<E, S, kCount>(w, op, m, get);
  return op + 1;
}

// Lane k at k elements behind lane 0, or all at the same one: no lane needs its address. Anything else gets
// addresses, in a register that only this op uses, and is the plain access.
// extra: index (type2: s32 or u32), c: base, a: the register
template <class E, unsigned kCount, bool kStore>
TS_INLINE bool indexed(Warp& w, const Op* op) {
  using S = typename Storage<E>::T;
  constexpr unsigned stride = sizeof(E) * kCount;
  if (w.mask != ~0u) return false;
  const uint32_t* index = at<uint32_t>(w, op->extra);
  const uint32_t first = index[0];
  Mask off = 0;
  for (unsigned i = 0; i < kLanes; i += kLanes32)
    off |= unequal(load<Vec<uint32_t>>(index + i), lane_index32() + (first + i));
  const bool is_signed = op->type2 == Ty::kS32;
  const uint64_t begin =
      *at<uint64_t>(w, op->c) + static_cast<uint64_t>(op->imm) +
      stride * (is_signed ? static_cast<uint64_t>(static_cast<int32_t>(first)) : uint64_t{first});
  if (__builtin_expect(begin & (stride - 1), 0)) return false;
  if (!off) {
    const uint64_t end = begin + kLanes * stride;
    if (__builtin_expect(first + (is_signed ? 0x80000000u : 0) > ~0u - (kLanes - 1) ||
                             !check_range(w, begin, end, kStore, op->cache),
                         0))
      return false;
    view(w).global_bytes += sectors(begin, end);
    // The next warps go on behind this one.
    if constexpr (!kStore)
      for (unsigned line = 0; line < kLanes * stride; line += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(end + 1024 + line));
    if constexpr (kStore)
      store_lanes_full<E, S, kCount>(w, op, reinterpret_cast<E*>(begin));
    else
      load_lanes_full<E, S, kCount>(w, op, reinterpret_cast<const E*>(begin));
    return true;
  }
  if constexpr (!kStore) {
    Mask differ = 0;
    for (unsigned i = 0; i < kLanes; i += kLanes32)
      differ |= unequal(load<Vec<uint32_t>>(index + i), Vec<uint32_t>{} + first);
    if (differ || !check_range(w, begin, begin + stride, false, op->cache)) return false;
    view(w).global_bytes += 32;
    const E* from = reinterpret_cast<const E*>(begin);
    S value[kCount];
    for (unsigned k = 0; k < kCount; ++k) value[k] = static_cast<S>(from[k]);
    for (unsigned k = 0; k < kCount; ++k) {
      S* d = at<S>(w, element(op, k));
      for (unsigned i = 0; i < kLanes; i += kVectorBytes / sizeof(S)) store(d + i, Vec<S>{} + value[k]);
    }
    return true;
  }
  return false;
}

#if TS_ISA == 512
// Loads of 32-bit elements by lanes that lie within 128 bytes, in any order and with repetitions, as when a
// tile of a matrix is read: two vectors and a permutation. False if the lanes lie otherwise.
inline constexpr unsigned kWindow = 128;
template <unsigned kCount, class A>
TS_INLINE bool load_window(Warp& w, const Op* op) {
  constexpr unsigned stride = 4 * kCount;
  if (w.shared_bytes < kWindow) return false;
  const A* a = at<A>(w, op->a);
  const A imm = static_cast<A>(op->imm);
  const uint64_t first = static_cast<A>(a[__builtin_ctz(w.mask)] + imm), last = w.shared_bytes - kWindow;
  const uint64_t begin = (first < last ? first : last) & ~uint64_t{15};
  const A shift = imm - static_cast<A>(begin);
  Mask bad = 0;
  __m512i index[2];
  constexpr unsigned n = kVectorBytes / sizeof(A);
  for (unsigned half = 0; half < 2; ++half) {
    Vec<A> x[16 / n];
    for (unsigned part = 0; part < 16 / n; ++part) {
      const unsigned i = half * 16 + part * n;
      x[part] = load<Vec<A>>(a + i) + shift;
      bad |= bits_of((x[part] > static_cast<A>(kWindow - stride)) |
                     ((x[part] & static_cast<A>(stride - 1)) != 0))
             << i;
    }
    if constexpr (sizeof(A) == 8)
      index[half] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32((__m512i)x[0])),
                                       _mm512_cvtepi64_epi32((__m512i)x[1]), 1);
    else
      index[half] = (__m512i)x[0];
    index[half] = _mm512_srli_epi32(index[half], 2);
  }
  if (bad & w.mask) return false;
  const char* from = w.shared + begin;
  const __m512i low = _mm512_loadu_si512(from), high = _mm512_loadu_si512(from + 64);
  for (unsigned k = 0; k < kCount; ++k) {
    uint32_t* d = at<uint32_t>(w, element(op, k));
    for (unsigned half = 0; half < 2; ++half) {
      const __m512i r = _mm512_permutex2var_epi32(
          low, _mm512_add_epi32(index[half], _mm512_set1_epi32(static_cast<int>(k))), high);
      store_masked(d + half * 16, (Vec<uint32_t>)r, w.mask >> (half * 16));
    }
  }
  return true;
}
#endif

template <class E, unsigned kCount, bool kStore, class A>
TS_INLINE const Op* shared_by(Warp& w, const Op* op) {
  using S = typename Storage<E>::T;
  constexpr unsigned stride = sizeof(E) * kCount;
  if (!w.mask) return op + 1;
  const Mask m = w.mask;
  Pattern p = pattern<A>(w, op, stride);
  const uint64_t home = reinterpret_cast<uint64_t>(w.shared);
  if (p.consecutive) {
    const uint64_t lo = low(p.begin, m, stride), hi = high(p.begin, m, stride);
    if (__builtin_expect((lo & (stride - 1)) || hi > w.shared_bytes || lo > hi, 0))
      return kStore ? store_any(w, op) : load_any(w, op);
    const uint64_t begin = home + p.begin;
    auto get = [begin](unsigned i) __attribute__((always_inline)) {
      return begin + i * stride;
    };
    if constexpr (kStore) {
      if (m == ~0u)
        store_lanes_full<E, S, kCount>(w, op, reinterpret_cast<E*>(begin));
      else
        store_lanes<E, S, kCount>(w, op, m, get);
    } else {
      if (m == ~0u)
        load_lanes_full<E, S, kCount>(w, op, reinterpret_cast<const E*>(begin));
      else
        load_lanes<E, S, kCount>(w, op, m, get);
    }
    return op + 1;
  }
  if (p.uniform && !kStore) {
    if (__builtin_expect(
            (p.begin & (stride - 1)) || p.begin + stride > w.shared_bytes || p.begin > w.shared_bytes, 0))
      return load_any(w, op);
    const E* from = reinterpret_cast<const E*>(home + p.begin);
    E value[kCount];
    for (unsigned k = 0; k < kCount; ++k) value[k] = from[k];
    for (unsigned k = 0; k < kCount; ++k) {
      S* d = at<S>(w, element(op, k));
      constexpr unsigned n = kVectorBytes / sizeof(S);
      Vec<S> v = Vec<S>{} + static_cast<S>(value[k]);
      for (unsigned i = 0; i < kLanes; i += n) store_masked(d + i, v, m >> i);
    }
    return op + 1;
  }
#if TS_ISA == 512
  if constexpr (!kStore && sizeof(E) == 4)
    if (load_window<kCount, A>(w, op)) return op + 1;
#endif
  if (__builtin_expect(
          w.shared_bytes < stride || outside<A>(w, op, 0, static_cast<A>(w.shared_bytes - stride), stride),
          0))
    return kStore ? store_any(w, op) : load_any(w, op);
  const A* a = at<A>(w, op->a);
  const A imm = static_cast<A>(op->imm);
  auto get = [ a, home, imm ](unsigned i) __attribute__((always_inline)) {
    return home + static_cast<A>(a[i] + imm);
  };
  if constexpr (kStore)
    store_lanes<E, S, kCount>(w, op, m, get);
  else
    load_lanes<E, S, kCount>(w, op, m, get);
  return op + 1;
}
template <class E, unsigned kCount, bool kStore>
const Op* shared(Warp& w, const Op* op) {
  return op->flags & kAddress32 ? shared_by<E, kCount, kStore, uint32_t>(w, op)
                                : shared_by<E, kCount, kStore, uint64_t>(w, op);
}
// Vector width is part of the op; three shapes for the common element sizes, the rest goes the slow way.
template <class E, bool kStore>
const Op* global_memory(Warp& w, const Op* op) {
  switch (op->count) {
    case 1:
      return global<E, 1, kStore>(w, op);
    case 2:
      return global<E, 2, kStore>(w, op);
    case 4:
      if constexpr (sizeof(E) <= 4) return global<E, 4, kStore>(w, op);
      break;
    default:
      break;
  }
  return kStore ? store_any(w, op) : load_any(w, op);
}
template <class E, bool kStore>
__attribute__((noinline)) const Op* addressed_memory(Warp& w, const Op* op) {
  const uint32_t* index = at<uint32_t>(w, op->extra);
  const uint64_t base = *at<uint64_t>(w, op->c), scale = sizeof(E) * op->count;
  const bool is_signed = op->type2 == Ty::kS32;
  map_mixed(
      w, at<uint64_t>(w, op->a), [&](unsigned i) __attribute__((always_inline)) {
        const auto x = load<Vec64Lanes<uint32_t>>(index + i);
        const auto wide = is_signed
                              ? (Vec<uint64_t>)__builtin_convertvector((Vec64Lanes<int32_t>)x, Vec<int64_t>)
                              : __builtin_convertvector(x, Vec<uint64_t>);
        return wide * scale + base;
      });
  return global_memory<E, kStore>(w, op);
}
template <class E, bool kStore>
const Op* indexed_memory(Warp& w, const Op* op) {
  if (op->count == 1 ? indexed<E, 1, kStore>(w, op) : indexed<E, 2, kStore>(w, op)) return op + 1;
  return addressed_memory<E, kStore>(w, op);
}
template <class E, bool kStore>
const Op* shared_memory(Warp& w, const Op* op) {
  switch (op->count) {
    case 1:
      return shared<E, 1, kStore>(w, op);
    case 2:
      return shared<E, 2, kStore>(w, op);
    case 4:
      if constexpr (sizeof(E) == 4) return shared<E, 4, kStore>(w, op);
      break;
    default:
      break;
  }
  return kStore ? store_any(w, op) : load_any(w, op);
}

// --- table -------------------------------------------------------------------------------------------------

constexpr FastTable make_table() {
  FastTable t{};
  auto set = [&t](Operation o, Ty ty, Handler h) {
    t.by_type[static_cast<unsigned>(o)][static_cast<unsigned>(ty)] = h;
  };
  using O = Operation;
  // Types of 32 bits and less share handlers where the low bits of the result only depend on the low bits of
  // the operands.
  const Ty narrow[] = {Ty::kU8, Ty::kS8, Ty::kU16, Ty::kS16, Ty::kU32, Ty::kS32};
  const Ty wide[] = {Ty::kU64, Ty::kS64};
  for (Ty ty : narrow) {
    set(O::kAdd, ty, add<uint32_t>);
    set(O::kSub, ty, sub<uint32_t>);
    set(O::kMul, ty, mul<uint32_t>);
    set(O::kMad, ty, mad<uint32_t>);
    set(O::kNeg, ty, neg<uint32_t>);
    set(O::kAnd, ty, and_<uint32_t>);
    set(O::kOr, ty, or_<uint32_t>);
    set(O::kXor, ty, xor_<uint32_t>);
    set(O::kNot, ty, not_<uint32_t>);
  }
  for (Ty ty : wide) {
    set(O::kAdd, ty, add<uint64_t>);
    set(O::kSub, ty, sub<uint64_t>);
    set(O::kMul, ty, mul<uint64_t>);
    set(O::kMad, ty, mad<uint64_t>);
    set(O::kNeg, ty, neg<uint64_t>);
    set(O::kAnd, ty, and_<uint64_t>);
    set(O::kOr, ty, or_<uint64_t>);
    set(O::kXor, ty, xor_<uint64_t>);
    set(O::kNot, ty, not_<uint64_t>);
    set(O::kMov, ty, mov<uint64_t>);
    set(O::kSelp, ty, selp<uint64_t>);
    set(O::kShl, ty, shl64);
  }
  const Ty in32[] = {Ty::kU8,  Ty::kS8,    Ty::kU16,  Ty::kS16,    Ty::kU32, Ty::kS32,
                     Ty::kF16, Ty::kF16x2, Ty::kBf16, Ty::kBf16x2, Ty::kF32, Ty::kTf32};
  for (Ty ty : in32) {
    set(O::kMov, ty, mov<uint32_t>);
    set(O::kSelp, ty, selp<uint32_t>);
  }
  set(O::kMov, Ty::kF64, mov<uint64_t>);
  set(O::kSelp, Ty::kF64, selp<uint64_t>);
  set(O::kShl, Ty::kU32, shl32<uint32_t>);
  set(O::kShl, Ty::kS32, shl32<uint32_t>);
  set(O::kShr, Ty::kU32, shr_u32);
  set(O::kShr, Ty::kS32, shr_s32);
  set(O::kShr, Ty::kU64, shr_u64);
  set(O::kShr, Ty::kS64, shr_s64);
  set(O::kMin, Ty::kU32, min_<uint32_t>);
  set(O::kMin, Ty::kS32, min_<int32_t>);
  set(O::kMin, Ty::kU64, min_<uint64_t>);
  set(O::kMin, Ty::kS64, min_<int64_t>);
  set(O::kMax, Ty::kU32, max_<uint32_t>);
  set(O::kMax, Ty::kS32, max_<int32_t>);
  set(O::kMax, Ty::kU64, max_<uint64_t>);
  set(O::kMax, Ty::kS64, max_<int64_t>);
  set(O::kMulWide, Ty::kU32, mul_wide<uint32_t, uint64_t>);
  set(O::kMulWide, Ty::kS32, mul_wide<int32_t, int64_t>);
  set(O::kMadWide, Ty::kU32, mad_wide<uint32_t, uint64_t>);
  set(O::kMadWide, Ty::kS32, mad_wide<int32_t, int64_t>);
  set(O::kMulHi, Ty::kU32, mul_hi<uint32_t, uint64_t>);
  set(O::kMulHi, Ty::kS32, mul_hi<int32_t, int64_t>);
  set(O::kSetp, Ty::kU16, setp_int16<uint32_t>);
  set(O::kSetp, Ty::kS16, setp_int16<int32_t>);
  set(O::kSetp, Ty::kU32, setp_int<uint32_t>);
  set(O::kSetp, Ty::kS32, setp_int<int32_t>);
  set(O::kSetp, Ty::kU64, setp_int<uint64_t>);
  set(O::kSetp, Ty::kS64, setp_int<int64_t>);
  set(O::kSetp, Ty::kF32, setp_float<float>);
  set(O::kSetp, Ty::kF64, setp_float<double>);

  set(O::kAdd, Ty::kF32, fadd<float>);
  set(O::kAdd, Ty::kF64, fadd<double>);
  set(O::kSub, Ty::kF32, fsub<float>);
  set(O::kSub, Ty::kF64, fsub<double>);
  set(O::kMul, Ty::kF32, fmul<float>);
  set(O::kMul, Ty::kF64, fmul<double>);
  set(O::kDiv, Ty::kF32, fdiv<float>);
  set(O::kDiv, Ty::kF64, fdiv<double>);
  set(O::kRcp, Ty::kF32, frcp<float>);
  set(O::kRcp, Ty::kF64, frcp<double>);
  set(O::kSqrt, Ty::kF32, fsqrt<float>);
  set(O::kSqrt, Ty::kF64, fsqrt<double>);
  set(O::kNeg, Ty::kF32, fneg<float>);
  set(O::kNeg, Ty::kF64, fneg<double>);
  set(O::kAbs, Ty::kF32, fabs_<float>);
  set(O::kAbs, Ty::kF64, fabs_<double>);
  set(O::kMin, Ty::kF32, fminmax<float, false>);
  set(O::kMin, Ty::kF64, fminmax<double, false>);
  set(O::kMax, Ty::kF32, fminmax<float, true>);
  set(O::kMax, Ty::kF64, fminmax<double, true>);
#if TS_ISA >= 256
  set(O::kFma, Ty::kF32, ffma<float>);
  set(O::kFma, Ty::kF64, ffma<double>);
  set(O::kEx2, Ty::kF32, ex2_f32);
#endif

  set(O::kWiden, Ty::kU32, convert<uint64_t, uint32_t>);
  set(O::kWiden, Ty::kS32, convert<int64_t, int32_t>);
  set(O::kNarrow, Ty::kU32, convert<uint32_t, uint64_t>);
  set(O::kCvtFromU32, Ty::kU64, convert<uint64_t, uint32_t>);
  set(O::kCvtFromU32, Ty::kS64, convert<uint64_t, uint32_t>);
  set(O::kCvtFromS32, Ty::kS64, convert<int64_t, int32_t>);
  set(O::kCvtFromS32, Ty::kU64, convert<int64_t, int32_t>);
  set(O::kCvtFromU64, Ty::kU32, convert<uint32_t, uint64_t>);
  set(O::kCvtFromU64, Ty::kS32, convert<uint32_t, uint64_t>);
  set(O::kCvtFromS64, Ty::kU32, convert<uint32_t, uint64_t>);
  set(O::kCvtFromS64, Ty::kS32, convert<uint32_t, uint64_t>);
  set(O::kCvtFromU16, Ty::kU32, convert_narrow<uint32_t, uint32_t, 16>);
  set(O::kCvtFromU16, Ty::kS32, convert_narrow<uint32_t, uint32_t, 16>);
  set(O::kCvtFromU16, Ty::kU64, convert_narrow<uint64_t, uint32_t, 16>);
  set(O::kCvtFromS16, Ty::kS32, convert_narrow<int32_t, int32_t, 16>);
  set(O::kCvtFromU8, Ty::kU32, convert_narrow<uint32_t, uint32_t, 24>);
  set(O::kCvtFromU8, Ty::kU16, convert_narrow<uint32_t, uint32_t, 24>);
  set(O::kCvtFromS8, Ty::kS32, convert_narrow<int32_t, int32_t, 24>);
  set(O::kCvtFromS8, Ty::kS16, convert_narrow<int32_t, int32_t, 24>);
  set(O::kCvtFromU32, Ty::kU16, mov<uint32_t>);
  set(O::kCvtFromU32, Ty::kS16, mov<uint32_t>);
  set(O::kCvtFromS32, Ty::kU16, mov<uint32_t>);
  set(O::kCvtFromS32, Ty::kF32, convert<float, int32_t>);
  set(O::kCvtFromU32, Ty::kF32, convert<float, uint32_t>);
  set(O::kCvtFromS32, Ty::kF64, convert<double, int32_t>);
  set(O::kCvtFromF32, Ty::kF32, f32_to_f32);
  set(O::kCvtFromF32, Ty::kF64, f32_to_f64);
  set(O::kCvtFromF64, Ty::kF32, f64_to_f32);
  set(O::kCvtFromF32, Ty::kS32, f32_to_s32);
  set(O::kCvtFromBf16, Ty::kF32, bf16_to_f32);
  set(O::kCvtFromF32, Ty::kBf16, f32_to_bf16);
#if TS_ISA == 512
  set(O::kCvtFromF16, Ty::kF32, f16_to_f32);
  set(O::kCvtFromF32, Ty::kF16, f32_to_f16);
#endif

#define TS_MEMORY(ty, element)                            \
  set(O::kLdGlobal, ty, global_memory<element, false>);   \
  set(O::kStGlobal, ty, global_memory<element, true>);    \
  set(O::kLdIndexed, ty, indexed_memory<element, false>); \
  set(O::kStIndexed, ty, indexed_memory<element, true>);  \
  set(O::kLdShared, ty, shared_memory<element, false>);   \
  set(O::kStShared, ty, shared_memory<element, true>);
  TS_MEMORY(Ty::kU8, uint8_t)
  TS_MEMORY(Ty::kS8, int8_t)
  TS_MEMORY(Ty::kU16, uint16_t)
  TS_MEMORY(Ty::kS16, int16_t)
  TS_MEMORY(Ty::kU32, uint32_t)
  TS_MEMORY(Ty::kU64, uint64_t)
#undef TS_MEMORY
  return t;
}

}  // namespace

extern const FastTable kFastTable;
constinit const FastTable kFastTable = make_table();

}  // namespace tessera::softgpu::exec::TS_ISA_NAMESPACE
