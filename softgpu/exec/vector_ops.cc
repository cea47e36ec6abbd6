#include "softgpu/exec/vector_ops.h"

#include <bit>

#include "softgpu/exec/core.h"
#include "softgpu/exec/half.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

using lane::get;
using lane::put;

namespace {

unsigned bits_of(Ty part) {
  return part == Ty::kU8 ? 8 : part == Ty::kU16 ? 16 : 32;
}
enum PairFormat : unsigned { kSingle, kHalf, kBrain, kE4m3, kE5m2, kNoFormat = 0xff };
constexpr Format kFormats[] = {kSingleFormat, kHalfFormat, kBrainFormat, kE4m3Format, kE5m2Format};

}  // namespace

const Op* op_pack(Warp& w, const Op* op) {
  const uint32_t* parts = w.frame->code->extra.data() + op->extra;
  const unsigned bits = bits_of(op->type);
  const uint64_t mask = bits == 32 ? 0xffffffffu : (1u << bits) - 1;
  const bool wide = op->type2 == Ty::kU64 || op->type2 == Ty::kS64 || op->type2 == Ty::kF64;
  return lane::each(w, op, [&](unsigned i) {
    uint64_t r = 0;
    for (unsigned k = 0; k < op->count; ++k) r |= (get<uint32_t>(w, parts[k], i) & mask) << (k * bits);
    if (wide)
      put<uint64_t>(w, op->d, i, r);
    else
      put<uint32_t>(w, op->d, i, static_cast<uint32_t>(r));
  });
}

const Op* op_unpack(Warp& w, const Op* op) {
  const uint32_t* parts = w.frame->code->extra.data() + op->extra;
  const unsigned bits = bits_of(op->type);
  const uint64_t mask = bits == 32 ? 0xffffffffu : (1u << bits) - 1;
  const bool wide = op->type2 == Ty::kU64 || op->type2 == Ty::kS64 || op->type2 == Ty::kF64;
  return lane::each(w, op, [&](unsigned i) {
    const uint64_t x = wide ? get<uint64_t>(w, op->a, i) : get<uint32_t>(w, op->a, i);
    for (unsigned k = 0; k < op->count; ++k)
      if (parts[k] != kNoOperand)
        put<uint32_t>(w, parts[k], i, static_cast<uint32_t>(x >> (k * bits) & mask));
  });
}

unsigned pair_format(ptx::Type type) {
  switch (type) {
    case ptx::Type::kF32:
      return kSingle;
    case ptx::Type::kF16:
    case ptx::Type::kF16x2:
      return kHalf;
    case ptx::Type::kBf16:
    case ptx::Type::kBf16x2:
      return kBrain;
    case ptx::Type::kE4m3:
    case ptx::Type::kE4m3x2:
      return kE4m3;
    case ptx::Type::kE5m2:
    case ptx::Type::kE5m2x2:
      return kE5m2;
    default:
      return kNoFormat;
  }
}

const Op* op_convert_pair(Warp& w, const Op* op) {
  const Format to = kFormats[op->imm & 0xff], from = kFormats[op->imm >> 8 & 0xff];
  const unsigned to_bits = 1u + static_cast<unsigned>(to.exponent_bits + to.mantissa_bits);
  const unsigned from_bits = 1u + static_cast<unsigned>(from.exponent_bits + from.mantissa_bits);
  const Rounding rounding = static_cast<Rounding>(op->sub);
  return lane::each(w, op, [&](unsigned i) {
    uint32_t high = get<uint32_t>(w, op->a, i), low;
    if (op->b != kNoOperand) {
      low = get<uint32_t>(w, op->b, i);
    } else {
      low = high & ((1u << from_bits) - 1);
      high = high >> from_bits & ((1u << from_bits) - 1);
    }
    const auto one = [&](uint32_t x) {
      double value = from_bits == 32 ? std::bit_cast<float>(x) : unpack_float(x, from);
      if ((op->flags & kRelu) && !(value > 0) && value == value) value = 0;
      return pack_float(value, to, rounding, op->count == 2);
    };
    put<uint32_t>(w, op->d, i, one(low) | one(high) << to_bits);
  });
}

}  // namespace tessera::softgpu::exec
