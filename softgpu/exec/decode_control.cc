// Decoding of control flow, barriers and warp-wide instructions.
#include "softgpu/exec/decode.h"

namespace tessera::softgpu::exec {

using Kind = ptx::Operand::Kind;

bool Decoder::d_bra(const ptx::Instruction& i) {
  uint32_t label;
  if (!need(i, 1, 1) || !find_label(i.operands[0].name, &label)) return refuse(i, "unknown label");
  if (i.guard.empty()) {
    start(op_branch);
  } else {
    ptx::Operand guard;
    guard.kind = Kind::kRegister;
    guard.name = i.guard;
    bool ignored;
    const uint32_t predicate = use_predicate(guard, &ignored);
    if (predicate == kNone) return refuse(i, "guard is no predicate register");
    Op& op = start(op_branch_if);
    op.a = predicate;
    if (i.guard_negated) op.flags |= kNegate;
  }
  finish();
  branch_to(label);
  return true;
}

bool Decoder::d_brx(const ptx::Instruction& i) {
  if (!i.has("idx") || !need(i, 2, 2)) return refuse(i, "unknown form");
  const std::vector<ptx::Name>* names = nullptr;
  for (size_t s = scopes_.size(); s-- > 0 && !names;) {
    auto it = scopes_[s].targets.find(i.operands[1].name);
    if (it != scopes_[s].targets.end()) names = &it->second;
  }
  if (!names) return refuse(i, "unknown list of targets");
  std::vector<uint32_t> labels;
  for (ptx::Name name : *names) {
    uint32_t label;
    if (!find_label(name, &label)) return refuse(i, "unknown label in the list of targets");
    labels.push_back(label);
  }
  const uint32_t a = use(i.operands[0], Ty::kU32);
  if (a == kNone) return refuse(i, "index does not fit");
  Op& op = start(op_branch_index);
  op.a = a;
  op.imm = static_cast<int64_t>(table_labels_.size());
  table_labels_.push_back(std::move(labels));
  finish();
  return true;
}

bool Decoder::d_ret(const ptx::Instruction&) {
  start(op_return);
  finish();
  return true;
}
bool Decoder::d_exit(const ptx::Instruction&) {
  start(op_exit);
  finish();
  return true;
}
bool Decoder::d_trap(const ptx::Instruction& i) {
  start(i.opcode == "brkpt" ? op_nothing : op_trap);
  finish();
  return true;
}
bool Decoder::d_nanosleep(const ptx::Instruction&) {
  start(op_yield);
  finish();
  return true;
}

// call{.uni} {(ret),} f{, (args)}{, prototype or target list}
bool Decoder::d_call(const ptx::Instruction& i) {
  size_t at_operand = 0;
  CallSite site;
  const auto copies = [&](const ptx::Operand& list, std::vector<Copy>* out) {
    for (const ptx::Operand& o : list.children) {
      Object object;
      if (o.kind != Kind::kSymbol || !find_object(o.name, &object) || object.where != Where::kLocal)
        return false;
      out->push_back(Copy{static_cast<uint32_t>(object.value), object.bytes});
    }
    return true;
  };
  const auto& operands = i.operands;
  if (at_operand < operands.size() && operands[at_operand].kind == Kind::kList) {
    if (!copies(operands[at_operand], &site.out)) return refuse(i, "results must be .param variables");
    ++at_operand;
  }
  if (at_operand >= operands.size()) return refuse(i, "call without a function");
  const ptx::Operand& target = operands[at_operand++];
  if (at_operand < operands.size() && operands[at_operand].kind == Kind::kList) {
    if (!copies(operands[at_operand], &site.in)) return refuse(i, "arguments must be .param variables");
  }
  if (target.kind == Kind::kRegister) {
    site.pointer = use(target, Ty::kU64);
    if (site.pointer == kNone) return refuse(i, "function pointer does not fit");
    layout_.indirect = true;
  } else {
    site.name = std::string(target.name);
    struct Row {
      const char* name;
      Builtin builtin;
    };
    for (const Row& row : {Row{"vprintf", Builtin::kPrintf}, Row{"__assertfail", Builtin::kAssertFail},
                           Row{"malloc", Builtin::kMalloc}, Row{"free", Builtin::kFree}})
      if (site.name == row.name) site.builtin = row.builtin;
    const ptx::Function* f = layout_.symbols->module->find(target.name);
    if (site.builtin == Builtin::kNone) {
      if (!f || !f->has_body)
        return refuse(i, "function is not defined in this module and no builtin of the software GPU");
      layout_.callees.push_back(site.name);
    }
  }
  Op& op = start(op_call);
  op.imm = static_cast<int64_t>(code_.calls.size());
  code_.calls.push_back(std::move(site));
  finish();
  return true;
}

// bar{.cta}.{sync,arrive,red...}, barrier the same, bar.warp.sync
bool Decoder::d_bar(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  m.take("aligned");
  if (m.take("warp")) {
    if (!m.take("sync") || !need(i, 1, 1)) return refuse(i, "unknown form");
    const uint32_t a = use(i.operands[0], Ty::kU32);
    if (a == kNone) return refuse(i, "operand does not fit");
    start(op_warp_barrier).a = a;
    finish();
    return true;
  }
  if (i.has("cluster")) {
    const bool wait = m.take("wait");
    if (!wait && !m.take("arrive")) return refuse(i, "unknown form");
    if (!leftover(i, m) || !need(i, 0, 0)) return false;
    start(op_cluster_barrier).sub = wait;
    finish();
    return true;
  }
  unsigned sub = 0;
  const bool red = m.take("red");
  if (red) {
    if (m.take("popc"))
      sub = 2;
    else if (m.take("and"))
      sub = 3;
    else if (m.take("or"))
      sub = 4;
    else
      return refuse(i, "unknown form");
  } else if (m.take("arrive")) {
    sub = 1;
  } else if (!m.take("sync")) {
    return refuse(i, "unknown form");
  }
  if (!leftover(i, m)) return false;
  size_t at_operand = red ? 1 : 0;
  const size_t end = i.operands.size() - (red ? 1 : 0);
  if (i.operands.size() < at_operand + 1 + (red ? 1u : 0u)) return refuse(i, "unexpected number of operands");
  const uint32_t id = use(i.operands[at_operand++], Ty::kU32);
  uint32_t count = kNone;
  if (at_operand < end) {
    count = use(i.operands[at_operand], Ty::kU32);
    if (count == kNone) return refuse(i, "operand does not fit");
  }
  uint32_t predicate = kNone;
  bool negated = false;
  if (red) {
    predicate = use_predicate(i.operands.back(), &negated);
    if (predicate == kNone) return refuse(i, "operand does not fit");
  }
  if (id == kNone) return refuse(i, "operand does not fit");
  Op& op = start(op_bar);
  op.a = id, op.b = count, op.c = predicate, op.sub = static_cast<uint8_t>(sub);
  if (negated) op.flags |= kNegate;
  if (red) {
    op.d = def(i.operands[0], sub == 2 ? Ty::kU32 : Ty::kPred);
    if (op.d == kNone) return refuse(i, "destination does not fit");
  }
  finish();
  return true;
}

// shfl.sync.mode.b32 d[|p], a, b, c, membermask
bool Decoder::d_shfl(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  unsigned sub = 4, n = 0;
  for (const char* name : {"up", "down", "bfly", "idx"}) {
    if (m.take(name)) sub = n;
    ++n;
  }
  const bool sync = m.take("sync");
  if (sub == 4 || !leftover(i, m) || !need(i, sync ? 5 : 4, sync ? 5 : 4)) return refuse(i, "unknown form");
  const uint32_t a = use(i.operands[1], Ty::kU32), b = use(i.operands[2], Ty::kU32),
                 c = use(i.operands[3], Ty::kU32);
  const uint32_t members = sync ? use(i.operands[4], Ty::kU32) : constant(4, 0);
  if (a == kNone || b == kNone || c == kNone || members == kNone) return refuse(i, "operand does not fit");
  const ptx::Operand& d = i.operands[0];
  const bool pair = d.kind == Kind::kPair;
  Op& op = start(op_shfl);
  op.a = a, op.b = b, op.sub = static_cast<uint8_t>(sub);
  op.extra = static_cast<uint32_t>(code_.extra.size());
  code_.extra.push_back(c);
  code_.extra.push_back(members);
  op.d = def(pair ? d.children[0] : d, Ty::kU32);
  if (pair && d.children[1].kind != Kind::kSink) {
    op.flags |= kSecond;
    op.d2 = def(d.children[1], Ty::kPred);
    if (op.d2 == kNone) return refuse(i, "destination does not fit");
  }
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_vote(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  unsigned sub = 4;
  // .uni is among the ignored modifiers elsewhere
  if (i.has("all"))
    sub = 0;
  else if (i.has("any"))
    sub = 1;
  else if (i.has("uni"))
    sub = 2;
  else if (i.has("ballot"))
    sub = 3;
  m.take("all");
  m.take("any");
  m.take("ballot");
  const bool sync = m.take("sync");
  if (sub == 4 || !leftover(i, m) || !need(i, sync ? 3 : 2, sync ? 3 : 2)) return refuse(i, "unknown form");
  bool negated;
  const uint32_t a = use_predicate(i.operands[1], &negated);
  const uint32_t members = sync ? use(i.operands[2], Ty::kU32) : constant(4, 0);
  if (a == kNone || members == kNone) return refuse(i, "operand does not fit");
  Op& op = start(op_vote);
  op.a = a, op.b = members, op.sub = static_cast<uint8_t>(sub);
  if (negated) op.flags |= kNegate;
  op.d = def(i.operands[0], sub == 3 ? Ty::kU32 : Ty::kPred);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_match(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  const bool all = m.take("all");
  if (!all && !m.take("any")) return refuse(i, "unknown form");
  if (!m.take("sync") || m.types.size() != 1 || !leftover(i, m) || !need(i, 3, 3))
    return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  const uint32_t a = use(i.operands[1], type), members = use(i.operands[2], Ty::kU32);
  if (a == kNone || members == kNone) return refuse(i, "operand does not fit");
  const ptx::Operand& d = i.operands[0];
  const bool pair = d.kind == Kind::kPair;
  Op& op = start(op_match);
  op.a = a, op.b = members, op.sub = all, op.type = type;
  op.d = def(pair ? d.children[0] : d, Ty::kU32);
  if (pair && d.children[1].kind != Kind::kSink) {
    op.flags |= kSecond;
    op.d2 = def(d.children[1], Ty::kPred);
  }
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_redux(const ptx::Instruction& i) {
  Modifiers m = sort_modifiers(i);
  unsigned sub = 6, n = 0;
  for (const char* name : {"add", "min", "max", "and", "or", "xor"}) {
    if (m.take(name)) sub = n;
    ++n;
  }
  if (sub == 6 || !m.take("sync") || m.types.size() != 1 || !leftover(i, m) || !need(i, 3, 3))
    return refuse(i, "unknown form");
  const Ty type = ty_of(m.types[0]);
  if (type != Ty::kU32 && type != Ty::kS32) return refuse(i, "type is not supported by the software GPU");
  const uint32_t a = use(i.operands[1], type), members = use(i.operands[2], Ty::kU32);
  if (a == kNone || members == kNone) return refuse(i, "operand does not fit");
  Op& op = start(op_redux);
  op.a = a, op.b = members, op.sub = static_cast<uint8_t>(sub), op.type = type;
  op.d = def(i.operands[0], type);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_activemask(const ptx::Instruction& i) {
  if (!need(i, 1, 1)) return false;
  Op& op = start(op_activemask);
  op.d = def(i.operands[0], Ty::kU32);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

bool Decoder::d_elect(const ptx::Instruction& i) {
  if (!need(i, 2, 2) || i.operands[0].kind != Kind::kPair) return refuse(i, "unknown form");
  const uint32_t members = use(i.operands[1], Ty::kU32);
  if (members == kNone) return refuse(i, "operand does not fit");
  const ptx::Operand& d = i.operands[0];
  Op& op = start(op_elect);
  op.a = members;
  if (d.children[0].kind != Kind::kSink) op.d = def(d.children[0], Ty::kU32);
  op.flags |= kSecond;
  op.d2 = def(d.children[1], Ty::kPred);
  if (op.d2 == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

}  // namespace tessera::softgpu::exec
