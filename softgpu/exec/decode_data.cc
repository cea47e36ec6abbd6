// Decoding of data instructions: moves, arithmetic, bits, comparisons, conversions.
#include "softgpu/exec/decode.h"

#include <array>

#include "softgpu/exec/scalar.h"
#include "softgpu/exec/scalar_tables.h"
#include "softgpu/exec/vector_ops.h"

namespace tessera::softgpu::exec {
namespace {

using Kind = ptx::Operand::Kind;

bool is_float(Ty t) {
  return t >= Ty::kF16 && t <= Ty::kTf32;
}
Ty unsigned_of(Ty t) {
  return t == Ty::kS16   ? Ty::kU16
         : t == Ty::kS32 ? Ty::kU32
         : t == Ty::kS64 ? Ty::kU64
         : t == Ty::kS8  ? Ty::kU8
                         : t;
}

}  // namespace

// mov.b128 between a 128-bit register and another or two of 64 bits: half by half.
bool Decoder::wide_move(const ptx::Instruction& i) {
  for (size_t half = 0; half < 2; ++half) {
    uint32_t sides[2] = {kNone, kNone};
    for (size_t k = 0; k < 2; ++k) {
      const ptx::Operand& o = i.operands[k];
      std::vector<uint32_t>& pending = k == 0 ? pending_defs_ : pending_uses_;
      Register r;
      if (o.kind == Kind::kVector && o.children.size() == 2) {
        sides[k] = k == 0 ? def(o.children[half], Ty::kU64) : use(o.children[half], Ty::kU64);
      } else if (o.kind == Kind::kRegister && find_register(o.name, &r) && r.width == 16) {
        pending.push_back(r.index + static_cast<uint32_t>(half));
        sides[k] = pending.back() << 2;
      }
      if (sides[k] == kNone) return refuse(i, "operand does not fit");
    }
    Op& op = start(pick(Operation::kMov, Ty::kU64), half == 0);
    op.d = sides[0], op.a = sides[1], op.type = Ty::kU64;
    finish();
  }
  return true;
}

bool Decoder::d_mov(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.empty() || !need(i, 2, 2) || !leftover(i, m)) return refuse(i, "unknown form of mov");
  const Ty type = ty_of(m.types[0]);
  if (m.types[0] == ptx::Type::kB128) return wide_move(i);
  if (type == Ty::kCount) return refuse(i, "type is not supported by the software GPU");
  const ptx::Operand &d = i.operands[0], &a = i.operands[1];
  std::vector<const ptx::Operand*> from, to;
  vector_elements(a, &from);
  vector_elements(d, &to);
  const bool pack = a.kind == Kind::kVector || from.size() > 1;
  if (pack || d.kind == Kind::kVector || to.size() > 1) {
    const std::vector<const ptx::Operand*>& parts = pack ? from : to;
    const unsigned whole = ptx::type_bytes(m.types[0]);
    if (parts.empty() || whole % parts.size()) return refuse(i, "vector does not fit");
    const unsigned bytes = whole / static_cast<unsigned>(parts.size());
    const Ty part = bytes == 1 ? Ty::kU8 : bytes == 2 ? Ty::kU16 : Ty::kU32;
    std::vector<uint32_t> list;
    for (const ptx::Operand* p : parts) {
      if (pack)
        list.push_back(use(*p, part));
      else
        list.push_back(p->kind == Kind::kSink ? kNone : def(*p, part));
      if (list.back() == kNone && p->kind != Kind::kSink) return refuse(i, "vector element does not fit");
    }
    const uint32_t other = pack ? kNone : use(a, type);
    if (!pack && other == kNone) return refuse(i, "source does not fit");
    Op& op = start(pack ? op_pack : op_unpack);
    op.extra = static_cast<uint32_t>(code_.extra.size());
    code_.extra.insert(code_.extra.end(), list.begin(), list.end());
    op.count = static_cast<uint8_t>(list.size());
    op.type = part;
    op.type2 = type;
    if (pack)
      op.d = def(d, type);
    else
      op.a = other;
    if (pack && op.d == kNone) return refuse(i, "destination does not fit");
    finish();
    return true;
  }
  if (a.kind == Kind::kSpecial) {
    struct Clock {
      std::string_view name;
      uint8_t sub;
    };
    for (const Clock& c :
         {Clock{"%clock", 0}, Clock{"%clock_hi", 1}, Clock{"%clock64", 2}, Clock{"%globaltimer", 3},
          Clock{"%globaltimer_lo", 4}, Clock{"%globaltimer_hi", 5}})
      if (a.name == c.name) {
        const bool wide = c.sub == 2 || c.sub == 3;
        Op& op = start(op_clock);
        op.sub = c.sub;
        op.d = def(d, wide ? Ty::kU64 : Ty::kU32);
        if (op.d == kNone) return refuse(i, "destination does not fit");
        finish();
        return true;
      }
  }
  Object object;
  if (a.kind == Kind::kSymbol && find_object(a.name, &object) && object.where != Where::kConstant &&
      object.where != Where::kShared) {
    if (object.where == Where::kDynamicShared) {
      const bool wide = storage_of(type) == 8;
      const uint32_t base = special_operand(wide ? Special::kDynamicBase64 : Special::kDynamicBase);
      Op& op = start(pick(Operation::kAdd, wide ? Ty::kU64 : Ty::kU32));
      op.a = base;
      op.b = constant(wide ? 8 : 4, a.bits);
      op.d = def(d, type);
      if (op.d == kNone) return refuse(i, "destination does not fit");
      finish();
      return true;
    }
    Op& op = start(object.where == Where::kLocal ? op_local_address : op_param_address);
    op.imm = static_cast<int64_t>(object.value + a.bits);
    if (storage_of(type) != 8) return refuse(i, "addresses of local memory and parameters need 64 bits");
    op.d = def(d, type);
    if (op.d == kNone) return refuse(i, "destination does not fit");
    finish();
    return true;
  }
  return simple(i, Operation::kMov, type, 1);
}

