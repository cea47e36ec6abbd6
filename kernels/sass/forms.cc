// The liberties that integers and moves have: forms of instructions that compute the same in other words. Whatever has none
// of these forms is an operation of its own, compared bit by bit.
#include <algorithm>
#include <bit>
#include <iterator>

#include "kernels/sass/builder.h"

namespace tessera::sass {

// MOV of all four bytes. UMOV names no bytes; with two immediates they do not matter.
bool GraphBuilder::moves(const Instruction& in) {
  constexpr uint64_t kBytes = 0xf00, kWords = 1 << 16;
  if (in.opcode->meaning != 0x002 || in.rest_low != 0 || (in.rest_high & ~(kBytes | kWords))) return false;
  const uint64_t bytes = in.rest_high & kBytes;
  return in.reads.size() == 2 || bytes == (in.opcode->number == 0x002 ? kBytes : 0);
}

bool GraphBuilder::moves_to_uniform(const Instruction& in) {
  return in.rest_low == 1 << 9 && in.rest_high == 0;
}

bool GraphBuilder::plain(const Instruction& in) {
  return in.rest_low == 0 && in.rest_high == 0;
}

// Nothing but these bits of the upper half.
bool GraphBuilder::only(const Instruction& in, uint64_t allowed) {
  return in.rest_low == 0 && (in.rest_high & ~allowed) == 0;
}

Label GraphBuilder::label_of(const Instruction& in) const {
  return {kOperation, in.opcode->meaning, in.rest_low, in.rest_high, in.swapped};
}

// It changes none of its operands, so their order in the form does not matter.
Label GraphBuilder::label_of_plain(const Instruction& in) const {
  Label label = label_of(in);
  label[4] = false;
  return label;
}

// Forms that are not taken apart: each result is a part of what comes out.
void GraphBuilder::opaque(const Instruction& in, const Label& label, unsigned commutative) {
  const size_t n = results_of(in);
  if (n == 0) return;
  const Value all = atom(label, words_, commutative);
  results_ = {all};
  for (uint64_t part = 1; part < n; part++) results_.push_back(atom({kPart, part}, {all}));
  size_t w = 0;
  for (const Operand& o : in.writes) {
    if (o.file == File::kPredicate || o.file == File::kUniformPredicate)
      booleans_.insert(results_[w].terms()[0].atoms[0]);
    w += o.words;
  }
}

// Predicates are 0 and 1, and their functions polynomials, so that it does not matter which instruction joins them.
Value GraphBuilder::both(const Value& a, const Value& b) {
  constexpr size_t kMostTerms = 16;  // of predicates; work grows with it
  Value out;
  if (Value::product(a, b, &out, booleans_) && out.terms().size() <= kMostTerms) return out;
  out = atom({kBothHold}, {a, b}, 2);
  booleans_.insert(out.terms()[0].atoms[0]);
  return out;
}

bool GraphBuilder::implies(const Value& a, const Value& b) {
  Value out;
  return a == b || (Value::product(a, b, &out, booleans_) && out == a);
}

// Whether a word is zero, if predicates decide that: each of them is asked. Nothing: they do not, or are too many.
std::optional<Value> GraphBuilder::is_zero(const Value& v, unsigned asked) const {
  constexpr unsigned kMostAsked = 4;
  if (uint32_t c = 0; v.constant(&c)) return Value::of(c == 0);
  const uint32_t atom = v.terms().back().atoms.front();
  if (!booleans_.contains(atom) || asked == kMostAsked) return std::nullopt;
  const auto with = is_zero(v.where(atom, true), asked + 1),
             without = is_zero(v.where(atom, false), asked + 1);
  Value changes;
  if (!with || !without || !Value::product(Value::atom(atom), *with - *without, &changes, booleans_))
    return std::nullopt;
  return changes + *without;
}

// Bits of predicates in a word: they are kept so where there are too few registers for them.
bool GraphBuilder::predicates_to_word(const Instruction& in) {  // D; one predicate for each bit of a mask, A
  constexpr unsigned kMask = 32;
  constexpr uint32_t kPredicates = 0x7f;
  const auto mask = uint32_t(in.rest_low >> kMask);
  if (in.rest_high || mask > kPredicates || uint32_t(in.rest_low) != kOwnForm || !words_.back().is(0))
    return false;
  results_.push_back({});
  for (uint32_t bit = 0, n = 0; bit < 7; bit++)
    if (mask >> bit & 1) results_[0] = results_[0] + word(n++) * (uint32_t(1) << bit);
  if (std::has_single_bit(mask) && always(in.guard)) kept_[written_[now_][0]] = word(0);
  return true;
}

// A comparison that is joined with a predicate, that many words before the end of what it reads.
void GraphBuilder::compared(const Instruction& in, Label label, size_t joined, unsigned commutative,
                            const std::optional<Value>& decided) {
  enum : uint64_t { kAnd, kOr, kExclusiveOr };
  constexpr unsigned kHow = 10;  // bits of the upper half
  const uint64_t how = label[3] >> kHow & 3;
  if (in.writes[1].index != kZero || how > kExclusiveOr) return opaque(in, label, commutative);
  const auto at = words_.end() - std::ptrdiff_t(joined);
  const Value with = *at;
  words_.erase(at);
  label[3] &= ~(uint64_t(3) << kHow);
  Value c = atom(label, words_, commutative);
  booleans_.insert(c.terms()[0].atoms[0]);
  uint32_t constant = 0;
  if (decided)
    c = *decided;
  else if (std::all_of(words_.begin(), words_.end(), [&](const Value& v) { return v.constant(&constant); }))
    if (const auto known = KnownBits(values_).of(c).constant()) c = Value::of(*known);
  const Value all = both(c, with);
  results_ = {how == kAnd ? all : how == kOr ? c + with - all : c + with - all * 2, {}};
}

// How often the terms of a value exceed a word, if they are added as integers.
Value GraphBuilder::excess(const Value& v) {
  const auto& terms = v.terms();
  if (terms.empty() || (terms.size() == 1 && (terms[0].factor == 1 || terms[0].atoms.empty()))) return {};
  std::vector<Value> each = v.each_term();
  const auto n = unsigned(each.size());
  return atom({kExcess}, std::move(each), n);
}

// Carries of a sum: it does not matter in which order and in how many steps it is made.
Value GraphBuilder::carry(const std::vector<Value>& addends) {
  Value sum, carries;
  for (const Value& v : addends) {
    carries = carries - excess(v) + Value::exceeding(sum, v);
    sum = sum + v;
  }
  return carries + excess(sum);
}

bool GraphBuilder::too_long() const {
  constexpr size_t kMostTerms = 64;  // of sums; work grows with it
  return std::any_of(results_.begin(), results_.end(),
                     [](const Value& v) { return v.terms().size() > kMostTerms; });
}

// False: not in a form that is taken apart.
bool GraphBuilder::integer(const Instruction& in) {
  switch (in.opcode->meaning) {
    case 0x002:
      if (!moves(in)) return false;
      results_ = words_;
      return in.writes[0].words == words_.size();
    case 0x003:
      return predicates_to_word(in);
    case 0x005:  // the zero
      if ((in.rest_high & ~uint64_t(1 << 16)) != 0xff00 || in.rest_low != kOwnForm) return false;
      for (uint16_t w = 0; w < in.writes[0].words; w++) results_.push_back({});
      return true;
    case 0x0ca:
      if (!moves_to_uniform(in) || !(is_uniform(word(0)) || is_common({now_, now_in_}))) return false;
      results_ = {word(0), {}};
      return in.writes[1].index == kZero;
    case 0x006:
    case 0x086:
      return vote(in);
    case 0x007:
      return chosen(in);
    case 0x010:
      return sum(in);
    case 0x036:
      if ((in.rest_low & ~kNegateSecond) || in.rest_high) return false;
      results_ = {in.rest_low ? word(0) - word(1) : word(0) + word(1)};
      return true;
    case 0x011:
      return shifted_sum(in);
    case 0x024:
      return product(in);
    case 0x00b:
    case 0x02a:
      compared(in, label_of(in), 1);
      return true;
    case 0x00c:
      return comparison(in);
    case 0x01c:
      return joined(in);
    case 0x025:
    case 0x027:
      return wide_product(in);
    case 0x012:
      return logic(in);
    case 0x017:
    case 0x048:
      return extreme(in);
    case 0x046:
      return extreme_of_sum(in);
    case 0x016:
      return halves(in);
    case 0x019:
      return shift(in);
    case 0x183:
      return lower_half(in);
    case 0x187:
      return with_lower_half(in);
    case 0x03e:
      return unpacked(in);
    case 0x030:
    case 0x032:
    case 0x040:
      leave_out_unpicked(in);
      return false;
    case 0x031:
      if (moved_constant(in)) return true;
      if (in.reads[1].kind == Operand::Kind::kRegister && in.reads[1].file == File::kGeneral)
        leave_out_unpicked(in);
      return false;
    case 0x035:
      if (in.writes.size() == 1) return moved_constant(in);
      return in.writes[0].words == 1 ? sum_of_two(in) : sum_of_64(in);
    case 0x097:
      return sum_of_64(in);
    default:
      return false;
  }
}

// A sum that takes carries adds ~v where others add -v.
Value GraphBuilder::complement(const Value& v) {
  return Value::of(~uint32_t(0)) - v;
}

bool GraphBuilder::sum(const Instruction& in) {  // D P Q; A B C p q
  const bool extended = in.rest_high & kExtended;
  if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~(kNegateFirst | kNegateThird | kExtended)))
    return false;
  const bool negated[] = {(in.rest_high & kNegateFirst) != 0, (in.rest_low & kNegateSecond) != 0,
                          (in.rest_high & kNegateThird) != 0};
  if (in.swapped || (!extended && !(word(3).is(0) && word(4).is(0)))) return false;
  std::vector<Value> addends, whole;  // whole: as integers, which the sum is before carries are taken off
  uint64_t negations = 0;
  unsigned n = 0;
  Value total = word(3) + word(4);
  for (size_t k = 0; k < 3; k++) {
    const bool opposite = negated[k] && !extended;
    add_addend(word(k), opposite, &whole);
    if (negated[k] && extended) whole.back() = complement(word(k));
    addends.push_back(opposite ? Value() - word(k) : whole.back());
    negations |= uint64_t(opposite) << k;
    n += opposite || !addends[k].is(0);
    total = total + addends[k];
  }
  for (const Value& v : {word(3), word(4)}) whole.push_back(v), addends.push_back(v);
  results_ = {total, {}, {}};
  const bool first = in.writes[1].index != kZero, second = in.writes[2].index != kZero;
  const bool one = n <= 2 && std::popcount(negations) <= 1 && (word(3).is(0) || word(4).is(0));
  if (first && !second && one) {
    results_[1] = carry(whole);
    return true;
  }
  // The order of three addends decides which carry is the first, not how many there are.
  if (first) results_[1] = atom({kCarry, 1, negations}, addends);
  if (second)
    results_[2] = first && !negations ? carry(whole) - results_[1] : atom({kCarry, 2, negations}, addends);
  return true;
}

