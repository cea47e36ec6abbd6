// Decoding of asynchronous copies, their barriers, and what belongs to clusters.
#include "softgpu/exec/decode.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

using Kind = ptx::Operand::Kind;

bool atomic_named(Modifiers& m, Atomic* how) {
  struct Row {
    const char* name;
    Atomic how;
  };
  for (const Row& row : {Row{"add", Atomic::kAdd}, Row{"min", Atomic::kMin}, Row{"max", Atomic::kMax},
                         Row{"and", Atomic::kAnd}, Row{"or", Atomic::kOr}, Row{"xor", Atomic::kXor},
                         Row{"inc", Atomic::kInc}, Row{"dec", Atomic::kDec}})
    if (m.take(row.name)) {
      *how = row.how;
      return true;
    }
  return false;
}

namespace {

// State spaces in the order of the text.
std::vector<Space> spaces_of(const ptx::Instruction& i) {
  std::vector<Space> list;
  for (ptx::Name name : i.modifiers) {
    if (name == "global") list.push_back(Space::kGlobal);
    if (name == "shared" || name == "shared::cta" || name == "shared::cluster")
      list.push_back(Space::kShared);
  }
  return list;
}

}  // namespace

// A 64-bit register with the whole address of `[register + offset]`.
uint32_t Decoder::whole_address(const ptx::Operand& o, Space* space) {
  Op place{};
  if (!address(o, &place, space) || place.a == kNone) return kNone;
  std::vector<uint32_t> uses;
  const auto emit = [&](Operation operation, Ty type, unsigned width, uint32_t a, uint32_t b) {
    const uint32_t to = new_register(width);
    Op& op = start(pick(operation, type), false);
    op.a = a, op.b = b, op.d = to << 2;
    op.type = type;
    pending_defs_ = {to};
    finish();
    pending_uses_ = {to};
    return to << 2;
  };
  // Operands decoded before belong to the instruction itself, not to the steps here.
  std::vector<uint32_t> earlier(pending_uses_);
  if (!earlier.empty() && (place.a & 3) == 0) earlier.pop_back();
  std::vector<uint32_t> own;
  if ((place.a & 3) == 0) own = {place.a >> 2};
  pending_uses_ = own;
  uint32_t result = place.a;
  const bool narrow = place.flags & kAddress32;  // the sum wraps at 32 bits, too
  const Ty type = narrow ? Ty::kU32 : Ty::kU64;
  const unsigned width = narrow ? 4 : 8;
  if (place.imm)
    result = emit(Operation::kAdd, type, width, result, constant(width, static_cast<uint64_t>(place.imm)));
  if (narrow) result = emit(Operation::kWiden, type, 8, result, kNone);
  pending_uses_.insert(pending_uses_.end(), earlier.begin(), earlier.end());
  return result;
}

