#include "kernels/sass/values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

namespace tessera::sass {
namespace {

constexpr size_t kMostTerms = 64;

Value::Terms normal(Value::Terms terms) {
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.atoms < b.atoms; });
  Value::Terms out;
  for (Term& t : terms) {
    if (!out.empty() && out.back().atoms == t.atoms)
      out.back().factor += t.factor;
    else
      out.push_back(std::move(t));
  }
  erase_those(&out, [](const Term& t) { return t.factor == 0; });
  return out;
}

}  // namespace

bool Value::constant(uint32_t* out) const {
  if (terms().size() > 1 || (terms().size() == 1 && !terms()[0].atoms.empty())) return false;
  *out = terms().empty() ? 0 : terms()[0].factor;
  return true;
}

bool Value::is(uint32_t constant) const {
  uint32_t c = 0;
  return this->constant(&c) && c == constant;
}

Value Value::sum(const Value& a, const Value& b, uint32_t factor) {
  Terms out;
  out.reserve(a.terms().size() + b.terms().size());
  auto x = a.terms().begin();
  for (const Term& y : b.terms()) {
    for (; x != a.terms().end() && x->atoms < y.atoms; ++x) out.push_back(*x);
    const bool both = x != a.terms().end() && x->atoms == y.atoms;
    const uint32_t sum = (both ? x++->factor : 0) + factor * y.factor;
    if (sum != 0) out.push_back({sum, y.atoms});
  }
  out.insert(out.end(), x, a.terms().end());
  return Value(std::move(out));
}

bool Value::product(const Value& a, const Value& b, Value* out, const AtomSet& booleans) {
  if (a.terms().size() * b.terms().size() > kMostTerms) return false;
  Terms terms;
  for (const Term& x : a.terms())
    for (const Term& y : b.terms()) {
      Term t{x.factor * y.factor, x.atoms};
      t.atoms.insert(t.atoms.end(), y.atoms.begin(), y.atoms.end());
      std::sort(t.atoms.begin(), t.atoms.end());
      for (size_t k = t.atoms.size(); k-- > 1;)
        if (t.atoms[k] == t.atoms[k - 1] && booleans.contains(t.atoms[k]))
          t.atoms.erase(t.atoms.begin() + std::ptrdiff_t(k));
      if (t.atoms.size() > 8) return false;
      terms.push_back(std::move(t));
    }
  *out = Value(normal(std::move(terms)));
  return true;
}

Value Value::exceeding(const Value& a, const Value& b) {
  Terms out;
  for (const Term& x : a.terms())
    for (const Term& y : b.terms())
      if (x.atoms == y.atoms && x.factor + y.factor < x.factor) out.push_back({1, x.atoms});
  return Value(std::move(out));
}

Value Value::common(const Value& a, const Value& b) {
  Terms out;
  std::ranges::copy_if(a.terms(), std::back_inserter(out),
                       [&](const Term& t) { return std::ranges::find(b.terms(), t) != b.terms().end(); });
  return Value(std::move(out));
}

std::vector<Value> Value::each_term() const {
  std::vector<Value> out;
  for (const Term& t : terms()) out.push_back(Value({t}));
  return out;
}

std::pair<Value, Value> Value::halves() const {
  constexpr uint32_t kBits = 0xffff, kLeastNegative = 0x8000;
  Terms lower, upper;
  for (const Term& t : terms()) {
    const uint32_t below = t.factor & kBits;
    if (below >= kLeastNegative)
      lower.push_back(t);
    else if (below)
      lower.push_back({below, t.atoms});
    if (below < kLeastNegative && t.factor > kBits) upper.push_back({t.factor >> 16, t.atoms});
  }
  return {Value(std::move(lower)), Value(std::move(upper))};
}

Value Value::where(uint32_t atom, bool one) const {
  const auto has = [&](const Term& t) { return std::binary_search(t.atoms.begin(), t.atoms.end(), atom); };
  if (std::none_of(terms().begin(), terms().end(), has)) return *this;
  Terms out = terms();
  if (!one) erase_those(&out, has);
  for (Term& t : out) erase_those(&t.atoms, [&](uint32_t a) { return a == atom; });
  return Value(normal(std::move(out)));
}

