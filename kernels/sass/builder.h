// A program becomes a graph: what is in each register (registers.cc), what the instructions are that are taken apart
// (forms.cc), and what each block computes and does (graph.cc). Used by build_graph() alone, for one program.
#pragma once

#include <array>
#include <bitset>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/sass/graph.h"
#include "kernels/sass/known_bits.h"

namespace tessera::sass {

// First words of labels.
enum Origin : uint64_t {
  kOperation,       // an instruction that is not taken apart
  kExcess,          // of the terms of a sum, as integers, over a word
  kCarry,           // of a sum of three: the first or the second
  kHighWord,        // of a product of 32-bit factors
  kShiftedRight,    // by a number of bits, zeros from the left
  kLogicPredicate,  // of what a bitwise function gives
  kPart,            // of what an instruction gives that has several results
  kPair,            // the words of 64 bits
  kUpperWord,       // what 64 bits have above an immediate of 32 bits
  kSelect,          // guard, new, old
  kExtreme,         // of two integers: the least or the greatest
  kBothHold,        // of predicates
  kConstantMemory,
  kSpecialRegister,
  kBlockNumber,  // in the original's grid, by axis
  kGridSize,     // of the original
  kSliceOrigin,
  kVariableAddress,
  kOfTheVariant,  // what only the variant reads: equal to nothing
  kUndefined,     // a register before its first write
};

constexpr int kNoToken = -1;
constexpr uint32_t kNoBlock = ~uint32_t(0);

class GraphBuilder {
 public:
  GraphBuilder(const Program& program, const Surroundings& around, Values* values)
      : p_(program), around_(around), values_(*values) {}

  Graph run();

 private:
  // A register's content: written by an instruction, or merged at a block's entry.
  struct Token {
    bool merge = false, known = false, predicate = false;
    uint32_t block = 0, made_by = 0;  // the instruction, of no merge
    std::vector<int> operands;
    Value value;
  };
  struct BlockState {
    std::vector<int> first, last;  // by variable: at its entry and end, kNoToken: not asked for, not written
  };

  // registers.cc: registers become tokens

  void tokens();
  static bool in_file(const Operand& o, uint16_t w);
  unsigned variable(const Operand& o, uint16_t w);
  int new_token(Token t);
  int at_entry(uint32_t b, unsigned v);
  int at_end(uint32_t b, unsigned v);

  int find(int t);
  void simplify();

  std::vector<uint32_t> reverse_postorder() const;

  // graph.cc: tokens become values, instructions effects

  Value value_of(int token);
  void evaluate();
  std::vector<Value> merged(int token);
  bool leave_out_unchanged();
  void leave_out_merges(uint32_t b);
  void refuse(const std::string& why);

  Value predicate(const Operand& o, int token);
  Value constant_word(uint8_t bank, uint32_t offset);
  Value added_parameter(const VariantParameters& variant, uint32_t offset);
  Value address_word(const std::string& variable, int64_t addend, uint32_t byte);
  Value fixed_word(uint8_t bank, uint32_t offset);
  bool same_in_slices(uint32_t offset) const;

  void read_operands(const Instruction& in, uint32_t i);
  Value immediate_word(const Instruction& in, const Operand& o, uint16_t w);
  const Value& word(size_t operand, size_t w = 0) const;

  // forms.cc: the forms of instructions that are taken apart

  static bool moves(const Instruction& in);
  static bool moves_to_uniform(const Instruction& in);
  static bool plain(const Instruction& in);
  static bool only(const Instruction& in, uint64_t allowed);

  Label label_of(const Instruction& in) const;
  Label label_of_plain(const Instruction& in) const;
  Value atom(const Label& label, std::vector<Value> operands, unsigned commutative = 0);
  void remember(uint32_t atom, const Label& label, const std::vector<Value>& operands);
  static bool all_in(const AtomSet& atoms, const Value& v);
  bool is_uniform(const Value& v) const { return all_in(uniform_, v); }
  void opaque(const Instruction& in, const Label& label, unsigned commutative = 0);

