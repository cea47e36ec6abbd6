#include "kernels/sass/program.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>

namespace tessera::sass {
namespace {

// More than any kernel that is worth cutting has; the proof takes time and memory in proportion.
constexpr size_t kMostInstructions = 200'000, kMostBlocks = 4'096, kMostDepth = 4;

std::string place(uint32_t byte) {
  char text[24];
  snprintf(text, sizeof text, "0x%04x: ", byte);
  return text;
}

bool conditional(const Instruction& i) {
  return !always(i.guard) || std::any_of(i.reads.begin(), i.reads.end(), [](const Operand& o) {
    return o.is_predicate() && o.kind == Operand::Kind::kRegister && !always(o);
  });
}

// Nothing of it is seen outside of the thread, nor depends on other threads.
bool only_computes(const Instruction& i) {
  switch (i.kind) {
    case Kind::kNothing:
    case Kind::kAll:
    case Kind::kPure:
    case Kind::kSpecial:
    case Kind::kConstant:
      return true;
    case Kind::kBranch:
      return just_goes_on(i);
    case Kind::kWarp:
    case Kind::kLoad:
    case Kind::kSync:
    case Kind::kMemory:
    case Kind::kCall:
    case Kind::kReturn:
    case Kind::kExit:
      return false;
  }
  return false;
}

using Path = std::vector<uint32_t>;       // bytes: what follows each call that is under way
using Place = std::pair<Path, uint32_t>;  // and an instruction

class Builder {
 public:
  Builder(std::span<const uint8_t> code, unsigned sm, const Facts& facts)
      : code_(code), sm_(sm), facts_(facts) {}

  base::Result<Program> run() {
    lead({{}, 0});
    while (!todo_.empty()) {
      const Place from = todo_.back();
      todo_.pop_back();
      if (base::Status walked = walk(from); !walked.ok()) return walked.error();
    }
    meetings();
    stack_words();
    if (base::Status status = blocks(); !status.ok()) return status.error();
    return std::move(out_);
  }

 private:
  static base::Error refused(uint32_t at, const std::string& what) {
    return base::error(base::Code::kUnsupported, place(at) + what);
  }

  // Straight on until something that was seen, or that does not go on.
  base::Status walk(Place from) {
    for (uint32_t& at = from.second;; at += kInstructionBytes) {
      if (found_.contains(from)) return base::ok();
      if (at + kInstructionBytes > code_.size()) return refused(at, "the code goes on behind its end");
      if (found_.size() >= kMostInstructions) return refused(at, "too many instructions");
      uint64_t words[2];
      memcpy(words, code_.data() + at, sizeof words);
      auto i = decode(words[0], words[1], sm_);
      if (!i) return refused(at, name_of(words[0]) + " is not known in this form");
      const int64_t target = target_of(at, *i);
      if (i->kind == Kind::kCall && !returns(target)) i->kind = Kind::kBranch;  // a far jump
      const bool goes_on = conditional(*i);
      const Kind kind = i->kind;
      found_.emplace(from, std::move(*i));
      if (kind == Kind::kReturn && (target != 0 || from.first.empty()))
        return refused(at, "a return that is not followed");
      if (kind == Kind::kBranch || kind == Kind::kCall) {
        if (target < 0 || target % int64_t(kInstructionBytes) || uint64_t(target) >= code_.size())
          return refused(at, "a jump out of the kernel");
        if (kind == Kind::kCall && from.first.size() >= kMostDepth) return refused(at, "calls too deep");
      }
      for (const Place& next : jumps(from, found_.at(from))) lead(next);
      if (kind == Kind::kBranch || kind == Kind::kCall || kind == Kind::kReturn || kind == Kind::kExit) {
        if (goes_on) lead({from.first, at + kInstructionBytes});
        return base::ok();
      }
    }
  }
  // Does the code at this byte come to a return of its own, if what it calls comes back?
  bool returns(int64_t from) {
    const auto known = returns_.emplace(from, false);
    if (!known.second) return known.first->second;
    std::vector<int64_t> todo = {from};
    std::set<int64_t> seen;
    while (!todo.empty()) {
      int64_t at = todo.back();
      todo.pop_back();
      for (; at >= 0 && uint64_t(at) + kInstructionBytes <= code_.size() && seen.insert(at).second;
           at += int64_t(kInstructionBytes)) {
        uint64_t words[2];
        memcpy(words, code_.data() + at, sizeof words);
        const auto i = decode(words[0], words[1], sm_);
        if (!i) break;
        if (i->kind == Kind::kReturn) return returns_[from] = true;
        if (i->kind == Kind::kBranch) todo.push_back(target_of(uint32_t(at), *i));
        if ((i->kind == Kind::kBranch || i->kind == Kind::kExit) && !conditional(*i)) break;
      }
    }
    return false;
  }
  static int64_t target_of(uint32_t at, const Instruction& i) {
    return int64_t(at) + int64_t(kInstructionBytes) + i.target;
  }
  // The block at which it goes on if it jumps.
  static std::vector<Place> jumps(const Place& from, const Instruction& i) {
    const auto target = uint32_t(target_of(from.second, i));
    Path path = from.first;
    switch (i.kind) {
      case Kind::kBranch:
        return {{path, target}};
      case Kind::kCall:
        path.push_back(from.second + uint32_t(kInstructionBytes));
        return {{path, target}};
      case Kind::kReturn: {
        const uint32_t to = path.back();
        path.pop_back();
        return {{path, to}};
      }
      default:
        return {};
    }
  }
  void lead(const Place& at) {
    if (leaders_.insert(at).second) todo_.push_back(at);
  }

