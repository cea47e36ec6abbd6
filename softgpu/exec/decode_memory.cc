// Decoding of memory instructions.
#include "softgpu/exec/access.h"
#include "softgpu/exec/decode.h"

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
    op->a = source(r.index);
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
      op->a = special_operand(Special::kDynamicBase64);
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

void Decoder::access(Handler fn, const Op& prepared, const std::vector<uint32_t>& data, Ty type,
                     const Modifiers& m, Space space) {
  const uint32_t extra = static_cast<uint32_t>(code_.extra.size());
  if (data.size() > 4) code_.extra.insert(code_.extra.end(), data.begin() + 4, data.end());
  Op& out = start(fn, true, prepared);
  uint32_t* const fields[] = {&out.d, &out.d2, &out.b, &out.c};
  for (size_t k = 0; k < 4; ++k) *fields[k] = k < data.size() ? data[k] : kNone;
  out.type = type;
  out.extra = extra;
  out.count = static_cast<uint8_t>(data.size());
  out.space = static_cast<uint8_t>(space);
  if (m.is_volatile) out.flags |= kVolatile;
  finish();
}

// True if every element became a column of the parameters.
bool Decoder::rename_parameters(const std::vector<const ptx::Operand*>& parts, Ty type, uint32_t offset) {
  constexpr size_t kMostColumns = 128;
  const uint32_t bytes = element_bytes(type);
  Register r;
  for (const ptx::Operand* part : parts)
    if (guarded_ || !segment_open_ || part->kind != Kind::kRegister || !part->suffix.empty() ||
        !find_register(part->name, &r) || r.vector != 1 || r.width != storage_of(type) ||
        definitions_[part->name] != 1 || was_read(r.index))
      return false;
  if (code_.columns.size() + parts.size() > kMostColumns) return false;
  for (const ptx::Operand* part : parts) {
    const uint32_t operand = (kUniformBytes + static_cast<uint32_t>(code_.columns.size()) * 256) | 3;
    code_.columns.push_back({offset, bytes, type == Ty::kS8 || type == Ty::kS16, storage_of(type) == 8});
    rename(*part, type, operand);
    offset += bytes;
  }
  ++issue_;
  return true;
}

bool Decoder::d_ld(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 2, m.cache_hint ? 3 : 2))
    return refuse(i, "unknown form");
  if (m.vector > 4 && (m.space != Space::kGlobal || ptx::type_bytes(m.types[0]) != 4))
    return refuse(i, "vectors of eight are of 32-bit types in global memory");
  const bool whole = m.types[0] == ptx::Type::kB128;  // two 64-bit halves
  const Ty type = whole ? Ty::kU64 : memory_type(m.types[0]);
  if (type == Ty::kCount || type == Ty::kPred || (whole && m.vector != 1))
    return refuse(i, "type is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[1], &op, &space)) return refuse(i, "address does not fit");
  const bool entry_param = space == Space::kParam && op.a == kNone;
  if (space == Space::kParam || space == Space::kConst) space = Space::kGlobal;  // real addresses
  Handler h = load_any;
  if (entry_param) {
    h = op_load_param;
  } else if (!m.is_volatile ||
             space == Space::kShared) {  // a block, and a cluster, belongs to one host thread
    const Handler fast_global = fast_handler(Operation::kLdGlobal, type);
    if (space == Space::kGlobal && fast_global && !(op.flags & kAddress32)) h = fast_global;
    if (space == Space::kShared && fast_handler(Operation::kLdShared, type))
      h = fast_handler(Operation::kLdShared, type);
    if (space == Space::kGeneric) {
      h = op_load_generic;
      op.target = reinterpret_cast<const Op*>(fast_global);
    }
  }
  if (m.vector > 4) h = load_any;
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[0], &parts);
  if (parts.size() != m.vector) return refuse(i, "vector does not fit");
  if (entry_param &&
      static_cast<uint64_t>(op.imm) + ptx::type_bytes(m.types[0]) * m.vector > info_->param_bytes)
    return refuse(i, "read beyond the parameters");
  if (entry_param && !whole && rename_parameters(parts, type, static_cast<uint32_t>(op.imm))) return true;
  // Sources sign-extend into wider registers by the type as written.
  const Ty as_written = ty_of(m.types[0]);
  std::vector<uint32_t> d(parts.size(), kNone);
  if (whole) {
    Register r;
    if (parts[0]->kind != Kind::kRegister || !find_register(parts[0]->name, &r) || r.width != 16)
      return refuse(i, "destination does not fit");
    d = {r.index << 2, (r.index + 1) << 2};
    pending_defs_ = {r.index, r.index + 1};
  }
  for (size_t k = 0; k < parts.size() && !whole; ++k) {
    d[k] = def(*parts[k], storage_of(type) == 4 ? (as_written == Ty::kS32 ? Ty::kS32 : type) : type);
    if (d[k] == kNone) return refuse(i, "destination does not fit");
  }
  access(h, op, d, type, m, space);
  return true;
}

