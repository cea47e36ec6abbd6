// Decoding of memory instructions.
#include "softgpu/exec/decode.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

using Kind = ptx::Operand::Kind;

// Fills operand a, imm and flags of a memory op; *space may change (entry parameters and symbols).
bool Decoder::address(const ptx::Operand& o, Op* op, Space* space) {
  if (o.kind != Kind::kAddress) return false;
  ++next_cache_;  // each memory instruction remembers a range of its own
  op->imm = static_cast<int64_t>(o.bits);
  if (o.base_is_register) {
    Register r;
    if (!find_register(o.name, &r)) return false;
    pending_uses_.push_back(r.index);
    op->a = r.index << 2;
    if (r.width == 4)
      op->flags |= kAddress32;
    else if (r.width != 8)
      return false;
    if (r.width == 4 && *space == Space::kGeneric) return false;
    return true;
  }
  if (o.name.empty()) {  // absolute
    op->a = constant(8, 0);
    return true;
  }
  Object object;
  if (!find_object(o.name, &object)) return false;
  switch (object.where) {
    case Where::kEntryParam:
    case Where::kLocal:
      op->imm += static_cast<int64_t>(object.value);
      op->a = kNone;
      *space = object.where == Where::kLocal ? Space::kLocal : Space::kParam;
      return true;
    case Where::kDynamicShared:
      op->a = static_cast<uint32_t>(Special::kDynamicBase64) * 128 | 2;
      if (*space == Space::kGeneric) *space = Space::kShared;
      return true;
    case Where::kShared:
      if (*space == Space::kGeneric) *space = Space::kShared;
      [[fallthrough]];
    case Where::kConstant:
      op->a = constant(8, object.value);
      return true;
  }
  return false;
}

namespace {
struct Element {
  Ty type;
  bool ok;
};
// Element type as the memory handlers know it.
Ty memory_type(ptx::Type type) {
  switch (ty_of(type)) {
    case Ty::kF16:
    case Ty::kBf16:
      return Ty::kU16;
    case Ty::kF16x2:
    case Ty::kBf16x2:
    case Ty::kF32:
    case Ty::kS32:
    case Ty::kTf32:
      return Ty::kU32;
    case Ty::kF64:
    case Ty::kS64:
      return Ty::kU64;
    default:
      return ty_of(type);
  }
}
}  // namespace

void Decoder::access(Handler fn, const Op& prepared, const uint32_t (&data)[4], Ty type, const Modifiers& m,
                     Space space) {
  Op& out = start(fn, true, prepared);
  out.d = data[0], out.d2 = data[1], out.b = data[2], out.c = data[3];
  out.type = type;
  out.count = static_cast<uint8_t>(m.vector);
  out.space = static_cast<uint8_t>(space);
  if (m.is_volatile) out.flags |= kVolatile;
  finish();
}

bool Decoder::d_ld(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 2, m.cache_hint ? 3 : 2))
    return refuse(i, "unknown form");
  if (m.vector > 4)
    return refuse(i, "vectors of more than four elements are not supported by the software GPU");
  const Ty type = memory_type(m.types[0]);
  if (type == Ty::kCount || type == Ty::kPred) return refuse(i, "type is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[1], &op, &space)) return refuse(i, "address does not fit");
  const bool entry_param = space == Space::kParam && op.a == kNone;
  if (space == Space::kParam || space == Space::kConst) space = Space::kGlobal;  // real addresses
  Handler h = load_any;
  if (entry_param) {
    h = op_load_param;
  } else if (!m.is_volatile) {
    const Handler fast_global = fast_handler(Operation::kLdGlobal, type);
    if (space == Space::kGlobal && fast_global && !(op.flags & kAddress32)) h = fast_global;
    if (space == Space::kShared && fast_handler(Operation::kLdShared, type))
      h = fast_handler(Operation::kLdShared, type);
    if (space == Space::kGeneric) {
      h = op_load_generic;
      op.target = reinterpret_cast<const Op*>(fast_global);
    }
  }
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[0], &parts);
  if (parts.size() != m.vector) return refuse(i, "vector does not fit");
  // Sources sign-extend into wider registers by the type as written.
  const Ty as_written = ty_of(m.types[0]);
  uint32_t d[4] = {kNone, kNone, kNone, kNone};
  for (size_t k = 0; k < parts.size(); ++k) {
    d[k] = def(*parts[k], storage_of(type) == 4 ? (as_written == Ty::kS32 ? Ty::kS32 : type) : type);
    if (d[k] == kNone) return refuse(i, "destination does not fit");
  }
  if (entry_param &&
      static_cast<uint64_t>(op.imm) + ptx::type_bytes(m.types[0]) * m.vector > info_->param_bytes)
    return refuse(i, "read beyond the parameters");
  access(h, op, d, type, m, space);
  return true;
}