  // The place where threads meet again (BSSY names the one behind the BSYNC) is compared, not the barrier's number. It does
  // not matter before the end: nobody sees who is there.
  void meetings() {
    constexpr uint16_t kMark = 0x145, kMeet = 0x141;
    constexpr uint64_t kNumber = uint64_t(15) << 16;
    for (auto& [where, mark] : found_) {
      if (mark.opcode->number != kMark) continue;
      const auto behind = uint32_t(target_of(where.second, mark));
      marked_.insert({where.first, behind});
      const auto meet = found_.find({where.first, behind - uint32_t(kInstructionBytes)});
      if (meet == found_.end() || meet->second.opcode->number != kMeet ||
          !found_.contains({where.first, behind}))
        continue;
      // As it stands: another mark may have come to the same place.
      if ((meet->second.low & kNumber) != (mark.low & kNumber)) continue;
      if (ends_at({where.first, behind})) {
        mark.kind = meet->second.kind = Kind::kNothing;
      } else {
        leaders_.insert({where.first, behind});
        mark.rest_low &= ~kNumber;
        meet->second.rest_low &= ~kNumber;
      }
    }
  }
  // Nothing but the end comes from here on.
  bool ends_at(Place from) const {
    for (;; from.second += uint32_t(kInstructionBytes)) {
      const auto i = found_.find(from);
      if (i == found_.end()) return false;
      if (i->second.kind == Kind::kExit) return !conditional(i->second);
      if (!only_computes(i->second) || i->second.kind == Kind::kBranch) return false;
    }
  }