// mbarrier.<what>{.sem}{.scope}{.space}.b64
bool Decoder::d_mbarrier(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  struct Row {
    const char* name;
    Signal signal;
    bool result;               // operand 0 is one
    size_t least, most;        // operands behind the address
    bool result_is_predicate;  // else state
  };
  static constexpr Row kRows[] = {{"init", Signal::kInit, false, 1, 1, false},
                                  {"inval", Signal::kInvalidate, false, 0, 0, false},
                                  {"arrive", Signal::kArrive, true, 0, 1, false},
                                  {"arrive_drop", Signal::kArriveDrop, true, 0, 1, false},
                                  {"test_wait", Signal::kTest, true, 1, 1, true},
                                  {"try_wait", Signal::kTest, true, 1, 2, true},
                                  {"complete_tx", Signal::kComplete, false, 1, 1, false},
                                  {"expect_tx", Signal::kExpect, false, 1, 1, false}};
  if (m.types.size() != 1 || m.types[0] != ptx::Type::kB64) return refuse(i, "unknown form");
  if (m.take("pending_count")) {
    if (!leftover(i, m) || !need(i, 2, 2)) return false;
    const uint32_t a = use(i.operands[1], Ty::kU64);
    if (a == kNone) return refuse(i, "operand does not fit");
    Op& op = start(op_mbarrier);
    op.a = a;
    op.sub = static_cast<uint8_t>(Signal::kPendingCount);
    op.d = def(i.operands[0], Ty::kU32);
    if (op.d == kNone) return refuse(i, "destination does not fit");
    finish();
    return true;
  }
  const Row* row = nullptr;
  for (const Row& r : kRows)
    if (!row && m.take(r.name)) row = &r;  // expect_tx is last: after arrive it is a modifier
  if (!row) return refuse(i, "unknown form");
  Signal signal = row->signal;
  const bool arrives = signal == Signal::kArrive || signal == Signal::kArriveDrop;
  const bool expects = arrives && m.take("expect_tx"), no_complete = arrives && m.take("noComplete");
  const bool parity = signal == Signal::kTest && m.take("parity");
  if (parity) signal = Signal::kTestParity;
  const size_t first = row->result ? 1 : 0;
  if (!leftover(i, m) ||
      !need(i, first + 1 + (expects || no_complete ? 1 : row->least), first + 1 + row->most))
    return false;
  Space space = m.space;
  Op op{};
  if (!address(i.operands[first], &op, &space)) return refuse(i, "address does not fit");
  if (space != Space::kShared && space != Space::kGeneric)
    return refuse(i, "address is not in shared memory");
  if (i.operands.size() > first + 1) {
    const uint32_t value = use(i.operands[first + 1], signal == Signal::kTest ? Ty::kU64 : Ty::kU32);
    if (value == kNone) return refuse(i, "operand does not fit");
    (expects ? op.c : op.b) = value;
  }
  const bool patient = row->name == std::string_view("try_wait");
  Op& out = start(op_mbarrier, true, op);
  out.sub = static_cast<uint8_t>(signal);
  out.space = static_cast<uint8_t>(space);
  out.count = no_complete ? 2 : patient ? 3 : 1;
  if (row->result && (row->result_is_predicate || i.operands[0].kind != Kind::kSink)) {
    out.d = def(i.operands[0], row->result_is_predicate ? Ty::kPred : Ty::kU64);
    if (out.d == kNone) return refuse(i, "destination does not fit");
  }
  finish();
  return true;
}

// cp.async{.bulk}, cp.reduce.async.bulk
bool Decoder::d_cp(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool reduces = m.take("reduce");
  if (!m.take("async")) return refuse(i, "not supported by the software GPU");
  const bool bulk = m.take("bulk");
  // Copies are made at once, so there is nothing to wait for.
  if (m.take("commit_group") || m.take("wait_group") || m.take("wait_all")) {
    m.take("read");
    if (!leftover(i, m)) return false;
    start(op_nothing);
    finish();
    return true;
  }
  if (bulk && i.has("tensor")) return tensor_copy(i, m, reduces);
  if (bulk && m.take("prefetch")) {
    m.take("L2");
    if (!leftover(i, m) || !need(i, 2, m.cache_hint ? 3 : 2)) return false;
    start(op_nothing);
    finish();
    return true;
  }
  if (bulk) return bulk_copy(i, m, reduces);
  if (reduces) return refuse(i, "unknown form");
  // cp.async.mbarrier.arrive{.noinc}: the copies are done, so the barrier hears of it now. Without .noinc the
  // arrival was added to what the barrier waits for, and nothing remains.
  if (m.take("mbarrier")) {
    const bool noinc = m.take("noinc");
    if (!m.take("arrive") || !leftover(i, m) || !need(i, 1, 1)) return refuse(i, "unknown form");
    Space space = m.space;
    Op op{};
    if (!address(i.operands[0], &op, &space)) return refuse(i, "address does not fit");
    op.sub = static_cast<uint8_t>(noinc ? Signal::kArrive : Signal::kExpect);
    op.b = constant(4, noinc ? 1 : 0);
    op.space = static_cast<uint8_t>(space);
    start(op_mbarrier, true, op);
    finish();
    return true;
  }
  return small_copy(i, m);
}