// As integers; the opposite of a word is its complement and one.
void GraphBuilder::add_addend(const Value& v, bool opposite, std::vector<Value>* to) {
  if (opposite) to->push_back(Value::of(1));
  to->push_back(opposite ? complement(v) : v);
}

Value GraphBuilder::shifted_right(const Value& v, uint32_t n) {
  if (n == 0) return v;
  if (n == 16 && around_.thorough) return upper_half(v);
  return n > 31 ? Value() : atom({kShiftedRight, n}, {v});
}

// The lower half of a + 2^16 b is that of a, and the upper one is the lower half of (a >> 16) + b.
Value GraphBuilder::upper_half(const Value& v) {
  constexpr uint32_t kUp = 1 << 16;
  if (uint32_t c = 0; v.constant(&c)) return Value::of(c >> 16);
  const auto [a, b] = v.halves();
  if (b.is(0)) {
    const auto& terms = a.terms();
    const bool one = terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() == 1;
    return one && is_half(terms[0].atoms[0]) ? Value() : atom({kShiftedRight, 16}, {a});
  }
  const Value upper = ((upper_half(a) + b) * kUp).halves().second;  // its own upper half does not count
  return upper - upper_half(upper) * kUp;
}

bool GraphBuilder::is_half(uint32_t a) const {
  return !values_.is_merge(a) && !values_.is_logic(a) && values_.label(a)[0] == kShiftedRight &&
         values_.label(a)[1] >= 16;
}

