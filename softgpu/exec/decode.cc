// Decoder: names, operands, emission. The opcodes are in decode_data.cc, decode_memory.cc and
// decode_control.cc.
#include "softgpu/exec/decode.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>

#include "kernels/ptx/printer.h"
#include "softgpu/exec/scalar.h"

namespace tessera::softgpu::exec {

namespace {
uint32_t align_up(uint32_t x, uint32_t a) {
  return a ? (x + a - 1) / a * a : x;
}
uint32_t natural_align(const ptx::Variable& v) {
  if (v.align) return v.align;
  const unsigned bytes = ptx::type_bytes(v.type) * v.vector;
  return bytes ? bytes : 1;
}
}  // namespace

Decoder::Decoder(const ptx::Function& function, KernelLayout& layout, KernelInfo* info, Code& code)
    : function_(function), layout_(layout), info_(info), code_(code) {}

bool Decoder::refuse(const ptx::Instruction& i, const std::string& why) {
  if (error_.empty())
    error_ = "line " + std::to_string(i.at.line) + " in " + std::string(function_.name) + ": " + why + ": " +
             ptx::print(i);
  return false;
}
bool Decoder::leftover(const ptx::Instruction& i, const Modifiers& m) {
  if (m.others.empty()) return true;
  return refuse(i, "modifier ." + std::string(m.others[0]) + " is not supported by the software GPU");
}
bool Decoder::need(const ptx::Instruction& i, size_t at_least, size_t at_most) {
  if (i.operands.size() >= at_least && i.operands.size() <= at_most) return true;
  return refuse(i, "unexpected number of operands");
}

// --- names -------------------------------------------------------------------------------------------------

bool Decoder::find_register(ptx::Name name, Register* r) const {
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  uint32_t number = 0;
  const bool numbered = digits < name.size() && name.size() - digits < 9;
  if (numbered) std::from_chars(name.data() + digits, name.data() + name.size(), number);
  for (size_t s = scopes_.size(); s-- > 0;) {
    auto single = scopes_[s].registers.find(name);
    if (single != scopes_[s].registers.end()) {
      *r = single->second;
      return true;
    }
    if (!numbered) continue;
    auto range = scopes_[s].ranges.find(name.substr(0, digits));
    if (range != scopes_[s].ranges.end() && number < range->second.count) {
      const uint32_t each = range->second.width == 16 ? 2 : 1;  // 128 bits are two registers
      *r = Register{range->second.first + number * each, range->second.width, range->second.type, 1};
      return true;
    }
  }
  return false;
}

bool Decoder::find_label(ptx::Name name, uint32_t* label) const {
  for (size_t s = scopes_.size(); s-- > 0;) {
    auto it = scopes_[s].labels.find(name);
    if (it != scopes_[s].labels.end()) {
      *label = it->second;
      return true;
    }
  }
  return false;
}

bool Decoder::find_object(ptx::Name name, Object* o) {
  for (size_t s = scopes_.size(); s-- > 0;) {
    auto it = scopes_[s].objects.find(name);
    if (it != scopes_[s].objects.end()) {
      *o = it->second;
      return true;
    }
  }
  const ModuleSymbols& symbols = *layout_.symbols;
  if (auto it = symbols.data.find(name); it != symbols.data.end()) {
    if (symbols.constant_bytes.count(name)) layout_.constants.insert(it->first);
    *o = Object{Where::kConstant, it->second, 0};
    return true;
  }
  if (auto it = symbols.functions.find(name); it != symbols.functions.end()) {
    *o = Object{Where::kConstant, it->second, 0};
    return true;
  }
  if (auto it = symbols.shared.find(name); it != symbols.shared.end()) {
    const ptx::Variable& v = *it->second;
    const uint64_t bytes = v.size_bytes();
    if (bytes == 0) {
      layout_.has_dynamic = true;
      layout_.dynamic_align = std::max(layout_.dynamic_align, natural_align(v));
      *o = Object{Where::kDynamicShared, 0, 0};
      return true;
    }
    auto [slot, fresh] = layout_.shared_offsets.try_emplace(std::string(name), 0);
    if (fresh) {
      slot->second = align_up(layout_.static_shared_bytes, natural_align(v));
      layout_.static_shared_bytes = slot->second + static_cast<uint32_t>(bytes);
    }
    *o = Object{Where::kShared, slot->second, static_cast<uint32_t>(bytes)};
    return true;
  }
  return false;
}

uint32_t Decoder::local_object(const ptx::Variable& v) {
  local_bytes_ = align_up(local_bytes_, natural_align(v));
  const uint32_t offset = local_bytes_;
  local_bytes_ += static_cast<uint32_t>(v.size_bytes());
  return offset;
}

void Decoder::declare(const ptx::Variable& v) {
  Scope& scope = scopes_.back();
  switch (v.space) {
    case ptx::Space::kReg: {
      const Ty ty = ty_of(v.type);
      const bool whole = v.type == ptx::Type::kB128;
      const uint8_t width = whole ? 16 : ty == Ty::kCount ? 8 : static_cast<uint8_t>(storage_of(ty));
      const uint32_t first = static_cast<uint32_t>(widths_.size());
      const uint32_t n = v.count ? v.count : v.vector;
      for (uint32_t k = 0; k < (whole ? 2 * n : n); ++k) widths_.push_back(whole ? 8 : width);
      if (v.count)
        scope.ranges[v.name] = Range{first, v.count, width, ty};
      else
        scope.registers[v.name] = Register{first, width, ty, v.vector};
      break;
    }
    case ptx::Space::kShared: {
      const uint64_t bytes = v.size_bytes();
      if (bytes == 0) {
        layout_.has_dynamic = true;
        layout_.dynamic_align = std::max(layout_.dynamic_align, natural_align(v));
        scope.objects[v.name] = Object{Where::kDynamicShared, 0, 0};
        break;
      }
      layout_.static_shared_bytes = align_up(layout_.static_shared_bytes, natural_align(v));
      scope.objects[v.name] =
          Object{Where::kShared, layout_.static_shared_bytes, static_cast<uint32_t>(bytes)};
      layout_.static_shared_bytes += static_cast<uint32_t>(bytes);
      break;
    }
    case ptx::Space::kLocal:
    case ptx::Space::kParam:
      scope.objects[v.name] = Object{Where::kLocal, local_object(v), static_cast<uint32_t>(v.size_bytes())};
      break;
    default:
      break;
  }
}

// --- operands ----------------------------------------------------------------------------------------------

uint32_t Decoder::new_register(unsigned width) {
  widths_.push_back(static_cast<uint8_t>(width));
  return static_cast<uint32_t>(widths_.size() - 1);
}

// Registers that are written once, with a constant, a special register or a parameter, are that operand:
// nothing is executed for them but an issue slot.
void Decoder::count_definitions(const std::vector<ptx::Statement>& list) {
  const auto count = [&](const ptx::Operand& o, const auto& again) -> void {
    if (o.kind == ptx::Operand::Kind::kRegister) ++definitions_[o.name];
    if (o.kind == ptx::Operand::Kind::kVector || o.kind == ptx::Operand::Kind::kPair ||
        o.kind == ptx::Operand::Kind::kList)
      for (const ptx::Operand& child : o.children) again(child, again);
  };
  for (const ptx::Statement& s : list) {
    if (s.kind == ptx::Statement::Kind::kScope) count_definitions(s.scope);
    if (s.kind == ptx::Statement::Kind::kInstruction && !s.instruction.operands.empty())
      count(s.instruction.operands[0], count);
  }
}
bool Decoder::rename(const ptx::Operand& to, Ty type, uint32_t operand) {
  Register r;
  if (guarded_ || !segment_open_ || (operand & 3) == 0 || operand == kNone ||
      to.kind != ptx::Operand::Kind::kRegister || !to.suffix.empty() || !find_register(to.name, &r) ||
      r.vector != 1 || r.width != storage_of(type) || r.width == 0 || definitions_[to.name] != 1)
    return false;
  if (renamed_.size() < widths_.size()) renamed_.resize(widths_.size(), 0);
  if (renamed_[r.index] == kRead) return false;  // code above reads the register: a loop's, laid out so
  renamed_[r.index] = operand;
  return true;
}
uint32_t Decoder::source(uint32_t index) {
  if (renamed_.size() < widths_.size()) renamed_.resize(widths_.size(), 0);
  if (renamed_[index] && renamed_[index] != kRead) return renamed_[index];
  renamed_[index] = kRead;
  pending_uses_.push_back(index);
  return index << 2;
}

uint32_t Decoder::constant(unsigned width, uint64_t bits) {
  if (width == 4) bits = static_cast<uint32_t>(bits);
  if (width == 0) bits = bits ? ~0u : 0;
  auto [it, fresh] = constants_.try_emplace({width, bits}, 0);
  if (fresh) {
    it->second = static_cast<uint32_t>(constant_bytes_.size()) | 1;
    std::string lanes;
    if (width == 8)
      for (unsigned i = 0; i < kLanes; ++i) lanes.append(reinterpret_cast<const char*>(&bits), 8);
    else if (width == 4)
      for (unsigned i = 0; i < kLanes; ++i) lanes.append(reinterpret_cast<const char*>(&bits), 4);
    else
      lanes.append(reinterpret_cast<const char*>(&bits), 4), lanes.resize(128);
    constant_bytes_ += lanes;
  }
  return it->second;
}

uint64_t Decoder::immediate(const ptx::Operand& o, Ty type) {
  if (o.kind == ptx::Operand::Kind::kFloat) {
    if (o.is_f64 && type != Ty::kF64 && storage_of(type) == 4)
      return std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(o.bits)));
    if (!o.is_f64 && storage_of(type) == 8)
      return type == Ty::kF64 ? std::bit_cast<uint64_t>(
                                    static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(o.bits))))
                              : o.bits;
  }
  return o.bits;
}

