// Atomic operations: single elements, vectors of them, 128 bits. Real atomics of the host, since blocks run
// on several threads.
#include <cmath>

#include "softgpu/exec/access.h"
#include "softgpu/exec/half.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

namespace {

template <class T>
T combine(Atomic how, T old, T b, T c) {
  if constexpr (std::is_integral_v<T>) {
    switch (how) {
      case Atomic::kAnd:
        return old & b;
      case Atomic::kOr:
        return old | b;
      case Atomic::kXor:
        return old ^ b;
      case Atomic::kInc:
        return old >= b ? 0 : static_cast<T>(old + 1);
      case Atomic::kDec:
        return old == 0 || old > b ? b : static_cast<T>(old - 1);
      case Atomic::kCas:
        return old == b ? c : old;
      case Atomic::kAdd:
        return static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(b));
      default:
        break;
    }
  } else if (how == Atomic::kAdd) {
    const T sum = old + b;
    if constexpr (sizeof(T) == 4)  // the device has one NaN
      if (sum != sum) return std::bit_cast<T>(0x7fffffffu);
    return sum;
  }
  switch (how) {
    case Atomic::kMin:
      return old < b ? old : b;
    case Atomic::kMax:
      return old > b ? old : b;
    default:
      return b;  // exchange
  }
}

// -0 is below +0; a NaN counts only if both are.
double least(double x, double y) {
  return x == y ? (std::signbit(x) ? x : y) : std::fmin(x, y);
}
double most(double x, double y) {
  return x == y ? (std::signbit(x) ? y : x) : std::fmax(x, y);
}

// One or two 16-bit floats.
uint32_t combine_halves(Ty type, Atomic how, uint32_t old, uint32_t b) {
  if (how == Atomic::kExch) return b;
  const bool half = type == Ty::kF16x2 || type == Ty::kF16;
  const unsigned n = type == Ty::kF16x2 || type == Ty::kBf16x2 ? 2 : 1;
  uint32_t r = 0;
  for (unsigned k = 0; k < n; ++k) {
    const uint16_t x = static_cast<uint16_t>(old >> (16 * k)), y = static_cast<uint16_t>(b >> (16 * k));
    const double dx = half ? half_to_float(x) : brain_to_float(x),
                 dy = half ? half_to_float(y) : brain_to_float(y);
    const double sum = how == Atomic::kMin   ? least(dx, dy)
                       : how == Atomic::kMax ? most(dx, dy)
                                             : multiply_add_odd(dx, 1.0, dy);
    r |= static_cast<uint32_t>(half ? float_to_half(sum) : float_to_brain(sum)) << (16 * k);
  }
  return r;
}