bool Decoder::d_st(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 2, m.cache_hint ? 3 : 2))
    return refuse(i, "unknown form");
  if (m.vector > 4)
    return refuse(i, "vectors of more than four elements are not supported by the software GPU");
  const Ty type = memory_type(m.types[0]);
  if (type == Ty::kCount || type == Ty::kPred) return refuse(i, "type is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[0], &op, &space)) return refuse(i, "address does not fit");
  if (space == Space::kParam || space == Space::kConst) return refuse(i, "store to read-only memory");
  Handler h = store_any;
  if (!m.is_volatile) {
    const Ty plain = type == Ty::kS8 ? Ty::kU8 : type == Ty::kS16 ? Ty::kU16 : type;
    const Handler fast_global = fast_handler(Operation::kStGlobal, plain);
    if (space == Space::kGlobal && fast_global && !(op.flags & kAddress32)) h = fast_global;
    if (space == Space::kShared && fast_handler(Operation::kStShared, plain))
      h = fast_handler(Operation::kStShared, plain);
    if (space == Space::kGeneric) {
      h = op_store_generic;
      op.target = reinterpret_cast<const Op*>(fast_global);
    }
  }
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[1], &parts);
  if (parts.size() != m.vector) return refuse(i, "vector does not fit");
  uint32_t s[4] = {kNone, kNone, kNone, kNone};
  for (size_t k = 0; k < parts.size(); ++k) {
    // Float immediates need the type as written.
    s[k] = use(*parts[k], ty_of(m.types[0]));
    if (s[k] == kNone) return refuse(i, "operand does not fit");
  }
  access(h, op, s, type, m, space);
  return true;
}

