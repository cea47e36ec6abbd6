#include "tests/device/prologue/entry.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "kernels/sass/program.h"
#include "tests/device/prologue/code.h"

namespace tessera::image {
namespace {

using sass::File;
using sass::Operand;

// The driver tells a grid that was launched cooperatively where its blocks meet: %envreg1 and %envreg2 of sm_90.
constexpr uint32_t kGridWorkspaceBegin = 0x44, kGridWorkspaceEnd = 0x4c;
constexpr uint64_t kBranch = 0x947, kIndirectBranch = 0x949;

// Instructions of sm_90 that kernels/sass leaves out, with what they read beside their guard and write: a file, the first bit
// of the operand's field, and how many registers follow from it, at most of what is read and at least of what is written.
struct Field {
  File file = File::kGeneral;
  unsigned bit = 0;
  uint16_t words = 0;
};
struct Further {
  uint64_t opcode;  // with its form
  std::array<Field, 2> reads;
  Field writes;
};
// clang-format off
constexpr Further kFurther[] = {
    {kBranch, {{{File::kPredicate, 87, 1}, {File::kUniformPredicate, 24, 1}}}, {}},  // asked of the warp: .U.ANY, .DIV
    {kIndirectBranch, {{{File::kGeneral, 24, 2}}}, {}},
    {0x31d, {{{File::kGeneral, 32, 1}}}, {}},                       // BAR whose number and count are in a register
    {0x355, {}, {File::kGeneral, 16, 1}},                           // BMOV from a convergence barrier
    {0x356, {{{File::kGeneral, 32, 1}}}, {}},                       // BMOV into one
    {0x91b, {}, {}},                                                // ENDCOLLECTIVE
    {0x980, {{{File::kGeneral, 24, 2}, {File::kUniform, 32, 2}}}, {File::kGeneral, 16, 1}},  // LD of any memory
    {0x9c7, {}, {}},                                                // UCGABAR_ARV
    {0x9c8, {}, {}},                                                // USETMAXREG
    {0xabb, {{{File::kUniform, 24, 1}}}, {File::kUniform, 16, 1}},  // ULDC at a place that is computed
    {0xb1d, {}, {}},                                                // BAR of a part of the block
    {0xdc7, {}, {}},                                                // UCGABAR_WAIT
};
// clang-format on
// The number in each file that stands for no register.
constexpr uint64_t kLast[] = {255, 63, 7, 7, 0};

constexpr size_t kMostRegisters = 32;  // that a check writes

struct Register {
  File file;
  uint16_t index;
  bool operator==(const Register&) const = default;
};

std::string text(uint64_t at, const std::string& what) {
  char place[24];
  snprintf(place, sizeof place, "0x%04llx: ", static_cast<unsigned long long>(at));
  return place + what;
}

std::string name(Register r) {
  static constexpr const char* kFiles[] = {"R", "UR", "P", "UP", "S"};
  return kFiles[size_t(r.file)] + std::to_string(r.index);
}

bool conditional(const sass::Instruction& i) {
  return !sass::always(i.guard) || std::any_of(i.reads.begin(), i.reads.end(), [](const Operand& o) {
    return (o.file == File::kPredicate || o.file == File::kUniformPredicate) &&
           o.kind == Operand::Kind::kRegister && !sass::always(o);
  });
}

// A predicate that is asked: 0 is none, else one more than twice its number, and one more if it is negated.
using Guard = uint8_t;
Guard guard_of(const Operand& guard) {
  if (guard.file != File::kPredicate || guard.index == sass::kZero) return 0;
  return Guard(1 + 2 * guard.index + guard.negated);
}
Guard opposite(Guard guard) {
  return guard ? Guard(((guard - 1) ^ 1) + 1) : Guard{0};
}

// A state is known when an instruction begins, of the check's registers.
struct State {
  uint64_t open = 0;                            // may still be unwritten
  std::array<Guard, kMostRegisters> only = {};  // but where this predicate holds