  Value excess(const Value& v);
  Value carry(const std::vector<Value>& addends);

  static constexpr uint64_t kNegateFirst = 1u << 8, kSigned = 1u << 9, kExtended = 1u << 10,
                            kNegateThird = 1u << 11;
  static constexpr uint64_t kOwnForm = 0x800;  // of the lower half: what stands at bits 9 to 11
  static constexpr uint64_t kNegateSecond = uint64_t(1) << 63;  // of the lower half

  bool too_long() const;
  bool integer(const Instruction& in);
  static Value complement(const Value& v);
  bool sum(const Instruction& in);
  static void add_addend(const Value& v, bool opposite, std::vector<Value>* to);
  Value shifted_right(const Value& v, uint32_t n);
  Value upper_half(const Value& v);
  bool is_half(uint32_t atom) const;
  Value without_half(const Value& v, bool upper, unsigned depth = 0);
  void leave_out_masked(uint8_t table);
  bool half_of(const Instruction& in);
  bool sum_of_two(const Instruction& in);
  bool shifted_sum(const Instruction& in);
  bool product(const Instruction& in);
  bool wide_product(const Instruction& in);
  Value both(const Value& a, const Value& b);
  bool implies(const Value& a, const Value& b);
  std::optional<Value> is_zero(const Value& v, unsigned asked = 0) const;
  bool predicates_to_word(const Instruction& in);
  void compared(const Instruction& in, Label label, size_t joined, unsigned commutative = 0,
                const std::optional<Value>& decided = {});
  bool comparison(const Instruction& in);
  bool joined(const Instruction& in);
  bool extreme(const Instruction& in);
  bool extreme_of_sum(const Instruction& in);
  std::optional<Value> predicate_in(const Value& v);
  std::optional<Value> bit_of(const Value& v, unsigned bit, unsigned* left);
  Value least_or_greatest(const Value& a, const Value& b, bool is_signed, bool least);
  std::optional<Value> extreme_chosen(const Value& by, const Value& a, const Value& b);
  bool logic(const Instruction& in);
  bool chosen(const Instruction& in);
  void leave_out_unpicked(const Instruction& in);
  bool unpacked(const Instruction& in);
  bool shift(const Instruction& in);
  bool lower_half(const Instruction& in);
  bool with_lower_half(const Instruction& in);
  bool halves(const Instruction& in);
  bool moved_constant(const Instruction& in);
  bool sum_of_64(const Instruction& in);
  static size_t results_of(const Instruction& in);

  void special(const Instruction& in);

  void constant_memory(const Instruction& in);

  // Memories that change apart from each other. What is neither a load nor a plain store may change or order all.
  enum Memory : size_t { kGlobal, kShared, kLocal, kAny };
  static Memory memory_of(const Instruction& in);

  // When a memory was changed last, whichever way was taken: the block, and how often it may have changed since that began, by
  // itself and with all others.
  struct Change {
    uint32_t block = 0;
    uint64_t itself = 0, all = 0;
    bool operator==(const Change&) const = default;
  };
  using Changes = std::array<Change, kAny>;
  Changes at_entry_of(uint32_t b) const;

  static bool separates(const Instruction& in);
  void evaluate_block(uint32_t b);
  Value under(const Value& guard, const Value& v, unsigned depth = 0);
  Value under_terms(const Value& guard, const Value& v, unsigned depth);
  std::vector<Value> known_on(uint32_t from, uint32_t to) const;
  Value under_all(const std::vector<Value>& guards, Value v);
  Value plain_select(Value guard, Value new_value, Value old_value);
  Value select(Value guard, Value new_value, Value old_value);
  Value chosen_predicate(const Value& guard, const Value& new_value, const Value& old_value);

  // warps.cc: what threads of a warp have in common