bool GraphBuilder::sum_of_two(const Instruction& in) {  // D P; A B p
  if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~kNegateFirst) || in.writes[1].index != kZero ||
      !word(2).is(0))
    return false;
  const Value a = in.rest_high ? Value() - word(0) : word(0);
  results_ = {in.rest_low ? a - word(1) : a + word(1), {}};
  return true;
}

bool GraphBuilder::shifted_sum(const Instruction& in) {  // D P; A B C p
  if (!word(3).is(0)) return false;
  constexpr uint64_t kHigh = 1 << 16;
  if (in.rest_high & kHigh) {  // of a first source that is extended by the third, here zero
    const uint64_t n = in.rest_high >> 11 & 31;
    if (in.rest_low || (in.rest_high & ~(kHigh | uint64_t(31) << 11)) || in.swapped || !word(2).is(0) ||
        in.writes[1].index != kZero)
      return false;
    results_ = {shifted_right(word(0), uint32_t(32 - n)) + word(1), {}};
    return true;
  }
  const uint64_t shift = in.rest_high >> 11 & 31;
  const bool negated[] = {(in.rest_high & kNegateFirst) != 0, (in.rest_low & kNegateSecond) != 0};
  const bool carries = in.writes[1].index != kZero;
  if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~(uint64_t(31) << 11 | kNegateFirst)) || in.swapped ||
      !word(2).is(0) || ((negated[0] || negated[1]) && carries))
    return false;
  const uint32_t factor = uint32_t(1) << shift;
  const Value shifted = word(0) * (negated[0] ? 0 - factor : factor);
  results_ = {negated[1] ? shifted - word(1) : shifted + word(1), {}};
  if (carries) results_[1] = carry({shifted, word(1)});
  return true;
}