// Two f32 in 64 bits: taken apart, computed one by one, and put together.
bool Decoder::float_pairs(const ptx::Instruction& i, Operation operation, const Modifiers& m) {
  const unsigned sources = operation == Operation::kFma ? 3 : 2;
  if (!leftover(i, m) || !need(i, sources + 1, sources + 1)) return refuse(i, "unknown form");
  const auto pair = [&](const std::array<uint32_t, 2>& parts, bool pack, bool real) -> Op& {
    Op& op = start(pack ? op_pack : op_unpack, real);
    op.extra = static_cast<uint32_t>(code_.extra.size());
    for (uint32_t r : parts) code_.extra.push_back(r << 2);
    op.count = 2, op.type = Ty::kU32, op.type2 = Ty::kU64;
    (pack ? pending_uses_ : pending_defs_)
        .insert((pack ? pending_uses_ : pending_defs_).end(), parts.begin(), parts.end());
    return op;
  };
  std::array<uint32_t, 2> halves[4];  // of the sources, then of the result
  for (unsigned k = 0; k < sources; ++k) {
    const uint32_t whole = use(i.operands[k + 1], Ty::kU64);
    if (whole == kNone) return refuse(i, "operand " + std::to_string(k + 2) + " does not fit");
    halves[k] = {new_register(4), new_register(4)};
    pair(halves[k], false, k == 0).a = whole;
    finish();
  }
  halves[3] = {new_register(4), new_register(4)};
  const auto [h, directed] = choose(operation, Ty::kF32, m.flags, static_cast<unsigned>(m.rounding));
  for (unsigned half = 0; half < 2; ++half) {
    Op& op = start(h, false);
    uint32_t* const fields[] = {&op.a, &op.b, &op.c};
    for (unsigned k = 0; k < sources; ++k) {
      *fields[k] = halves[k][half] << 2;
      pending_uses_.push_back(halves[k][half]);
    }
    op.type = Ty::kF32;
    op.flags = m.flags;
    op.sub = static_cast<uint8_t>(m.rounding);
    if (directed) op.target = reinterpret_cast<const Op*>(directed);
    op.d = halves[3][half] << 2;
    pending_defs_.push_back(halves[3][half]);
    finish();
  }
  Op& op = pair(halves[3], true, false);
  op.d = def(i.operands[0], Ty::kU64);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_arith(const ptx::Instruction& i) {  // add sub
  Modifiers m = sort_modifiers(i);
  if (m.take("f32x2")) return float_pairs(i, row_->operation, m);
  if (m.carry_out) return d_carry(i);
  for (bool is_signed : {false, true})
    if (m.take(is_signed ? "s16x2" : "u16x2")) {
      if (row_->operation != Operation::kAdd || !need(i, 3, 3))
        return refuse(i, "not supported for packed integers");
      Op op{};
      op.a = use(i.operands[1], Ty::kU32);
      op.b = use(i.operands[2], Ty::kU32);
      Op& out = start(add_pairs);
      out.a = op.a, out.b = op.b, out.sub = is_signed, out.flags = m.flags;
      out.d = def(i.operands[0], Ty::kU32);
      if (out.a == kNone || out.b == kNone || out.d == kNone) return refuse(i, "operand does not fit");
      finish();
      return true;
    }
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  if (m.has_rounding && !is_float(type)) return refuse(i, "rounding of integers");
  return simple(i, row_->operation, type, 2, m.flags,
                storage_of(type) && is_float(type) ? static_cast<unsigned>(m.rounding) : 0);
}

bool Decoder::d_mul(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.take("f32x2")) return float_pairs(i, Operation::kMul, m);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 3, 3)) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  if (row_->operation == Operation::kMul24)
    return simple(i, m.hi ? Operation::kMul24Hi : Operation::kMul24, type, 2);
  if (m.wide) {
    const Handler h = pick(Operation::kMulWide, type);
    const uint32_t a = use(i.operands[1], type), b = use(i.operands[2], type);
    if (!h || a == kNone || b == kNone) return refuse(i, "operand does not fit");
    Op& op = start(h);
    op.a = a, op.b = b, op.type = type;
    op.d = def(i.operands[0],
               storage_of(type) == 4 && (type == Ty::kU32 || type == Ty::kS32) ? Ty::kU64 : Ty::kU32);
    if (op.d == kNone) return refuse(i, "destination does not fit");
    finish();
    return true;
  }
  if (m.hi) return simple(i, Operation::kMulHi, type, 2);
  return simple(i, Operation::kMul, type, 2, m.flags, is_float(type) ? static_cast<unsigned>(m.rounding) : 0);
}