  // Words of the stack are registers, where nothing but loads and stores of them at fixed places can reach them: of whole words,
  // or of the lower half of one. The stack pointer is set before the first way divides, and nobody else reads it, nor
  // the constant that it comes from.
  void stack_words() {
    constexpr uint64_t kWhole = 0x300e00;  // sizes, and whether it is the last use
    constexpr uint64_t kBelowOffset = (uint64_t(1) << 40) - 1;
    uint32_t ready = 0;  // bytes: behind the last instruction that sets the pointer
    for (const auto& [where, i] : found_)
      if (std::any_of(i.writes.begin(), i.writes.end(), has_stack_pointer)) {
        if (!where.first.empty() || !only_sets_pointer(i)) return;
        ready = where.second + uint32_t(kInstructionBytes);
      }
    for (const auto& [where, i] : found_) {
      const bool early = where.first.empty() && where.second < ready;
      const bool divides = i.kind == Kind::kBranch || i.kind == Kind::kCall || i.kind == Kind::kReturn;
      const bool access = i.opcode->number == kStackLoad || i.opcode->number == kStackStore;
      if (early && (divides || access || (where.second != 0 && leaders_.contains(where)))) return;
      if (early && only_sets_pointer(i)) continue;
      if (access) {
        const bool load = i.opcode->number == kStackLoad;
        const uint64_t size = i.high >> 9 & 7, form = load ? 0x800 : 0x200;
        if (size < kHalf || size > 6 || (i.rest_high & ~kWhole) || (i.rest_low & kBelowOffset) != form)
          return;
        if (i.reads.size() != (load ? 1 : 2) || i.reads[0].words != 1 || !has_stack_pointer(i.reads[0]))
          return;
        const uint64_t offset = i.low >> 40, words = load ? i.writes[0].words : i.reads[1].words;
        if (offset % 4 || offset / 4 + words > kMostStackWords) return;
      }
      for (size_t k = access; k < i.reads.size(); k++)
        if (has_stack_pointer(i.reads[k]) || has_stack_constant(i.reads[k])) return;
    }
    for (auto& [where, i] : found_) {
      if (i.opcode->number != kStackLoad && i.opcode->number != kStackStore) continue;
      Operand word{.file = File::kStack, .index = uint16_t(i.low >> 42)};
      const bool is_load = i.opcode->number == kStackLoad;
      if (const uint64_t size = i.high >> 9 & 7; size < 4) {
        i.kind = Kind::kPure;
        i.reads = is_load ? Operands{word} : Operands{word, i.reads[1]};
        if (!is_load) i.writes = {word};
        i.rest_low = 0, i.rest_high = size;
      } else if (is_load) {
        word.words = i.writes[0].words;
        become_move(&i, i.writes[0], word);
      } else {
        word.words = i.reads[1].words;
        become_move(&i, word, i.reads[1]);
      }
    }
  }
  static constexpr uint64_t kHalf = 2;  // of 16 bits without a sign; 3: with one
  static constexpr uint16_t kStackLoad = 0x183, kStackStore = 0x187, kStackPointer = 1;
  static bool has_stack_pointer(const Operand& o) {
    return o.kind == Operand::Kind::kRegister && o.file == File::kGeneral && o.index <= kStackPointer &&
           o.index + o.words > kStackPointer;
  }
  bool has_stack_constant(const Operand& o) const {
    const uint32_t at = sm_ < 100 ? 0x28 : 0x37c;
    return o.kind == Operand::Kind::kConstant && o.bank == 0 && o.value < at + 4 &&
           o.value + 4 * o.words > at;
  }
  // Its only result is the pointer, always, of constants and what the pointer was.
  static bool only_sets_pointer(const Instruction& i) {
    const auto nothing = [](const Operand& o) { return o.index == kZero || has_stack_pointer(o); };
    return (i.kind == Kind::kPure || i.kind == Kind::kConstant) && always(i.guard) &&
           std::any_of(i.writes.begin(), i.writes.end(), has_stack_pointer) &&
           std::all_of(i.writes.begin(), i.writes.end(),
                       [&](const Operand& o) { return o.words == 1 && nothing(o); }) &&
           std::all_of(i.reads.begin(), i.reads.end(), [&](const Operand& o) {
             return o.kind != Operand::Kind::kRegister || (o.words == 1 && nothing(o));
           });
  }

