#include "kernels/slice/advance.h"

#include <algorithm>

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Type;

constexpr unsigned kMaxDepth = 64;   // of what an address is made of
constexpr unsigned kMaxCopies = 16;  // between one pass's value and the next one's
// With larger steps an index of 32 bits would come round within 16 million passes, a number of 64 bits within
// 2^40. As it is, an index that came round would have swept 4 GiB of mapped memory between two readings of a
// word.
constexpr uint64_t kMostNarrowStep = 1 << 8, kMostStep = 1 << 24;

bool is_integer(Type t) {
  return t == Type::kU32 || t == Type::kS32 || t == Type::kB32 || t == Type::kU64 || t == Type::kS64 ||
         t == Type::kB64;
}

// True for the forms that are followed: only a type, and before it .lo or .wide of a multiplication.
bool plain(const Instruction& i, bool product) {
  const size_t n = i.modifiers.size();
  return is_integer(i.type()) &&
         (product ? n == 2 && (i.modifiers[0] == "lo" || i.modifiers[0] == "wide") : n == 1);
}

// Special registers that may differ between two passes of one thread.
bool may_change(Name special) {
  constexpr Name kChange[] = {"%clock",  "%globaltimer", "%pm",     "%smid",   "%nsmid",
                              "%warpid", "%lanemask",    "%envreg", "%current"};
  return std::any_of(std::begin(kChange), std::end(kChange), [&](Name n) { return special.starts_with(n); });
}

bool any_changes(const auto& operands) {
  return std::any_of(operands.begin(), operands.end(), [](const Operand& o) {
    return (o.kind == Operand::Kind::kSpecial && may_change(o.name)) || any_changes(o.children);
  });
}

bool is_literal(const Operand& o) {
  return o.kind == Operand::Kind::kInteger;
}

}  // namespace

Advance::Advance(const Flow& flow, const Loop& loop, const LoopPass& pass) : flow_(flow), pass_(pass) {
  for (uint32_t b : loop.blocks) {
    for (uint32_t n = flow.blocks[b].begin; n < flow.blocks[b].end; ++n) {
      for (Object o : flow.writes(flow.nodes[n]))
        if (o >= kFirstRegister) writers_[o].push_back(&flow.nodes[n]);
    }
  }
}

bool Advance::advances(const Node& access, size_t n) {
  if (n >= access.instruction->operands.size() ||
      access.instruction->operands[n].kind != Operand::Kind::kAddress ||
      !access.instruction->operands[n].base_is_register)
    return false;
  const Object base = flow_.object_of(access, n);
  const Trend t = base == kNoObject ? Trend{} : of_register(base, access);
  return t.kind == Trend::Kind::kUp || t.kind == Trend::Kind::kDown;
}

Advance::Trend Advance::sum(const Trend& a, const Trend& b) {
  using Kind = Trend::Kind;
  if (a.kind == Kind::kUnknown || b.kind == Kind::kUnknown ||
      (a.kind != b.kind && a.kind != Kind::kSame && b.kind != Kind::kSame))
    return {};
  return {a.kind == Kind::kSame ? b.kind : a.kind, a.most + b.most};
}

Advance::Trend Advance::scaled(const Trend& a, int64_t factor) {
  using Kind = Trend::Kind;
  if (a.kind == Kind::kSame || a.kind == Kind::kUnknown) return a;
  const auto size = static_cast<uint64_t>(factor < 0 ? -factor : factor);
  if (factor == 0 || size > kMostStep) return {};
  const bool up = (a.kind == Kind::kUp) == (factor > 0);
  return {up ? Kind::kUp : Kind::kDown, a.most * size};
}

Advance::Trend Advance::within(Trend a, unsigned bytes) {
  return a.most > (bytes == 8 ? kMostStep : kMostNarrowStep) ? Trend{} : a;
}

const std::vector<const Node*>& Advance::writers(Object object) const {
  static const std::vector<const Node*> kNobody;
  auto found = writers_.find(object);
  return found == writers_.end() ? kNobody : found->second;
}

// The one write in the loop, if each pass that comes to `use` has been there.
const Node* Advance::sole_writer_before(Object object, const Node& use) const {
  const auto& all = writers(object);
  return all.size() == 1 && !all[0]->guard && pass_.before(*all[0], use) ? all[0] : nullptr;
}

Advance::Trend Advance::of_register(Object object, const Node& use) {
  if (writers(object).empty()) return same();
  if (const Node* writer = sole_writer_before(object, use)) return of_result(*writer);
  auto [known, fresh] = carried_.try_emplace(object);  // unknown while it is looked at
  if (fresh) {
    const Trend found = carried(object);
    carried_[object] = found;
    return found;
  }
  return known->second;
}

Advance::Trend Advance::of_operand(const Node& node, size_t n) {
  if (n >= node.instruction->operands.size()) return {};
  const Operand& o = node.instruction->operands[n];
  switch (o.kind) {
    case Operand::Kind::kInteger:
    case Operand::Kind::kFloat:
      return same();
    case Operand::Kind::kSpecial:
      return may_change(o.name) ? Trend{} : same();
    case Operand::Kind::kRegister: {
      const Object object = flow_.object_of(node, n);
      return object == kNoObject || !o.suffix.empty() || o.minus || o.negated ? Trend{}
                                                                              : of_register(object, node);
    }
    case Operand::Kind::kAddress:
    case Operand::Kind::kSymbol: {
      const Object object = flow_.object_of(node, n);
      return object == kNoObject ? same() : of_register(object, node);
    }
    default:
      return {};
  }
}