bool GraphBuilder::product(const Instruction& in) {  // D P; A B C p
  // The third source is negated by the bit of the place where it stands.
  const uint64_t low = in.swapped ? kNegateSecond : 0, high = in.swapped ? 0 : kNegateThird;
  const bool negated = (in.rest_low & low) || (in.rest_high & high), extended = in.rest_high & kExtended;
  if ((in.rest_low & ~low) || (in.rest_high & ~(kSigned | kExtended | high))) return false;
  if (in.writes[1].index != kZero || (!extended && !word(3).is(0))) return false;
  Value v;
  if (!Value::product(word(0), word(1), &v)) return false;
  v = !negated ? v + word(2) : extended ? v + complement(word(2)) : v - word(2);
  results_ = {extended ? v + word(3) : v, {}};
  return true;
}

bool GraphBuilder::wide_product(const Instruction& in) {  // D2 P; A B C2 p; or D1, the upper word
  Value low;
  if (!only(in, kSigned) || in.writes[1].index != kZero || !word(3).is(0) ||
      !Value::product(word(0), word(1), &low))
    return false;
  const Value high = atom({kHighWord, in.rest_high & kSigned}, {word(0), word(1)}, 2) + word(2, 1) +
                     carry({low, word(2, 0)});
  if (in.writes[0].words == 2) results_ = {low + word(2, 0)};
  results_.insert(results_.end(), {high, {}});
  return true;
}

// a > b is b < a, and whether they are equal does not depend on which is first. An upper word is compared after the
// lower one: how is not said here, but for equality.
bool GraphBuilder::comparison(const Instruction& in) {  // P Q; A B p r
  enum : uint64_t { kLess = 1, kEqual, kLessOrEqual, kGreater, kNotEqual, kGreaterOrEqual };
  constexpr unsigned kHow = 12;  // bits of the upper half
  constexpr uint64_t kUpperWord = 1 << 8;
  const uint64_t how = in.rest_high >> kHow & 7;
  const auto n = std::ptrdiff_t(begins_[1]);  // words of each
  Label label = label_of(in);
  if (how == kEqual || how == kNotEqual) {
    if (n > 2) return false;
    if (n == 2) {
      const Value pairs[] = {atom({kPair}, {words_[0], words_[1]}), atom({kPair}, {words_[2], words_[3]})};
      words_.erase(words_.begin(), words_.begin() + 2);
      std::copy(std::begin(pairs), std::end(pairs), words_.begin());
    }
    std::optional<Value> decided;
    if (n == 1 && !(in.rest_high & kUpperWord)) decided = is_zero(word(0) - word(1));
    for (size_t k = 0; k < 2 && n == 1 && !(in.rest_high & kUpperWord) && !decided; k++)
      if (const int t = read_[now_][k]; t != kNoToken && word(1 - k).is(0))
        if (const auto found = kept_.find(find(t)); found != kept_.end()) decided = found->second.negation();
    if (n == 1 && !(in.rest_high & kUpperWord) && !decided)
      if (const auto kept = predicate_in(word(0) - word(1))) decided = kept->negation();
    if (decided && how == kNotEqual) decided = decided->negation();
    compared(in, label, 2, 2, decided);
    return true;
  }
  if ((how != kGreater && how != kGreaterOrEqual) || (in.rest_high & kUpperWord)) {
    compared(in, label, 2);
    return true;
  }
  std::swap_ranges(words_.begin(), words_.begin() + n, words_.begin() + n);
  label[3] ^= (how ^ (how == kGreater ? kLess : kLessOrEqual)) << kHow;
  compared(in, label, 2);
  return true;
}