bool Decoder::d_mad(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 4, 4)) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  if (row_->operation == Operation::kMad24)
    return simple(i, m.hi ? Operation::kMad24Hi : Operation::kMad24, type, 3, m.flags);
  if (m.carry_out || row_->operation == Operation::kMadCarry) return d_carry(i);
  if (is_float(type)) return simple(i, Operation::kFma, type, 3, m.flags, static_cast<unsigned>(m.rounding));
  if (m.wide) {
    const Ty wide = type == Ty::kU32 || type == Ty::kS32 ? Ty::kU64 : Ty::kU32;
    const Handler h = pick(Operation::kMadWide, type);
    const uint32_t a = use(i.operands[1], type), b = use(i.operands[2], type), c = use(i.operands[3], wide);
    if (!h || a == kNone || b == kNone || c == kNone) return refuse(i, "operand does not fit");
    Op& op = start(h);
    op.a = a, op.b = b, op.c = c, op.type = type;
    op.d = def(i.operands[0], wide);
    if (op.d == kNone) return refuse(i, "destination does not fit");
    finish();
    return true;
  }
  return simple(i, m.hi ? Operation::kMadHi : Operation::kMad, type, 3, m.flags);
}

bool Decoder::d_carry(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  unsigned flags = m.carry_out ? kCarryOut : 0;
  const Ty type = ty_of(m.types[0]);
  using O = Operation;
  const O named = row_->operation;
  if (named == O::kAddCarry || named == O::kSubCarry || named == O::kMadCarry) flags |= kCarryIn;
  if (named == O::kMad || named == O::kMadCarry)
    return simple(i, m.hi ? O::kMadHiCarry : O::kMadCarry, type, 3, flags);
  return simple(i, named == O::kAdd || named == O::kAddCarry ? O::kAddCarry : O::kSubCarry, type, 2, flags);
}

bool Decoder::d_fma(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.take("f32x2")) return float_pairs(i, Operation::kFma, m);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, Operation::kFma, ty_of(m.types[0]), 3, m.flags, static_cast<unsigned>(m.rounding));
}