bool Decoder::d_st(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (i.has("async")) return store_async(i, m);
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, 2, m.cache_hint ? 3 : 2))
    return refuse(i, "unknown form");
  if (m.vector > 4 && (m.space != Space::kGlobal || ptx::type_bytes(m.types[0]) != 4))
    return refuse(i, "vectors of eight are of 32-bit types in global memory");
  const bool whole = m.types[0] == ptx::Type::kB128;
  const Ty type = whole ? Ty::kU64 : memory_type(m.types[0]);
  if (type == Ty::kCount || type == Ty::kPred || (whole && m.vector != 1))
    return refuse(i, "type is not supported by the software GPU");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[0], &op, &space)) return refuse(i, "address does not fit");
  if (space == Space::kParam || space == Space::kConst) return refuse(i, "store to read-only memory");
  Handler h = store_any;
  if (!m.is_volatile || space == Space::kShared) {
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
  if (m.vector > 4) h = store_any;
  std::vector<uint32_t> s(parts.size(), kNone);
  if (whole && !halves(*parts[0], &s)) return refuse(i, "operand does not fit");
  for (size_t k = 0; k < parts.size() && !whole; ++k) {
    // Float immediates need the type as written.
    s[k] = use(*parts[k], ty_of(m.types[0]));
    if (s[k] == kNone) return refuse(i, "operand does not fit");
  }
  access(h, op, s, type, m, space);
  return true;
}

// The two registers of a 128-bit one.
bool Decoder::halves(const ptx::Operand& o, std::vector<uint32_t>* list) {
  Register r;
  if (o.kind != Kind::kRegister || !find_register(o.name, &r) || r.width != 16) return false;
  *list = {r.index << 2, (r.index + 1) << 2};
  pending_uses_.insert(pending_uses_.end(), {r.index, r.index + 1});
  return true;
}

