#include "kernels/slice/bisection.h"

#include <algorithm>
#include <unordered_map>

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::Operand;
using ptx::Type;

bool is_integer(Type t) {
  return t == Type::kU32 || t == Type::kS32 || t == Type::kB32 || t == Type::kU64 || t == Type::kS64 ||
         t == Type::kB64;
}

bool has_literal(const Instruction& i, size_t n, uint64_t value) {
  return n < i.operands.size() && i.operands[n].kind == Operand::Kind::kInteger &&
         i.operands[n].bits == value;
}

// A register plus a literal.
struct Displaced {
  Object base = kNoObject;
  int64_t by = 0;
};

// One of the two bounds: `node` keeps it or sets it to `moved`.
struct Bound {
  const Node* node = nullptr;
  Object object = kNoObject, chosen_by = kNoObject;
  bool kept_if_true = false;
  Displaced moved;
};

class Search {
 public:
  Search(const Flow& flow, const Loop& loop, const LoopPass& pass) : flow_(flow), loop_(loop), pass_(pass) {
    each_node([&](const Node& node) {
      for (Object o : flow_.writes(node)) {
        auto [known, fresh] = writer_.try_emplace(o, &node);
        if (!fresh) known->second = nullptr;  // several
      }
    });
  }

  bool found() const {
    std::vector<Bound> bounds;
    each_node([&](const Node& node) {
      const Bound b = bound(node);
      if (b.node) bounds.push_back(b);
    });
    for (const Bound& low : bounds) {
      for (const Bound& high : bounds)
        if (low.chosen_by == high.chosen_by && low.kept_if_true != high.kept_if_true &&
            low.moved.base == high.moved.base && low.moved.by >= 1 && high.moved.by <= 0 &&
            is_middle(low, high) && goes_on_while_apart(low, high))
          return true;
    }
    return false;
  }

 private:
  void each_node(auto f) const {
    for (uint32_t b : loop_.blocks)
      for (uint32_t n = flow_.blocks[b].begin; n < flow_.blocks[b].end; ++n) f(flow_.nodes[n]);
  }

  // The one write of the object in the loop, if it is made in each pass that comes to `use`.
  const Node* made_by(Object object, const Node& use) const {
    auto found = writer_.find(object);
    const Node* node = found == writer_.end() ? nullptr : found->second;
    return node && !node->guard && flow_.writes(*node).size() == 1 && pass_.before(*node, use) ? node
                                                                                               : nullptr;
  }
  const Node* made_by(const Node& use, size_t operand, Name opcode) const {
    const Object object = flow_.object_of(use, operand);
    const Node* node = object == kNoObject ? nullptr : made_by(object, use);
    return node && node->instruction->opcode == opcode && is_integer(node->instruction->type()) ? node
                                                                                                : nullptr;
  }

  Displaced displaced(Object object, const Node& use) const {
    Displaced d{object, 0};
    const Node* at = made_by(object, use);
    for (int n = 0; at && n < 4; ++n) {
      const Instruction& i = *at->instruction;
      const bool literal = i.operands.size() == 3 && i.operands[2].kind == Operand::Kind::kInteger;
      const auto by = literal ? static_cast<int64_t>(i.operands[2].bits) : 0;
      if (i.opcode != "add" || !literal || i.modifiers.size() != 1 || !is_integer(i.type()) || by > 1024 ||
          by < -1024)
        break;
      d.by += by;
      d.base = flow_.object_of(*at, 1);
      at = d.base == kNoObject ? nullptr : made_by(d.base, *at);
    }
    return d;
  }

  Bound bound(const Node& node) const {
    const Instruction& i = *node.instruction;
    if (i.opcode != "selp" || node.guard || i.operands.size() != 4 || !is_integer(i.type())) return {};
    const Object to = flow_.object_of(node, 0), yes = flow_.object_of(node, 1), no = flow_.object_of(node, 2);
    auto writer = writer_.find(to);
    if (writer == writer_.end() || writer->second != &node || (to == yes) == (to == no)) return {};
    const Object other = to == yes ? no : yes, chosen_by = flow_.object_of(node, 3);
    if (other == kNoObject || chosen_by == kNoObject || !made_by(chosen_by, node) || i.operands[3].negated)
      return {};
    return {&node, to, chosen_by, to == yes, displaced(other, node)};
  }

  // The operand is this bound, perhaps made wide.
  bool is_bound(const Node& node, size_t operand, const Bound& b) const {
    if (flow_.object_of(node, operand) == b.object) return true;
    const Node* wide = made_by(node, operand, "cvt");
    return wide && flow_.object_of(*wide, 1) == b.object &&
           (wide->instruction->has("s32") || wide->instruction->has("u32"));
  }

