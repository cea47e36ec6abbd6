// Scalar comparisons (setp, set) and predicate logic, and the table behind scalar_handler().
#include <initializer_list>

#include "softgpu/exec/half.h"
#include "softgpu/exec/scalar.h"
#include "softgpu/exec/scalar_tables.h"

namespace tessera::softgpu::exec {
namespace {

using lane::get;

template <class T>
bool compares(Compare how, T a, T b) {
  const bool ordered = a == a && b == b;
  switch (how) {
    case Compare::kEq:
      return a == b;
    case Compare::kNe:
      return ordered && a != b;
    case Compare::kLt:
      return a < b;
    case Compare::kLe:
      return a <= b;
    case Compare::kGt:
      return a > b;
    case Compare::kGe:
      return a >= b;
    case Compare::kEqu:
      return !ordered || a == b;
    case Compare::kNeu:
      return !ordered || a != b;
    case Compare::kLtu:
      return !ordered || a < b;
    case Compare::kLeu:
      return !ordered || a <= b;
    case Compare::kGtu:
      return !ordered || a > b;
    case Compare::kGeu:
      return !ordered || a >= b;
    case Compare::kNum:
      return ordered;
    case Compare::kNan:
      return !ordered;
  }
  return false;
}
double half_value(uint16_t x, const Op* op) {
  return (op->flags & kFtz) && (x & 0x7fff) < 0x400 ? 0.0 : half_to_float(x);
}
double brain_value(uint16_t x, const Op*) {
  return brain_to_float(x);
}
float single_value(float x, const Op* op) {
  return (op->flags & kFtz) && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}
template <class T>
auto value(Warp& w, uint32_t operand, unsigned i, const Op* op) {
  const T x = get<T>(w, operand, i);
  if constexpr (std::is_same_v<T, lane::Half>)
    return half_value(x.bits, op);
  else if constexpr (std::is_same_v<T, lane::Brain>)
    return brain_value(x.bits, op);
  else if constexpr (std::is_same_v<T, float>)
    return single_value(x, op);
  else
    return x;
}
template <class T>
Mask compare_lanes(Warp& w, const Op* op) {
  Mask r = 0;
  lane::each(w, op, [&](unsigned i) {
    r |= static_cast<Mask>(
             compares(static_cast<Compare>(op->sub), value<T>(w, op->a, i, op), value<T>(w, op->b, i, op)))
         << i;
  });
  return r;
}
Mask combine(Warp& w, const Op* op, Mask r) {
  if (!(op->flags & (kBoolAnd | kBoolOr | kBoolXor))) return r;
  Mask c = *at<Mask>(w, op->c);
  if (op->flags & kNegate) c = ~c;
  return op->flags & kBoolAnd ? r & c : op->flags & kBoolOr ? r | c : r ^ c;
}
void write(Warp& w, uint32_t operand, Mask r) {
  Mask& d = *at<Mask>(w, operand);
  d = (d & ~w.mask) | (r & w.mask);
}
template <class T>
const Op* setp(Warp& w, const Op* op) {
  const Mask r = compare_lanes<T>(w, op);
  const Mask first = combine(w, op, r), second = combine(w, op, ~r);
  write(w, op->d, first);
  if (op->flags & kSecond) write(w, op->d2, second);
  return op + 1;
}
template <class Half>
Mask compare_pair(Warp& w, const Op* op, unsigned shift) {
  Mask r = 0;
  lane::each(w, op, [&](unsigned i) {
    const auto in = [&](uint32_t operand) {
      const uint16_t x = static_cast<uint16_t>(get<uint32_t>(w, operand, i) >> shift);
      if constexpr (std::is_same_v<Half, lane::Half>)
        return half_value(x, op);
      else
        return brain_value(x, op);
    };
    r |= static_cast<Mask>(compares(static_cast<Compare>(op->sub), in(op->a), in(op->b))) << i;
  });
  return r;
}
// p is the low half's result, q the high half's.
template <class Half>
const Op* setp_pair(Warp& w, const Op* op) {
  const Mask low = combine(w, op, compare_pair<Half>(w, op, 0));
  const Mask high = combine(w, op, compare_pair<Half>(w, op, 16));
  write(w, op->d, low);
  if (op->flags & kSecond) write(w, op->d2, high);
  return op + 1;
}
// True as written by set: all ones for integers, 1.0 for floats (type is the destination's).
uint32_t truth(Ty type) {
  switch (type) {
    case Ty::kF32:
      return 0x3f800000;
    case Ty::kF16:
      return 0x3c00;
    case Ty::kBf16:
      return 0x3f80;
    case Ty::kU16:
    case Ty::kS16:
      return 0xffff;
    default:
      return ~0u;
  }
}
template <class T>
const Op* set(Warp& w, const Op* op) {
  const Mask r = combine(w, op, compare_lanes<T>(w, op));
  const uint32_t yes = truth(op->type);
  return lane::each(w, op, [&](unsigned i) { lane::put<uint32_t>(w, op->d, i, r >> i & 1 ? yes : 0); });
}
template <class Half>
const Op* set_pair(Warp& w, const Op* op) {
  const Mask low = combine(w, op, compare_pair<Half>(w, op, 0)),
             high = combine(w, op, compare_pair<Half>(w, op, 16));
  const uint32_t yes = op->type == Ty::kF16x2 ? 0x3c00 : op->type == Ty::kBf16x2 ? 0x3f80 : 0xffff;
  return lane::each(w, op, [&](unsigned i) {
    lane::put<uint32_t>(w, op->d, i, (low >> i & 1 ? yes : 0) | (high >> i & 1 ? yes << 16 : 0));
  });
}

enum class Logic { kMov, kAnd, kOr, kXor, kNot };
template <Logic kHow>
const Op* predicate(Warp& w, const Op* op) {
  const Mask a = *at<Mask>(w, op->a);
  Mask b = 0;
  if constexpr (kHow != Logic::kMov && kHow != Logic::kNot) b = *at<Mask>(w, op->b);
  const Mask r = kHow == Logic::kMov   ? a
                 : kHow == Logic::kAnd ? a & b
                 : kHow == Logic::kOr  ? a | b
                 : kHow == Logic::kXor ? a ^ b
                                       : ~a;
  write(w, op->d, r);
  return op + 1;
}

const Op* widen_unsigned(Warp& w, const Op* op) {
  return lane::each(w, op, [&](unsigned i) { lane::put<uint64_t>(w, op->d, i, get<uint32_t>(w, op->a, i)); });
}
const Op* widen_signed(Warp& w, const Op* op) {
  return lane::each(w, op, [&](unsigned i) { lane::put<int64_t>(w, op->d, i, get<int32_t>(w, op->a, i)); });
}
const Op* narrow(Warp& w, const Op* op) {
  return lane::each(w, op, [&](unsigned i) {
    lane::put<uint32_t>(w, op->d, i, static_cast<uint32_t>(get<uint64_t>(w, op->a, i)));
  });
}
template <class T>
const Op* mov(Warp& w, const Op* op) {
  return lane::each(w, op, [&](unsigned i) { lane::put<T>(w, op->d, i, get<T>(w, op->a, i)); });
}
template <class T>
const Op* selp(Warp& w, const Op* op) {
  Mask p = *at<Mask>(w, op->c);
  if (op->flags & kNegate) p = ~p;
  return lane::each(w, op,
                    [&](unsigned i) { lane::put<T>(w, op->d, i, get<T>(w, p >> i & 1 ? op->a : op->b, i)); });
}

template <class T>
void comparisons(ScalarTable& t, Ty ty) {
  t.set(Operation::kSetp, ty, setp<T>);
  t.set(Operation::kSet, ty, set<T>);
}

ScalarTable make_table() {
  ScalarTable t;
  add_integer_handlers(t);
  add_float_handlers(t);
  add_compare_handlers(t);
  return t;
}

}  // namespace

void add_compare_handlers(ScalarTable& t) {
  using O = Operation;
  comparisons<uint16_t>(t, Ty::kU16);
  comparisons<int16_t>(t, Ty::kS16);
  comparisons<uint32_t>(t, Ty::kU32);
  comparisons<int32_t>(t, Ty::kS32);
  comparisons<uint64_t>(t, Ty::kU64);
  comparisons<int64_t>(t, Ty::kS64);
  comparisons<float>(t, Ty::kF32);
  comparisons<double>(t, Ty::kF64);
  comparisons<lane::Half>(t, Ty::kF16);
  comparisons<lane::Brain>(t, Ty::kBf16);
  t.set(O::kSetp, Ty::kF16x2, setp_pair<lane::Half>);
  t.set(O::kSetp, Ty::kBf16x2, setp_pair<lane::Brain>);
  t.set(O::kSet, Ty::kF16x2, set_pair<lane::Half>);
  t.set(O::kSet, Ty::kBf16x2, set_pair<lane::Brain>);
  t.set(O::kMov, Ty::kPred, predicate<Logic::kMov>);
  t.set(O::kAnd, Ty::kPred, predicate<Logic::kAnd>);
  t.set(O::kOr, Ty::kPred, predicate<Logic::kOr>);
  t.set(O::kXor, Ty::kPred, predicate<Logic::kXor>);
  t.set(O::kNot, Ty::kPred, predicate<Logic::kNot>);
  t.set(O::kWiden, Ty::kU32, widen_unsigned);
  t.set(O::kWiden, Ty::kS32, widen_signed);
  t.set(O::kNarrow, Ty::kU32, narrow);
  for (Ty ty : {Ty::kF16, Ty::kF16x2, Ty::kBf16, Ty::kBf16x2, Ty::kF32, Ty::kTf32}) {
    t.set(O::kMov, ty, mov<uint32_t>);
    t.set(O::kSelp, ty, selp<uint32_t>);
  }
  t.set(O::kMov, Ty::kF64, mov<uint64_t>);
  t.set(O::kSelp, Ty::kF64, selp<uint64_t>);
}

Handler scalar_handler(Operation operation, Ty type) {
  static const ScalarTable table = make_table();
  return table.by_type[static_cast<unsigned>(operation)][static_cast<unsigned>(type)];
}

}  // namespace tessera::softgpu::exec