// All three predicates hold: how predicates are moved, and joined by two. Of what always holds any function is known.
bool GraphBuilder::joined(const Instruction& in) {  // P Q; r p q
  constexpr uint64_t kSecondTable = uint64_t(0xff) << 16, kAll = 0x1000, kTable = 0x1f07;
  if ((in.rest_low & ~kSecondTable) != kOwnForm || (in.rest_high & ~kTable) || in.writes[1].index != kZero)
    return false;
  const Value all = both(both(word(0), word(1)), word(2));
  if (in.rest_high != kAll && !all.is(1)) return false;
  results_ = {in.rest_high & kAll ? all : Value(), {}};
  return true;
}

// The least or the greatest of two integers, whichever is first.
bool GraphBuilder::extreme(const Instruction& in) {  // D P Q; A B p
  for (size_t k = 1; k < in.writes.size(); k++)
    if (in.writes[k].index != kZero) return false;
  if (begins_[1] != 1 || begins_[2] != 2 || in.swapped) return false;
  const uint64_t is_signed = in.opcode->number == 0x017 ? 1 << 9 : 1 << 8;
  uint32_t least = 0;
  if (only(in, is_signed) && word(2).constant(&least))
    results_ = {least_or_greatest(word(0), word(1), in.rest_high != 0, least != 0)};
  else
    opaque(in, label_of(in), 2);
  return true;
}

Value GraphBuilder::least_or_greatest(const Value& a, const Value& b, bool is_signed, bool least) {
  return atom({kExtreme, is_signed, least}, {a, b}, 2);
}

bool GraphBuilder::extreme_of_sum(const Instruction& in) {  // D; A B C p
  constexpr uint64_t kIsSigned = 1 << 8;
  uint32_t least = 0;
  if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~kIsSigned) || in.swapped ||
      !word(3).constant(&least))
    return false;
  const Value sum = in.rest_low ? word(0) - word(1) : word(0) + word(1);
  results_ = {least_or_greatest(sum, word(2), in.rest_high != 0, least != 0)};
  return true;
}

// One of two integers, if a predicate says that it is the less or the greater one.
std::optional<Value> GraphBuilder::extreme_chosen(const Value& by, const Value& a, const Value& b) {
  constexpr uint64_t kLess = 1 << 12, kLessOrEqual = 3 << 12, kIsSigned = 1 << 9;
  for (const bool holds : {true, false}) {
    const Value asked = holds ? by : by.negation();
    const auto& terms = asked.terms();
    if (terms.size() != 1 || terms[0].factor != 1 || terms[0].atoms.size() != 1) continue;
    const uint32_t compared = terms[0].atoms[0];
    if (values_.is_merge(compared) || values_.is_logic(compared)) continue;
    const Label& label = values_.label(compared);
    const auto& operands = values_.operands(compared);
    if (label[0] != kOperation || label[1] != 0x00c || label[2] || label[4] || operands.size() != 3 ||
        !operands[2].is(1))
      continue;
    const uint64_t how = label[3] & ~kIsSigned;
    const bool in_order = operands[0] == a && operands[1] == b,
               other_order = operands[0] == b && operands[1] == a;
    if ((how == kLess || how == kLessOrEqual) && (in_order || other_order))
      return least_or_greatest(a, b, label[3] & kIsSigned, in_order == holds);
  }
  return std::nullopt;
}