uint32_t ListNumbers::number(std::span<const uint32_t> list, uint32_t next) {
  if (2 * entries_.size() >= slots_.size()) grow();
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (const uint32_t word : list) hash = (hash ^ word) * 0xff51afd7ed558ccdu, hash ^= hash >> 29;
  size_t at = hash & (slots_.size() - 1);
  for (; slots_[at]; at = (at + 1) & (slots_.size() - 1)) {
    const Entry& e = entries_[slots_[at] - 1];
    if (e.hash == hash && std::ranges::equal(list, std::span(words_).subspan(e.begin, e.length)))
      return e.number;
  }
  entries_.push_back({hash, words_.size(), uint32_t(list.size()), next});
  words_.insert(words_.end(), list.begin(), list.end());
  slots_[at] = uint32_t(entries_.size());
  return next;
}

void ListNumbers::grow() {
  slots_.assign(std::max<size_t>(64, 4 * entries_.size()), 0);
  slots_.resize(std::bit_ceil(slots_.size()));
  for (uint32_t e = 0; e < entries_.size(); e++) {
    size_t at = entries_[e].hash & (slots_.size() - 1);
    while (slots_[at]) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = e + 1;
  }
}

void ListNumbers::clear() {
  words_.clear();
  entries_.clear();
  std::ranges::fill(slots_, 0);
}

uint32_t Values::add_atom(const Label& label, std::vector<Value> operands, unsigned commutative) {
  Atom a;
  const auto [known, is_new] = labels_.try_emplace(label, uint32_t(labels_.size()));
  if (is_new) label_texts_.push_back(&known->first);
  a.label = known->second;
  key_ = {a.label};
  for (const Value& v : operands) {
    key_.push_back(uint32_t(v.terms().size()));
    for (const Term& t : v.terms()) {
      key_.insert(key_.end(), {t.factor, uint32_t(t.atoms.size())});
      key_.insert(key_.end(), t.atoms.begin(), t.atoms.end());
    }
  }
  const auto next = uint32_t(atoms_.size());
  const uint32_t atom = by_content_.number(key_, next);
  if (atom != next) return atom;
  a.commutative = uint8_t(commutative);
  a.operands = std::move(operands);
  atoms_.push_back(std::move(a));
  return atom;
}

// The values that a bitwise function is made of; any other value stands for itself.
std::span<const Value> Values::inputs(const Value& v) const {
  const auto& terms = v.terms();
  const bool is_atom = terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() == 1;
  const Atom* atom = is_atom ? &atoms_[terms[0].atoms[0]] : nullptr;
  return atom && atom->logic ? std::span<const Value>(atom->operands) : std::span(&v, 1);
}

Value Values::add_logic(uint8_t table, const Value& a, const Value& b, const Value& c) {
  const std::array<Value, 3> of = {a, b, c};
  std::vector<Value> leaves;
  for (const Value& v : of)
    for (const Value& leaf : inputs(v))
      if (!leaf.is(0) && std::ranges::find(leaves, leaf) == leaves.end()) leaves.push_back(leaf);
  if (leaves.size() > 3) leaves.assign(of.begin(), of.end());
  leaves.resize(3);
  Atom atom;
  atom.logic = true;
  const auto index = [](std::span<const Value> values, const auto& bit_of) {
    unsigned out = 0;
    for (const Value& v : values) out = out << 1 | bit_of(v);
    return out;
  };
  for (unsigned entry = 0; entry < 8; entry++) {
    const auto leaf_bit = [&](const Value& v) {
      const auto k = unsigned(std::ranges::find(leaves, v) - leaves.begin());
      return v.is(0) ? 0u : entry >> (2 - k) & 1;
    };
    const auto bit = [&](const Value& v) {
      if (v.is(0) || std::ranges::find(leaves, v) != leaves.end()) return leaf_bit(v);
      return atoms_[v.terms()[0].atoms[0]].label >> index(inputs(v), leaf_bit) & 1;
    };
    atom.label |= (unsigned(table) >> index(of, bit) & 1) << entry;
  }
  constexpr uint32_t kOnes[] = {0xf0, 0xcc, 0xaa};  // entries in which the first, second, third bit is 1
  for (unsigned k = 0; k < 3; k++) {
    if (atom.label == kOnes[k]) return leaves[k];
    if ((atom.label & kOnes[k]) >> (4 >> k) == (atom.label & ~kOnes[k])) leaves[k] = {};  // it does not count
  }
  if (atom.label == 0 || atom.label == 0xff) return Value::of(atom.label ? ~uint32_t(0) : 0);
  atom.operands = std::move(leaves);
  atoms_.push_back(std::move(atom));
  return Value::atom(uint32_t(atoms_.size() - 1));
}

uint32_t Values::add_merge(uint32_t block) {
  Atom a;
  a.label = block;
  a.merge = true;
  atoms_.push_back(std::move(a));
  merges_.push_back(uint32_t(atoms_.size() - 1));
  return merges_.back();
}

