// The few vector primitives that the handlers of fast.cc are written with, for the instruction set this
// translation unit is compiled for (TS_ISA 512, 256 or 128). GCC vector types carry the arithmetic; only
// masking needs intrinsics. Everything is inlined into a namespace of that instruction set: nothing here may
// be shared between them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "softgpu/exec/machine.h"

#define TS_INLINE static inline __attribute__((always_inline))

namespace tessera::softgpu::exec::TS_ISA_NAMESPACE {

constexpr unsigned kVectorBytes = TS_ISA / 8;

template <class T, unsigned kBytes>
struct VecOf {
  typedef T type __attribute__((vector_size(kBytes), may_alias));
};
template <class T>
using Vec = typename VecOf<T, kVectorBytes>::type;
// As many lanes of T as a full vector of 64-bit elements has: partners in conversions.
template <class T>
using Vec64Lanes = typename VecOf<T, kVectorBytes / 8 * sizeof(T)>::type;
constexpr unsigned kLanes64 = kVectorBytes / 8;
constexpr unsigned kLanes32 = kVectorBytes / 4;

template <class V, class T>
TS_INLINE V load(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
TS_INLINE void store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

TS_INLINE Vec<uint32_t> lane_bits32() {
  Vec<uint32_t> v;
  for (unsigned i = 0; i < kLanes32; ++i) v[i] = 1u << i;
  return v;
}
TS_INLINE Vec<uint64_t> lane_bits64() {
  Vec<uint64_t> v;
  for (unsigned i = 0; i < kLanes64; ++i) v[i] = 1ull << i;
  return v;
}
TS_INLINE Vec<uint64_t> lane_index64() {
  Vec<uint64_t> v;
  for (unsigned i = 0; i < kLanes64; ++i) v[i] = i;
  return v;
}
TS_INLINE Vec<uint32_t> lane_index32() {
  Vec<uint32_t> v;
  for (unsigned i = 0; i < kLanes32; ++i) v[i] = i;
  return v;
}

// Stores the lanes whose bit is set; bit 0 of m is the first lane of the vector.
template <class V, class T>
TS_INLINE void store_masked(T* p, V v, Mask m) {
#if TS_ISA == 512
  if constexpr (sizeof(T) == 4)
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>(m), (__m512i)v);
  else
    _mm512_mask_storeu_epi64(p, static_cast<__mmask8>(m), (__m512i)v);
#else
  if constexpr (sizeof(T) == 4) {
    auto bits = lane_bits32();
    auto chosen = (bits & m) == bits;
    auto old = load<Vec<uint32_t>>(p);
    store(p, chosen ? (Vec<uint32_t>)v : old);
  } else {
    auto bits = lane_bits64();
    auto chosen = (bits & static_cast<uint64_t>(m)) == bits;
    auto old = load<Vec<uint64_t>>(p);
    store(p, chosen ? (Vec<uint64_t>)v : old);
  }
#endif
}

// One bit per lane from a comparison result (lanes all ones or all zeros).
template <class V>
TS_INLINE Mask bits_of(V v) {
  constexpr bool k32 = sizeof(v[0]) == 4;
#if TS_ISA == 512
  if constexpr (k32)
    return _mm512_movepi32_mask((__m512i)v);
  else
    return _mm512_movepi64_mask((__m512i)v);
#elif TS_ISA == 256
  if constexpr (k32)
    return _mm256_movemask_ps((__m256)v);
  else
    return _mm256_movemask_pd((__m256d)v);
#else
  if constexpr (k32)
    return _mm_movemask_ps((__m128)v);
  else
    return _mm_movemask_pd((__m128d)v);
#endif
}

// One bit per integer lane that differs.
template <class V>
TS_INLINE Mask unequal(V a, V b) {
#if TS_ISA == 512
  if constexpr (sizeof(a[0]) == 4)
    return _mm512_cmpneq_epi32_mask((__m512i)a, (__m512i)b);
  else
    return _mm512_cmpneq_epi64_mask((__m512i)a, (__m512i)b);
#else
  return bits_of(a != b);
#endif
}

// d[i] = f(vector of a, ...) for the active lanes; all operands of one element size.
template <class D, class A, class F>
TS_INLINE void map1(Warp& w, D* d, const A* a, F f) {
  constexpr unsigned n = kVectorBytes / sizeof(D);
  const Mask m = w.mask;
  if (m == ~0u) {
    for (unsigned i = 0; i < kLanes; i += n) store(d + i, f(load<Vec<A>>(a + i)));
  } else {
    for (unsigned i = 0; i < kLanes; i += n) store_masked(d + i, f(load<Vec<A>>(a + i)), m >> i);
  }
}
template <class D, class A, class F>
TS_INLINE void map2(Warp& w, D* d, const A* a, const A* b, F f) {
  constexpr unsigned n = kVectorBytes / sizeof(D);
  const Mask m = w.mask;
  if (m == ~0u) {
    for (unsigned i = 0; i < kLanes; i += n) store(d + i, f(load<Vec<A>>(a + i), load<Vec<A>>(b + i)));
  } else {
    for (unsigned i = 0; i < kLanes; i += n)
      store_masked(d + i, f(load<Vec<A>>(a + i), load<Vec<A>>(b + i)), m >> i);
  }
}
template <class D, class A, class F>
TS_INLINE void map3(Warp& w, D* d, const A* a, const A* b, const A* c, F f) {
  constexpr unsigned n = kVectorBytes / sizeof(D);
  const Mask m = w.mask;
  if (m == ~0u) {
    for (unsigned i = 0; i < kLanes; i += n)
      store(d + i, f(load<Vec<A>>(a + i), load<Vec<A>>(b + i), load<Vec<A>>(c + i)));
  } else {
    for (unsigned i = 0; i < kLanes; i += n)
      store_masked(d + i, f(load<Vec<A>>(a + i), load<Vec<A>>(b + i), load<Vec<A>>(c + i)), m >> i);
  }
}
// Mixed widths, in groups of kLanes64 lanes: A and B elements of any size, D of 8 or 4 bytes.
template <class D, class F>
TS_INLINE void map_mixed(Warp& w, D* d, F f) {
  const Mask m = w.mask;
  for (unsigned i = 0; i < kLanes; i += kLanes64) {
    auto r = f(i);
    if (m == ~0u) {
      store(d + i, r);
    } else {
      for (unsigned k = 0; k < kLanes64; ++k)
        if (m >> (i + k) & 1) d[i + k] = r[k];
    }
  }
}
// 32 result bits of a comparison f(a, b).
template <class A, class F>
TS_INLINE Mask compare2(const A* a, const A* b, F f) {
  constexpr unsigned n = kVectorBytes / sizeof(A);
  Mask r = 0;
  for (unsigned i = 0; i < kLanes; i += n) r |= bits_of(f(load<Vec<A>>(a + i), load<Vec<A>>(b + i))) << i;
  return r;
}

}  // namespace tessera::softgpu::exec::TS_ISA_NAMESPACE