bool GraphBuilder::logic(const Instruction& in) {  // D P; A B C p
  constexpr uint64_t kTable = 0xff00, kHow = 1 << 16;
  if (in.rest_low || in.swapped || (in.rest_high & ~(kTable | kHow))) return false;
  if (around_.thorough && half_of(in)) return true;
  if (around_.thorough) leave_out_masked(uint8_t(in.rest_high >> 8));
  const Value v = values_.add_logic(uint8_t((in.rest_high & kTable) >> 8), word(0), word(1), word(2));
  for (const Term& t : v.terms())
    for (const uint32_t a : t.atoms) remember(a, {kOperation}, {word(0), word(1), word(2)});
  results_ = {v, {}};
  if (in.writes[1].index == kZero) return true;
  const Label label = {kLogicPredicate, in.rest_high & ~kTable};
  const auto kept = label[1] == 0 && word(3).is(0) ? predicate_in(v) : std::nullopt;
  results_[1] = kept ? *kept : atom(label, {v, word(3)});
  if (!kept) booleans_.insert(results_[1].terms()[0].atoms[0]);
  return true;
}

// Predicates are kept as bits of a register, too, one of which is asked: is it 1 in a word that has no other bits?
std::optional<Value> GraphBuilder::predicate_in(const Value& v) {
  constexpr unsigned kMostAsked = 1024;  // values: a word of 32 predicates needs a few hundred
  if (!around_.thorough) return std::nullopt;
  const Bits bits = KnownBits(values_).of(v);
  if (!std::has_single_bit(~bits.known) || bits.value) return std::nullopt;
  unsigned left = kMostAsked;
  return bit_of(v, unsigned(std::countr_zero(~bits.known)), &left);
}

// A bit of a word that choices and bitwise functions made of constants.
std::optional<Value> GraphBuilder::bit_of(const Value& v, unsigned bit, unsigned* left) {
  Value::Terms terms = v.terms();
  erase_those(&terms, [&](const Term& t) { return t.factor << (31 - bit) == 0; });  // only above it
  if (terms.empty()) return Value();
  if (terms.size() > 1 || *left == 0) return std::nullopt;
  --*left;
  if (terms[0].atoms.empty()) return Value::of(terms[0].factor >> bit & 1);
  if (!std::has_single_bit(terms[0].factor) || terms[0].atoms.size() != 1) return std::nullopt;
  const uint32_t a = terms[0].atoms[0];
  bit -= unsigned(std::countr_zero(terms[0].factor));
  if (!values_.is_merge(a) && !values_.is_logic(a) && values_.label(a)[0] == kShiftedRight) {
    const uint64_t from = bit + values_.label(a)[1];
    return from > 31 ? Value() : bit_of(Value(values_.operands(a)[0]), unsigned(from), left);
  }
  const auto choice = [&](const Value& guard, const std::optional<Value>& x, const std::optional<Value>& y) {
    return x && y ? std::optional(both(guard, *x) + both(guard.negation(), *y)) : std::nullopt;
  };
  if (const auto found = selects_.find(a); found != selects_.end()) {
    const auto [guard, new_value, old_value] = found->second;
    const auto new_bit = bit_of(new_value, bit, left);
    return new_bit ? choice(guard, new_bit, bit_of(old_value, bit, left)) : std::nullopt;
  }
  if (!values_.is_logic(a)) return std::nullopt;
  const std::vector<Value> of = values_.operands(a);
  const uint8_t table = values_.table(a);
  const auto entry = [&](const auto& self, unsigned k, unsigned so_far) -> std::optional<Value> {
    if (k == of.size()) return Value::of(table >> so_far & 1);
    const auto one = self(self, k + 1, so_far << 1 | 1), zero = self(self, k + 1, so_far << 1);
    if (one && zero && *one == *zero) return one;
    const auto asked = bit_of(of[k], bit, left);
    if (!asked) return std::nullopt;
    return asked->is(1) ? one : asked->is(0) ? zero : choice(*asked, one, zero);
  };
  return entry(entry, 0, 0);
}