void Values::set_merge(uint32_t atom, std::vector<Value> operands) {
  atoms_[atom].operands = std::move(operands);
}

uint32_t Values::class_of(const Value& value) {
  const auto first = uint32_t(2 * atoms_.size());  // above all classes of atoms, which stand for themselves
  if (const auto& terms = value.terms();
      terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() == 1)
    return class_[terms[0].atoms[0]];
  std::vector<uint32_t>& key = value_key_;
  key.clear();
  uint32_t constant = 0;
  if (value.constant(&constant)) {
    if (constant) key = {constant, 0};
    return values_.number(key, first + values_.count());
  }
  struct ClassTerm {
    std::vector<uint32_t> classes;
    uint32_t factor;
  };
  std::vector<ClassTerm> terms;
  for (const Term& t : value.terms()) {
    ClassTerm c{{}, t.factor};
    for (const uint32_t a : t.atoms) c.classes.push_back(class_[a]);
    std::sort(c.classes.begin(), c.classes.end());
    terms.push_back(std::move(c));
  }
  std::sort(terms.begin(), terms.end(),
            [](const ClassTerm& a, const ClassTerm& b) { return a.classes < b.classes; });
  for (size_t i = 0; i < terms.size();) {
    uint32_t factor = 0;
    size_t j = i;
    for (; j < terms.size() && terms[j].classes == terms[i].classes; j++) factor += terms[j].factor;
    if (factor) {
      key.push_back(factor);
      key.push_back(uint32_t(terms[i].classes.size()));
      key.insert(key.end(), terms[i].classes.begin(), terms[i].classes.end());
    }
    i = j;
  }
  const bool is_atom = key.size() == 3 && key[0] == 1 && key[1] == 1;
  return is_atom ? key[2] : values_.number(key, first + values_.count());
}

namespace {

// The table with its inputs in another order: input k of the new one is input order[k] of the old one.
uint32_t reordered(uint32_t table, const unsigned (&order)[3]) {
  uint32_t out = 0;
  for (unsigned entry = 0; entry < 8; entry++) {
    unsigned old = 0;
    for (unsigned k = 0; k < 3; k++)
      if (entry >> (2 - k) & 1) old |= 4u >> order[k];
    if (table >> old & 1) out |= 1u << entry;
  }
  return out;
}

// The least list that a bitwise function has in any order of its values.
void order_logic(std::vector<uint32_t>* classes, uint32_t table) {
  constexpr unsigned kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  constexpr uint32_t kNoLabel = ~uint32_t(0);  // of no other atom
  std::array<uint32_t, 5> least{};
  for (const auto& order : kOrders) {
    const std::array<uint32_t, 5> key = {(*classes)[order[0]], (*classes)[order[1]], (*classes)[order[2]],
                                         reordered(table, order), kNoLabel};
    if (&order == kOrders || key < least) least = key;
  }
  classes->assign(least.begin(), least.end());
}

}  // namespace

void Values::find_key(const Atom& atom, uint32_t label) {
  key_.clear();
  for (const Value& v : atom.operands) key_.push_back(class_of(v));
  if (atom.logic) return order_logic(&key_, label);
  std::sort(key_.begin(),
            key_.begin() + std::min<std::ptrdiff_t>(atom.commutative, std::ptrdiff_t(key_.size())));
  key_.push_back(label);
}

// Optimistic: merges of a block are equal until their operands differ. Each round splits classes and never joins
// them, since values that differ under a coarse partition differ under each finer one.
void Values::classify() {
  class_.assign(atoms_.size(), 0);
  std::map<uint32_t, uint32_t> of_block;
  for (const uint32_t m : merges_)
    class_[m] = of_block.emplace(atoms_[m].label, uint32_t(of_block.size())).first->second;
  size_t n = of_block.size();
  ListNumbers numbers, merged;
  std::vector<uint32_t> next;
  for (;;) {
    values_.clear();
    numbers.clear();
    merged.clear();
    const auto first = uint32_t(atoms_.size());  // above all classes of merges
    for (size_t a = 0; a < atoms_.size(); a++) {
      if (atoms_[a].merge) continue;
      find_key(atoms_[a], atoms_[a].label);
      class_[a] = numbers.number(key_, first + numbers.count());
    }
    next.clear();
    for (const uint32_t m : merges_) {
      find_key(atoms_[m], class_[m]);
      next.push_back(merged.number(key_, merged.count()));
    }
    if (merged.count() == n) return;  // with the numbers that all others were made of
    n = merged.count();
    for (size_t i = 0; i < merges_.size(); i++) class_[merges_[i]] = next[i];
  }
}

}  // namespace tessera::sass