uint32_t Decoder::special(const ptx::Operand& o, Ty type) {
  struct Row {
    const char* name;
    Special which;
    bool axis;
  };
  static constexpr Row kRows[] = {{"%tid", Special::kTidX, true},
                                  {"%ntid", Special::kNtidX, true},
                                  {"%ctaid", Special::kCtaidX, true},
                                  {"%nctaid", Special::kNctaidX, true},
                                  {"%laneid", Special::kLaneid, false},
                                  {"%warpid", Special::kWarpid, false},
                                  {"%nwarpid", Special::kNwarpid, false},
                                  {"%smid", Special::kSmid, false},
                                  {"%nsmid", Special::kNsmid, false},
                                  {"%gridid", Special::kGridid, false},
                                  {"%lanemask_eq", Special::kLanemaskEq, false},
                                  {"%lanemask_le", Special::kLanemaskLe, false},
                                  {"%lanemask_lt", Special::kLanemaskLt, false},
                                  {"%lanemask_ge", Special::kLanemaskGe, false},
                                  {"%lanemask_gt", Special::kLanemaskGt, false},
                                  {"%dynamic_smem_size", Special::kDynamicSmem, false},
                                  {"%total_smem_size", Special::kTotalSmem, false},
                                  {"%reserved_smem_offset_begin", Special::kReservedBegin, false},
                                  {"%reserved_smem_offset_end", Special::kReservedEnd, false},
                                  {"%reserved_smem_offset_cap", Special::kReservedCap, false},
                                  {"%reserved_smem_offset_0", Special::kReservedBegin, false},
                                  {"%reserved_smem_offset_1", Special::kReserved1, false},
                                  {"%envreg1", Special::kEnvreg1, false},
                                  {"%envreg2", Special::kEnvreg2, false},
                                  {"%cluster_ctarank", Special::kClusterCtarank, false},
                                  {"%cluster_nctarank", Special::kClusterNctarank, false},
                                  {"%cluster_ctaid", Special::kClusterCtaidX, true},
                                  {"%cluster_nctaid", Special::kClusterNctaidX, true},
                                  {"%clusterid", Special::kClusteridX, true},
                                  {"%nclusterid", Special::kNclusteridX, true},
                                  {"%is_explicit_cluster", Special::kExplicitCluster, false}};
  if (storage_of(type) == 8) {
    if (o.name == "%gridid") return special_operand(Special::kGridid64);
    return kNone;
  }
  for (const Row& row : kRows)
    if (o.name == row.name) {
      uint32_t which = static_cast<uint32_t>(row.which);
      layout_.reserves_shared |= o.name.starts_with("%reserved_smem_offset_");
      if (row.axis) {
        if (o.suffix == ".y")
          which += 1;
        else if (o.suffix == ".z")
          which += 2;
        else if (o.suffix == ".w")
          which = static_cast<uint32_t>(Special::kZero);
      }
      return special_operand(static_cast<Special>(which));
    }
  return kNone;
}

