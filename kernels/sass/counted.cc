// Arrays in registers, as ptxas makes them of local memory, are taken apart: loops that are left after a number of passes that
// nothing changes, and an index that the exponent of a float decides.
#include <algorithm>

#include "kernels/sass/builder.h"

namespace tessera::sass {
namespace {

struct Fact {
  uint32_t atom = 0;
  bool holds = true;
};
// A predicate that holds, or does not, if a fact is as little as that.
std::vector<Fact> atoms_of(const Value& fact) {
  std::vector<Fact> out;
  for (const bool holds : {true, false}) {
    const Value value = holds ? fact : fact.negation();
    const auto& terms = value.terms();
    if (terms.size() != 1 || terms[0].factor != 1) continue;
    if (!holds && terms[0].atoms.size() != 1) continue;  // one of them does not hold
    for (const uint32_t a : terms[0].atoms) out.push_back({a, holds});
  }
  return out;
}

// |x| is compared with a normal number or infinity. `orders`, for which it holds: 1 less, 2 equal, 4 greater, 8 no number.
struct MagnitudeCompared {
  uint32_t x = 0, exponent = 0, orders = 0;
};
constexpr uint32_t kIsLess = 1, kIsEqual = 2, kIsGreater = 4, kIsNoNumber = 8, kMostExponent = 255;

std::optional<MagnitudeCompared> magnitude_compared(const Values& values, const Fact& fact) {
  constexpr uint64_t kCompares = 0x00b, kMagnitude = 1 << 9, kFlushesTiny = 1 << 16, kHow = 12;
  if (values.is_merge(fact.atom) || values.is_logic(fact.atom)) return std::nullopt;
  const Label& label = values.label(fact.atom);
  const auto& operands = values.operands(fact.atom);
  uint32_t with = 0;
  if (label[0] != kOperation || label[1] != kCompares || label[2] || label[4] || operands.size() != 2 ||
      (label[3] & ~(kFlushesTiny | uint64_t(15) << kHow)) != kMagnitude || !operands[1].constant(&with))
    return std::nullopt;
  const auto& terms = operands[0].terms();
  if (terms.size() != 1 || terms[0].factor != 1 || terms[0].atoms.size() != 1) return std::nullopt;
  const uint32_t exponent = with >> 23,
                 orders = label[3] >> kHow & 15;  // with sign: above all that are possible
  const bool is_number = exponent < kMostExponent || with == kMostExponent << 23;
  if (exponent == 0 || exponent > kMostExponent || !is_number) return std::nullopt;
  return MagnitudeCompared{terms[0].atoms[0], exponent, fact.holds ? orders : ~orders & 15};
}

// Numbers of an exponent, or what has the largest one: infinity, and what is no number.
bool possible(const std::vector<MagnitudeCompared>& all, uint32_t exponent) {
  const auto each = [&](auto orders) {
    return std::ranges::all_of(all, [&](const MagnitudeCompared& c) { return (c.orders & orders(c)) != 0; });
  };
  if (exponent == kMostExponent)
    return each([](const auto&) { return kIsNoNumber; }) ||
           each([](const auto& c) { return c.exponent == kMostExponent ? kIsEqual : kIsGreater; });
  return each([&](const auto& c) {
    return exponent < c.exponent   ? kIsLess
           : exponent > c.exponent ? kIsGreater
                                   : kIsLess | kIsEqual | kIsGreater;
  });
}

}  // namespace

void GraphBuilder::find_exponents(uint32_t b) {
  with_exponent_.clear();
  if (!around_.thorough) return;
  std::vector<MagnitudeCompared> all;
  for (const Value& fact : known_[b])
    for (const Fact& f : atoms_of(fact))
      if (const auto c = magnitude_compared(values_, f); c && (all.empty() || c->x == all[0].x))
        all.push_back(*c);
  if (all.empty()) return;
  exponents_.reset();
  for (uint32_t e = 0; e <= kMostExponent; e++) {
    exponents_[e] = possible(all, e);
    with_exponent_.emplace_back(values_).set(all[0].x, {e << 23, kMostExponent << 23});
  }
}

// A choice without what is never chosen.
Value GraphBuilder::reached(const Value& v, const Exponents& by, unsigned depth) {
  constexpr unsigned kMostChoices = 64;  // in each other; an array in registers has fewer elements
  if (depth > kMostChoices) return v;
  const auto& terms = v.terms();
  const auto found = terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() == 1
                         ? selects_.find(terms[0].atoms[0])
                         : selects_.end();
  if (found == selects_.end()) return v;
  const auto [guard, new_value, old_value] = found->second;
  Exponents holds;
  for (uint32_t e = 0; e < by.size(); e++) {
    if (!by[e]) continue;
    const auto known = with_exponent_[e].of(guard).constant();
    if (!known) return v;
    holds[e] = *known;
  }
  if (holds == by) return reached(new_value, by, depth + 1);
  if (holds.none()) return reached(old_value, by, depth + 1);
  const Value x = reached(new_value, holds, depth + 1), y = reached(old_value, by & ~holds, depth + 1);
  return x == new_value && y == old_value ? v : plain_select(guard, x, y);
}

// Follows a loop of one block pass by pass, as long as what decides about leaving it is known.
std::optional<uint32_t> GraphBuilder::passes_of(uint32_t b) const {
  constexpr uint32_t kMostPasses = 16;
  const auto& previous = p_.blocks[b].previous;
  if (b == 0 || previous.size() != 2 || p_.blocks[b].next.size() != 2 || taken_[b].is(1)) return std::nullopt;
  const size_t back = previous[1] == b;
  if (previous[back] != b || previous[1 - back] == b) return std::nullopt;
  std::vector<std::pair<uint32_t, Bits>> now;
  for (const int t : merges_in_[b]) {
    const uint32_t atom = tokens_[size_t(t)].value.terms()[0].atoms[0];
    now.emplace_back(atom, KnownBits(values_).of(values_.operands(atom)[1 - back]));
  }
  for (uint32_t passes = 1; passes <= kMostPasses; passes++) {
    KnownBits known(values_);
    for (const auto& [atom, bits] : now) known.set(atom, bits);
    const auto taken = known.of(taken_[b]).constant();
    if (!taken) return std::nullopt;
    if (p_.blocks[b].next[*taken ? 0 : 1] != b) return passes;
    for (auto& [atom, bits] : now) bits = known.of(values_.operands(atom)[back]);
  }
  return std::nullopt;
}

void GraphBuilder::find_loops() {
  for (uint32_t b = 0; b < p_.n_compared; b++)
    if (const auto passes = passes_of(b))
      out_.facts.loops.push_back({p_.call[p_.blocks[b].begin], p_.at[p_.blocks[b].begin], *passes});
}

}  // namespace tessera::sass
