// Facts about the threads of a warp: who votes, who is elected, and what is the same in all of them.
#include <algorithm>
#include <iterator>

#include "kernels/sass/builder.h"

namespace tessera::sass {
namespace {

constexpr unsigned kMostWalks =
    256;  // through a program, to find where a counter is the same: a kernel needs a few
constexpr uint16_t kBarrier = 0x11d;
constexpr uint64_t kOfAll = 0, kOfAny = 1 << 8;  // votes

}  // namespace

// One of the threads that are there, whoever they are.
bool GraphBuilder::elects(const Instruction& in) {
  constexpr uint16_t kElect = 0x02f;
  return in.opcode->number == kElect && always(in.guard) &&
         std::all_of(in.reads.begin(), in.reads.end(), always) && in.writes[0].index != kZero;
}

// A vote about a predicate that never changes in a thread, asked of the whole warp: wherever that is, the result is the same.
bool GraphBuilder::is_fixed_vote(const Instruction& in, uint32_t b, uint64_t meetings) const {
  constexpr uint16_t kVote = 0x006, kUniformVote = 0x086;
  return (in.opcode->number == kVote || in.opcode->number == kUniformVote) && always(in.guard) &&
         std::all_of(words_.begin(), words_.end(), [&](const Value& v) { return all_in(fixed_, v); }) &&
         has_barrier(b, meetings) && comes_once_before_ends(b);
}

// Between the same two meetings. All threads of a warp that have not ended ask a barrier of the block together: PTX demands it
// of the aligned form, and of the other one ptxas makes it so (BRA.DIV, which is refused).
bool GraphBuilder::has_barrier(uint32_t b, uint64_t meetings) const {
  uint64_t met = 0;
  for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++) {
    const Instruction& in = p_.instructions[i];
    met += separates(in);
    if (in.kind == Kind::kExit) return false;
    if (met == meetings && in.opcode->number == kBarrier && always(in.guard)) return true;
  }
  return false;
}

// Blocks that ways from some of them lead to, as far as one where they end.
std::vector<bool> GraphBuilder::reached_from(std::vector<uint32_t> todo, uint32_t last) const {
  std::vector<bool> seen(p_.blocks.size());
  while (!todo.empty()) {
    const uint32_t at = todo.back();
    todo.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    if (at != last) todo.insert(todo.end(), p_.blocks[at].next.begin(), p_.blocks[at].next.end());
  }
  return seen;
}

// No way leads from the block to itself, and none from the beginning to an end but through it.
bool GraphBuilder::comes_once_before_ends(uint32_t b) const {
  if (reached_from(p_.blocks[b].next, b)[b]) return false;
  const std::vector<bool> before = reached_from({0}, b);
  for (uint32_t at = 0; at < p_.blocks.size(); at++)
    if (before[at] && at != b &&
        std::any_of(p_.instructions.begin() + p_.blocks[at].begin,
                    p_.instructions.begin() + p_.blocks[at].end,
                    [](const Instruction& in) { return in.kind == Kind::kExit; }))
      return false;
  return true;
}

// Whether one or all of the threads that execute it have a predicate, of one that they have in common.
bool GraphBuilder::vote(const Instruction& in) {  // D P, or P D of the uniform unit; p
  const size_t is = in.opcode->number == 0x086 ? 0 : 1;
  if (in.rest_low != kOwnForm || (in.rest_high != kOfAll && in.rest_high != kOfAny) ||
      in.writes[1 - is].index != kZero)
    return false;
  if (!is_uniform(word(0)) && !is_common({now_, now_in_})) return false;
  results_ = {Value(), Value()};
  results_[is] = word(0);
  return true;
}

// A thread that votes is one of all, and of any: it has the predicate, or not all have it.
void GraphBuilder::take_part(const Instruction& in) {
  const bool uniform = in.opcode->number == 0x086;
  if (!around_.thorough || (in.opcode->number != 0x006 && !uniform) || !always(in.guard) ||
      in.rest_low != kOwnForm || (in.rest_high != kOfAll && in.rest_high != kOfAny) ||
      in.writes[uniform ? 1 : 0].index != kZero)
    return;
  Value& result = results_[uniform ? 0 : 1];
  const Value one = both(result, word(0));
  result = in.rest_high == kOfAll ? one : result + word(0) - one;
}

// All threads of a warp come to a block at once, but for those that have ended: each branch on each way to it is taken by all of
// them or by none. Then no way leads from the block to itself, for its end is not known yet.
bool GraphBuilder::come_together(uint32_t b) const {
  const auto& previous = p_.blocks[b].previous;
  return b == 0 ? previous.empty()
                : std::ranges::all_of(previous, [&](uint32_t from) { return stays_[from]; });
}

// A word that all threads of a warp read at once, at one address, and never again: of global memory where they have come
// together to the block, of shared memory beside a barrier.
bool GraphBuilder::is_broadcast(const Instruction& in, uint32_t b, uint64_t meetings) const {
  constexpr uint16_t kLoadGlobal = 0x181, kLoadShared = 0x184;
  constexpr uint64_t kOrdered = 15 << 13;
  const bool is_shared = in.opcode->number == kLoadShared,
             is_plain = in.opcode->number == kLoadGlobal && (!(in.rest_high & kOrdered) || read_only(in));
  if (!around_.thorough || !(is_shared || is_plain) ||
      !std::ranges::all_of(words_, [&](const Value& v) { return is_uniform(v); }))
    return false;
  return (is_plain && together_[b]) || (is_shared && always(in.guard) && has_barrier(b, meetings) &&
                                        !reached_from(p_.blocks[b].next, b)[b]);
}