  // The state if `guard` holds: what was written under it is written.
  State where(Guard guard) const {
    State s = *this;
    for (size_t k = 0; guard && k < kMostRegisters; ++k)
      if (only[k] == guard) s.open &= ~(uint64_t{1} << k);
    return s;
  }
  // Also reached as `other`. False: nothing new.
  bool join(const State& other) {
    const State before = *this;
    for (size_t k = 0; k < kMostRegisters; ++k)
      if ((other.open >> k & 1) && (!(open >> k & 1) || only[k] != other.only[k]))
        only[k] = open >> k & 1 ? Guard{0} : other.only[k];
    open |= other.open;
    return open != before.open || only != before.only;
  }
};

// Each instruction with what is known there, along all ways from the first one.
class Walk {
 public:
  Walk(const KernelCode& kernel, const IndirectBranches& branches, const Prologue& prologue)
      : kernel_(kernel), branches_(branches) {
    for (const Operand& o : prologue.writes)
      for (uint16_t w = 0; w < o.words; ++w)
        if (const Register r{o.file, uint16_t(o.index + w)};
            o.index != sass::kZero && std::find(tracked_.begin(), tracked_.end(), r) == tracked_.end())
          tracked_.push_back(r);
  }

  base::Status run() {
    if (tracked_.size() > kMostRegisters) return refused("the template has too many registers");
    State all;
    for (size_t k = 0; k < tracked_.size(); ++k) all.open |= uint64_t{1} << k;
    reach(0, all);
    while (!todo_.empty()) {
      const uint64_t at = todo_.back();
      todo_.pop_back();
      if (base::Status s = step(at, states_.at(at)); !s.ok()) return s;
      if (outside_) return refused(text(at, "the code goes on behind its end"));
    }
    return base::ok();
  }

 private:
  void reach(int64_t at, const State& state) {
    if (!state.open) return;
    outside_ = outside_ || at < 0 || at % int64_t(kInstructionBytes) ||
               uint64_t(at) + kInstructionBytes > kernel_.code.size();
    if (!outside_ && states_[uint64_t(at)].join(state)) todo_.push_back(uint64_t(at));
  }

  uint64_t mask(const Operand& o) const {
    uint64_t bits = 0;
    for (uint16_t w = 0; w < o.words && o.kind == Operand::Kind::kRegister && o.index != sass::kZero; ++w)
      bits |= bit({o.file, uint16_t(o.index + w)});
    return bits;
  }
  uint64_t bit(Register r) const {
    const auto found = std::find(tracked_.begin(), tracked_.end(), r);
    return found == tracked_.end() ? 0 : uint64_t{1} << (found - tracked_.begin());
  }
  base::Status reads(uint64_t at, uint64_t found) const {
    if (!found) return base::ok();
    return refused(
        text(at, "may read " + name(tracked_[size_t(__builtin_ctzll(found))]) + " as the check left it"));
  }

  base::Status step(uint64_t at, State state) {
    const auto i = instruction_at(kernel_.code, at, kernel_.sm);
    if (!i) return unknown(at, state);
    const Guard guard = guard_of(i->guard);
    uint64_t read = 0, written = 0;
    for (const Operand& o : i->reads) read |= mask(o);
    for (const Operand& o : i->writes) written |= mask(o);
    const uint64_t open = state.where(guard).open;
    if (base::Status s = reads(at, (read & open) | (mask(i->guard) & state.open)); !s.ok()) return s;
    if (i->kind == sass::Kind::kBranch || i->kind == sass::Kind::kCall)
      reach(next(at) + i->target, state.where(guard));
    const bool ends =
        i->kind == sass::Kind::kBranch || i->kind == sass::Kind::kReturn || i->kind == sass::Kind::kExit;
    if (ends && !conditional(*i)) return base::ok();
    // Nothing is known of predicates behind a call, nor which of two did not hold.
    if (ends && std::all_of(i->reads.begin(), i->reads.end(), sass::always))
      state = state.where(opposite(guard));
    if (i->kind == sass::Kind::kCall) state.only = {};
    write(&state, *i, guard, written);
    reach(next(at), state);
    return base::ok();
  }

