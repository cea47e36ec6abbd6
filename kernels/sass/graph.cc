#include "kernels/sass/graph.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace tessera::sass {
namespace {

// First words of labels.
enum Origin : uint64_t {
  kOperation,       // an instruction that is not taken apart
  kCarry,           // of a sum
  kHighWord,        // of a product of 32-bit factors plus a 64-bit value
  kShiftedRight,    // by a number of bits, zeros from the left
  kLogicPredicate,  // of what a bitwise function gives
  kPart,            // of what an instruction gives that has several results
  kPair,            // the words of 64 bits
  kSelect,          // guard, new, old
  kConstantMemory,
  kSpecialRegister,
  kBlockNumber,  // in the original's grid, by axis
  kGridSize,     // of the original
  kSliceOrigin,
  kVariableAddress,
  kOfTheVariant,  // what only the variant reads: equal to nothing
  kUndefined,     // a register before its first write
};

constexpr unsigned kRegisters = 256 + 256 + 8 + 8;
unsigned variable(File file, unsigned index) {
  constexpr unsigned kFirst[] = {0, 256, 512, 520};
  return kFirst[size_t(file)] + index;
}

constexpr int kNoToken = -1;

class Builder {
 public:
  Builder(const Program& program, const Surroundings& around, Values* values)
      : p_(program), around_(around), values_(*values) {}

  Graph run() {
    tokens();
    simplify();
    for (size_t t = 0; t < tokens_.size(); t++)
      if (tokens_[t].merge && find(int(t)) == int(t)) {
        tokens_[t].value = Value::atom(values_.add_merge(tokens_[t].block));
        tokens_[t].known = true;
      }
    out_.effects.resize(p_.blocks.size());
    known_.resize(p_.blocks.size());
    taken_.assign(p_.blocks.size(), Value::of(1));
    for (const uint32_t b : reverse_postorder()) evaluate_block(b);
    for (size_t t = 0; t < tokens_.size(); t++) {
      if (!tokens_[t].merge || find(int(t)) != int(t)) continue;
      std::vector<Value> operands;
      const uint32_t b = tokens_[t].block;
      for (size_t k = 0; k < tokens_[t].operands.size(); k++) {
        const size_t way = k - (b == 0);  // into the first block nothing leads from the beginning
        const Value v = value_of(tokens_[t].operands[k]);
        operands.push_back(b == 0 && k == 0 ? v : under_all(known_on(p_.blocks[b].previous[way], b), v));
      }
      values_.set_merge(tokens_[t].value.terms()[0].atoms[0], std::move(operands));
    }
    return std::move(out_);
  }

 private:
  // A register's content: written by an instruction, or merged at a block's entry.
  struct Token {
    bool merge = false, known = false;
    uint32_t block = 0;
    std::vector<int> operands;
    Value value;
  };
  struct BlockState {
    std::vector<int> first, last;  // by variable: at its entry and end, kNoToken: not asked for, not written
  };

  // --- registers become tokens