Advance::Trend Advance::of_result(const Node& node) {
  auto [known, fresh] = results_.try_emplace(&node);
  if (!fresh || depth_ >= kMaxDepth) return known->second;
  ++depth_;
  const Trend found = computed(node);
  --depth_;
  results_[&node] = found;
  return found;
}

Advance::Trend Advance::computed(const Node& node) {
  const Instruction& i = *node.instruction;
  if (!node.opcode || flow_.writes(node).size() != 1) return {};
  const auto& o = i.operands;
  const unsigned bytes = ptx::type_bytes(i.type());
  auto operand = [&](size_t n) { return of_operand(node, n); };
  auto times = [&](size_t a, size_t b) {
    return is_literal(o[b])   ? scaled(operand(a), static_cast<int64_t>(o[b].bits))
           : is_literal(o[a]) ? scaled(operand(b), static_cast<int64_t>(o[a].bits))
                              : Trend{};
  };
  Trend found;
  if (i.opcode == "mov" && plain(i, false) && o.size() == 2) {
    found = operand(1);
  } else if (i.opcode == "cvta" && o.size() == 2) {
    found = operand(1);
  } else if (i.opcode == "cvt" && i.modifiers.size() == 2 && is_integer(i.type(0)) && is_integer(i.type(1)) &&
             bytes >= ptx::type_bytes(i.type(1))) {
    found = operand(1);
  } else if ((i.opcode == "add" || i.opcode == "sub") && plain(i, false) && o.size() == 3) {
    found = within(sum(operand(1), scaled(operand(2), i.opcode == "add" ? 1 : -1)), bytes);
  } else if (i.opcode == "shl" && plain(i, false) && o.size() == 3 && is_literal(o[2]) && o[2].bits < 24) {
    found = within(scaled(operand(1), int64_t{1} << o[2].bits), bytes);
  } else if ((i.opcode == "mul" || i.opcode == "mad") && plain(i, true)) {
    const unsigned wide = i.has("wide") ? 8 : bytes;
    if (i.opcode == "mul" && o.size() == 3)
      found = within(times(1, 2), wide);
    else if (i.opcode == "mad" && o.size() == 4)
      found = within(sum(times(1, 2), operand(3)), wide);
  }
  if (found.kind != Trend::Kind::kUnknown) return found;
  // Anything made of nothing but what stays the same.
  const bool constant =
      i.opcode == "ld" && (ptx::space_of(i) == ptx::Space::kParam || ptx::space_of(i) == ptx::Space::kConst);
  if (node.opcode->op_class != OpClass::kAlu && !constant) return {};
  for (Object object : flow_.reads(node))
    if (object < kFirstRegister || of_register(object, node).kind != Trend::Kind::kSame) return {};
  return any_changes(o) ? Trend{} : same();
}

// A register that passes hand on. Each write makes it, from what it was in this pass, larger (or each
// smaller) by a literal, and no pass comes back without one.
Advance::Trend Advance::carried(Object object) {
  std::vector<uint8_t> by(flow_.blocks.size(), 0);
  int64_t most = 0, least = 0;
  for (const Node* writer : writers(object)) {
    int64_t literal = 0;
    if (!step(*writer, object, &literal)) return {};
    most = std::max(most, literal);
    least = std::min(least, literal);
    if (literal != 0 && !writer->guard) by[flow_.block_of(*writer)] = 1;
  }
  const bool one_way = (most == 0) != (least == 0);
  if (!one_way || !pass_.comes_back_only_through(LoopPass::kStart, by)) return {};
  return {most > 0 ? Trend::Kind::kUp : Trend::Kind::kDown, static_cast<uint64_t>(most - least)};
}

bool Advance::step(const Node& node, Object object, int64_t* literal) {
  const Node* at = &node;
  unsigned bytes = 0;
  for (unsigned n = 0; n < kMaxCopies; ++n) {
    const Instruction& i = *at->instruction;
    const bool move = i.opcode == "mov" && i.operands.size() == 2;
    const bool change = (i.opcode == "add" || i.opcode == "sub") && i.operands.size() == 3;
    if ((!move && !change) || !plain(i, false) || flow_.writes(*at).size() != 1 ||
        (bytes && ptx::type_bytes(i.type()) != bytes))
      return false;
    bytes = ptx::type_bytes(i.type());
    size_t from = 1;
    if (change) {
      const size_t by = is_literal(i.operands[2]) ? 2 : 1;
      from = 3 - by;
      if (!is_literal(i.operands[by]) || (i.opcode == "sub" && by == 1)) return false;
      const auto amount = static_cast<int64_t>(i.operands[by].bits);
      const auto limit = static_cast<int64_t>(bytes == 8 ? kMostStep : kMostNarrowStep);
      *literal += i.opcode == "add" ? amount : -amount;
      if (amount > limit || amount < -limit || *literal > limit || *literal < -limit) return false;
    }
    const Operand& source = i.operands[from];
    const Object next = flow_.object_of(*at, from);
    if (source.kind != Operand::Kind::kRegister || !source.suffix.empty() || source.minus || source.negated ||
        next == kNoObject)
      return false;
    if (next == object) return true;
    at = sole_writer_before(next, *at);
    if (!at) return false;
  }
  return false;
}

}  // namespace tessera::slice