// A scalar register, or an element of a vector one. Suffixes that select parts of a register (video
// instructions) are no registers.
bool Decoder::find_element(const ptx::Operand& o, Register* r) const {
  if (!find_register(o.name, r)) return false;
  const ptx::Name suffix = o.suffix.view();
  if (r->vector == 1) return suffix.empty();
  if (suffix.size() != 2) return false;
  size_t element = std::string_view("xyzw").find(suffix[1]);
  if (element == ptx::Name::npos) element = std::string_view("rgba").find(suffix[1]);
  if (element >= r->vector) return false;
  r->index += static_cast<uint32_t>(element);
  return true;
}

// Makes a register for a source that the instruction cannot express itself: an op in front of it computes it.
uint32_t Decoder::prepared_source(Operation operation, Ty type, uint32_t index) {
  const uint32_t made = new_register(storage_of(type));
  std::vector<uint32_t> defs, uses;
  defs.swap(pending_defs_);
  uses.swap(pending_uses_);
  Op& op = start(pick(operation, type), false);
  op.d = made << 2;
  op.a = source(index);
  op.type = type;
  pending_defs_ = {made};
  finish();
  defs.swap(pending_defs_);
  uses.swap(pending_uses_);
  pending_uses_.push_back(made);
  return made << 2;
}

