// Accesses that compute their address themselves. Compilers address p[i] with a multiplication that widens,
// an addition and an access; where p is the same for the block (a parameter) and nothing else wants the
// address, that is one op, which sees from the index alone how the lanes lie. Runs between decoding and
// allocation, within straight-line segments; an op that becomes superfluous is removed, its issue slot still
// counts.
#include <cstring>

#include "softgpu/exec/decode.h"

namespace tessera::softgpu::exec {
namespace {

constexpr unsigned kMostAccesses = 4;  // of one address: scattered lanes make it anew for each

// The value of a register: (base +) index x scale, all computed in the segment.
struct Value {
  uint32_t at = ~0u;  // the op
  uint32_t base = kNoOperand, index = kNoOperand;
  uint32_t scale = 0;
  bool is_signed = false;
  uint32_t scaled = ~0u;  // register of index x scale, if that is a step of its own
};

bool is_register(uint32_t operand) {
  return (operand & 3) == 0;
}
// The same 64 bits in every lane, always.
bool is_uniform(uint32_t operand) {
  return operand != kNoOperand && ((operand & 3) == 1 || (operand & 3) == 3);
}

}  // namespace

void Decoder::fuse() {
  using O = Operation;
  std::vector<Op>& ops = code_.ops;
  const uint32_t n = static_cast<uint32_t>(ops.size());
  const uint32_t registers = static_cast<uint32_t>(widths_.size());
  const Handler add = fast_handler(O::kAdd, Ty::kU64), shift = fast_handler(O::kShl, Ty::kU64);
  if (!add) return;  // no vector handlers
  std::vector<uint32_t> uses(registers, 0), last(registers, 0), defined_by(registers, ~0u);
  for (const Refs& refs : refs_)
    for (unsigned k = 0; k < refs.uses; ++k) ++uses[ref_list_[refs.begin + refs.defs + k]];

  std::vector<Value> values(registers);
  std::vector<std::vector<uint32_t>> accesses(registers);  // by address
  std::vector<uint32_t> addresses;                         // that have some, in order
  uint32_t segment = 0;                                    // where the running one began
  // `last` is one more than the last op of the segment's past that wrote the register.
  const auto current = [&](uint32_t r) -> const Value* {
    const Value& x = values[r];
    if (x.at == ~0u || x.at < segment || last[r] != x.at + 1) return nullptr;
    if (is_register(x.index) && last[x.index >> 2] > x.at) return nullptr;
    return &x;
  };
  // A uniform operand, or a register that this segment copied from one.
  std::vector<uint32_t> copies(registers, kNoOperand), copied_at(registers, 0);
  const Handler move = fast_handler(O::kMov, Ty::kU64);
  const auto uniform_of = [&](uint32_t operand) {
    if (is_uniform(operand)) return operand;
    if (operand == kNoOperand || !is_register(operand)) return kNoOperand;
    const uint32_t r = operand >> 2;
    return copies[r] != kNoOperand && copied_at[r] >= segment && last[r] == copied_at[r] + 1 ? copies[r]
                                                                                             : kNoOperand;
  };
  const auto constant_of = [&](uint32_t operand, uint64_t* value) {
    uint32_t bits = 0;
    if ((operand & 3) != 1) return false;
    std::memcpy(&bits, constant_bytes_.data() + (operand & ~3u), 4);
    *value = bits;
    return true;
  };
  for (uint32_t i = 0; i < n; ++i) {
    const Op& op = ops[i];
    const Refs& refs = refs_[i];
    if (opens_[i] || op.fn == op_label) segment = i;
    // An access by such an address?
    const bool load = op.fn == fast_handler(O::kLdGlobal, op.type);
    if ((load || op.fn == fast_handler(O::kStGlobal, op.type)) && op.count <= 2 && is_register(op.a)) {
      const uint32_t r = op.a >> 2;
      const Value* x = current(r);
      const unsigned element = 1u << (static_cast<unsigned>(op.type) / 2);  // u8 s8 u16 s16 u32 s32 u64 s64
      if (x && x->base != kNoOperand && op.type <= Ty::kS64 && x->scale == element * op.count &&
          fast_handler(load ? O::kLdIndexed : O::kStIndexed, op.type)) {
        if (accesses[r].empty()) addresses.push_back(r);
        if (accesses[r].empty() || defined_by[r] == x->at) accesses[r].push_back(i);
        defined_by[r] = x->at;
      }
    }
    // A step of one?
    Value value;
    value.at = i;
    uint64_t factor = 0;
    if (op.fn == fast_handler(O::kMulWide, Ty::kS32) || op.fn == fast_handler(O::kMulWide, Ty::kU32) ||
        op.fn == fast_handler(O::kMadWide, Ty::kS32) || op.fn == fast_handler(O::kMadWide, Ty::kU32)) {
      const bool is_mad = op.fn == fast_handler(O::kMadWide, op.type);
      value.is_signed = op.type == Ty::kS32;
      value.index = constant_of(op.b, &factor) ? op.a : constant_of(op.a, &factor) ? op.b : kNoOperand;
      if (is_mad) value.base = uniform_of(op.c);
      if (is_mad && value.base == kNoOperand) value.index = kNoOperand;
    } else if (op.fn == fast_handler(O::kCvtFromS32, Ty::kS64) ||
               op.fn == fast_handler(O::kCvtFromU32, Ty::kU64)) {
      value.is_signed = op.fn == fast_handler(O::kCvtFromS32, Ty::kS64);
      value.index = op.a, factor = 1;
    } else if (op.fn == shift && is_register(op.a) && constant_of(op.b, &factor)) {
      if (const Value* x = current(op.a >> 2); x && x->base == kNoOperand && x->scale == 1 && factor < 5) {
        value.index = x->index, value.is_signed = x->is_signed, value.scaled = op.a >> 2;
        factor = uint64_t{1} << factor;
      }
    } else if (op.fn == add && (uniform_of(op.a) != kNoOperand || uniform_of(op.b) != kNoOperand)) {
      const bool first = uniform_of(op.a) != kNoOperand;
      const uint32_t other = first ? op.b : op.a;
      const Value* x = is_register(other) ? current(other >> 2) : nullptr;
      if (x && x->base == kNoOperand) {
        value = *x;
        value.at = i, value.base = uniform_of(first ? op.a : op.b), value.scaled = other >> 2;
        factor = x->scale;
      }
    }
    if (op.fn == move && is_uniform(op.a) && !refs.partial && refs.defs == 1) {
      copies[ref_list_[refs.begin]] = op.a;
      copied_at[ref_list_[refs.begin]] = i;
    }
    for (unsigned k = 0; k < refs.defs; ++k) last[ref_list_[refs.begin + k]] = i + 1;
    if (value.index == kNoOperand || refs.partial || refs.defs != 1 || factor == 0 || factor > 16) continue;
    value.scale = static_cast<uint32_t>(factor);
    // The step before must still be what this one read, and its index too: current() has just said so.
    values[ref_list_[refs.begin]] = value;
  }

  std::vector<bool> gone(n, false);
  const auto drop = [&](uint32_t at, const auto& again) -> void {
    const Refs& refs = refs_[at];
    // The slot of the first op of a segment goes to the one behind it, unless that one ends a segment itself.
    if (opens_[at]) {
      uint32_t next = at + 1;
      while (next < n && gone[next]) ++next;
      if (next + 1 >= n || opens_[next] || opens_[next + 1] || ops[next].fn == op_label ||
          ops[next].fn == op_branch_if)
        return;
      ops[next].issue = ops[at].issue;
      opens_[next] = true;
    }
    gone[at] = true;
    for (unsigned k = 0; k < refs.uses; ++k) {
      const uint32_t r = ref_list_[refs.begin + refs.defs + k];
      if (--uses[r] != 0) continue;
      const uint32_t by = values[r].at != ~0u ? values[r].at : copies[r] != kNoOperand ? copied_at[r] : ~0u;
      if (by != ~0u && last[r] == by + 1 && !gone[by]) again(by, again);
    }
  };
  for (const uint32_t r : addresses) {
    const Value& x = values[r];
    if (x.at != defined_by[r] || accesses[r].size() != uses[r] || uses[r] > kMostAccesses) continue;
    for (const uint32_t i : accesses[r]) {
      Op& op = ops[i];
      op.fn =
          fast_handler(op.fn == fast_handler(O::kLdGlobal, op.type) ? O::kLdIndexed : O::kStIndexed, op.type);
      op.extra = x.index, op.c = x.base;
      op.type2 = x.is_signed ? Ty::kS32 : Ty::kU32;
      indexed_.push_back(i);
      // The address is scratch now; the index is read instead.
      const Refs old = refs_[i];
      Refs& refs = refs_[i];
      refs.begin = static_cast<uint32_t>(ref_list_.size());
      refs.defs = static_cast<uint16_t>(old.defs + 1);
      std::vector<uint32_t> list(ref_list_.begin() + old.begin, ref_list_.begin() + old.begin + old.defs);
      list.push_back(r);
      refs.uses = 0;
      for (unsigned k = 0; k < old.uses; ++k)
        if (const uint32_t used = ref_list_[old.begin + old.defs + k]; used != r)
          list.push_back(used), ++refs.uses;
      if (is_register(x.index)) list.push_back(x.index >> 2), ++refs.uses, ++uses[x.index >> 2];
      ref_list_.insert(ref_list_.end(), list.begin(), list.end());
    }
    uses[r] = 0;
    drop(x.at, drop);
  }
  if (indexed_.empty()) return;

  // Close the gaps.
  std::vector<uint32_t> moved(n + 1, 0);
  uint32_t to = 0;
  for (uint32_t i = 0; i < n; ++i) {
    moved[i] = to;
    if (gone[i]) continue;
    ops[to] = ops[i], refs_[to] = refs_[i];
    ++to;
  }
  moved[n] = to;
  ops.resize(to);
  refs_.resize(to);
  for (Label& label : labels_)
    if (label.op != ~0u) label.op = moved[label.op];
  for (auto& [op, label] : branches_) op = moved[op];
  for (auto& [op, behind] : skips_) op = moved[op], behind = moved[behind];
  for (uint32_t& i : indexed_) i = moved[i];
}

}  // namespace tessera::softgpu::exec