  void write(State* state, const sass::Instruction& i, Guard guard, uint64_t written) const {
    if (sass::always(i.guard)) state->open &= ~written;
    for (size_t k = 0; k < kMostRegisters; ++k)
      if ((written & state->open) >> k & 1) state->only[k] = guard;
    for (const Operand& o : i.writes)
      for (size_t k = 0; o.file == File::kPredicate && k < kMostRegisters; ++k)
        if (state->only[k] && (state->only[k] - 1) / 2 == o.index) state->only[k] = 0;
  }

  // The registers of a field.
  uint64_t mask(const Field& f, uint64_t low, uint64_t high) const {
    const uint64_t first = (f.bit < 64 ? low >> f.bit : high >> (f.bit - 64)) & kLast[size_t(f.file)];
    uint64_t bits = 0;
    for (uint16_t w = 0; w < f.words && first != kLast[size_t(f.file)]; ++w)
      bits |= bit({f.file, uint16_t(first + w)});
    return bits;
  }

  // One that kernels/sass does not know.
  base::Status unknown(uint64_t at, State state) {
    const auto low = load<uint64_t>(kernel_.code, at), high = load<uint64_t>(kernel_.code, at + 8);
    const auto* further = std::find_if(std::begin(kFurther), std::end(kFurther), [&](const Further& f) {
      return kernel_.sm == 90 && f.opcode == (low & 0xfff);
    });
    if (further == std::end(kFurther)) return refused(text(at, sass::name_of(low) + " is not known"));
    const auto guard = uint16_t(low >> 12 & 7);
    uint64_t read = bit({File::kPredicate, guard}) | bit({File::kUniformPredicate, guard});
    for (const Field& f : further->reads) read |= mask(f, low, high);
    if (base::Status s = reads(at, read & state.open); !s.ok()) return s;
    state.only = {};
    const bool unconditional = guard == 7;
    if (unconditional) state.open &= ~mask(further->writes, low, high);
    if (further->opcode == kBranch) {
      const uint64_t value = (low >> 16 & 0xff) | (low >> 34) << 8 | (high & 0x3ffff) << 38;
      reach(next(at) + (int64_t(value << 8) >> 6), state);
    }
    if (further->opcode == kIndirectBranch) {
      if (!branches_.contains(uint32_t(at)))
        return refused(text(at, "a jump through a table that is not named"));
      for (const uint32_t target : branches_.at(uint32_t(at))) reach(target, state);
      if (unconditional) return base::ok();
    }
    reach(next(at), state);
    return base::ok();
  }

  static int64_t next(uint64_t at) { return int64_t(at + kInstructionBytes); }

  const KernelCode& kernel_;
  const IndirectBranches& branches_;
  std::map<uint64_t, State> states_;  // by place
  std::vector<Register> tracked_;     // bits and elements of State
  std::vector<uint64_t> todo_;
  bool outside_ = false;
};

base::Status waits_for_no_grid(const KernelCode& kernel) {
  for (uint64_t at = 0; at + kInstructionBytes <= kernel.code.size(); at += kInstructionBytes) {
    const auto i = instruction_at(kernel.code, at, kernel.sm);
    if (!i) continue;
    for (const Operand& o : i->reads)
      if (o.kind == Operand::Kind::kConstant && o.bank == 0 && o.value < kGridWorkspaceEnd &&
          o.value + 4 * o.words > kGridWorkspaceBegin)
        return refused(text(at, "its grid waits for all of its blocks, which a slice does not have"));
  }
  return base::ok();
}

}  // namespace

base::Status can_bear(const KernelCode& kernel, const IndirectBranches& branches, const Prologue& prologue) {
  if (base::Status s = waits_for_no_grid(kernel); !s.ok()) return s;
  return Walk(kernel, branches, prologue).run();
}

}  // namespace tessera::image