uint32_t Decoder::use(const ptx::Operand& o, Ty type) {
  using Kind = ptx::Operand::Kind;
  const unsigned width = storage_of(type);
  switch (o.kind) {
    case Kind::kRegister: {
      Register r;
      if (!find_element(o, &r)) return kNone;
      if (r.width == 8 && width == 4) return prepared_source(Operation::kNarrow, Ty::kU32, r.index);
      if (r.width != width) return kNone;
      if (!o.negated) return source(r.index);
      return type == Ty::kPred && !o.minus ? prepared_source(Operation::kNot, type, r.index) : kNone;
    }
    case Kind::kInteger:
    case Kind::kFloat:
      return constant(width, immediate(o, type));
    case Kind::kSpecial:
      return special(o, type);
    case Kind::kSymbol: {
      Object object;
      if (!find_object(o.name, &object)) return kNone;
      if (object.where == Where::kDynamicShared) return kNone;  // mov deals with it
      if (object.where == Where::kLocal || object.where == Where::kEntryParam) return kNone;
      return constant(width, object.value + o.bits);
    }
    default:
      return kNone;
  }
}

uint32_t Decoder::use_predicate(const ptx::Operand& o, bool* negated) {
  *negated = o.negated;
  if (o.kind == ptx::Operand::Kind::kRegister) {
    Register r;
    if (!find_register(o.name, &r) || r.width != 0) return kNone;
    pending_uses_.push_back(r.index);
    return r.index << 2;
  }
  if (o.kind == ptx::Operand::Kind::kInteger) return constant(0, o.bits);
  return kNone;
}

