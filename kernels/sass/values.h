// The results of the instructions of two programs, as values that can be compared. Private to kernels/sass.
//
// A value is a sum of products of atoms, modulo 2^32: integer sums and products of any order become the same sum. A
// predicate is 0 or 1. An atom is what one instruction computes from values (its label says which), what is read
// from outside, or a merge: the value of a register where a block is entered from several others. classify() says which
// atoms of the two programs are equal in every execution, if corresponding blocks are executed and memory is equal: the
// coarsest partition in which equal atoms have equal labels and equal operands (merges: from each predecessor).
#pragma once

#include <algorithm>
#include <boost/container/small_vector.hpp>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace tessera::sass {

// Short lists lie where they are named: a proof makes millions.
template <class T, size_t usual>
using ShortList = boost::container::small_vector<T, usual>;
template <class List, class Which>
void erase_those(List* list, Which which) {
  list->erase(std::remove_if(list->begin(), list->end(), which), list->end());
}

struct Term {
  uint32_t factor = 0;
  ShortList<uint32_t, 2> atoms;  // ascending; a product of them
  bool operator==(const Term&) const = default;
  std::strong_ordering operator<=>(const Term&) const = default;
};

// Some of all atoms.
class AtomSet {
 public:
  bool contains(uint32_t atom) const { return atom < in_.size() && in_[atom]; }
  void insert(uint32_t atom) {
    if (atom >= in_.size()) in_.resize(size_t(atom) + 1 + in_.size() / 2);
    in_[atom] = true;
  }

 private:
  std::vector<bool> in_;
};

class Value {
 public:
  Value() = default;  // 0
  using Terms = ShortList<Term, 1>;
  static Value of(uint32_t constant) {
    static const Value kOne(Terms{{1, {}}});  // most predicates are always true
    if (constant <= 1) return constant ? kOne : Value();
    return Value(Terms{{constant, {}}});
  }
  static Value atom(uint32_t a) { return Value(Terms{{1, {a}}}); }

  const Terms& terms() const { return terms_ ? *terms_ : kNoTerms; }
  bool constant(uint32_t* out) const;  // is it one?
  bool is(uint32_t constant) const;
  bool operator==(const Value& other) const { return terms_ == other.terms_ || terms() == other.terms(); }

  friend Value operator+(const Value& a, const Value& b) {
    return a.terms_ ? b.terms_ ? sum(a, b, 1) : a : b;
  }
  friend Value operator*(const Value& a, uint32_t factor) { return sum({}, a, factor); }
  friend Value operator-(const Value& a, const Value& b) { return sum(a, b, ~uint32_t(0)); }
  // The negation of a predicate.
  Value negation() const { return terms_ ? of(1) - *this : of(1); }
  // False: too many terms. An atom of `booleans` is 0 or 1, so it is its own square.
  static bool product(const Value& a, const Value& b, Value* out, const AtomSet& booleans = {});
  // The products of atoms whose factors in two values exceed a word together: their sum leaves that out.
  static Value exceeding(const Value& a, const Value& b);
  // The terms that both have.
  static Value common(const Value& a, const Value& b);
  std::vector<Value> each_term() const;
  // It is the first one and 2^16 times the second one, as the factors say.
  std::pair<Value, Value> halves() const;
  // The value where an atom is 0 or 1.
  Value where(uint32_t atom, bool one) const;

 private:
  static inline const Terms kNoTerms{};
  static Value sum(const Value& a, const Value& b, uint32_t factor);  // a + b * factor
  explicit Value(Terms terms)
      : terms_(terms.empty() ? nullptr : std::make_shared<const Terms>(std::move(terms))) {}
  // Each product once, ascending, no factor 0; null: none. Shared, because values are copied far more often than made.
  std::shared_ptr<const Terms> terms_;
};

using Label = ShortList<uint64_t, 8>;

// Numbers of lists of words. All lists lie in one piece of memory: proofs look up millions.
class ListNumbers {
 public:
  // The number of a list that is known; a new one gets `next`.
  uint32_t number(std::span<const uint32_t> list, uint32_t next);
  uint32_t count() const { return uint32_t(entries_.size()); }
  void clear();

 private:
  struct Entry {
    uint64_t hash = 0;
    size_t begin = 0;  // of words_
    uint32_t length = 0, number = 0;
  };
  void grow();

  std::vector<uint32_t> words_;
  std::vector<Entry> entries_;
  std::vector<uint32_t>
      slots_;  // an entry's place plus one, 0: free; a power of two, at least half of them free
};

class Values {
 public:
  // One atom for one label with one list of operands. `commutative`: the number of operands, from the first, whose order
  // does not matter.
  uint32_t add_atom(const Label& label, std::vector<Value> operands, unsigned commutative = 0);
  // A bitwise function of three values by its table of eight bits; in which order they stand does not matter. What is such
  // a function itself is put in, where no more than three values remain.
  Value add_logic(uint8_t table, const Value& a, const Value& b, const Value& c);
  uint32_t add_merge(uint32_t block);
  void set_merge(uint32_t atom, std::vector<Value> operands);

  void classify();
  // After classify(): equal numbers, equal values.
  uint32_t class_of(const Value& value);
  uint32_t class_of_atom(uint32_t atom) const { return class_[atom]; }

  const std::vector<Value>& operands(uint32_t atom) const { return atoms_[atom].operands; }
  bool is_merge(uint32_t atom) const { return atoms_[atom].merge; }
  bool is_logic(uint32_t atom) const { return atoms_[atom].logic; }
  uint8_t table(uint32_t logic) const { return uint8_t(atoms_[logic].label); }
  unsigned commutative(uint32_t atom) const { return atoms_[atom].commutative; }
  // The label of an atom that is neither a merge nor a bitwise function.
  const Label& label(uint32_t atom) const { return *label_texts_[atoms_[atom].label]; }
  // Whatever the operands are.
  bool same_operation(uint32_t a, uint32_t b) const {
    const Atom &x = atoms_[a], &y = atoms_[b];
    return x.label == y.label && x.merge == y.merge && x.logic == y.logic;
  }

 private:
  struct Atom {
    uint32_t label = 0;
    bool merge = false, logic = false;  // logic: the label is the table
    uint8_t commutative = 0;
    std::vector<Value> operands;
  };
  std::span<const Value> inputs(const Value& v) const;
  // The list that says what an atom is, by classes of its operands.
  void find_key(const Atom& atom, uint32_t label);

  std::vector<Atom> atoms_;
  std::map<Label, uint32_t> labels_;
  std::vector<const Label*> label_texts_;  // by number
  ListNumbers by_content_;
  std::vector<uint32_t> merges_, class_;
  ListNumbers values_;                     // of this round
  std::vector<uint32_t> key_, value_key_;  // at hand
};

}  // namespace tessera::sass