  bool is_middle(const Bound& low, const Bound& high) const {
    const Node* mid = made_by(low.moved.base, *low.node);
    if (!mid || !pass_.before(*mid, *high.node)) return false;
    if (mid->instruction->opcode == "cvt")  // made narrow again
      mid = made_by(*mid, 1, "shr");
    if (!mid || !is_integer(mid->instruction->type())) return false;
    const Instruction& i = *mid->instruction;
    if (i.opcode == "shr" && has_literal(i, 2, 1)) {
      const Node* sum = made_by(*mid, 1, "add");
      return sum && ((is_bound(*sum, 1, low) && is_bound(*sum, 2, high)) ||
                     (is_bound(*sum, 1, high) && is_bound(*sum, 2, low)));
    }
    if (i.opcode != "add") return false;
    for (size_t n : {1, 2}) {
      const Node* half = made_by(*mid, n, "shr");
      if (half && has_literal(*half->instruction, 2, 1) && flow_.object_of(*mid, 3 - n) == low.object)
        return is_distance(*half, low, high);
    }
    return false;
  }

  // True if `half` halves high - low, perhaps with its sign bit added, which rounds to zero.
  bool is_distance(const Node& half, const Bound& low, const Bound& high) const {
    auto difference = [&](const Node* node) {
      return node && flow_.object_of(*node, 1) == high.object && flow_.object_of(*node, 2) == low.object;
    };
    if (difference(made_by(half, 1, "sub"))) return true;
    const Node* rounded = made_by(half, 1, "add");
    for (size_t n : {1, 2}) {
      const Node* sign = rounded ? made_by(*rounded, n, "shr") : nullptr;
      if (sign && difference(made_by(*rounded, 3 - n, "sub")) && difference(made_by(*sign, 1, "sub")) &&
          (has_literal(*sign->instruction, 2, 31) || has_literal(*sign->instruction, 2, 63)))
        return true;
    }
    return false;
  }

  bool goes_on_while_apart(const Bound& low, const Bound& high) const {
    bool found = false;
    each_node([&](const Node& test) { found = found || ends_the_search(test, low, high); });
    return found;
  }

  bool ends_the_search(const Node& test, const Bound& low, const Bound& high) const {
    const Instruction& i = *test.instruction;
    if (i.opcode != "setp" || i.modifiers.size() != 2 || i.operands.size() != 3 || !is_integer(i.type()) ||
        flow_.writes(test).size() != 1 || test.guard)
      return false;
    const Object a = flow_.object_of(test, 1), b = flow_.object_of(test, 2),
                 result = flow_.object_of(test, 0);
    const bool straight = a == high.object && b == low.object;
    auto writer = writer_.find(result);
    if ((!straight && !(a == low.object && b == high.object)) || writer == writer_.end() ||
        writer->second != &test)
      return false;
    auto is = [&](Name signed_name, Name unsigned_name) {
      return i.has(signed_name) || i.has(unsigned_name);
    };
    // high > low, or its opposite; or high >= low, or its opposite.
    const bool above = straight ? is("gt", "hi") : is("lt", "lo");
    const bool not_above = straight ? is("le", "ls") : is("ge", "hs");
    const bool not_below = straight ? is("ge", "hs") : is("le", "ls");
    const bool below = straight ? is("lt", "lo") : is("gt", "hi");
    const bool closes = high.moved.by <= -1;
    const bool goes_on_if_true = above || (not_below && closes);
    if (!goes_on_if_true && !not_above && !(below && closes)) return false;
    const bool after = pass_.before(*low.node, test) && pass_.before(*high.node, test);
    const Node* mid = made_by(low.moved.base, *low.node);
    std::vector<uint8_t> by(flow_.blocks.size(), 0), low_by = by, high_by = by;
    for (uint32_t block : loop_.blocks) {
      const Node& last = flow_.nodes[flow_.blocks[block].end - 1];
      if (last.guard != result || last.instruction->opcode != "bra" || !pass_.before(test, last) ||
          (!after && !pass_.before(last, *mid)))
        continue;
      const bool taken_to_go_on = goes_on_if_true != last.instruction->guard_negated;
      const size_t way_out = taken_to_go_on ? 1 : 0;  // where it branches to, then the next
      const auto& ways = flow_.blocks[block].successors;
      by[block] = way_out < ways.size() && !pass_.contains(ways[way_out]);
    }
    low_by[flow_.block_of(*low.node)] = high_by[flow_.block_of(*high.node)] = 1;
    return pass_.comes_back_only_through(LoopPass::kStart, by) &&
           pass_.comes_back_only_through(LoopPass::kStart, low_by) &&
           pass_.comes_back_only_through(LoopPass::kStart, high_by);
  }

  const Flow& flow_;
  const Loop& loop_;
  const LoopPass& pass_;
  std::unordered_map<Object, const Node*> writer_;  // in the loop; nullptr: several
};

}  // namespace

bool is_bisection(const Flow& flow, const Loop& loop, const LoopPass& pass) {
  return Search(flow, loop, pass).found();
}

}  // namespace tessera::slice