bool Decoder::d_div(const ptx::Instruction& i) {  // div rem; approximations are exact here
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, row_->operation, ty_of(m.types[0]), 2, m.flags, static_cast<unsigned>(m.rounding));
}

bool Decoder::d_minmax(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool maximum = row_->operation == Operation::kMax;
  m.take("abs");
  for (bool is_signed : {false, true})
    if (m.take(is_signed ? "s16x2" : "u16x2")) {
      if (!need(i, 3, 3)) return false;
      const uint32_t a = use(i.operands[1], Ty::kU32), b = use(i.operands[2], Ty::kU32);
      Op& op = start(maximum ? max_pairs : min_pairs);
      op.a = a, op.b = b, op.sub = is_signed, op.flags = m.flags;
      op.d = def(i.operands[0], Ty::kU32);
      if (a == kNone || b == kNone || op.d == kNone) return refuse(i, "operand does not fit");
      finish();
      return true;
    }
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  if (i.operands.size() == 4)
    return simple(i, maximum ? Operation::kMax3 : Operation::kMin3, ty_of(m.types[0]), 3, m.flags);
  return simple(i, row_->operation, ty_of(m.types[0]), 2, m.flags);
}

bool Decoder::d_unary(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, row_->operation, ty_of(m.types[0]), 1, m.flags);
}

bool Decoder::d_bits(const ptx::Instruction& i) {  // two operands: and or xor
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, row_->operation, ty_of(m.types[0]), 2);
}

bool Decoder::d_shift(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, row_->operation, ty_of(m.types[0]), 2);
}

bool Decoder::d_special_bits(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.empty()) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  const Ty counts = unsigned_of(type);
  Operation operation = row_->operation;
  unsigned sub = 0;
  // destination and source types as the opcode has them
  Ty result = Ty::kU32;
  std::vector<Ty> sources;
  if (operation == Operation::kClz || operation == Operation::kPopc) {
    sources = {type};
  } else if (operation == Operation::kBrev) {
    result = type;
    sources = {type};
  } else if (operation == Operation::kBfind) {
    sub = m.take("shiftamt");
    sources = {type};
  } else if (operation == Operation::kBfe) {
    result = type;
    sources = {type, Ty::kU32, Ty::kU32};
  } else if (operation == Operation::kBfi) {
    result = type;
    sources = {type, type, Ty::kU32, Ty::kU32};
  } else if (operation == Operation::kBmsk || operation == Operation::kSzext) {
    sub = m.take("clamp");
    m.take("wrap");
    result = type;
    sources = {type, Ty::kU32};
  } else if (operation == Operation::kFns) {
    sources = {Ty::kU32, Ty::kU32, Ty::kU32};
  } else if (operation == Operation::kSad) {
    result = type;
    sources = {type, type, type};
  } else if (operation == Operation::kShfLeft) {
    const bool left = m.take("l");
    if (!left && !m.take("r")) return refuse(i, "shf needs .l or .r");
    if (!left) operation = Operation::kShfRight;
    sub = m.take("clamp");
    m.take("wrap");
    sources = {Ty::kU32, Ty::kU32, Ty::kU32};
  } else if (operation == Operation::kPrmt) {
    unsigned mode = 0;
    for (const char* name : {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}) {
      ++mode;
      if (m.take(name)) sub = mode;
    }
    sources = {Ty::kU32, Ty::kU32, Ty::kU32};
  } else {  // lop3
    sources = {Ty::kU32, Ty::kU32, Ty::kU32};
    if (!need(i, 5, 5) || i.operands[4].kind != Kind::kInteger)
      return refuse(i, "only lop3.b32 with an immediate table is supported by the software GPU");
  }
  if (!leftover(i, m)) return false;
  if (!need(i, sources.size() + 1, sources.size() + (operation == Operation::kLop3 ? 2 : 1))) return false;
  const Handler h =
      scalar_handler(operation, operation == Operation::kBfe || operation == Operation::kBfind ||
                                        operation == Operation::kSad || operation == Operation::kSzext
                                    ? type
                                    : counts);
  if (!h) return refuse(i, "not supported for this type by the software GPU");
  uint32_t s[4] = {kNone, kNone, kNone, kNone};
  for (size_t k = 0; k < sources.size(); ++k) {
    s[k] = use(i.operands[k + 1], sources[k]);
    if (s[k] == kNone) return refuse(i, "operand " + std::to_string(k + 2) + " does not fit");
  }
  Op& op = start(h);
  op.a = s[0], op.b = s[1], op.c = s[2], op.d2 = s[3];
  op.type = type;
  op.sub = static_cast<uint8_t>(sub);
  if (operation == Operation::kLop3) op.imm = static_cast<int64_t>(i.operands[4].bits);
  op.d = def(i.operands[0], result);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_dp(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 2 || !leftover(i, m) || !need(i, 4, 4)) return refuse(i, "unknown form");
  const bool four = row_->operation == Operation::kDp4a;
  const unsigned sub = (ty_of(m.types[0]) == Ty::kS32 ? 1u : 0u) | (ty_of(m.types[1]) == Ty::kS32 ? 2u : 0u) |
                       (!four && m.hi ? 4u : 0u);
  return simple(i, row_->operation, Ty::kU32, 3, 0, sub);
}