  base::Status blocks() {
    std::map<Place, uint32_t> block_at;
    std::map<Path, uint32_t> calls;
    const Place* before = nullptr;
    for (const auto& [where, i] : found_) {
      const auto& [path, at] = where;
      const auto [call, is_new] = calls.emplace(path, uint32_t(calls.size()));
      if (is_new) out_.return_at.push_back(path.empty() ? 0 : path.back());
      const bool follows = before && before->first == path && before->second + kInstructionBytes == at;
      if (!follows || leaders_.contains(where)) {
        block_at[where] = uint32_t(out_.blocks.size());
        out_.blocks.push_back({.begin = uint32_t(out_.at.size())});
        is_marked_.push_back(marked_.contains(where));
      }
      out_.at.push_back(at);
      out_.call.push_back(call->second);
      out_.instructions.push_back(i);
      out_.blocks.back().end = uint32_t(out_.at.size());
      ends_.resize(out_.blocks.size());
      ends_.back() = &where;
      before = &where;
    }
    if (out_.blocks.size() > kMostBlocks) return refused(0, "too many blocks");
    for (uint32_t b = 0; b < out_.blocks.size(); b++) {
      const Instruction& last = out_.instructions[out_.blocks[b].end - 1];
      for (const Place& to : jumps(*ends_[b], last)) out_.blocks[b].next.push_back(block_at.at(to));
      const bool ends = last.kind == Kind::kBranch || last.kind == Kind::kCall ||
                        last.kind == Kind::kReturn || last.kind == Kind::kExit;
      if (!ends || conditional(last))
        out_.blocks[b].next.push_back(
            block_at.at({ends_[b]->first, ends_[b]->second + uint32_t(kInstructionBytes)}));
    }
    for (const CountedLoop& loop : facts_.loops) unroll(loop);
    if (!facts_.branches.empty()) take_in_branches();
    if (out_.blocks.size() > kMostBlocks || out_.instructions.size() > kMostInstructions || !copy_passages())
      return refused(0, "too many blocks");
    in_order_of_ways();
    return base::ok();
  }

  // Each pass needs no branch, because it is known whether another one follows.
  void unroll(const CountedLoop& loop) {
    auto& blocks = out_.blocks;
    for (uint32_t b = 0; b < blocks.size(); b++) {
      const auto next = blocks[b].next;
      const bool is_it = out_.at[blocks[b].begin] == loop.at && out_.call[blocks[b].begin] == loop.call;
      Instruction& branch = out_.instructions[blocks[b].end - 1];
      const bool plain = branch.kind == Kind::kBranch && branch.rest_low == 0 && branch.rest_high == 0;
      if (!is_it || !plain || next.size() != 2 || (next[0] == b) == (next[1] == b)) continue;
      branch.kind = Kind::kNothing;
      branch.writes.clear(), branch.reads.clear();
      branch.guard = Operand{.file = File::kPredicate};
      uint32_t last = b;
      for (uint32_t pass = 1; pass < loop.passes; pass++) {
        const uint32_t copy = copy_of(b);
        blocks[last].next = {copy};
        last = copy;
      }
      blocks[last].next = {next[0] == b ? next[1] : next[0]};
      return;
    }
  }