uint32_t Decoder::def(const ptx::Operand& o, Ty type) {
  using Kind = ptx::Operand::Kind;
  // An instruction with one result only may also have "p|_": ptxas takes it.
  if (o.kind == Kind::kPair && o.children[1].kind == Kind::kSink && type == Ty::kPred)
    return def(o.children[0], type);
  if (o.kind == ptx::Operand::Kind::kSink) {
    const uint32_t scratch = new_register(storage_of(type));
    pending_defs_.push_back(scratch);
    return scratch << 2;
  }
  if (o.kind != ptx::Operand::Kind::kRegister) return kNone;
  Register r;
  if (o.negated || !find_element(o, &r)) return kNone;
  const uint32_t index = r.index;
  const unsigned width = storage_of(type);
  if (r.width == 8 && width == 4) {
    const uint32_t narrow = new_register(4);
    after_.push_back(After{index, narrow, type == Ty::kS8 || type == Ty::kS16 || type == Ty::kS32});
    pending_defs_.push_back(narrow);
    return narrow << 2;
  }
  if (r.width != width) return kNone;
  pending_defs_.push_back(index);
  return index << 2;
}

void Decoder::vector_elements(const ptx::Operand& o, std::vector<const ptx::Operand*>* list) {
  Register r;
  if (o.kind == ptx::Operand::Kind::kVector) {
    for (const ptx::Operand& child : o.children) list->push_back(&child);
  } else if (o.kind == ptx::Operand::Kind::kRegister && o.suffix.empty() && find_register(o.name, &r) &&
             r.vector > 1) {  // all of a vector register
    for (unsigned k = 0; k < r.vector; ++k) {
      ptx::Operand& element = elements_.emplace_back(o);
      element.suffix = std::string_view(".x.y.z.w").substr(2 * k, 2);
      list->push_back(&element);
    }
  } else {
    list->push_back(&o);
  }
}

// --- emission ----------------------------------------------------------------------------------------------

Op& Decoder::start(Handler fn, bool real, const Op& prepared) {
  Op& op = code_.ops.emplace_back(prepared);
  op.fn = fn;
  op.line = line_;
  op.issue = issue_;
  issue_ += real;
  opens_.push_back(!segment_open_);
  segment_open_ = true;
  op.cache = next_cache_ % kCachedRanges;
  return op;
}

void Decoder::finish() {
  Refs refs{static_cast<uint32_t>(ref_list_.size()), static_cast<uint16_t>(pending_defs_.size()),
            static_cast<uint16_t>(pending_uses_.size()), guarded_};
  ref_list_.insert(ref_list_.end(), pending_defs_.begin(), pending_defs_.end());
  ref_list_.insert(ref_list_.end(), pending_uses_.begin(), pending_uses_.end());
  refs_.push_back(refs);
  pending_defs_.clear();
  pending_uses_.clear();
  std::vector<After> after;
  after.swap(after_);
  for (const After& a : after) {
    Op& op = start(pick(Operation::kWiden, a.is_signed ? Ty::kS32 : Ty::kU32), false);
    op.d = a.to << 2;
    op.a = a.from << 2;
    pending_defs_ = {a.to};
    pending_uses_ = {a.from};
    finish();
  }
}

Handler Decoder::pick(Operation operation, Ty type, bool fast_allowed) {
  if (fast_allowed)
    if (Handler h = fast_handler(operation, type)) return h;
  return scalar_handler(operation, type);
}

void Decoder::place(uint32_t label) {
  labels_[label].op = static_cast<uint32_t>(code_.ops.size());
  start(op_label, false);
  finish();
}
void Decoder::branch_to(uint32_t label) {
  branches_.emplace_back(static_cast<uint32_t>(code_.ops.size() - 1), label);
}

Decoder::Chosen Decoder::choose(Operation operation, Ty type, unsigned flags, unsigned sub) {
  // Vector handlers round to nearest and do not saturate integers.
  const bool is_float = type >= Ty::kF16 && type <= Ty::kTf32;
  const bool fast =
      is_float ? sub == 0 && !(flags & (kNanResult | kXorSign | kRelu)) : !(flags & (kSat | kRelu));
  // Directed rounding: the vector handler under another rounding mode.
  const Handler directed =
      (type == Ty::kF32 || type == Ty::kF64) && sub != 0 && !(flags & (kNanResult | kXorSign | kRelu))
          ? fast_handler(operation, type)
          : nullptr;
  return {directed ? op_rounded : pick(operation, type, fast), directed};
}