bool Decoder::d_approx(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, row_->operation, ty_of(m.types[0]), 1, m.flags, static_cast<unsigned>(m.rounding));
}

bool Decoder::d_testp(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  unsigned sub = 6, n = 0;
  for (const char* name : {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}) {
    if (m.take(name)) sub = n;
    ++n;
  }
  if (sub == 6 || m.types.size() != 1 || !leftover(i, m) || !need(i, 2, 2)) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  const Handler h = scalar_handler(Operation::kTestp, type);
  const uint32_t a = use(i.operands[1], type);
  if (!h || a == kNone) return refuse(i, "operand does not fit");
  Op& op = start(h);
  op.a = a, op.sub = static_cast<uint8_t>(sub);
  op.d = def(i.operands[0], Ty::kPred);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_copysign(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m)) return refuse(i, "unknown form");
  return simple(i, Operation::kCopysign, ty_of(m.types[0]), 2);
}

// cmp[.bool] of a and b, combined with [!]c: setp and set have it in common. The last of the types is compared.
bool Decoder::comparison(const ptx::Instruction& i, size_t n_types, Comparison* out) {
  Modifiers m = sort_modifiers(i);
  unsigned flags = m.flags;
  if (m.take("and")) flags |= kBoolAnd;
  if (m.take("or")) flags |= kBoolOr;
  if (m.take("xor")) flags |= kBoolXor;
  const bool combines = flags & (kBoolAnd | kBoolOr | kBoolXor);
  out->compare = m.lo ? Compare::kLt : m.hi ? Compare::kGt : m.compare;
  if (m.types.size() != n_types || !leftover(i, m) || !need(i, combines ? 4 : 3, combines ? 4 : 3))
    return refuse(i, "unknown form");
  out->result = ty_of(m.types.front()), out->type = ty_of(m.types.back());
  out->a = use(i.operands[1], out->type), out->b = use(i.operands[2], out->type);
  if (out->a == kNone || out->b == kNone) return refuse(i, "operand does not fit");
  if (combines) {
    bool negated;
    out->c = use_predicate(i.operands[3], &negated);
    if (out->c == kNone) return refuse(i, "operand does not fit");
    if (negated) flags |= kNegate;
  }
  out->flags = static_cast<uint16_t>(flags);
  return true;
}

Op* Decoder::start_comparison(const ptx::Instruction& i, Handler handler, const Comparison& x) {
  if (!handler) return refuse(i, "operand does not fit"), nullptr;
  Op& op = start(handler);
  op.a = x.a, op.b = x.b, op.c = x.c, op.flags = x.flags, op.sub = static_cast<uint8_t>(x.compare);
  return &op;
}