  // Branches become predicates, from the inner ones on, and blocks that follow each other one block.
  void take_in_branches() {
    auto& blocks = out_.blocks;
    lists_.resize(blocks.size());
    ways_to_.assign(blocks.size(), 0);
    ways_to_[0] = 1;
    is_marked_.resize(blocks.size());
    for (uint32_t b = 0; b < blocks.size(); b++) {
      for (uint32_t i = blocks[b].begin; i < blocks[b].end; i++) lists_[b].push_back(i);
      for (const uint32_t to : blocks[b].next) ways_to_[to]++;
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (uint32_t b = 0; b < blocks.size(); b++)
        while (take_in_branch(b) || append_next(b)) changed = true;
    }
    Program made;
    for (uint32_t b = 0; b < blocks.size(); b++) {
      blocks[b].begin = uint32_t(made.at.size());
      for (const uint32_t i : lists_[b]) {
        made.instructions.push_back(std::move(out_.instructions[i]));
        made.at.push_back(out_.at[i]);
        made.call.push_back(out_.call[i]);
      }
      blocks[b].end = uint32_t(made.at.size());
    }
    out_.instructions = std::move(made.instructions);
    out_.at = std::move(made.at);
    out_.call = std::move(made.call);
  }
  // Code beside a branch that nothing else leads to, and that goes on to one place.
  bool is_arm(uint32_t b) const {
    constexpr uint16_t kMoveToUniform = 0x0ca;
    return ways_to_[b] == 1 && !is_marked_[b] && out_.blocks[b].next.size() == 1 &&
           std::ranges::all_of(lists_[b], [&](uint32_t i) {
             const Instruction& in = out_.instructions[i];
             return only_computes(in) || in.kind == Kind::kLoad || in.opcode->meaning == kMoveToUniform;
           });
  }
  bool take_in_branch(uint32_t b) {
    constexpr uint16_t kBranch = 0x147;
    const std::vector<uint32_t> next = out_.blocks[b].next;
    if (next.size() != 2) return false;
    const uint32_t last = lists_[b].back();
    const Instruction branch = out_.instructions[last];
    const bool is_common = std::ranges::find(facts_.branches, CommonBranch{out_.call[last], out_.at[last]}) !=
                           facts_.branches.end();
    const auto behind = [&](uint32_t to) { return is_arm(to) ? out_.blocks[to].next[0] : to; };
    const uint32_t end = behind(next[0]);
    const bool plain = branch.opcode->number == kBranch && branch.rest_low == 0 && branch.rest_high == 0;
    if (!plain || !is_common || end != behind(next[1])) return false;
    size_t most = 1;  // conditions
    for (const uint32_t to : next)
      if (to != end) most += lists_[to].size();
    if (n_conditions_ + most > kMostConditions) return false;
    lists_[b].pop_back();
    Operands asked = branch.reads;
    asked.push_back(branch.guard);
    Operand taken = condition(b, last, asked);
    for (const uint32_t to : next) {
      if (to != end) {
        for (const uint32_t i : lists_[to]) {
          if (just_goes_on(out_.instructions[i])) continue;
          if (out_.instructions[i].kind != Kind::kAll) {
            const Operand guard = out_.instructions[i].guard;
            const Operand both = always(guard) ? taken : condition(b, i, {taken, guard});
            out_.instructions[i].guard = both;
          }
          lists_[b].push_back(i);
        }
        lists_[to].clear();
        out_.blocks[to].next.clear();
      }
      taken.negated = true;
    }
    out_.blocks[b].next = {end};
    ways_to_[end]--;
    return true;
  }
  // Whether all of these hold, at the end of a block, in the place of an instruction.
  Operand condition(uint32_t b, uint32_t place, Operands asked) {
    Instruction all = out_.instructions[place];
    all.kind = Kind::kAll;
    all.rest_low = all.rest_high = 0;
    all.guard = Operand{.file = File::kPredicate};
    all.reads = std::move(asked);
    all.writes = {Operand{.file = File::kCondition, .index = uint16_t(n_conditions_++)}};
    lists_[b].push_back(uint32_t(out_.instructions.size()));
    out_.instructions.push_back(all);
    out_.at.push_back(uint32_t(out_.at[place]));
    out_.call.push_back(uint32_t(out_.call[place]));
    return all.writes[0];
  }
  bool append_next(uint32_t b) {
    const auto& next = out_.blocks[b].next;
    if (next.size() != 1 || next[0] == b || ways_to_[next[0]] != 1 || is_marked_[next[0]]) return false;
    const uint32_t to = next[0];
    if (!lists_[b].empty()) {
      const Instruction& last = out_.instructions[lists_[b].back()];
      if (last.kind == Kind::kCall || last.kind == Kind::kReturn || last.kind == Kind::kExit) return false;
      if (last.kind == Kind::kBranch && !just_goes_on(last)) return false;
      if (last.kind == Kind::kBranch) lists_[b].pop_back();
    }
    lists_[b].insert(lists_[b].end(), lists_[to].begin(), lists_[to].end());
    lists_[to].clear();
    out_.blocks[b].next = std::vector<uint32_t>(out_.blocks[to].next);
    out_.blocks[to].next.clear();
    return true;
  }