// cp.async.{ca,cg}.shared.global [to], [from], n{, source size | ignore-source predicate}
bool Decoder::small_copy(const ptx::Instruction& i, const Modifiers& m) {
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

// cp{.reduce}.async.bulk.to.from.completion{.operation.type} [to], [from], size{, [mbarrier]}{, ranks}{,
// policy}
bool Decoder::bulk_copy(const ptx::Instruction& i, Modifiers& m, bool reduces) {
  Atomic how{};
  const bool barrier = m.take("mbarrier::complete_tx::bytes");
  const bool multicast = m.take("multicast::cluster");
  if (!barrier && !m.take("bulk_group")) return refuse(i, "unknown form");
  if (reduces && (!atomic_named(m, &how) || m.types.size() != 1 || ty_of(m.types[0]) == Ty::kCount))
    return refuse(i, "unknown reduction");
  const std::vector<Space> spaces = spaces_of(i);
  const size_t n = 3 + barrier + multicast + m.cache_hint;
  if (spaces.size() != 2 || !leftover(i, m) || !need(i, n, n)) return refuse(i, "unknown form");
  Space to = spaces[0], from = spaces[1], at = spaces[0];
  const uint32_t list[5] = {whole_address(i.operands[0], &to), whole_address(i.operands[1], &from),
                            use(i.operands[2], Ty::kU32), barrier ? whole_address(i.operands[3], &at) : kNone,
                            multicast ? use(i.operands[4], Ty::kU32) : kNone};
  for (size_t k = 0; k < 5; ++k)
    if (list[k] == kNone && (k < 3 || (k == 3 ? barrier : multicast)))
      return refuse(i, "operand does not fit");
  Op& op = start(op_bulk);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), std::begin(list), std::end(list));
  op.space = static_cast<uint8_t>(to);
  op.count = static_cast<uint8_t>(from);
  op.sub = reduces ? static_cast<uint8_t>(1 + static_cast<unsigned>(how)) : 0;
  if (reduces) op.type = ty_of(m.types[0]);
  finish();
  return true;
}

// st.async, red.async: [to], value(s), [mbarrier]
bool Decoder::store_async(const ptx::Instruction& i, Modifiers& m) {
  Atomic how{};
  const bool reduces = i.opcode == "red";
  m.take("async");
  if (!m.take("mbarrier::complete_tx::bytes") || (reduces && !atomic_named(m, &how)) || m.types.size() != 1 ||
      m.vector > 4 || !leftover(i, m) || !need(i, 3, 3))
    return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  Space to = m.space, at = m.space;
  const uint32_t target = whole_address(i.operands[0], &to), barrier = whole_address(i.operands[2], &at);
  std::vector<uint32_t> list = {target, barrier};
  std::vector<const ptx::Operand*> parts;
  vector_elements(i.operands[1], &parts);
  if (parts.size() != m.vector || type == Ty::kCount) return refuse(i, "vector does not fit");
  for (const ptx::Operand* part : parts) list.push_back(use(*part, type));
  for (uint32_t operand : list)
    if (operand == kNone) return refuse(i, "operand does not fit");
  Op& op = start(op_store_async);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.insert(code_.extra.end(), list.begin(), list.end());
  op.type = type;
  op.count = static_cast<uint8_t>(parts.size());
  op.space = static_cast<uint8_t>(to);
  op.sub = reduces ? static_cast<uint8_t>(1 + static_cast<unsigned>(how)) : 0;
  finish();
  return true;
}

// mapa{.space}.u32|u64 d, a, rank; getctarank{.space}.u32|u64 d, a
bool Decoder::d_cluster_address(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool map = i.opcode == "mapa";
  if (m.types.size() != 1 || !leftover(i, m) || !need(i, map ? 3 : 2, map ? 3 : 2))
    return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  if (type != Ty::kU32 && type != Ty::kU64) return refuse(i, "unknown form");
  // .shared::cluster means addresses of that space, in a register of either width.
  const uint32_t a = use(i.operands[1], type);
  const uint32_t b = map ? use(i.operands[2], Ty::kU32) : kNone;
  if (a == kNone || (map && b == kNone)) return refuse(i, "operand does not fit");
  if (m.has_space && type == Ty::kU64)
    return refuse(i, "64-bit addresses of shared memory are not supported by the software GPU");
  if (!m.has_space && type == Ty::kU32) return refuse(i, "32-bit generic addresses do not exist");
  Op& op = start(map ? op_map_shared : op_shared_rank);
  op.a = a, op.b = b, op.type = type;
  op.d = def(i.operands[0], map ? type : Ty::kU32);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
