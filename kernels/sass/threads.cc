// The threads that execute an instruction, and what they see of a value. A shuffle gives a lane what another one has. So it does
// not matter what lanes have that nobody asks.
#include <algorithm>

#include "kernels/sass/builder.h"

namespace tessera::sass {
namespace {

constexpr uint16_t kShuffle = 0x189;
constexpr uint32_t kThreadX = 0x21;  // special register
constexpr size_t kLanes = 32;
constexpr unsigned kMostNested =
    64;  // of operations in each other: five shuffles of a warp and what is between them
constexpr size_t kMostSeen =
    8192;  // atoms for sets of threads, of a kernel: a maximum of Llama needs less than half, and 65,536 take 2 s

}  // namespace

// Operands of an instruction under a guard become what the threads see that may execute it. The number of a thread along the
// first axis says its lane, where blocks have whole warps of those or no other axis.
void GraphBuilder::keep_seen(const Value& guard) {
  const auto& [x, y, z] = around_.required_threads;
  if (!around_.thorough || x == 0 || x > Threads().size() || (x % kLanes != 0 && (y != 1 || z != 1))) return;
  if (of_thread_.empty()) {
    const uint32_t number = values_.add_atom({kSpecialRegister, kThreadX}, {});
    for (uint32_t t = 0; t < (x + kLanes - 1) / kLanes * kLanes; t++)
      of_thread_.emplace_back(values_).set(number, Bits::of(t));
  }
  Threads who;
  for (uint32_t t = 0; t < x; t++) who.set(t);
  for (const Value& fact : known_[now_in_]) who = split(fact, who).may;
  who = split(guard, who).may;
  if (who.count() == x || who.none()) return;
  for (Value& v : words_) v = seen_by(who, v);
}

GraphBuilder::Split GraphBuilder::split(const Value& predicate, const Threads& who) {
  Split out;
  for (size_t t = 0; t < of_thread_.size(); t++) {
    if (!who[t]) continue;
    const auto known = of_thread_[t].of(predicate).constant();
    out.may[t] = known != 0;
    out.may_not[t] = known != 1;
  }
  return out;
}

// The threads that a shuffle of the whole warp takes values from: of the lane whose number has other bits.
std::optional<GraphBuilder::Threads> GraphBuilder::asked(const Label& shuffle, const Threads& who) {
  constexpr unsigned kBits = 53;
  constexpr uint64_t kOthers = uint64_t(31) << kBits,
                     kOfWholeWarp = uint64_t(3) << 58 | uint64_t(31) << 40 | 0xe00;
  if (shuffle[1] != kShuffle || (shuffle[2] & ~kOthers) != kOfWholeWarp || shuffle[3]) return std::nullopt;
  Threads out;
  for (size_t t = 0; t < who.size(); t++)
    if (who[t]) out.set(t ^ (shuffle[2] >> kBits & 31));
  return out;
}

// Equal to the value in these threads.
Value GraphBuilder::seen_by(const Threads& who, const Value& v, unsigned depth) {
  constexpr size_t kMostTerms = 64;
  Value sum;
  for (const Term& t : v.terms()) {
    Value product = Value::of(t.factor);
    for (const uint32_t a : t.atoms)
      if (!Value::product(product, atom_seen_by(who, a, depth), &product, booleans_)) return v;
    sum = sum + product;
  }
  return sum.terms().size() > kMostTerms ? v : sum;
}

Value GraphBuilder::atom_seen_by(const Threads& who, uint32_t a, unsigned depth) {
  const Value own = Value::atom(a);
  if (values_.is_merge(a) || values_.operands(a).empty() || depth > kMostNested) return own;
  for (const auto& [threads, value] : seen_[a])
    if (threads == who) return value;
  if (++n_seen_ > kMostSeen) return own;
  const auto see = [&](const Value& v, const Threads& by) { return seen_by(by, v, depth + 1); };
  std::vector<Value> operands = values_.operands(a);
  Value out = own;
  if (selects_.contains(a)) {
    const auto [guard, new_value, old_value] = selects_.at(a);
    const auto [may, may_not] = split(guard, who);
    const Value by = may_not.none() ? Value::of(1) : may.none() ? Value() : see(guard, who);
    if (by.is(1))
      out = see(new_value, who);
    else if (by.is(0))
      out = see(old_value, who);
    else
      out = plain_select(by, see(new_value, may), see(old_value, may_not));
  } else if (values_.is_logic(a)) {
    for (Value& v : operands) v = see(v, who);
    out = values_.add_logic(values_.table(a), operands[0], operands[1], operands[2]);
  } else {
    const Label label = values_.label(a);
    std::optional<Threads> from;
    if (label[0] != kOperation || pure_.contains(a))
      from = who;
    else if (operands.back().is(1))  // all that are there shuffle
      from = asked(label, who);
    if (from) {
      for (Value& v : operands) v = see(v, *from);
      const uint32_t seen = values_.add_atom(label, std::move(operands), values_.commutative(a));
      if (booleans_.contains(a)) booleans_.insert(seen);
      if (pure_.contains(a)) pure_.insert(seen);
      out = Value::atom(seen);
    }
  }
  seen_[a].emplace_back(who, out);
  return out;
}

}  // namespace tessera::sass
