// Does an address go up, or go down, with every pass through a loop, so that no word is read in endlessly
// many passes? Used by the rules on waiting. Private to kernels/slice; views into the Flow.
//
// Followed are registers that each pass changes by literals of one sign (`p += 4`, also through copies), sums
// and literal multiples of them with what is the same in all passes. All else is not known: other arithmetic,
// numbers narrower than 32 bits, conversions to narrower ones, addresses loaded from memory, exchanges
// between threads. Steps are limited so that an address or index comes round, if at all, after millions of
// passes that each went farther than before.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/slice/flow.h"
#include "kernels/slice/loop_pass.h"

namespace tessera::slice {

class Advance {
 public:
  Advance(const Flow& flow, const Loop& loop, const LoopPass& pass);

  // The address in operand n of `access` is beyond those of all passes before, whenever a pass comes to it.
  bool advances(const Node& access, size_t n);

 private:
  // The change of a value from one pass to the next. `most` is the largest literal step, scaled.
  struct Trend {
    enum class Kind : uint8_t { kUnknown, kSame, kUp, kDown };
    Kind kind = Kind::kUnknown;
    uint64_t most = 0;
  };

  static Trend same() { return {Trend::Kind::kSame, 0}; }
  static Trend sum(const Trend& a, const Trend& b);
  static Trend scaled(const Trend& a, int64_t factor);
  static Trend within(Trend a, unsigned bytes);  // unknown if its steps are too large for the width

  Trend of_register(Object object, const Node& use);
  Trend of_operand(const Node& node, size_t n);
  Trend of_result(const Node& node);
  Trend computed(const Node& node);
  Trend carried(Object object);
  // If `node` writes `object` plus a literal, as the object was earlier in this pass: the literal.
  bool step(const Node& node, Object object, int64_t* literal);
  const std::vector<const Node*>& writers(Object object) const;
  const Node* sole_writer_before(Object object, const Node& use) const;

  const Flow& flow_;
  const LoopPass& pass_;
  std::unordered_map<Object, std::vector<const Node*>> writers_;  // in the loop
  std::unordered_map<const Node*, Trend> results_;
  std::unordered_map<Object, Trend> carried_;
  unsigned depth_ = 0;
};

}  // namespace tessera::slice