// atom{.sem}{.scope}{.space}.op.type d, [a], b{, c};  red the same without d
bool Decoder::d_atom(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  struct Row {
    const char* name;
    Atomic how;
  };
  bool found = false;
  Atomic how{};
  for (const Row& row : {Row{"add", Atomic::kAdd}, Row{"min", Atomic::kMin}, Row{"max", Atomic::kMax},
                         Row{"and", Atomic::kAnd}, Row{"or", Atomic::kOr}, Row{"xor", Atomic::kXor},
                         Row{"exch", Atomic::kExch}, Row{"cas", Atomic::kCas}, Row{"inc", Atomic::kInc},
                         Row{"dec", Atomic::kDec}})
    if (m.take(row.name)) how = row.how, found = true;
  const bool red = i.opcode == "red";
  const size_t want = (red ? 2u : 3u) + (how == Atomic::kCas ? 1u : 0u);
  if (!found || m.types.size() != 1 || m.vector != 1 || !leftover(i, m) ||
      !need(i, want, want + (m.cache_hint ? 1 : 0)))
    return refuse(i, "unknown form of an atomic operation");
  const Ty type = ty_of(m.types[0]);
  if (type == Ty::kCount || type == Ty::kU8 || type == Ty::kS8)
    return refuse(i, "type is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  const size_t base = red ? 0 : 1;
  if (!address(i.operands[base], &op, &space)) return refuse(i, "address does not fit");
  op.b = use(i.operands[base + 1], type);
  if (how == Atomic::kCas) op.c = use(i.operands[base + 2], type);
  if (op.b == kNone || (how == Atomic::kCas && op.c == kNone)) return refuse(i, "operand does not fit");
  Op& out = start(op_atomic, true, op);
  out.type = type;
  out.sub = static_cast<uint8_t>(how);
  out.space = static_cast<uint8_t>(space);
  if (!red && i.operands[0].kind != Kind::kSink) {
    out.d = def(i.operands[0], type);
    if (out.d == kNone) return refuse(i, "destination does not fit");
  }
  finish();
  return true;
}

// cvta{.to}.space.u64 d, a
bool Decoder::d_cvta(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool to = m.take("to");
  if (m.types.size() != 1 || !m.has_space || !leftover(i, m) || !need(i, 2, 2))
    return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  if (storage_of(type) != 8) return refuse(i, "32-bit generic addresses do not exist");
  const ptx::Operand& from = i.operands[1];
  const bool plain = m.space == Space::kGlobal || m.space == Space::kConst || m.space == Space::kParam;
  uint32_t a = kNone;
  Object object;
  if (from.kind == Kind::kSymbol && find_object(from.name, &object)) {
    // Addresses of objects: make the space address first.
    if (object.where == Where::kLocal || object.where == Where::kEntryParam) {
      const uint32_t temporary = new_register(8);
      Op& op = start(object.where == Where::kLocal ? op_local_address : op_param_address, false);
      op.imm = static_cast<int64_t>(object.value + from.bits);
      op.d = temporary << 2;
      pending_defs_ = {temporary};
      finish();
      pending_uses_.push_back(temporary);
      a = temporary << 2;
    } else if (object.where == Where::kDynamicShared) {
      a = static_cast<uint32_t>(Special::kDynamicBase64) * 128 | 2;
    } else {
      a = use(from, Ty::kU64);
    }
  } else if (from.kind == Kind::kRegister) {
    Register r;
    if (find_register(from.name, &r) && r.width == 4) {  // a 32-bit shared address
      const uint32_t wide = new_register(8);
      Op& op = start(pick(Operation::kWiden, Ty::kU32), false);
      op.a = r.index << 2, op.d = wide << 2;
      pending_uses_ = {r.index};
      pending_defs_ = {wide};
      finish();
      pending_uses_.push_back(wide);
      a = wide << 2;
    } else {
      a = use(from, Ty::kU64);
    }
  } else {
    a = use(from, Ty::kU64);
  }
  if (a == kNone) return refuse(i, "operand does not fit");
  Op& op = start(plain ? pick(Operation::kMov, Ty::kU64) : op_cvta);
  op.a = a;
  op.sub = to;
  op.space = static_cast<uint8_t>(m.space);
  op.d = def(i.operands[0], Ty::kU64);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_isspacep(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (!m.has_space || !leftover(i, m) || !need(i, 2, 2)) return refuse(i, "unknown form");
  const uint32_t a = use(i.operands[1], Ty::kU64);
  if (a == kNone) return refuse(i, "operand does not fit");
  Op& op = start(op_isspacep);
  op.a = a;
  op.space = static_cast<uint8_t>(m.space);
  op.d = def(i.operands[0], Ty::kPred);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

// Hints and fences: one block runs on one thread and global atomics are real, so ordering needs nothing more
// than what volatile and atomic accesses already do.
bool Decoder::d_nothing(const ptx::Instruction& i) {
  if (i.has("tensormap") || i.has("tensormap::generic"))
    return refuse(i, "tensor maps are not supported by the software GPU");
  start(i.opcode == "fence" || i.opcode == "membar" ? op_fence : op_nothing);
  finish();
  return true;
}

// cp.async.{ca,cg}.shared.global [dst], [src], n{, src-size | ignore-src}; commit and waits do nothing.
bool Decoder::d_cp(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (!m.take("async")) return refuse(i, "not supported by the software GPU");
  if (m.take("commit_group") || m.take("wait_group") || m.take("wait_all")) {
    if (m.others.size()) return refuse(i, "not supported by the software GPU");
    start(op_nothing);
    finish();
    return true;
  }
  if (!m.others.empty() || i.operands.size() < 3) return refuse(i, "not supported by the software GPU");
  Op op{};
  Op to{};
  Space shared = Space::kShared, global = Space::kGlobal;
  if (!address(i.operands[0], &to, &shared)) return refuse(i, "address does not fit");
  op.flags = to.flags;
  op.b = to.a;
  op.extra = static_cast<uint32_t>(to.imm);
  const uint16_t keep = op.flags;
  op.flags = 0;
  if (!address(i.operands[1], &op, &global) || (op.flags & kAddress32))
    return refuse(i, "address does not fit");
  op.flags = keep;
  if (i.operands[2].kind != Kind::kInteger) return refuse(i, "size must be a constant");
  op.count = static_cast<uint8_t>(i.operands[2].bits);
  if (op.count != 4 && op.count != 8 && op.count != 16) return refuse(i, "size must be 4, 8 or 16");
  const size_t extra = i.operands.size() - 3 - (m.cache_hint ? 1 : 0);
  if (extra >= 1) {
    const ptx::Operand& o = i.operands[3];
    Register r;
    if (o.kind == Kind::kRegister && find_register(o.name, &r) && r.width == 0) {
      pending_uses_.push_back(r.index);
      op.d2 = r.index << 2;
      op.flags |= kSecond;
    } else {
      op.c = use(o, Ty::kU32);
      if (op.c == kNone) return refuse(i, "operand does not fit");
    }
  }
  start(op_cp_async, true, op);
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