  struct Spot {
    uint32_t instruction = 0, block = 0;
  };
  static bool elects(const Instruction& in);
  bool come_together(uint32_t b) const;
  bool is_fixed_vote(const Instruction& in, uint32_t b, uint64_t meetings) const;
  bool has_barrier(uint32_t b, uint64_t meetings) const;
  std::vector<bool> reached_from(std::vector<uint32_t> todo, uint32_t last) const;
  bool comes_once_before_ends(uint32_t b) const;
  bool vote(const Instruction& in);
  void take_part(const Instruction& in);
  bool is_broadcast(const Instruction& in, uint32_t b, uint64_t meetings) const;
  bool is_common(const Spot& place);
  void find_barriers();
  bool made_of(int token, std::vector<int>* merges);
  const std::unordered_set<int>& counted_at(uint32_t header);
  bool counts(const Spot& barrier, uint32_t header, const Spot& place);

  // counted.cc: arrays in registers

  using Exponents = std::bitset<256>;  // of floats, biased
  void find_exponents(uint32_t b);
  Value reached(const Value& v, const Exponents& by, unsigned depth = 0);
  void find_loops();
  std::optional<uint32_t> passes_of(uint32_t b) const;

  // threads.cc: who executes an instruction, and what these threads see of a value

  using Threads = std::bitset<1024>;  // of a block, by their number along the first axis
  struct Split {
    Threads may, may_not;  // have a predicate
  };
  void keep_seen(const Value& guard);
  Split split(const Value& predicate, const Threads& who);
  static std::optional<Threads> asked(const Label& shuffle, const Threads& who);
  Value seen_by(const Threads& who, const Value& v, unsigned depth = 0);
  Value atom_seen_by(const Threads& who, uint32_t atom, unsigned depth);

  static void describe_store(const Instruction& in, Effect* effect);
  static uint32_t stored_bytes(const Instruction& in);
  void keep_stored_bytes(const Instruction& in, Effect* effect);
  static bool read_only(const Instruction& in);
  void keep_results(uint32_t i, const Value& guard);

  const Program& p_;
  const Surroundings& around_;
  Values& values_;
  Graph out_;
  uint32_t now_ = 0, now_in_ = 0;  // instruction and block at hand
  int undefined_ = kNoToken;
  std::vector<Token> tokens_;
  std::vector<int> alias_;
  std::vector<BlockState> states_;
  std::vector<unsigned> variables_;                              // by register: its number plus one, 0: none
  std::vector<bool> is_predicate_;                               // by variable
  std::vector<ShortList<int, 4>> written_, read_, overwritten_;  // by instruction
  std::vector<int> guard_;
  std::vector<std::vector<Value>> known_;    // by block: predicates that hold in it, as branches to it say
  std::vector<Value> taken_;                 // by block: what its branch asks for; 1: more than one predicate
  std::vector<bool> together_, stays_;       // by block: warps come to it together; leave it together
  std::vector<std::vector<int>> merges_in_;  // by block: tokens
  std::vector<bool> evaluated_;              // by block
  std::vector<Changes> changed_;             // by block: at its end, block kNoBlock before that is known
  std::vector<Value> words_, results_;       // of the instruction at hand
  // Exponents that a float can have in the block at hand, and what is known with each.
  Exponents exponents_;
  std::vector<KnownBits> with_exponent_;
  std::vector<size_t> begins_;
  std::unordered_map<uint32_t, std::array<Value, 3>>
      selects_;                                          // by atom: guard, value under it, value elsewhere
  std::map<Value::Terms, std::array<Value, 3>> chosen_;  // the same of predicates
  std::unordered_map<int, Value> kept_;                  // by token: the predicate that is its only bit
  std::vector<KnownBits> of_thread_;                     // what is known in each
  std::unordered_map<uint32_t, std::vector<std::pair<Threads, Value>>> seen_;  // by atom
  AtomSet pure_;  // atoms of operations of one thread
  size_t n_seen_ = 0;
  std::vector<Spot> barriers_;
  std::unordered_map<uint32_t, std::unordered_set<int>> counted_;  // by block: merges
  unsigned n_walks_ = 0;
  // Atoms; uniform: the same in all threads of a warp, and never another one; fixed: in a thread from its beginning to its end; booleans: 0 or 1
  AtomSet uniform_, fixed_, booleans_;
};

}  // namespace tessera::sass