// d = f(sources), all of one type.
bool Decoder::simple(const ptx::Instruction& i, Operation operation, Ty type, unsigned sources,
                     unsigned flags, unsigned sub) {
  if (!need(i, sources + 1, sources + 1)) return false;
  const auto [h, directed] = choose(operation, type, flags, sub);
  if (!h) return refuse(i, "not supported for this type by the software GPU");
  uint32_t s[3] = {kNone, kNone, kNone};
  for (unsigned k = 0; k < sources; ++k) {
    const bool count_operand = k == 1 && (operation == Operation::kShl || operation == Operation::kShr);
    s[k] = use(i.operands[k + 1], count_operand ? Ty::kU32 : type);
    if (s[k] == kNone) return refuse(i, "operand " + std::to_string(k + 2) + " does not fit");
  }
  if (operation == Operation::kMov && !flags && rename(i.operands[0], type, s[0])) {
    ++issue_;
    return true;
  }
  Op& op = start(h);
  op.a = s[0];
  op.b = s[1];
  op.c = s[2];
  op.type = type;
  op.flags = static_cast<uint16_t>(flags);
  op.sub = static_cast<uint8_t>(sub);
  if (directed) op.target = reinterpret_cast<const Op*>(directed);
  op.d = def(i.operands[0], type);
  if (op.d == kNone) return refuse(i, "destination does not fit");
  finish();
  return true;
}

// --- statements --------------------------------------------------------------------------------------------

bool Decoder::statements(const std::vector<ptx::Statement>& list) {
  using Kind = ptx::Statement::Kind;
  for (const ptx::Statement& s : list) {
    if (s.kind == Kind::kLabel) scopes_.back().labels[s.label] = new_label();
    if (s.kind == Kind::kPrototype) scopes_.back().targets[s.label] = s.prototype->targets;
  }
  for (const ptx::Statement& s : list) {
    switch (s.kind) {
      case Kind::kInstruction: {
        const uint32_t issue = issue_;
        if (!instruction(s.instruction)) return false;
        count_arithmetic(s.instruction, issue);
        break;
      }
      case Kind::kLabel: {
        uint32_t label = 0;
        find_label(s.label, &label);
        place(label);
        break;
      }
      case Kind::kVariable:
        declare(s.variable);
        break;
      case Kind::kScope:
        scopes_.emplace_back();
        if (!statements(s.scope)) return false;
        scopes_.pop_back();
        break;
      default:
        break;
    }
  }
  return true;
}

const std::unordered_map<std::string_view, const Decoder::Entry*>& Decoder::rows() {
  static const Entry kRows[] = {
#define TS_INSTRUCTION(opcode, operation, decoder, schedules, float_operations) \
  {opcode, Operation::operation, &Decoder::decoder, schedules, float_operations},
#include "softgpu/exec/instructions.def"
  };
  static const auto* const table = [] {
    auto* t = new std::unordered_map<std::string_view, const Entry*>;
    for (const Entry& row : kRows) t->emplace(row.opcode, &row);
    return t;
  }();
  return *table;
}