// setp.cmp[.bool][.ftz].type p[|q], a, b[, [!]c]
bool Decoder::d_setp(const ptx::Instruction& i) {
  Comparison x;
  if (!comparison(i, 1, &x)) return false;
  const ptx::Operand& d = i.operands[0];
  const bool pair = d.kind == Kind::kPair;
  Op* op = start_comparison(i, pick(Operation::kSetp, x.type), x);
  if (!op) return false;
  op->type = x.type;
  op->d = def(pair ? d.children[0] : d, Ty::kPred);
  if (pair && d.children[1].kind != Kind::kSink) {
    op->flags |= kSecond;
    op->d2 = def(d.children[1], Ty::kPred);
    if (op->d2 == kNone) return refuse(i, "destination does not fit");
  }
  if (op->d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

// set.cmp[.bool][.ftz].dtype.stype d, a, b[, [!]c]
bool Decoder::d_set(const ptx::Instruction& i) {
  Comparison x;
  if (!comparison(i, 2, &x)) return false;
  Op* op = start_comparison(i, scalar_handler(Operation::kSet, x.type), x);
  if (!op) return false;
  op->type = x.result, op->type2 = x.type;
  op->d = def(i.operands[0], x.result);
  if (op->d == kNone || storage_of(x.result) != 4) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_selp(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 4, 4)) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  bool negated;
  const uint32_t a = use(i.operands[1], type), b = use(i.operands[2], type),
                 c = use_predicate(i.operands[3], &negated);
  const Handler h = pick(Operation::kSelp, type);
  if (!h || a == kNone || b == kNone || c == kNone) return refuse(i, "operand does not fit");
  Op& op = start(h);
  op.a = a, op.b = b, op.c = c, op.type = type, op.flags = negated ? kNegate : 0;
  op.d = def(i.operands[0], type);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_slct(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 2 || !leftover(i, m) || !need(i, 4, 4)) return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]), by = ty_of(m.types[1]);
  const Ty moved = type == Ty::kF32 ? Ty::kU32 : type == Ty::kF64 ? Ty::kU64 : type;
  const uint32_t a = use(i.operands[1], type), b = use(i.operands[2], type), c = use(i.operands[3], by);
  const Handler h = scalar_handler(Operation::kSlct, moved);
  if (!h || a == kNone || b == kNone || c == kNone) return refuse(i, "operand does not fit");
  Op& op = start(h);
  op.a = a, op.b = b, op.c = c, op.type = type, op.type2 = by, op.flags = m.flags;
  op.d = def(i.operands[0], type);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_cvt(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool satfinite = m.take("satfinite");
  if (m.types.size() != 2 || !leftover(i, m)) return refuse(i, "unknown form of cvt");
  const ptx::Type to = m.types[0], from = m.types[1];
  const Ty type = ty_of(to), source = ty_of(from);
  if (type == Ty::kCount || source == Ty::kCount) return refuse(i, "unknown types of cvt");
  const auto small_float = [](ptx::Type t) {
    return t == ptx::Type::kE4m3x2 || t == ptx::Type::kE5m2x2 || t == ptx::Type::kE4m3 ||
           t == ptx::Type::kE5m2;
  };
  const bool pair = to == ptx::Type::kF16x2 || to == ptx::Type::kBf16x2 || to == ptx::Type::kE4m3x2 ||
                    to == ptx::Type::kE5m2x2;
  if (pair || small_float(from)) {
    // d = {a, b} from two f32, or both halves of a packed source
    const bool two = i.operands.size() == 3;
    if (!need(i, 2, 3) || (two && from != ptx::Type::kF32)) return refuse(i, "unknown form of cvt");
    const uint32_t a = use(i.operands[1], source), b = two ? use(i.operands[2], source) : kNone;
    if (a == kNone || (two && b == kNone)) return refuse(i, "operand does not fit");
    Op& op = start(op_convert_pair);
    op.a = a, op.b = b;
    op.imm = static_cast<int64_t>(pair_format(to)) | static_cast<int64_t>(pair_format(from)) << 8;
    if ((op.imm & 0xff) == 0xff || (op.imm >> 8) == 0xff) return refuse(i, "unknown types of cvt");
    op.flags = m.flags;
    op.sub = static_cast<uint8_t>(m.rounding);
    op.count = satfinite ? 2 : 1;
    op.d = def(i.operands[0], type);
    if (op.d == kNone) return refuse(i, "destination does not fit");
    finish();
    return true;
  }
  if (!need(i, 2, 2)) return false;
  // The vector handler, if there is one.
  Handler h = nullptr;
  const bool to_float = is_float(type), from_float = is_float(source);
  unsigned flags = m.flags;
  Operation by{};
  bool known = true;
  switch (source) {
    case Ty::kU8:
      by = Operation::kCvtFromU8;
      break;
    case Ty::kS8:
      by = Operation::kCvtFromS8;
      break;
    case Ty::kU16:
      by = Operation::kCvtFromU16;
      break;
    case Ty::kS16:
      by = Operation::kCvtFromS16;
      break;
    case Ty::kU32:
      by = Operation::kCvtFromU32;
      break;
    case Ty::kS32:
      by = Operation::kCvtFromS32;
      break;
    case Ty::kU64:
      by = Operation::kCvtFromU64;
      break;
    case Ty::kS64:
      by = Operation::kCvtFromS64;
      break;
    case Ty::kF32:
      by = Operation::kCvtFromF32;
      break;
    case Ty::kF64:
      by = Operation::kCvtFromF64;
      break;
    case Ty::kF16:
      by = Operation::kCvtFromF16;
      break;
    case Ty::kBf16:
      by = Operation::kCvtFromBf16;
      break;
    default:
      known = false;
      break;
  }
  const bool single = type == Ty::kF32 && source == Ty::kF32;  // its vector handler saturates too
  const bool plain = !(flags & ~(kFtz | (single ? kSat : 0))) && !satfinite;
  bool usual = !m.has_rounding || m.rounding == Rounding::kNearest;
  if (from_float && !to_float) usual = m.to_integer && m.rounding == Rounding::kZero;
  if (from_float && to_float && m.to_integer) usual = false;
  if ((flags & kFtz) && type == Ty::kBf16) usual = false;
  // A narrow result in a wide register is extended, which only the scalar version does.
  Register r;
  const ptx::Operand& d = i.operands[0];
  const bool narrow_result = type == Ty::kU16 || type == Ty::kS16 || type == Ty::kU8 || type == Ty::kS8;
  if (narrow_result && d.kind == Kind::kRegister && find_register(d.name, &r) &&
      !(r.type == Ty::kU16 || r.type == Ty::kS16 || r.type == Ty::kU8 || r.type == Ty::kS8))
    usual = false;
  if (known && plain && usual) h = fast_handler(by, type);
  // Copies between integers of equal width.
  if (!h && !to_float && !from_float && plain && storage_of(type) == storage_of(source) && type != source &&
      unsigned_of(type) == unsigned_of(source) && !narrow_result)
    h = pick(Operation::kMov, type);
  if (!h) h = convert_any;
  if (from_float && to_float && m.to_integer) flags |= kToInteger;
  if (from_float && !to_float && !m.to_integer) return refuse(i, "conversion to an integer needs a rounding");
  const uint32_t a = use(i.operands[1], source);
  if (a == kNone) return refuse(i, "operand does not fit");
  Op& op = start(h);
  op.a = a;
  op.type = type, op.type2 = source;
  op.flags = static_cast<uint16_t>(flags);
  op.sub = static_cast<uint8_t>(m.rounding);
  op.count = satfinite ? 2 : 1;
  op.d = def(d, type);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

// vabsdiff{2,4}.dtype.atype.btype{.add} d, a, b, c on whole registers
bool Decoder::d_vabsdiff(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool add = m.take("add");
  if (m.types.size() != 3 || (m.flags & kSat) || !leftover(i, m) || !need(i, 4, 4))
    return refuse(i, "this form is not supported by the software GPU");
  const uint32_t a = use(i.operands[1], Ty::kU32), b = use(i.operands[2], Ty::kU32),
                 c = use(i.operands[3], Ty::kU32);
  if (a == kNone || b == kNone || c == kNone) return refuse(i, "operand does not fit");
  Op& op = start(absolute_differences);
  op.a = a, op.b = b, op.c = c, op.count = i.opcode == "vabsdiff4" ? 4 : 2;
  op.sub = static_cast<uint8_t>((ty_of(m.types[1]) == Ty::kS32 ? 1 : 0) |
                                (ty_of(m.types[2]) == Ty::kS32 ? 2 : 0) | (add ? 4 : 0));
  op.d = def(i.operands[0], Ty::kU32);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