template <class U, class F>
U update(char* p, F f) {
  U* word = reinterpret_cast<U*>(p);
  U old = __atomic_load_n(word, __ATOMIC_RELAXED);
  U fresh;
  do fresh = f(old);
  while (!__atomic_compare_exchange_n(word, &old, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

template <class T>
uint64_t number(Atomic how, char* p, uint64_t b_bits, uint64_t c_bits) {
  using U =
      std::conditional_t<sizeof(T) == 8, uint64_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  const T b = std::bit_cast<T>(static_cast<U>(b_bits)), c = std::bit_cast<T>(static_cast<U>(c_bits));
  if constexpr (std::is_integral_v<T>) {
    if (how == Atomic::kAdd)
      return __atomic_fetch_add(reinterpret_cast<U*>(p), static_cast<U>(b), __ATOMIC_ACQ_REL);
    if (how == Atomic::kExch)
      return __atomic_exchange_n(reinterpret_cast<U*>(p), static_cast<U>(b), __ATOMIC_ACQ_REL);
  }
  return update<U>(p, [&](U x) { return std::bit_cast<U>(combine<T>(how, std::bit_cast<T>(x), b, c)); });
}

float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

uint64_t bits_of(Warp& w, Ty type, uint32_t operand, unsigned i) {
  if (operand == kNoOperand) return 0;
  return storage_bytes(type) == 8 ? get<uint64_t>(w, operand, i) : get<uint32_t>(w, operand, i);
}
void put_bits(Warp& w, Ty type, uint32_t operand, unsigned i, uint64_t bits) {
  if (operand == kNoOperand) return;
  if (storage_bytes(type) == 8)
    put<uint64_t>(w, operand, i, bits);
  else
    put<uint32_t>(w, operand, i, static_cast<uint32_t>(bits));
}

// Calls f(lane, pointer) for every lane whose `bytes` at its address can be written; counts traffic.
template <class F>
const Op* each_target(Warp& w, const Op* op, unsigned bytes, F f) {
  const Space space = static_cast<Space>(op->space);
  uint64_t last = ~uint64_t{0};
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t address = address_of(w, op, i);
    char* p = reach(w, op, space, i, address, bytes, true, bytes);
    if (!p) return nullptr;
    const bool global = is_global(space, address);
    if (global && address >> 5 != last) w.worker->memory.global_bytes += 32;
    last = address >> 5;
    f(i, p, global);
  }
  return op + 1;
}

}  // namespace

// Additions of f32 in global memory flush subnormal numbers, in shared memory they do not.
uint64_t atomic_element(Ty type, Atomic how, char* p, uint64_t b, uint64_t c, bool global) {
  switch (type) {
    case Ty::kU16:
    case Ty::kS16:
      return number<uint16_t>(how, p, b, c);
    case Ty::kS32:
      return number<int32_t>(how, p, b, c);
    case Ty::kU64:
      return number<uint64_t>(how, p, b, c);
    case Ty::kS64:
      return number<int64_t>(how, p, b, c);
    case Ty::kF64:
      return number<double>(how, p, b, c);
    case Ty::kF32:
      if (!global || how != Atomic::kAdd) return number<float>(how, p, b, c);
      return update<uint32_t>(p, [&](uint32_t x) {
        const float y = std::bit_cast<float>(static_cast<uint32_t>(b));
        return std::bit_cast<uint32_t>(
            flushed(combine<float>(how, flushed(std::bit_cast<float>(x)), flushed(y), 0)));
      });
    case Ty::kF16x2:
    case Ty::kBf16x2:
      return update<uint32_t>(
          p, [&](uint32_t x) { return combine_halves(type, how, x, static_cast<uint32_t>(b)); });
    case Ty::kF16:
    case Ty::kBf16:
      return update<uint16_t>(p, [&](uint16_t x) {
        return static_cast<uint16_t>(combine_halves(type, how, x, static_cast<uint32_t>(b)));
      });
    default:
      return number<uint32_t>(how, p, b, c);
  }
}

const Op* op_atomic(Warp& w, const Op* op) {
  const Atomic how = static_cast<Atomic>(op->sub);
  return each_target(w, op, element_bytes(op->type), [&](unsigned i, char* p, bool global) {
    const uint64_t b = bits_of(w, op->type, op->b, i), c = bits_of(w, op->type, op->c, i);
    put_bits(w, op->type, op->d, i, atomic_element(op->type, how, p, b, c, global));
  });
}

namespace {

// The common ones: integers of 32 and 64 bits, and sums of f32 in shared memory, which does not flush. Shared
// memory is plain memory, since a block, and its cluster, runs on one thread. What is unusual about an
// address is left to reach().
template <Atomic kHow, class T, bool kShared>
const Op* plain_atomic(Warp& w, const Op* op) {
  const bool narrow = op->flags & kAddress32;
  const char* a = at<char>(w, op->a);
  const T* b = at<T>(w, op->b);
  const T* c = kHow == Atomic::kCas ? at<T>(w, op->c) : b;
  T* d = op->d == kNoOperand ? nullptr : at<T>(w, op->d);
  uint64_t last = ~uint64_t{0}, bytes = 0;
  const Op* next = op + 1;
  for (Mask left = w.mask; left; left &= left - 1) {
    const unsigned i = static_cast<unsigned>(std::countr_zero(left));
    const uint64_t address = with_offset(
        op, narrow ? reinterpret_cast<const uint32_t*>(a)[i] : reinterpret_cast<const uint64_t*>(a)[i]);
    const uint64_t end = address + sizeof(T);
    const bool usual = address % sizeof(T) == 0 && (kShared ? address < end && end <= w.shared_bytes
                                                            : check_range(w, address, end, true, op->cache));
    char* p = kShared ? w.shared + address : reinterpret_cast<char*>(address);
    if (__builtin_expect(!usual, 0)) {
      p = reach(w, op, kShared ? Space::kShared : Space::kGlobal, i, address, sizeof(T), true, sizeof(T));
      if (!p) {
        next = nullptr;
        break;
      }
    }
    T old;
    if constexpr (kShared) {
      T* word = reinterpret_cast<T*>(p);
      old = *word;
      *word = combine<T>(kHow, old, b[i], c[i]);
    } else {
      if (address >> 5 != last) bytes += 32;
      last = address >> 5;
      old = static_cast<T>(number<T>(kHow, p, b[i], c[i]));
    }
    if (d) d[i] = old;
  }
  w.worker->memory.global_bytes += bytes;
  return next;
}

template <class T, bool kShared>
Handler plain_integer(Atomic how) {
  using A = Atomic;
  switch (how) {
    case A::kAdd:
      return plain_atomic<A::kAdd, T, kShared>;
    case A::kMin:
      return plain_atomic<A::kMin, T, kShared>;
    case A::kMax:
      return plain_atomic<A::kMax, T, kShared>;
    case A::kAnd:
      return plain_atomic<A::kAnd, T, kShared>;
    case A::kOr:
      return plain_atomic<A::kOr, T, kShared>;
    case A::kXor:
      return plain_atomic<A::kXor, T, kShared>;
    case A::kExch:
      return plain_atomic<A::kExch, T, kShared>;
    case A::kCas:
      return plain_atomic<A::kCas, T, kShared>;
    case A::kInc:
      return plain_atomic<A::kInc, T, kShared>;
    case A::kDec:
      return plain_atomic<A::kDec, T, kShared>;
  }
  return op_atomic;
}

}  // namespace

Handler atomic_handler(Space space, Ty type, Atomic how) {
  const bool shared = space == Space::kShared;
  if (!shared && space != Space::kGlobal) return op_atomic;
  switch (type) {
    case Ty::kU32:
      return shared ? plain_integer<uint32_t, true>(how) : plain_integer<uint32_t, false>(how);
    case Ty::kS32:
      return shared ? plain_integer<int32_t, true>(how) : plain_integer<int32_t, false>(how);
    case Ty::kU64:
      return shared ? plain_integer<uint64_t, true>(how) : plain_integer<uint64_t, false>(how);
    case Ty::kF32:
      return shared && how == Atomic::kAdd ? plain_atomic<Atomic::kAdd, float, true> : op_atomic;
    default:
      return op_atomic;
  }
}

// Each element is atomic by itself, the vector is not.
const Op* op_atomic_vector(Warp& w, const Op* op) {
  const Atomic how = static_cast<Atomic>(op->sub);
  const unsigned each = element_bytes(op->type);
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  return each_target(w, op, each * op->count, [&](unsigned i, char* p, bool global) {
    uint64_t old[8];
    for (unsigned k = 0; k < op->count; ++k)
      old[k] = atomic_element(op->type, how, p + k * each, bits_of(w, op->type, operands[k], i), 0, global);
    for (unsigned k = 0; k < op->count; ++k) put_bits(w, op->type, operands[op->count + k], i, old[k]);
  });
}

// sub: exchange or compare-and-swap; extra: the halves of b, c and d, low first.
const Op* op_atomic128(Warp& w, const Op* op) {
  using Wide = unsigned __int128;
  const uint32_t* operands = w.frame->code->extra.data() + op->extra;
  const bool compare = static_cast<Atomic>(op->sub) == Atomic::kCas;
  return each_target(w, op, 16, [&](unsigned i, char* p, bool) {
    const auto whole = [&](unsigned k) {
      return Wide{get<uint64_t>(w, operands[k + 1], i)} << 64 | get<uint64_t>(w, operands[k], i);
    };
    Wide* word = reinterpret_cast<Wide*>(p);
    const Wide b = whole(0);
    Wide old;
    if (compare) {
      old = __sync_val_compare_and_swap(word, b, whole(2));
    } else {
      Wide seen = *word;
      while ((old = __sync_val_compare_and_swap(word, seen, b)) != seen) seen = old;
    }
    for (unsigned k = 0; k < 2; ++k)
      put_bits(w, Ty::kU64, operands[4 + k], i, static_cast<uint64_t>(old >> (64 * k)));
  });
}

}  // namespace tessera::softgpu::exec