bool Decoder::instruction(const ptx::Instruction& i) {
  line_ = i.at.line;
  pending_defs_.clear();
  pending_uses_.clear();
  after_.clear();
  auto found = rows().find(i.opcode);
  if (found == rows().end()) return refuse(i, "instruction is not supported by the software GPU");
  const Entry& row = *found->second;
  row_ = &row;
  if (i.guard.empty() || row.opcode == std::string_view("bra")) {
    if (!(this->*row.method)(i)) return refuse(i, "not understood");
    if (row.schedules) segment_open_ = false;
    return true;
  }

  ptx::Operand guard;
  guard.kind = ptx::Operand::Kind::kRegister;
  guard.name = i.guard;
  bool ignored;
  const uint32_t predicate = use_predicate(guard, &ignored);
  if (predicate == kNone) return refuse(i, "guard is no predicate register");
  if (row.schedules) {  // branch around it
    const uint32_t behind = new_label();
    Op& op = start(op_branch_if, false);
    op.a = predicate;
    if (!i.guard_negated) op.flags |= kNegate;
    finish();
    branch_to(behind);
    if (!(this->*row.method)(i)) return refuse(i, "not understood");
    place(behind);
    return true;
  }
  const uint32_t at_op = static_cast<uint32_t>(code_.ops.size());
  {
    Op& op = start(op_guard, false);
    op.a = predicate;
    if (i.guard_negated) op.flags |= kNegate;
    finish();
  }
  guarded_ = true;
  if (!(this->*row.method)(i)) return refuse(i, "not understood");
  guarded_ = false;
  start(op_unguard, false);
  finish();
  skips_.emplace_back(at_op, static_cast<uint32_t>(code_.ops.size()));
  return true;
}

void Decoder::count_arithmetic(const ptx::Instruction& i, uint32_t issue) {
  const uint32_t operations = row_->float_operations;
  if (!operations) return;
  code_.operations.resize(std::max<size_t>(code_.operations.size(), issue + 1));
  FloatOperations& at = code_.operations[issue];
  if (i.has("f32x2")) at.fp32 += 2 * operations;
  switch (i.type()) {
    case ptx::Type::kF64:
      at.fp64 += operations;
      break;
    case ptx::Type::kF32:
      at.fp32 += operations;
      break;
    case ptx::Type::kF16:
    case ptx::Type::kBf16:
      at.fp16 += operations;
      break;
    case ptx::Type::kF16x2:
    case ptx::Type::kBf16x2:
      at.fp16 += 2 * operations;
      break;
    default:  // integer arithmetic
      break;
  }
}

bool Decoder::run() {
  code_.name = std::string(function_.name);
  scopes_.emplace_back();
  if (info_) {
    uint32_t offset = 0;
    for (const ptx::Variable& p : function_.params) {
      offset = align_up(offset, natural_align(p));
      const uint32_t bytes = static_cast<uint32_t>(p.size_bytes());
      scopes_.back().objects[p.name] = Object{Where::kEntryParam, offset, bytes};
      info_->params.push_back(Param{offset, bytes});
      offset += bytes;
    }
    info_->param_bytes = offset;
  } else {
    const auto place_all = [&](const std::vector<ptx::Variable>& list, std::vector<Parameter>* out) {
      for (const ptx::Variable& v : list) {
        if (v.space == ptx::Space::kReg) return false;
        const uint32_t offset = local_object(v);
        scopes_.back().objects[v.name] = Object{Where::kLocal, offset, static_cast<uint32_t>(v.size_bytes())};
        out->push_back(Parameter{offset, static_cast<uint32_t>(v.size_bytes())});
      }
      return true;
    };
    if (!place_all(function_.params, &code_.params) || !place_all(function_.returns, &code_.returns)) {
      error_ = "function " + std::string(function_.name) +
               " takes parameters in registers, which the software GPU "
               "does not support";
      return false;
    }
  }
  count_definitions(function_.body);
  if (!statements(function_.body)) return false;
  // Falling off the end is a return.
  start(op_return, false);
  finish();
  // From counts of single slots to sums of all slots before; two more slots than there are, since a segment
  // may end behind the last.
  FloatOperations sum;
  code_.operations.resize(issue_ + 2);
  for (FloatOperations& at : code_.operations) {
    const FloatOperations own = at;
    at = sum;
    sum.fp64 += own.fp64;
    sum.fp32 += own.fp32;
    sum.fp16 += own.fp16;
  }
  code_.frame_bytes = align_up(local_bytes_, 16);
  fuse();
  return allocate();
}

}  // namespace tessera::softgpu::exec
