// Decoupled look-back: does a load poll only words that blocks of lower numbers publish? Built for a function
// in which a loop waits (rule S4), to tell "waits for lower blocks" from "waits for others". Private to
// kernels/slice; read-only views into the Flow.
//
// Every register is followed as a sum of factors of known quantities and a rest within bounds, without regard
// to the order of instructions: base parameter + 8 * block number - 8 * %tid.x + [-inf, -8]. A word that the
// block publishes for others has such an address too; what the two share falls out of the difference, so no
// names or layouts are known here. Sums are taken as exact (no wrap-around), threads to keep to the words of
// their block, and the polled words to be written by nobody else: a kernel that is cut on the ground of this
// is watched at each launch (interpose/slice/trial.h).
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/slice/internal.h"

namespace tessera::slice {

using Symbol = uint32_t;

struct Term {
  Symbol symbol = 0;
  int64_t factor = 0;
  bool operator==(const Term&) const = default;
};

// terms + [low, high]. kUnset: nothing is written yet. kAny: nothing is known.
struct Form {
  enum class Kind : uint8_t { kUnset, kSum, kAny };
  Kind kind = Kind::kUnset;
  uint8_t updates = 0;      // bounds that still move after a few are taken as infinite
  std::vector<Term> terms;  // ascending symbols, no factor 0
  int64_t low = 0, high = 0;
};

class LookBack {
 public:
  LookBack(const Flow& flow, const OwnAddresses& own);
  // A store that publishes the own word below which `poll` reads: at least one block's step below, in every
  // pass and every thread. nullptr if there is none, or one of which the same word is not below. Blocks count
  // along x, so this is said of grids of one row.
  const Node* published_above(const Node& poll) const;

 private:
  using Slot = std::pair<ptx::Name, uint64_t>;  // variable or parameter, offset

  Form transfer(const Node& node);
  Form operand(const Node& node, size_t n);
  Form special(const ptx::Operand& o) const;
  Form symbol(ptx::Name name, uint64_t offset);
  Form loaded(const Node& node);
  Form ticket(const Node& node);
  void store_shared(const Node& node);
  bool merge(Form* into, Form value) const;
  bool is_block_number(Symbol symbol) const;
  int64_t step_of(const Form& own) const;

  const Flow& flow_;
  std::vector<Form> forms_;  // by object
  std::map<Slot, Form> shared_;
  std::map<Slot, Symbol> symbols_;
  std::vector<Symbol> tickets_;
  std::map<const Node*, Form> polled_;                   // where each load reads
  std::vector<std::pair<const Node*, Form>> published_;  // where stores for other blocks write
  bool changed_ = false;
};

}  // namespace tessera::slice