// The halves of the other two values that a bitwise function does not ask, because of a constant that is all bits of a half or
// none of them.
void GraphBuilder::leave_out_masked(uint8_t table) {
  for (unsigned m = 0; m < 3; m++) {
    uint32_t mask = 0;
    if (!word(m).constant(&mask)) continue;
    for (unsigned k = 0; k < 3; k++)
      for (const bool upper : {false, true}) {
        const uint32_t half = upper ? mask >> 16 : mask & 0xffff;
        if (k == m || (half != 0 && half != 0xffff)) continue;
        bool asked = false;
        for (unsigned entry = 0; entry < 8; entry++)
          asked = asked || ((entry >> (2 - m) & 1) == (half & 1) &&
                            (table >> entry & 1) != (table >> (entry ^ 4u >> k) & 1));
        if (!asked) words_[begins_[k]] = without_half(word(k), upper);
      }
  }
}

// A choice of halves is half of the choice.
Value GraphBuilder::without_half(const Value& v, bool upper, unsigned depth) {
  constexpr unsigned kMostDepth = 6;  // of choices in each other; work doubles with each
  const auto& terms = v.terms();
  if (terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() == 1 && depth < kMostDepth)
    if (const auto found = selects_.find(terms[0].atoms[0]); found != selects_.end()) {
      const auto [guard, new_value, old_value] = found->second;
      return select(guard, without_half(new_value, upper, depth + 1),
                    without_half(old_value, upper, depth + 1));
    }
  const Value above = upper_half(v) * (1 << 16);
  return upper ? v - above : above;
}

// A word and a constant that is all bits of one half.
bool GraphBuilder::half_of(const Instruction& in) {  // D P; A B C p
  constexpr uint32_t kWithoutThird = 0x55, kAnd = 0x40, kLower = 0xffff;
  if ((in.rest_high >> 8 & kWithoutThird) != kAnd || !word(2).is(0) || in.writes[1].index != kZero)
    return false;
  const bool lower = word(1).is(kLower);
  if (!lower && !word(1).is(~kLower)) return false;
  results_ = {without_half(word(0), lower), {}};
  return true;
}

// One of two words, as a sum: of each half it is one of two halves.
bool GraphBuilder::chosen(const Instruction& in) {  // D; A B p
  Value difference;
  if (!around_.thorough || !plain(in) || in.writes[0].words != 1) return false;
  if (const auto found = extreme_chosen(word(2), word(0), word(1))) {
    results_ = {*found};
    return true;
  }
  if (!Value::product(word(2), word(0) - word(1), &difference, booleans_)) return false;
  results_ = {word(1) + difference};
  return true;
}

// Sums, products and extremes of two halves may take one half of a register twice.
void GraphBuilder::leave_out_unpicked(const Instruction& in) {  // D; A B or, in this order only, A B C
  enum : uint64_t { kLowerTwice = 2, kUpperTwice };
  constexpr size_t kMostOperands = 3;
  if (!around_.thorough || in.swapped) return;
  const uint64_t picked[kMostOperands] = {in.rest_high >> 10 & 3, in.rest_low >> 60 & 3,
                                          in.rest_high >> 17 & 3};
  for (size_t k = 0; k < std::min(kMostOperands, in.reads.size()); k++)
    if (in.reads[k].kind == Operand::Kind::kRegister && in.reads[k].file == File::kGeneral &&
        picked[k] >= kLowerTwice)
      words_[begins_[k]] = without_half(word(k), picked[k] == kLowerTwice);
}

// Two small floats in a half of a word become a pair of larger ones.
bool GraphBuilder::unpacked(const Instruction& in) {                             // D; A B C
  constexpr uint64_t kOfUpperHalf = 1 << 16, kForms[] = {0x2081600, 0x2000600};  // E8 to bf16, E4M3 to f16
  if (!around_.thorough || in.rest_low || !word(0).is(0) || !word(2).is(0) || in.swapped ||
      std::ranges::count(kForms, in.rest_high & ~kOfUpperHalf) == 0)
    return false;
  Label label = label_of(in);
  label[3] &= ~kOfUpperHalf;
  words_[1] = in.rest_high & kOfUpperHalf ? upper_half(word(1)) : without_half(word(1), true);
  opaque(in, label);
  return true;
}

bool GraphBuilder::shift(const Instruction& in) {  // D; A B C
  constexpr uint64_t kLeft = 0x600, kRight = 0x11600;
  uint32_t n = 0;
  if (in.rest_low) return false;
  const bool of_word = word(1).constant(&n) && n < 32;
  if (of_word && in.rest_high == kLeft && word(2).is(0)) {
    results_ = {word(0) * (uint32_t(1) << n)};
  } else if (of_word && in.rest_high == kRight && word(0).is(0)) {
    results_ = {shifted_right(word(2), n)};
  } else {
    opaque(in, label_of_plain(in));
  }
  return true;
}