  void tokens() {
    undefined_ = new_token({});
    tokens_[size_t(undefined_)].value = atom({kUndefined}, {});
    tokens_[size_t(undefined_)].known = true;
    states_.assign(p_.blocks.size(),
                   {std::vector<int>(kRegisters, kNoToken), std::vector<int>(kRegisters, kNoToken)});
    written_.resize(p_.instructions.size());
    for (uint32_t b = 0; b < p_.blocks.size(); b++)
      for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++)
        for (const Operand& o : p_.instructions[i].writes)
          for (uint16_t w = 0; w < o.words; w++) {
            const int t = new_token({.block = b});
            written_[i].push_back(t);
            if (o.index != kZero && in_file(o, w)) states_[b].last[variable(o.file, o.index + w)] = t;
          }
    read_.resize(p_.instructions.size());
    overwritten_.resize(p_.instructions.size());
    guard_.resize(p_.instructions.size());
    for (uint32_t b = 0; b < p_.blocks.size(); b++) {
      std::vector<int> now(kRegisters, kNoToken);
      const auto content = [&](const Operand& o, uint16_t w) {
        if (o.kind != Operand::Kind::kRegister || o.index == kZero || !in_file(o, w)) return kNoToken;
        const unsigned v = variable(o.file, o.index + w);
        return now[v] != kNoToken ? now[v] : at_entry(b, v);
      };
      for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++) {
        const Instruction& in = p_.instructions[i];
        for (const Operand& o : in.reads)
          for (uint16_t w = 0; w < o.words; w++) read_[i].push_back(content(o, w));
        guard_[i] = content(in.guard, 0);
        for (const Operand& o : in.writes)
          for (uint16_t w = 0; w < o.words; w++)
            overwritten_[i].push_back(always(in.guard) ? kNoToken : content(o, w));
        size_t n = 0;
        for (const Operand& o : in.writes)
          for (uint16_t w = 0; w < o.words; w++, n++)
            if (o.index != kZero && in_file(o, w)) now[variable(o.file, o.index + w)] = written_[i][n];
      }
    }
  }
  static bool in_file(const Operand& o, uint16_t w) {
    const bool predicate = o.file == File::kPredicate || o.file == File::kUniformPredicate;
    return o.index + w < (predicate ? 7 : 255);
  }
  int new_token(Token t) {
    tokens_.push_back(std::move(t));
    alias_.push_back(int(tokens_.size() - 1));
    return int(tokens_.size() - 1);
  }
  int at_entry(uint32_t b, unsigned v) {
    if (states_[b].first[v] != kNoToken) return states_[b].first[v];
    const auto& previous = p_.blocks[b].previous;
    int t = undefined_;
    if (b == 0 ? !previous.empty() : previous.size() > 1) {
      t = new_token({.merge = true, .block = b});
      states_[b].first[v] = t;  // before its operands: a loop asks again
      std::vector<int> operands;
      if (b == 0) operands.push_back(undefined_);
      for (const uint32_t from : previous) operands.push_back(at_end(from, v));
      tokens_[size_t(t)].operands = std::move(operands);
    } else if (previous.size() == 1) {
      t = at_end(previous[0], v);
    }
    return states_[b].first[v] = t;
  }
  int at_end(uint32_t b, unsigned v) {
    return states_[b].last[v] != kNoToken ? states_[b].last[v] : at_entry(b, v);
  }

  int find(int t) {
    while (alias_[size_t(t)] != t) t = alias_[size_t(t)] = alias_[size_t(alias_[size_t(t)])];
    return t;
  }
  // Moves are what they move; a merge of one thing is that thing.
  void simplify() {
    for (uint32_t i = 0; i < p_.instructions.size(); i++) {
      const Instruction& in = p_.instructions[i];
      if (!always(in.guard) || !moves(in)) continue;
      if (written_[i].size() == 1 && read_[i].size() == 1 && read_[i][0] != kNoToken)
        alias_[size_t(written_[i][0])] = read_[i][0];
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t t = 0; t < tokens_.size(); t++) {
        if (!tokens_[t].merge || alias_[t] != int(t)) continue;
        int only = kNoToken;
        bool one = true;
        for (const int o : tokens_[t].operands) {
          const int f = find(o);
          if (f == int(t)) continue;
          if (only != kNoToken && only != f) one = false;
          only = f;
        }
        if (!one || only == kNoToken) continue;
        alias_[t] = only;
        changed = true;
      }
    }
  }

  std::vector<uint32_t> reverse_postorder() const {
    std::vector<uint32_t> order;
    std::vector<uint8_t> seen(p_.blocks.size());
    std::vector<std::pair<uint32_t, size_t>> path = {{0, 0}};
    seen[0] = 1;
    while (!path.empty()) {
      auto& [b, n] = path.back();
      if (n == p_.blocks[b].next.size()) {
        order.push_back(b);
        path.pop_back();
        continue;
      }
      const uint32_t to = p_.blocks[b].next[n++];
      if (!seen[to]) seen[to] = 1, path.push_back({to, 0});
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

  // --- tokens become values

  Value value_of(int token) {
    if (token == kNoToken) return {};
    const Token& t = tokens_[size_t(find(token))];
    if (!t.known) refuse("a value is used where it is not written on every way");
    return t.value;
  }
  void refuse(const std::string& why) {
    if (!out_.refusal.empty()) return;
    char at[24];
    snprintf(at, sizeof at, "0x%04x: ", p_.at[now_]);
    out_.refusal = at + why;
  }

  Value predicate(const Operand& o, int token) {
    const Value v = o.index == kZero ? Value::of(1) : value_of(token);
    return o.negated ? v.negation() : v;
  }
  Value constant_word(uint8_t bank, uint32_t offset) {
    if (offset % 4) return refuse("a constant that is not aligned"), Value();
    if (bank != 0) return fixed_word(bank, offset);
    const uint32_t grid_at = around_.code->sm < 100 ? 0xc : 0x370;
    const VariantParameters* variant = around_.parameters;
    if (offset >= grid_at && offset < grid_at + 12)
      return atom({variant ? kOfTheVariant : kGridSize, (offset - grid_at) / 4}, {});
    if (offset >= around_.param_base + around_.own_param_bytes) {
      if (!variant) return refuse("a constant behind the parameters"), Value();
      return added_parameter(*variant, offset - around_.param_base);
    }
    if (offset < around_.param_base && !same_in_slices(offset))
      return refuse("a constant that slices may see differently"), Value();
    return atom({kConstantMemory, offset}, {});
  }
  Value added_parameter(const VariantParameters& variant, uint32_t offset) {
    if (offset >= variant.origin_offset && offset < variant.origin_offset + 24) {
      const uint32_t word = (offset - variant.origin_offset) / 4;
      return atom({word < 3 ? kSliceOrigin : kGridSize, word % 3}, {});
    }
    if (offset >= variant.globals_offset && offset - variant.globals_offset < 8 * variant.variables.size())
      return address_word(variant.variables[(offset - variant.globals_offset) / 8], 0, offset % 8);
    return atom({kOfTheVariant, offset + 16}, {});
  }
  Value address_word(const std::string& variable, int64_t addend, uint32_t byte) {
    Label label = {kVariableAddress, uint64_t(addend), byte};
    label.insert(label.end(), variable.begin(), variable.end());
    return atom(label, {});
  }
  // Of a bank that the file fills in.
  Value fixed_word(uint8_t bank, uint32_t offset) {
    for (const image::ConstantBank& b : around_.code->banks) {
      if (b.number != bank || offset + 4 > b.bytes.size()) continue;
      for (const image::Relocation& r : b.relocations) {
        if (offset + 4 <= r.offset || offset >= r.offset + 8) continue;
        if (r.type != image::kAddress64 || r.offset % 4 || r.symbol.empty())
          return refuse("a constant that a loader fills in"), Value();
        return address_word(r.symbol, r.addend, uint32_t(offset - r.offset));
      }
      uint32_t word;
      memcpy(&word, b.bytes.data() + offset, sizeof word);
      return Value::of(word);
    }
    return refuse("a constant that the file does not have"), Value();
  }
  // In front of the parameters: the block's size, the stack, the descriptor of global memory.
  bool same_in_slices(uint32_t offset) const {
    struct Range {
      unsigned first_sm, last_sm;
      uint32_t begin, end;
    };
    constexpr Range kRanges[] = {{80, 90, 0x0, 0xc},      {80, 90, 0x28, 0x2c},     {80, 89, 0x118, 0x120},
                                 {90, 90, 0x208, 0x210},  {100, 121, 0x358, 0x360}, {100, 121, 0x360, 0x36c},
                                 {100, 121, 0x37c, 0x380}};
    const unsigned sm = around_.code->sm;
    return std::any_of(std::begin(kRanges), std::end(kRanges), [&](const Range& r) {
      return sm >= r.first_sm && sm <= r.last_sm && offset >= r.begin && offset < r.end;
    });
  }

  // All words of all operands, in their order; and where each operand begins.
  void read_operands(const Instruction& in, uint32_t i) {
    words_.clear();
    begins_.clear();
    size_t n = 0;
    for (const Operand& o : in.reads) {
      begins_.push_back(words_.size());
      for (uint16_t w = 0; w < o.words; w++, n++) {
        switch (o.kind) {
          case Operand::Kind::kImmediate:
            words_.push_back(Value::of(w + 1 == o.words ? o.value : 0));
            break;
          case Operand::Kind::kConstant:
            words_.push_back(in.kind == Kind::kConstant ? Value() : constant_word(o.bank, o.value + 4u * w));
            break;
          case Operand::Kind::kRegister: {
            const bool is_predicate = o.file == File::kPredicate || o.file == File::kUniformPredicate;
            words_.push_back(is_predicate ? predicate(o, read_[i][n]) : value_of(read_[i][n]));
            break;
          }
        }
      }
    }
  }
  const Value& word(size_t operand, size_t w = 0) const { return words_[begins_[operand] + w]; }

  // MOV of all four bytes. UMOV names no bytes; with two immediates they do not matter.
  static bool moves(const Instruction& in) {
    constexpr uint64_t kBytes = 0xf00, kWords = 1 << 16;
    if (in.opcode->meaning != 0x002 || in.rest_low != 0 || (in.rest_high & ~(kBytes | kWords))) return false;
    const uint64_t bytes = in.rest_high & kBytes;
    return in.reads.size() == 2 || bytes == (in.opcode->number == 0x002 ? kBytes : 0);
  }
  static bool moves_to_uniform(const Instruction& in) { return in.rest_low == 1 << 9 && in.rest_high == 0; }
  static bool plain(const Instruction& in) { return in.rest_low == 0 && in.rest_high == 0; }
  // Nothing but these bits of the upper half.
  static bool only(const Instruction& in, uint64_t allowed) {
    return in.rest_low == 0 && (in.rest_high & ~allowed) == 0;
  }

  Label label_of(const Instruction& in) const {
    return {kOperation, in.opcode->meaning, in.rest_low, in.rest_high, in.swapped};
  }
  Value atom(const Label& label, std::vector<Value> operands, unsigned commutative = 0) {
    const Kind kind = p_.instructions[now_].kind;
    const bool computes = label[0] != kSpecialRegister && label[0] != kUndefined &&
                          (kind == Kind::kPure || kind == Kind::kConstant || kind == Kind::kSpecial);
    const bool uniform = computes && std::all_of(operands.begin(), operands.end(),
                                                 [&](const Value& v) { return is_uniform(v); });
    const uint32_t a = values_.add_atom(label, std::move(operands), commutative);
    if (uniform) uniform_.insert(a);
    out_.atoms.push_back({a, now_});
    return Value::atom(a);
  }
  // The same in all threads of a block, as constants and its number are.
  bool is_uniform(const Value& v) const {
    for (const Term& t : v.terms())
      for (const uint32_t a : t.atoms)
        if (!uniform_.contains(a)) return false;
    return true;
  }
  // What is not taken apart: each result is a part of what comes out.
  void opaque(const Instruction& in, const Label& label, unsigned commutative = 0) {
    const size_t n = results_of(in);
    if (n == 0) return;
    const Value all = atom(label, words_, commutative);
    results_ = {all};
    for (uint64_t part = 1; part < n; part++) results_.push_back(atom({kPart, part}, {all}));
  }

  // Carries of a sum. Zeros have no part in them; those of two addends do not depend on which is first.
  Value carry(std::vector<Value> addends, uint64_t which, uint64_t negations, std::vector<Value> carries) {
    for (size_t k = addends.size(); k-- > 0;) {
      if (!addends[k].is(0) || negations >> k & 1) continue;
      addends.erase(addends.begin() + std::ptrdiff_t(k));
      negations = (negations & ((1u << k) - 1)) | negations >> (k + 1) << k;
    }
    const uint64_t n = addends.size();
    if (n == 2 && negations == 1) std::swap(addends[0], addends[1]), negations = 2;
    const unsigned commutative = n == 2 && !negations ? 2 : 0;
    addends.insert(addends.end(), carries.begin(), carries.end());
    return atom({kCarry, which, negations, n}, std::move(addends), commutative);
  }

  static constexpr uint64_t kNegateFirst = 1u << 8, kSigned = 1u << 9, kExtended = 1u << 10,
                            kNegateThird = 1u << 11;
  static constexpr uint64_t kBoth = 3;         // carries of a sum of three
  static constexpr uint64_t kOwnForm = 0x800;  // of the lower half: what stands at bits 9 to 11
  static constexpr uint64_t kNegateSecond = uint64_t(1) << 63;  // of the lower half

  bool too_long() const {
    constexpr size_t kMostTerms = 64;  // of sums; work grows with it
    return std::any_of(results_.begin(), results_.end(),
                       [](const Value& v) { return v.terms().size() > kMostTerms; });
  }
  // False: not in a form that is taken apart.
  bool integer(const Instruction& in) {
    switch (in.opcode->meaning) {
      case 0x002:
        if (!moves(in)) return false;
        results_ = words_;
        return in.writes[0].words == words_.size();
      case 0x005:  // the zero
        if ((in.rest_high & ~uint64_t(1 << 16)) != 0xff00 || in.rest_low != kOwnForm) return false;
        for (uint16_t w = 0; w < in.writes[0].words; w++) results_.push_back({});
        return true;
      case 0x0ca:
        if (!moves_to_uniform(in) || !is_uniform(word(0))) return false;
        results_ = {word(0), {}};
        return in.writes[1].index == kZero;
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
      case 0x00c:
        return comparison(in);
      case 0x025:
      case 0x027:
        return wide_product(in);
      case 0x012:
        return logic(in);
      case 0x017:
      case 0x048:
        return extreme(in);
      case 0x016:
        return halves(in);
      case 0x019:
        return shift(in);
      case 0x031:
        return moved_constant(in);
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
  static Value complement(const Value& v) { return Value::of(~uint32_t(0)) - v; }
  bool sum(const Instruction& in) {  // D P Q; A B C p q
    const bool extended = in.rest_high & kExtended;
    if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~(kNegateFirst | kNegateThird | kExtended)))
      return false;
    const bool negated[] = {(in.rest_high & kNegateFirst) != 0, (in.rest_low & kNegateSecond) != 0,
                            (in.rest_high & kNegateThird) != 0};
    if (in.swapped || (!extended && !(word(3).is(0) && word(4).is(0)))) return false;
    std::vector<Value> addends;
    uint64_t negations = 0;
    Value total = word(3) + word(4);
    for (size_t k = 0; k < 3; k++) {
      Value v = word(k);
      if (negated[k]) v = extended ? complement(v) : Value() - v;
      if (negated[k] && !extended) negations |= uint64_t(1) << k;  // its carry is that of ~v and one
      total = total + v;
      addends.push_back(std::move(v));
    }
    results_ = {total};
    for (uint64_t k = 1; k <= 2; k++)
      results_.push_back(in.writes[k].index == kZero ? Value()
                                                     : carry(addends, k, negations, {word(3), word(4)}));
    // Which carry is the first depends on the order of three addends. How many there are does not.
    if (in.writes[1].index != kZero && in.writes[2].index != kZero && !negations)
      results_[2] =
          atom({kCarry, kBoth}, {addends[0], addends[1], addends[2], word(3) + word(4)}, 3) - results_[1];
    return true;
  }
  Value shifted_right(const Value& v, uint32_t n) {
    if (n == 0) return v;
    return n > 31 ? Value() : atom({kShiftedRight, n}, {v});
  }
  bool sum_of_two(const Instruction& in) {  // D P; A B p
    if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~kNegateFirst) || in.writes[1].index != kZero ||
        !word(2).is(0))
      return false;
    const Value a = in.rest_high ? Value() - word(0) : word(0);
    results_ = {in.rest_low ? a - word(1) : a + word(1), {}};
    return true;
  }
  bool shifted_sum(const Instruction& in) {  // D P; A B C p
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
    if ((in.rest_low & ~kNegateSecond) || (in.rest_high & ~(uint64_t(31) << 11 | kNegateFirst)) ||
        in.swapped || !word(2).is(0) || ((negated[0] || negated[1]) && carries))
      return false;
    const uint32_t factor = uint32_t(1) << shift;
    const Value shifted = word(0) * (negated[0] ? 0 - factor : factor);
    results_ = {negated[1] ? shifted - word(1) : shifted + word(1), {}};
    if (carries) results_[1] = carry({shifted, word(1)}, 1, 0, {Value(), Value()});
    return true;
  }
  bool product(const Instruction& in) {  // D P; A B C p
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
  bool wide_product(const Instruction& in) {  // D2 P; A B C2 p; or D1, the upper word
    Value low;
    if (!only(in, kSigned) || in.writes[1].index != kZero || !word(3).is(0) ||
        !Value::product(word(0), word(1), &low))
      return false;
    const Value high =
        atom({kHighWord, in.rest_high & kSigned}, {word(0), word(1), word(2, 0), word(2, 1)}, 2);
    if (in.writes[0].words == 2) results_ = {low + word(2, 0)};
    results_.insert(results_.end(), {high, {}});
    return true;
  }
  // a > b is b < a, and whether they are equal does not depend on which is first. An upper word is compared after the
  // lower one: how is not said here, but for equality.
  bool comparison(const Instruction& in) {  // P Q; A B p r
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
      opaque(in, label, 2);
      return true;
    }
    if ((how != kGreater && how != kGreaterOrEqual) || (in.rest_high & kUpperWord)) return false;
    std::swap_ranges(words_.begin(), words_.begin() + n, words_.begin() + n);
    label[3] ^= (how ^ (how == kGreater ? kLess : kLessOrEqual)) << kHow;
    opaque(in, label);
    return true;
  }
  // The least or the greatest of two integers, whichever is first.
  bool extreme(const Instruction& in) {  // D P Q; A B p
    for (size_t k = 1; k < in.writes.size(); k++)
      if (in.writes[k].index != kZero) return false;
    if (begins_[1] != 1 || begins_[2] != 2 || in.swapped) return false;
    opaque(in, label_of(in), 2);
    return true;
  }
  bool logic(const Instruction& in) {  // D P; A B C p
    constexpr uint64_t kTable = 0xff00, kHow = 1 << 16;
    if (in.rest_low || in.swapped || (in.rest_high & ~(kTable | kHow))) return false;
    const uint32_t a = values_.add_logic(uint8_t((in.rest_high & kTable) >> 8), word(0), word(1), word(2));
    out_.atoms.push_back({a, now_});
    const Value v = Value::atom(a);
    results_ = {v, {}};
    if (in.writes[1].index != kZero)
      results_[1] = atom({kLogicPredicate, in.rest_high & ~kTable}, {v, word(3)});
    return true;
  }
  bool shift(const Instruction& in) {  // by a constant, of 32 bits
    constexpr uint64_t kLeft = 0x600, kRight = 0x11600;
    uint32_t n = 0;
    if (in.rest_low || !word(1).constant(&n) || n > 31) return false;
    if (in.rest_high == kLeft && word(2).is(0))
      results_ = {word(0) * (uint32_t(1) << n)};
    else if (in.rest_high == kRight && word(0).is(0))
      results_ = {shifted_right(word(2), n)};
    else
      return false;
    return true;
  }
  // Two of the four halves of 16 bits, as sums: where nobody reads a half, what was in it cancels out.
  bool halves(const Instruction& in) {  // D; A B C: B says which bytes of A and C
    uint32_t bytes = 0;
    if (in.rest_low || in.rest_high || !word(1).constant(&bytes)) return false;
    const uint32_t low = bytes >> 1 & 7, high = bytes >> 9 & 7;  // which halves
    if (low > 3 || high > 3 || bytes != (0x1010 | low * 0x22 | high * 0x2200)) return false;
    constexpr uint32_t kUp = 1 << 16;
    const Value& lower_of = word(low < 2 ? 0 : 2);
    const Value& upper_of = word(high < 2 ? 0 : 2);
    const Value down = shifted_right(lower_of, 16);
    results_ = {(low % 2 ? down : lower_of - down * kUp) +
                (high % 2 ? shifted_right(upper_of, 16) * kUp : upper_of * kUp)};
    return true;
  }
  // -0 * 0 + constant: how constants come into registers by the unit of half precision.
  bool moved_constant(const Instruction& in) {
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
  bool sum_of_64(const Instruction& in) {
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
    Value upper;
    for (size_t k = 0; k < 2; k++) {
      lower.push_back(negated[k] ? Value() - word(k, 0) : word(k, 0));
      upper = upper + (negated[k] ? complement(word(k, 1)) : word(k, 1));
    }
    results_ = {lower[0] + lower[1]};
    results_.push_back(upper + carry(lower, 1, negated[0] + 2u * negated[1], {Value(), Value()}));
    while (results_.size() < results_of(in)) results_.push_back({});
    return true;
  }
  static size_t results_of(const Instruction& in) {
    size_t n = 0;
    for (const Operand& o : in.writes) n += o.words;
    return n;
  }

  void special(const Instruction& in) {
    const uint64_t which = in.rest_high >> 8;
    constexpr uint64_t kBlockX = 0x25;
    // Lane, thread, masks of lanes, place in the cluster: the same in a slice and in the whole.
    constexpr uint64_t kSame[] = {0x00, 0x21, 0x22, 0x23, 0x38, 0x39, 0x3a, 0x3b, 0x3c, 0x88};
    results_.push_back({});
    if (in.rest_low != kOwnForm || (in.rest_high & 0xff))
      return refuse("a special register in an unknown form");
    if (std::find(std::begin(kSame), std::end(kSame), which) != std::end(kSame)) {
      results_[0] = atom({kSpecialRegister, which}, {});
      return;
    }
    if (which < kBlockX || which > kBlockX + 2)
      return refuse("a special register that slices may see differently");
    const Value number = atom({kBlockNumber, which - kBlockX}, {});
    results_[0] = around_.parameters ? number - atom({kSliceOrigin, which - kBlockX}, {}) : number;
  }

  void constant_memory(const Instruction& in) {
    const Operand& o = in.reads[0];
    const bool whole =
        (in.rest_high >> 9 & 7) >= 4 && in.rest_low == 0 && (in.rest_high & ~uint64_t(7 << 9)) == 0;
    const bool indexed = in.reads.size() > 1 && !words_.back().is(0);
    if (whole && !indexed) {
      for (uint16_t w = 0; w < o.words; w++) results_.push_back(constant_word(o.bank, o.value + 4u * w));
      return;
    }
    // Part of a word, or wherever an index points: of the parameters only where the variant has the same.
    const uint32_t end = around_.param_base + around_.own_param_bytes;
    const uint64_t code = in.rest_high >> 9 & 7;
    const uint32_t bytes = code < 2 ? 1 : code < 4 ? 2 : 4u * o.words;
    if (o.bank != 0 || indexed || o.value < around_.param_base || o.value + bytes > end)
      return refuse("a constant that is read in a way that is not followed");
    Label l = label_of(in);
    l.push_back(o.value);
    opaque(in, l);
  }

  // Memories that change apart from each other. What is neither a load nor a plain store may change or order all.
  enum Memory : size_t { kGlobal, kShared, kLocal, kAny };
  static Memory memory_of(const Instruction& in) {
    switch (in.opcode->number) {
      case 0x181:  // LDG STG RED ATOMG
      case 0x186:
      case 0x18e:
      case 0x1a3:
      case 0x1a8:
      case 0x1a9:
        return kGlobal;
      case 0x184:  // LDS LDSM STS STSM ATOMS
      case 0x03b:
      case 0x188:
      case 0x044:
      case 0x18c:
        return kShared;
      case 0x183:  // LDL STL
      case 0x187:
        return kLocal;
      default:
        return kAny;
    }
  }

  void evaluate_block(uint32_t b) {
    uint64_t changes[kAny + 1] = {};  // how often each may have changed since the block began
    uint32_t runs[kAny + 1] = {};     // stores between loads
    uint64_t meetings = 0;            // where threads of the warp left or came together
    uint64_t places = 0;              // of effects, but for marks of convergence
    size_t met_at = 0;                // behind the last meeting
    auto& effects = out_.effects[b];
    if (const auto& previous = p_.blocks[b].previous; b != 0 && previous.size() == 1)
      known_[b] = known_on(previous[0], b);
    for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++) {
      const Instruction& in = p_.instructions[i];
      now_ = i;
      results_.clear();
      read_operands(in, i);
      const Value guard = predicate(in.guard, guard_[i]);
      for (Value& v : words_) v = under(guard, under_all(known_[b], v));
      Label label = label_of(in);
      const Memory memory = memory_of(in);
      const bool marks = in.opcode->number == 0x145;  // BSSY: who is there now meets later
      bool effect = false;
      switch (in.kind) {
        case Kind::kNothing:
          break;
        case Kind::kPure:
          if (!integer(in) || too_long()) {
            results_.clear();
            opaque(in, label);
          }
          break;
        case Kind::kSpecial:
          special(in);
          break;
        case Kind::kConstant:
          constant_memory(in);
          break;
        case Kind::kWarp:  // the threads that execute it: those that are in the block then
          label.insert(label.end(), {b, meetings});
          words_.push_back(guard);
          if (!integer(in)) opaque(in, label);
          break;
        case Kind::kLoad:
          if (!read_only(in)) {
            label.insert(label.end(), {b, changes[memory], changes[kAny]});
            runs[memory]++;
          }
          opaque(in, label);
          break;
        case Kind::kReturn:
          if (!word(0).is(p_.return_at[p_.call[i]])) refuse("a return to where its call does not go on");
          words_.erase(words_.begin(), words_.begin() + std::ptrdiff_t(begins_[1]));
          effect = true;
          break;
        case Kind::kExit:
        case Kind::kSync:
          meetings += !marks;
          [[fallthrough]];
        case Kind::kMemory:
        case Kind::kCall:
          effect = true;
          break;
        case Kind::kBranch:
          effect = !just_goes_on(in);
          // It does not matter in which place a predicate is asked for.
          words_.push_back(guard);
          std::erase_if(words_, [](const Value& v) { return v.is(1); });
          if (words_.size() == 1) taken_[b] = words_[0];
          break;
      }
      if (effect) {
        if (in.kind == Kind::kMemory) changes[memory]++;
        if (marks)
          label.push_back(
              p_.block_at(p_.call[i], int64_t(p_.at[i]) + int64_t(kInstructionBytes) + in.target));
        Label own = label;
        own.insert(own.end(), {b, places});
        opaque(in, own);
        Effect made{i, std::move(label), words_};
        if (in.kind != Kind::kBranch) made.operands.push_back(guard);
        describe_store(in, &made);
        keep_stored_bytes(in, &made);
        made.run = runs[memory];
        // It does not matter what else happens between two meetings when a mark is made.
        effects.insert(marks ? effects.begin() + std::ptrdiff_t(met_at) : effects.end(), std::move(made));
        places += !marks;
        if (marks)
          met_at++;
        else if (in.kind == Kind::kSync || in.kind == Kind::kExit)
          met_at = effects.size();
      }
      keep_results(i, guard);
    }
  }
  // What a value is where a guard holds, if it was chosen by that guard or by its opposite.
  Value under(const Value& guard, const Value& v) const {
    if (guard.is(1) || v.terms().size() != 1 || v.terms()[0].factor != 1 || v.terms()[0].atoms.size() != 1)
      return v;
    const auto found = selects_.find(v.terms()[0].atoms[0]);
    if (found == selects_.end()) return v;
    const auto& [by, new_value, old_value] = found->second;
    if (by == guard) return under(guard, new_value);
    return by == guard.negation() ? under(guard, old_value) : v;
  }
  // What holds on the way from one block to another: what its branch says, and what led to it.
  std::vector<Value> known_on(uint32_t from, uint32_t to) const {
    std::vector<Value> out = known_[from];
    const Block& block = p_.blocks[from];
    const Value& taken = taken_[from];
    if (block.next.size() != 2 || block.next[0] == block.next[1] || taken.is(1)) return out;
    if (to == block.next[0])
      out.push_back(taken);
    else
      out.push_back(taken.negation());
    return out;
  }
  Value under_all(const std::vector<Value>& guards, Value v) const {
    for (const Value& guard : guards) v = under(guard, v);
    return v;
  }
  // New where the guard holds, old elsewhere. One of the two guards is the negation of the other.
  Value select(Value guard, Value new_value, Value old_value) {
    const Value opposite = guard.negation();
    new_value = under(guard, new_value);
    old_value = under(opposite, old_value);
    if (new_value == old_value) return new_value;
    if (guard.terms().size() > opposite.terms().size()) {
      guard = opposite;
      std::swap(new_value, old_value);
    }
    const Value v = atom({kSelect}, {guard, new_value, old_value});
    selects_.emplace(v.terms()[0].atoms[0], std::array{guard, new_value, old_value});
    return v;
  }
  static void describe_store(const Instruction& in, Effect* effect) {
    const bool weak = (in.rest_high >> 13 & 15) == 0;
    if (in.opcode->number != 0x188 && !(in.opcode->number == 0x186 && weak)) return;
    effect->is_store = true;
    for (size_t k = 0; k + 1 < in.reads.size(); k++)
      effect->base_words += in.reads[k].words;  // last: the data
    effect->offset = int32_t(int64_t(in.low) >> 40);
    effect->bytes = stored_bytes(in);
  }
  static uint32_t stored_bytes(const Instruction& in) {
    const uint64_t code = in.high >> 9 & 7;
    return code < 2 ? 1 : code < 4 ? 2 : 4u << (code - 4);
  }
  // What is in the bytes of a register that are not stored does not count.
  static void keep_stored_bytes(const Instruction& in, Effect* effect) {
    const uint16_t n = in.opcode->number;
    if (n != 0x186 && n != 0x187 && n != 0x188) return;
    const uint32_t bytes = stored_bytes(in);
    Value& data = effect->operands[effect->operands.size() - 2];  // in front of the guard
    if (bytes < 4) data = data * (uint32_t(1) << (32 - 8 * bytes));
  }
  static bool read_only(const Instruction& in) {
    return in.opcode->number == 0x181 && (in.rest_high >> 13 & 15) == 4;
  }
  void keep_results(uint32_t i, const Value& guard) {
    results_.resize(written_[i].size());
    for (size_t w = 0; w < written_[i].size(); w++) {
      Value v = results_[w];
      if (guard.is(0))
        v = value_of(overwritten_[i][w]);
      else if (!guard.is(1))
        v = select(guard, std::move(v), value_of(overwritten_[i][w]));
      Token& t = tokens_[size_t(written_[i][w])];
      if (alias_[size_t(written_[i][w])] == written_[i][w]) t.value = std::move(v), t.known = true;
    }
  }

  const Program& p_;
  const Surroundings& around_;
  Values& values_;
  Graph out_;
  uint32_t now_ = 0;
  int undefined_ = kNoToken;
  std::vector<Token> tokens_;
  std::vector<int> alias_;
  std::vector<BlockState> states_;
  std::vector<std::vector<int>> written_, read_, overwritten_;  // by instruction
  std::vector<int> guard_;
  std::vector<std::vector<Value>> known_;  // by block: predicates that hold in it, as branches to it say
  std::vector<Value> taken_;               // by block: what its branch asks for; 1: more than one predicate
  std::vector<Value> words_, results_;     // of the instruction at hand
  std::vector<size_t> begins_;
  std::unordered_map<uint32_t, std::array<Value, 3>>
      selects_;                           // by atom: guard, value under it, value elsewhere
  std::unordered_set<uint32_t> uniform_;  // atoms
};

}  // namespace

Graph build_graph(const Program& program, const Surroundings& surroundings, Values* values) {
  return Builder(program, surroundings, values).run();
}

}  // namespace tessera::sass