// Vectors of floats in global memory; exchange and compare-and-swap of 128 bits.
bool Decoder::wide_atomic(const ptx::Instruction& i, const Modifiers& m, Atomic how) {
  const bool red = i.opcode == "red", whole = m.types[0] == ptx::Type::kB128;
  const Ty type = whole ? Ty::kU64 : ty_of(m.types[0]);
  const unsigned most = type == Ty::kF16 || type == Ty::kBf16 ? 8 : 4;
  const bool floats = type == Ty::kF16 || type == Ty::kBf16 || type == Ty::kF16x2 || type == Ty::kBf16x2;
  const bool known = whole
                         ? !red && m.vector == 1 && (how == Atomic::kExch || how == Atomic::kCas)
                         : m.vector <= most && (m.space == Space::kGlobal || m.space == Space::kGeneric) &&
                               (how == Atomic::kAdd ? floats || type == Ty::kF32
                                                    : floats && (how == Atomic::kMin || how == Atomic::kMax));
  const size_t base = red ? 0 : 1, want = base + 2 + (how == Atomic::kCas ? 1 : 0);
  if (!known || !leftover(i, m) || !need(i, want, want + (m.cache_hint ? 1 : 0)))
    return refuse(i, "unknown form of an atomic operation");
  Space space = m.space;
  Op op{};
  if (!address(i.operands[base], &op, &space)) return refuse(i, "address does not fit");
  std::vector<uint32_t> list, part;
  std::vector<const ptx::Operand*> parts;
  if (whole) {
    for (size_t k = 1; k <= 2; ++k) {
      part = {kNone, kNone};
      if (base + k < want && !halves(i.operands[base + k], &part)) return refuse(i, "operand does not fit");
      list.insert(list.end(), part.begin(), part.end());
    }
    part = {kNone, kNone};
    if (i.operands[0].kind != Kind::kSink) {
      std::vector<uint32_t> uses(pending_uses_);
      if (!halves(i.operands[0], &part)) return refuse(i, "destination does not fit");
      pending_uses_.swap(uses);
      pending_defs_ = {part[0] >> 2, part[1] >> 2};
    }
    list.insert(list.end(), part.begin(), part.end());
  } else {
    vector_elements(i.operands[base + 1], &parts);
    if (parts.size() != m.vector) return refuse(i, "vector does not fit");
    for (const ptx::Operand* o : parts) {
      list.push_back(use(*o, type));
      if (list.back() == kNone) return refuse(i, "operand does not fit");
    }
    parts.clear();
    if (!red) vector_elements(i.operands[0], &parts);
    if (!red && parts.size() != m.vector) return refuse(i, "vector does not fit");
    for (const ptx::Operand* o : parts) {
      list.push_back(o->kind == Kind::kSink ? kNone : def(*o, type));
      if (list.back() == kNone && o->kind != Kind::kSink) return refuse(i, "destination does not fit");
    }
    list.resize(2 * m.vector, kNone);
  }
  Op& out = start(whole ? op_atomic128 : op_atomic_vector, true, op);
  out.type = type;
  out.sub = static_cast<uint8_t>(how);
  out.space = static_cast<uint8_t>(space);
  out.count = static_cast<uint8_t>(m.vector);
  out.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), list.begin(), list.end());
  finish();
  return true;
}

// atom{.sem}{.scope}{.space}.op.type d, [a], b{, c};  red the same without d
bool Decoder::d_atom(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  if (i.has("async")) return store_async(i, m);
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
  if (found && m.types.size() == 1 && (m.vector != 1 || m.types[0] == ptx::Type::kB128))
    return wide_atomic(i, m, how);
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
  Op& out = start(atomic_handler(space, type, how), true, op);
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
      a = special_operand(Special::kDynamicBase64);
    } else {
      a = use(from, Ty::kU64);
    }
  } else if (from.kind == Kind::kRegister) {
    Register r;
    if (find_register(from.name, &r) && r.width == 4) {  // a 32-bit shared address
      const uint32_t wide = new_register(8);
      const uint32_t narrow = source(r.index);
      Op& op = start(pick(Operation::kWiden, Ty::kU32), false);
      op.a = narrow, op.d = wide << 2;
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
  if (plain && rename(i.operands[0], Ty::kU64, a)) {
    ++issue_;
    return true;
  }
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
  op.sub = m.cluster;
  op.space = static_cast<uint8_t>(m.space);
  op.d = def(i.operands[0], Ty::kPred);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

// Hints and fences: one block runs on one thread and global atomics are real, so ordering needs nothing more
// than what volatile and atomic accesses already do; asynchronous copies are made at once. A grid starts when
// those before it have ended, so griddepcontrol has nothing to wait for.
bool Decoder::d_nothing(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  for (const char* known : {"sc",
                            "gl",
                            "proxy",
                            "alias",
                            "async",
                            "mbarrier_init",
                            "launch_dependents",
                            "wait",
                            "async::generic",
                            "sync_restrict::shared::cta",
                            "sync_restrict::shared::cluster",
                            "mask",
                            "L1",
                            "L2",
                            "inc",
                            "dec",
                            "sync",
                            "aligned",
                            "tensormap",
                            "tensormap::generic"})
    m.take(known);
  if (!leftover(i, m)) return false;
  start(i.opcode == "fence" || i.opcode == "membar" ? op_fence : op_nothing);
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