// An instruction reads the same in all threads of a warp that execute it together.
bool GraphBuilder::is_common(const Spot& place) {
  std::vector<int> merges;
  if (barriers_.empty()) return false;
  for (const int t : read_[place.instruction])
    if (t != kNoToken && !made_of(t, &merges)) return false;
  if (merges.empty()) return true;
  const uint32_t header = tokens_[size_t(merges[0])].block;
  const auto& counted = counted_at(header);
  if (!std::ranges::all_of(merges, [&](int t) { return counted.contains(t); })) return false;
  return std::ranges::any_of(barriers_, [&](const Spot& b) { return counts(b, header, place); });
}

// Barriers that each thread passes where the block that they stand in is passed. Copies of one cannot be told apart.
void GraphBuilder::find_barriers() {
  std::unordered_map<uint32_t, unsigned> copies;
  for (uint32_t b = 0; b < p_.n_compared; b++)
    for (uint32_t i = p_.blocks[b].begin; i < p_.blocks[b].end; i++)
      if (p_.instructions[i].opcode->number == kBarrier && always(p_.instructions[i].guard) &&
          copies[p_.at[i]]++ == 0)
        barriers_.push_back({i, b});
  std::erase_if(barriers_, [&](const Spot& s) { return copies[p_.at[s.instruction]] != 1; });
}

// The merges that a register's content comes from, if nothing else tells threads of a block apart.
bool GraphBuilder::made_of(int token, std::vector<int>* merges) {
  constexpr uint64_t kBlockX = 0x25, kBlockZ = 0x27;
  constexpr size_t kMostRegisters = 1024;  // a counter is made of few
  std::vector<int> todo = {token};
  std::unordered_set<int> seen;
  while (!todo.empty()) {
    const int t = find(todo.back());
    todo.pop_back();
    if (!seen.insert(t).second) continue;
    if (tokens_[size_t(t)].merge) {
      merges->push_back(t);
      continue;
    }
    if (t == undefined_ || seen.size() > kMostRegisters) return false;
    const uint32_t i = tokens_[size_t(t)].made_by;
    const Instruction& in = p_.instructions[i];
    const uint64_t which = in.rest_high >> 8;
    const bool common = in.kind == Kind::kPure || in.kind == Kind::kConstant || in.kind == Kind::kAll ||
                        (in.kind == Kind::kSpecial && which >= kBlockX && which <= kBlockZ);
    if (!common) return false;
    for (const auto* from : {&read_[i], &overwritten_[i]})
      std::ranges::copy_if(*from, std::back_inserter(todo), [](int o) { return o != kNoToken; });
    if (guard_[i] != kNoToken) todo.push_back(guard_[i]);
  }
  return true;
}

// Merges at the header of a loop that are the same in all threads of a block that have entered it equally often: what they
// begin with is common to the block, and what they go on with is made of such merges.
const std::unordered_set<int>& GraphBuilder::counted_at(uint32_t header) {
  const auto [known, is_new] = counted_.try_emplace(header);
  std::unordered_set<int>& counted = known->second;
  const auto& previous = p_.blocks[header].previous;
  if (!is_new || header == 0 || ++n_walks_ > kMostWalks) return counted;
  const auto after = reached_from(p_.blocks[header].next, kNoBlock), before = reached_from({0}, header);
  for (const uint32_t from :
       previous)  // each is passed either before the first entry only, or behind one only
    if (after[from] && from != header && before[from]) return counted;
  std::unordered_map<int, std::vector<int>> goes_on_with;
  for (size_t t = 0; t < tokens_.size(); t++) {
    if (!tokens_[t].merge || tokens_[t].block != header || find(int(t)) != int(t)) continue;
    std::unordered_set<int> begins, goes_on;
    for (size_t k = 0; k < previous.size(); k++)
      (after[previous[k]] ? goes_on : begins).insert(find(tokens_[t].operands[k]));
    std::vector<int> none;
    if (begins.size() == 1 && goes_on.size() == 1 && made_of(*begins.begin(), &none) && none.empty() &&
        made_of(*goes_on.begin(), &goes_on_with[int(t)]))
      counted.insert(int(t));
  }
  while (std::erase_if(counted, [&](int t) {
    return !std::ranges::all_of(goes_on_with[t], [&](int m) { return counted.contains(m); });
  })) {
  }
  return counted;
}

// How often a thread has entered a header is known from how often it has passed a barrier, which is equally often in all threads of
// a warp that have not ended: between two entries it passes the barrier once, and on each way to a place either last.
bool GraphBuilder::counts(const Spot& barrier, uint32_t header, const Spot& place) {
  if (++n_walks_ > kMostWalks) return false;
  const auto leads = [&](uint32_t from, uint32_t to, uint32_t last) -> bool {
    return reached_from(p_.blocks[from].next, last)[to];
  };
  const uint32_t w = barrier.block, b = place.block;
  if (w != header && (reached_from({0}, header)[w] || leads(header, header, w) || leads(w, w, header)))
    return false;
  if (w == b) return true;  // each pass comes to both, in the order of the code
  const bool entered_last = b == header || !leads(w, b, header);
  const bool passed_last = w == header || (b != header && !leads(header, b, w));
  return entered_last || passed_last;
}

}  // namespace tessera::sass
