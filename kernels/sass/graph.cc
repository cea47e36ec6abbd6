#include "kernels/sass/graph.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>

#include "kernels/sass/builder.h"

namespace tessera::sass {

Graph GraphBuilder::run() {
  constexpr unsigned kMostRounds = 4;  // each knows more loops that leave a register as it was
  tokens();
  simplify();
  if (around_.thorough) find_barriers();
  for (unsigned round = 1;; round++) {
    evaluate();
    if (!around_.thorough || round == kMostRounds || !leave_out_unchanged()) break;
  }
  for (const auto& merges : merges_in_)
    for (const int t : merges) values_.set_merge(tokens_[size_t(t)].value.terms()[0].atoms[0], merged(t));
  find_loops();
  return std::move(out_);
}

void GraphBuilder::evaluate() {
  const size_t n = p_.blocks.size();
  Changes unknown;
  unknown.fill({kNoBlock, 0, 0});
  out_ = {};
  out_.effects.resize(n);
  known_.assign(n, {});
  taken_.assign(n, Value::of(1));
  changed_.assign(n, unknown);
  evaluated_.assign(n, false);
  together_.assign(n, false);
  stays_.assign(n, false);
  merges_in_.assign(n, {});
  for (size_t t = 0; t < tokens_.size(); t++) {
    if (int(t) == undefined_) continue;
    tokens_[t].known = tokens_[t].merge && find(int(t)) == int(t);
    if (!tokens_[t].known) continue;
    const uint32_t merge = values_.add_merge(tokens_[t].block);
    if (tokens_[t].predicate) booleans_.insert(merge);
    tokens_[t].value = Value::atom(merge);
    merges_in_[tokens_[t].block].push_back(int(t));
  }
  for (const uint32_t b : reverse_postorder()) {
    if (around_.thorough) leave_out_merges(b);
    evaluate_block(b);
  }
  with_exponent_.clear();
}

// The values that a merge has, by way.
std::vector<Value> GraphBuilder::merged(int t) {
  std::vector<Value> out;
  const Token& merge = tokens_[size_t(t)];
  const uint32_t b = merge.block;
  for (size_t k = 0; k < merge.operands.size(); k++) {
    const size_t way = k - (b == 0);  // into the first block nothing leads from the beginning
    const Value v = value_of(merge.operands[k]);
    out.push_back(b == 0 && k == 0 ? v : under_all(known_on(p_.blocks[b].previous[way], b), v));
  }
  return out;
}

// No merge is a value that each way has by itself, unless a way goes round.
void GraphBuilder::leave_out_merges(uint32_t b) {
  const auto& previous = p_.blocks[b].previous;
  if (b == 0 || !std::ranges::all_of(previous, [&](uint32_t from) { return evaluated_[from]; })) return;
  std::erase_if(merges_in_[b], [&](int t) {
    const std::vector<Value> all = merged(t);
    if (std::ranges::any_of(all, [&](const Value& v) { return !(v == all[0]); })) return false;
    tokens_[size_t(t)].value = all[0];
    return true;
  });
}

// A loop that gives a register what it had leaves it as it was before. True if there is one more such loop.
bool GraphBuilder::leave_out_unchanged() {
  std::vector<std::pair<int, int>> found;
  const std::vector<uint32_t> order = reverse_postorder();
  std::vector<size_t> place(p_.blocks.size());
  for (size_t k = 0; k < order.size(); k++) place[order[k]] = k;
  for (uint32_t b = 1; b < p_.blocks.size(); b++) {
    for (const int t : merges_in_[b]) {
      const std::vector<Value> all = merged(t);
      const auto& previous = p_.blocks[b].previous;
      const auto entered =
          std::ranges::find_if(previous, [&](uint32_t from) { return place[from] < place[b]; });
      if (entered == previous.end()) continue;
      const auto first = size_t(entered - previous.begin());
      const Value &own = tokens_[size_t(t)].value, &before = all[first];
      if (std::ranges::all_of(all, [&](const Value& v) { return v == own || v == before; }) &&
          !(before == own))
        found.emplace_back(t, find(tokens_[size_t(t)].operands[first]));
    }
  }
  for (const auto& [t, before] : found)
    if (find(before) != t) alias_[size_t(t)] = find(before);
  return !found.empty();
}

std::vector<uint32_t> GraphBuilder::reverse_postorder() const {
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

Value GraphBuilder::value_of(int token) {
  if (token == kNoToken) return {};
  const Token& t = tokens_[size_t(find(token))];
  if (!t.known) refuse("a value is used where it is not written on every way");
  return t.value;
}

void GraphBuilder::refuse(const std::string& why) {
  if (!out_.refusal.empty()) return;
  char at[24];
  snprintf(at, sizeof at, "0x%04x: ", p_.at[now_]);
  out_.refusal = at + why;
}

Value GraphBuilder::predicate(const Operand& o, int token) {
  const Value v = o.index == kZero ? Value::of(1) : value_of(token);
  return o.negated ? v.negation() : v;
}

Value GraphBuilder::constant_word(uint8_t bank, uint32_t offset) {
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

Value GraphBuilder::added_parameter(const VariantParameters& variant, uint32_t offset) {
  if (offset >= variant.origin_offset && offset < variant.origin_offset + 24) {
    const uint32_t word = (offset - variant.origin_offset) / 4;
    return atom({word < 3 ? kSliceOrigin : kGridSize, word % 3}, {});
  }
  if (offset >= variant.globals_offset && offset - variant.globals_offset < 8 * variant.variables.size())
    return address_word(variant.variables[(offset - variant.globals_offset) / 8], 0, offset % 8);
  return atom({kOfTheVariant, offset + 16}, {});
}

Value GraphBuilder::address_word(const std::string& variable, int64_t addend, uint32_t byte) {
  Label label = {kVariableAddress, uint64_t(addend), byte};
  label.insert(label.end(), variable.begin(), variable.end());
  return atom(label, {});
}

// The value of a word in a bank that the file fills in.
Value GraphBuilder::fixed_word(uint8_t bank, uint32_t offset) {
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
bool GraphBuilder::same_in_slices(uint32_t offset) const {
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
void GraphBuilder::read_operands(const Instruction& in, uint32_t i) {
  words_.clear();
  begins_.clear();
  size_t n = 0;
  for (const Operand& o : in.reads) {
    begins_.push_back(words_.size());
    for (uint16_t w = 0; w < o.words; w++, n++) {
      switch (o.kind) {
        case Operand::Kind::kImmediate:
          words_.push_back(immediate_word(in, o, w));
          break;
        case Operand::Kind::kConstant:
          words_.push_back(in.kind == Kind::kConstant ? Value() : constant_word(o.bank, o.value + 4u * w));
          break;
        case Operand::Kind::kRegister: {
          words_.push_back(o.is_predicate() ? predicate(o, read_[i][n]) : value_of(read_[i][n]));
          break;
        }
      }
    }
  }
}

// An instruction holds 32 of 64 bits: the upper ones of a double, else the lower ones. What is above those is not said here,
// so a wide immediate is equal to itself in the same form of an instruction, and never to a register.
Value GraphBuilder::immediate_word(const Instruction& in, const Operand& o, uint16_t w) {
  constexpr uint16_t kFirstOfDoubles = 0x028, kLastOfDoubles = 0x02b;
  if (o.words == 1) return Value::of(o.value);
  if (in.opcode->number >= kFirstOfDoubles && in.opcode->number <= kLastOfDoubles)
    return Value::of(w == 1 ? o.value : 0);
  return w == 0 ? Value::of(o.value)
                : atom({kUpperWord, w, o.value, in.opcode->number, in.rest_low, in.rest_high}, {});
}

const Value& GraphBuilder::word(size_t operand, size_t w) const {
  return words_[begins_[operand] + w];
}

Value GraphBuilder::atom(const Label& label, std::vector<Value> operands, unsigned commutative) {
  const std::vector<Value> of = operands;
  const uint32_t a = values_.add_atom(label, std::move(operands), commutative);
  if (label[0] != kUndefined) remember(a, label, of);
  return Value::atom(a);
}

void GraphBuilder::remember(uint32_t a, const Label& label, const std::vector<Value>& operands) {
  constexpr uint64_t kPlaceInCluster = 0x88;  // of the block
  const bool same_in_block = label[0] != kSpecialRegister || label[1] == kPlaceInCluster;
  const Kind kind = p_.instructions[now_].kind;
  const bool computes = kind == Kind::kPure || kind == Kind::kConstant || kind == Kind::kSpecial ||
                        label[0] == kSelect || label[0] == kBothHold;
  const auto all = [&](const AtomSet& atoms) {
    return computes &&
           std::all_of(operands.begin(), operands.end(), [&](const Value& v) { return all_in(atoms, v); });
  };
  if (kind == Kind::kPure) pure_.insert(a);
  if (same_in_block && all(uniform_)) uniform_.insert(a);
  if (all(fixed_)) fixed_.insert(a);
  out_.atoms.push_back({a, now_});
}

bool GraphBuilder::all_in(const AtomSet& atoms, const Value& v) {
  for (const Term& t : v.terms())
    for (const uint32_t a : t.atoms)
      if (!atoms.contains(a)) return false;
  return true;
}

void GraphBuilder::special(const Instruction& in) {
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

void GraphBuilder::constant_memory(const Instruction& in) {
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
  words_.clear();  // of no index, which only the vector unit names
  opaque(in, l);
}

GraphBuilder::Memory GraphBuilder::memory_of(const Instruction& in) {
  switch (in.opcode->number) {
    case 0x17e:  // LDG STG RED ATOMG
    case 0x17f:
    case 0x181:
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
    case 0x1ae:  // LDGSTS: of global memory it only reads
      return kShared;
    case 0x183:  // LDL STL
    case 0x187:
      return kLocal;
    default:
      return kAny;
  }
}

// Threads of the warp leave or come together. Marks of convergence only say that they will.
bool GraphBuilder::separates(const Instruction& in) {
  constexpr uint16_t kMark = 0x145;
  return in.kind == Kind::kExit || (in.kind == Kind::kSync && in.opcode->number != kMark);
}

// A memory that is the same on all ways to a block did not change where they meet.
GraphBuilder::Changes GraphBuilder::at_entry_of(uint32_t b) const {
  Changes out;
  out.fill({b, 0, 0});
  const auto& previous = p_.blocks[b].previous;
  if (!around_.thorough || b == 0 || previous.empty()) return out;
  for (size_t m = 0; m < kAny; m++) {
    const Change first = changed_[previous[0]][m];
    if (first.block != kNoBlock &&
        std::ranges::all_of(previous, [&](uint32_t from) { return changed_[from][m] == first; }))
      out[m] = first;
  }
  return out;
}

void GraphBuilder::evaluate_block(uint32_t b) {
  uint64_t changes[kAny + 1] = {};  // how often each may have changed since the block began
  Changes last = at_entry_of(b);
  constexpr uint16_t kMeet = 0x141,
                     kGroup = 0x1af;  // of copies, which come one by one whatever group they are in
  const auto changed = [&](Memory memory) {
    changes[memory]++;
    for (size_t m = 0; m < kAny; m++)
      if (m == memory || memory == kAny) last[m] = {b, changes[m], changes[kAny]};
  };
  uint32_t runs[kAny + 1] = {};  // stores between loads
  uint64_t meetings = 0;         // where threads of the warp left or came together
  uint64_t places = 0;           // of effects, but for marks of convergence
  size_t met_at = 0;             // behind the last meeting
  Value elected;  // a predicate that exactly one thread of those that are there has; 0: none is known
  auto& effects = out_.effects[b];
  if (const auto& previous = p_.blocks[b].previous; b != 0 && previous.size() == 1)
    known_[b] = known_on(previous[0], b);
  find_exponents(b);
  now_in_ = b;
  together_[b] = come_together(b);
  stays_[b] = together_[b] && p_.blocks[b].next.size() == 1;
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
      case Kind::kAll:
        results_ = {Value::of(1)};
        for (const Value& v : words_) results_[0] = both(results_[0], v);
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
        if (!is_fixed_vote(in, b, meetings)) label.insert(label.end(), {b, meetings});
        words_.push_back(guard);
        if (!integer(in)) opaque(in, label), take_part(in);
        if (elects(in)) elected = results_[0];
        break;
      case Kind::kLoad:
        if (!read_only(in)) {
          const Change since = memory == kAny ? Change{b, changes[kAny], changes[kAny]} : last[memory];
          label.insert(label.end(), {since.block, since.itself, since.all});
          runs[memory]++;
        }
        opaque(in, label);
        if (is_broadcast(in, b, meetings))
          for (const Value& v : results_) uniform_.insert(v.terms()[0].atoms[0]);
        break;
      case Kind::kReturn:
        if (!word(0).is(p_.return_at[p_.call[i]])) refuse("a return to where its call does not go on");
        words_.erase(words_.begin(), words_.begin() + std::ptrdiff_t(begins_[1]));
        effect = true;
        break;
      case Kind::kExit:
      case Kind::kSync:
        meetings += separates(in);
        if (separates(in)) elected = {};
        // Threads that meet see what others stored. Those of a mark have been together there, and stored what lies before it.
        if (in.kind == Kind::kSync && !marks && !(around_.thorough && in.opcode->number == kMeet))
          changed(kAny);
        [[fallthrough]];
      case Kind::kMemory:
      case Kind::kCall:
        effect = true;
        break;
      case Kind::kBranch:
        effect = !just_goes_on(in);
        // It does not matter in which place a predicate is asked for.
        words_.push_back(guard);
        if (std::ranges::all_of(words_, [&](const Value& v) { return is_uniform(v); })) {
          stays_[b] = together_[b];
          if (effect) out_.facts.branches.push_back({p_.call[i], p_.at[i]});
        }
        std::erase_if(words_, [](const Value& v) { return v.is(1); });
        if (words_.size() == 1) taken_[b] = words_[0];
        break;
    }
    if (effect) {
      if (in.kind == Kind::kMemory && in.opcode->number != kGroup) changed(memory);
      if (in.kind == Kind::kMemory) keep_seen(guard);
      if (marks)
        label.push_back(p_.block_at(p_.call[i], int64_t(p_.at[i]) + int64_t(kInstructionBytes) + in.target));
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
    // A warp has one uniform register for all threads: it is written if one of them writes it.
    const bool by_one = in.kind == Kind::kWarp && in.opcode->meaning == 0x0ca &&
                        in.writes[1].index == kZero && guard == elected;
    keep_results(i, by_one && !elected.is(0) ? Value::of(1) : guard);
  }
  changed_[b] = last;
  evaluated_[b] = true;
}

// The value that a choice takes where a guard holds, if that guard or its opposite made the choice.
Value GraphBuilder::under(const Value& guard, const Value& v, unsigned depth) {
  constexpr unsigned kMostDepth = 6;  // of choices in each other; work doubles with each
  uint32_t c = 0;
  const auto may_change = [&](uint32_t a) { return booleans_.contains(a) || selects_.contains(a); };
  if (guard.constant(&c) || std::ranges::none_of(v.terms(), [&](const Term& t) {
        return std::ranges::any_of(t.atoms, may_change);
      }))
    return v;
  const auto atom_of = [](const Value& of) {
    const auto& t = of.terms();
    return t.size() == 1 && t[0].factor == 1 && t[0].atoms.size() == 1 ? std::optional(t[0].atoms[0])
                                                                       : std::nullopt;
  };
  for (const bool holds : {true, false})
    if (const auto p = atom_of(holds ? guard : guard.negation()); p && booleans_.contains(*p))
      if (Value known = v.where(*p, holds); !(known == v)) return under(guard, known, depth);
  if (const auto& terms = guard.terms();
      terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() > 1) {
    Value known = v;  // all of them hold
    for (const uint32_t p : terms[0].atoms)
      if (booleans_.contains(p)) known = known.where(p, true);
    if (!(known == v)) return under(guard, known, depth);
  }
  if (const Value no = guard.negation(); no.terms().size() == 1 && no.terms()[0].factor == 1) {
    Value known = v;  // not all of them hold
    for (const Value& t : v.each_term())
      if (std::ranges::includes(t.terms()[0].atoms, no.terms()[0].atoms)) known = known - t;
    if (!(known == v)) return under(guard, known, depth);
  }
  if (depth > kMostDepth) return v;
  if (const auto choice = chosen_.find(v.terms()); choice != chosen_.end()) {
    const auto [by, new_value, old_value] = choice->second;
    if (implies(guard, by)) return under(guard, new_value, depth + 1);
    if (implies(guard, by.negation())) return under(guard, old_value, depth + 1);
  }
  for (const Term& t : v.terms())
    for (const uint32_t atom : t.atoms) {
      if (values_.is_merge(atom) || values_.is_logic(atom) || values_.label(atom)[0] != kBothHold) continue;
      const Value x = values_.operands(atom)[0], y = values_.operands(atom)[1];
      const bool no = implies(guard, x.negation()) || implies(guard, y.negation());
      const bool one = implies(guard, x), other = implies(guard, y);
      Value instead = no ? Value() : one && other ? Value::of(1) : one ? y : x, changed;
      if (!no && !one && !other) continue;
      const Value with = v.where(atom, true) - v.where(atom, false);
      if (Value::product(with, instead, &changed, booleans_))
        return under(guard, v.where(atom, false) + changed, depth + 1);
    }
  const auto a = atom_of(v);
  if (!a) return under_terms(guard, v, depth);
  const auto found = selects_.find(*a);
  if (found == selects_.end()) return v;
  const auto [by, new_value, old_value] = found->second;
  if (implies(guard, by)) return under(guard, new_value, depth + 1);
  if (implies(guard, by.negation())) return under(guard, old_value, depth + 1);
  const auto also = [&](const Value& holds) {
    constexpr size_t kMostTerms = 16;  // work grows with it
    Value all;
    const bool few =
        around_.thorough && Value::product(guard, holds, &all, booleans_) && all.terms().size() <= kMostTerms;
    return few ? all : guard;
  };
  const Value x = under(also(by), new_value, depth + 1), y = under(also(by.negation()), old_value, depth + 1);
  return x == new_value && y == old_value ? v : select(by, x, y);
}

// Each choice in a sum of products by itself.
Value GraphBuilder::under_terms(const Value& guard, const Value& v, unsigned depth) {
  Value sum;
  bool changes = false;
  for (const Term& t : v.terms()) {
    Value product = Value::of(t.factor);
    for (const uint32_t a : t.atoms) {
      const Value whole = Value::atom(a),
                  known = selects_.contains(a) ? under(guard, whole, depth + 1) : whole;
      changes = changes || !(known == whole);
      if (!Value::product(product, known, &product, booleans_)) return v;
    }
    sum = sum + product;
  }
  return changes ? sum : v;
}

// Facts that hold on the way from one block to another: by its branch, and by the way to it.
std::vector<Value> GraphBuilder::known_on(uint32_t from, uint32_t to) const {
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

Value GraphBuilder::under_all(const std::vector<Value>& guards, Value v) {
  for (const Value& guard : guards) v = under(guard, v);
  return v;
}

// New where the guard holds, old elsewhere. One of the two guards is the negation of the other.
Value GraphBuilder::select(Value guard, Value new_value, Value old_value) {
  const Value v = plain_select(std::move(guard), std::move(new_value), std::move(old_value));
  return with_exponent_.empty() ? v : reached(v, exponents_);
}

Value GraphBuilder::plain_select(Value guard, Value new_value, Value old_value) {
  const Value opposite = guard.negation();
  new_value = under(guard, new_value);
  old_value = under(opposite, old_value);
  if (new_value == old_value) return new_value;
  if (around_.thorough)  // an upper half that both have is not chosen
    if (const Value both_have =
            Value::common(new_value.halves().second, old_value.halves().second) * (1 << 16);
        !both_have.is(0))
      return plain_select(guard, new_value - both_have, old_value - both_have) + both_have;
  if (guard.terms().size() > opposite.terms().size()) {
    guard = opposite;
    std::swap(new_value, old_value);
  }
  const Value v = atom({kSelect}, {guard, new_value, old_value});
  selects_.emplace(v.terms()[0].atoms[0], std::array{guard, new_value, old_value});
  return v;
}

Value GraphBuilder::chosen_predicate(const Value& guard, const Value& new_value, const Value& old_value) {
  const Value v = both(guard, new_value) + both(guard.negation(), old_value);
  if (around_.thorough && v.terms().size() > 1)
    chosen_.try_emplace(v.terms(), std::array{guard, new_value, old_value});
  return v;
}

void GraphBuilder::describe_store(const Instruction& in, Effect* effect) {
  const bool weak = (in.rest_high >> 13 & 15) == 0;
  if (in.opcode->number != 0x188 && !(in.opcode->number == 0x186 && weak)) return;
  effect->is_store = true;
  for (size_t k = 0; k + 1 < in.reads.size(); k++) effect->base_words += in.reads[k].words;  // last: the data
  effect->offset = int32_t(int64_t(in.low) >> 40);
  effect->bytes = stored_bytes(in);
}

uint32_t GraphBuilder::stored_bytes(const Instruction& in) {
  const uint64_t code = in.high >> 9 & 7;
  return code < 2 ? 1 : code < 4 ? 2 : 4u << (code - 4);
}

// The bytes of a register that are not stored do not count.
void GraphBuilder::keep_stored_bytes(const Instruction& in, Effect* effect) {
  const uint16_t n = in.opcode->number;
  if (n != 0x186 && n != 0x187 && n != 0x188) return;
  const uint32_t bytes = stored_bytes(in);
  Value& data = effect->operands[effect->operands.size() - 2];  // in front of the guard
  if (bytes < 4)
    data = (around_.thorough ? without_half(data, true) : data) * (uint32_t(1) << (32 - 8 * bytes));
}

bool GraphBuilder::read_only(const Instruction& in) {
  return in.opcode->number == 0x181 && (in.rest_high >> 13 & 15) == 4;
}

void GraphBuilder::keep_results(uint32_t i, const Value& guard) {
  results_.resize(written_[i].size());
  std::vector<bool> is_predicate;
  for (const Operand& o : p_.instructions[i].writes)
    is_predicate.insert(is_predicate.end(), o.words, o.is_predicate());
  for (size_t w = 0; w < written_[i].size(); w++) {
    Value v = results_[w];
    if (guard.is(0))
      v = value_of(overwritten_[i][w]);
    else if (!guard.is(1) && is_predicate[w])
      v = chosen_predicate(guard, v, value_of(overwritten_[i][w]));
    else if (!guard.is(1))
      v = select(guard, std::move(v), value_of(overwritten_[i][w]));
    Token& t = tokens_[size_t(written_[i][w])];
    if (alias_[size_t(written_[i][w])] == written_[i][w]) t.value = std::move(v), t.known = true;
  }
}

Graph build_graph(const Program& program, const Surroundings& surroundings, Values* values) {
  return GraphBuilder(program, surroundings, values).run();
}

}  // namespace tessera::sass