  // Behind passages.
  uint32_t destination(uint32_t b) const {
    while (passage_[b]) b = out_.blocks[b].next[0];
    return b;
  }
  // Finds them, and gives each way that leads through one a copy of its own.
  bool copy_passages() {
    auto& blocks = out_.blocks;
    passage_.assign(blocks.size(), false);
    for (uint32_t b = 1; b < blocks.size(); b++) {
      const auto begin = out_.instructions.begin();
      if (blocks[b].next.size() != 1 || destination(blocks[b].next[0]) == b)
        continue;  // nowhere, or a circle
      passage_[b] = std::all_of(begin + blocks[b].begin, begin + blocks[b].end, only_computes);
    }
    std::vector<bool> used(blocks.size());
    for (uint32_t b = 0; b < blocks.size(); b++)
      for (size_t way = 0; way < blocks[b].next.size(); way++) {
        const uint32_t to = blocks[b].next[way];
        if (!passage_[to]) continue;
        if (used[to]) {
          blocks[b].next[way] = copy_of(to);
          passage_.push_back(true);
        }
        used[to] = true;
        used.resize(blocks.size());
        if (blocks.size() > kMostBlocks || out_.instructions.size() > kMostInstructions) return false;
      }
    return true;
  }
  uint32_t copy_of(uint32_t block) {
    Block copy = out_.blocks[block];
    const uint32_t begin = copy.begin, end = copy.end;
    copy.begin = uint32_t(out_.instructions.size());
    for (uint32_t i = begin; i < end; i++) {
      out_.instructions.push_back(Instruction(out_.instructions[i]));
      out_.at.push_back(uint32_t(out_.at[i]));
      out_.call.push_back(uint32_t(out_.call[i]));
    }
    copy.end = uint32_t(out_.instructions.size());
    out_.blocks.push_back(std::move(copy));
    return uint32_t(out_.blocks.size() - 1);
  }

  void in_order_of_ways() {
    std::vector<uint32_t> order, open = {0}, number(out_.blocks.size());
    std::vector<bool> seen(out_.blocks.size());
    while (!open.empty()) {
      const uint32_t b = open.back();
      open.pop_back();
      if (seen[b]) continue;
      seen[b] = true;
      order.push_back(b);
      const auto& next = out_.blocks[b].next;
      for (size_t way = next.size(); way-- > 0;) open.push_back(destination(next[way]));
    }
    out_.n_compared = uint32_t(order.size());
    for (uint32_t b = 0; b < out_.blocks.size(); b++)
      if (passage_[b]) order.push_back(b);
    for (uint32_t k = 0; k < order.size(); k++) number[order[k]] = k;
    std::vector<Block> ordered;
    for (const uint32_t b : order) {
      Block& moved = ordered.emplace_back(std::move(out_.blocks[b]));
      for (uint32_t& n : moved.next) n = number[n];
    }
    out_.blocks = std::move(ordered);
    for (uint32_t b = 0; b < out_.n_compared; b++)
      for (uint32_t to : out_.blocks[b].next) {
        uint32_t from = b;
        for (; to >= out_.n_compared; from = to, to = out_.blocks[to].next[0])
          out_.blocks[to].previous = {from};
        auto& previous = out_.blocks[to].previous;
        if (previous.empty() || previous.back() != from) previous.push_back(from);
        out_.blocks[b].ways.push_back(to);
      }
  }

  const std::span<const uint8_t> code_;
  const unsigned sm_;
  const Facts& facts_;
  Program out_;
  std::map<Place, Instruction> found_;
  std::set<Place> leaders_, marked_;  // marked: threads meet in front of it
  std::vector<Place> todo_;
  std::map<int64_t, bool> returns_;
  std::vector<const Place*> ends_;         // by block: its last instruction
  std::vector<bool> passage_, is_marked_;  // by block
  // By block, while branches are taken in: its instructions, and how many ways lead to it.
  std::vector<std::vector<uint32_t>> lists_;
  std::vector<uint32_t> ways_to_;
  uint32_t n_conditions_ = 0;
};

}  // namespace

bool just_goes_on(const Instruction& i) {
  return i.kind == Kind::kBranch && !conditional(i) && i.rest_low == 0 && i.rest_high == 0;
}

uint32_t Program::block_at(uint32_t call_number, int64_t byte) const {
  for (uint32_t b = 0; b < blocks.size(); b++) {
    if (call[blocks[b].begin] != call_number || at[blocks[b].begin] != byte) continue;
    uint32_t to = b;
    while (to >= n_compared) to = blocks[to].next[0];
    return to;
  }
  return n_compared;
}

base::Result<Program> read_program(std::span<const uint8_t> code, unsigned sm, const Facts& facts) {
  return Builder(code, sm, facts).run();
}

}  // namespace tessera::sass