// A register that was kept in half a word of the stack. Its sign does not depend on its upper half.
bool GraphBuilder::lower_half(const Instruction& in) {  // D; A
  constexpr uint64_t kWithSign = 3;
  constexpr uint32_t kUp = 1 << 16;
  if (!around_.thorough) return false;
  const Value lower = without_half(word(0), true);
  const bool has_sign = in.rest_high == kWithSign;
  results_ = {has_sign ? lower + atom(label_of(in), {word(0) * kUp}) * kUp : lower};
  return true;
}

// A word of the stack whose lower half is stored anew.
bool GraphBuilder::with_lower_half(const Instruction&) {  // D; D A
  if (!around_.thorough) return false;
  results_ = {without_half(word(0), false) + without_half(word(1), true)};
  return true;
}

// Two of the four halves of 16 bits, as sums: where nobody reads a half, what was in it cancels out.
bool GraphBuilder::halves(const Instruction& in) {  // D; A B C: B says which bytes of A and C
  uint32_t bytes = 0;
  if (in.rest_low || in.rest_high || !word(1).constant(&bytes)) return false;
  const uint32_t low = bytes >> 1 & 7, high = bytes >> 9 & 7;  // which halves
  if (low > 3 || high > 3 || bytes != (0x1010 | low * 0x22 | high * 0x2200)) {
    if (!around_.thorough) return false;
    bool asked[4] = {};  // halves of A, of C
    for (unsigned k = 0; k < 4; k++) asked[bytes >> (4 * k + 1) & 3] = true;
    for (unsigned k = 0; k < 4; k++)
      if (!asked[k]) words_[begins_[k / 2 * 2]] = without_half(word(k / 2 * 2), k % 2);
    opaque(in, label_of_plain(in));
    return true;
  }
  constexpr uint32_t kUp = 1 << 16;
  const Value& lower_of = word(low < 2 ? 0 : 2);
  const Value& upper_of = word(high < 2 ? 0 : 2);
  const Value down = shifted_right(lower_of, 16);
  results_ = {(low % 2 ? down : lower_of - down * kUp) +
              (high % 2 ? shifted_right(upper_of, 16) * kUp : upper_of * kUp)};
  return true;
}

// -0 * 0 + constant: how constants come into registers by the unit of half precision.
bool GraphBuilder::moved_constant(const Instruction& in) {
  uint32_t c = 0;
  if (in.rest_low || in.rest_high != kNegateFirst || !in.swapped) return false;
  if (in.reads[0].index != kZero || in.reads[1].index != kZero ||
      in.reads[2].kind != Operand::Kind::kImmediate || !word(2).constant(&c))
    return false;
  for (const uint32_t half : {c & 0xffff, c >> 16})
    if ((half & 0x7c00) == 0x7c00 && (half & 0x3ff)) return false;  // no number: its bits may change
  results_ = {word(2)};
  return true;
}

bool GraphBuilder::sum_of_64(const Instruction& in) {
  if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~(kNegateFirst | kSigned))) return false;
  if (in.reads[0].kind != Operand::Kind::kRegister || in.reads[1].kind != Operand::Kind::kRegister)
    return false;
  for (const Operand& o : in.writes)
    if (o.words == 1 && o.index != kZero) return false;
  for (size_t k = 2; k < in.reads.size(); k++)  // a third source, carries
    for (uint16_t w = 0; w < in.reads[k].words; w++)
      if (!word(k, w).is(0)) return false;
  const bool negated[] = {(in.rest_high & kNegateFirst) != 0, in.rest_low != 0};
  std::vector<Value> lower;
  Value sum, upper;
  for (size_t k = 0; k < 2; k++) {
    add_addend(word(k, 0), negated[k], &lower);
    upper = upper + (negated[k] ? complement(word(k, 1)) : word(k, 1));
  }
  for (const Value& v : lower) sum = sum + v;
  results_ = {sum, upper + carry(lower)};
  while (results_.size() < results_of(in)) results_.push_back({});
  return true;
}

size_t GraphBuilder::results_of(const Instruction& in) {
  size_t n = 0;
  for (const Operand& o : in.writes) n += o.words;
  return n;
}

}  // namespace tessera::sass
