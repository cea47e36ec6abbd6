// The instructions of a kernel that can be reached, in basic blocks. Functions that it calls are part of it once for
// each call, so that what comes back is what this call gave. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/sass/instruction.h"

namespace tessera::sass {

// Words of a thread's stack that are followed as registers are. Attention's gradient spills 17.
inline constexpr uint32_t kMostStackWords = 1024;
inline constexpr uint32_t kMostConditions = 1024;  // FlashAttention's kernels have a few dozen

struct Block {
  uint32_t begin = 0, end = 0;           // of Program::instructions
  std::vector<uint32_t> next, previous;  // blocks; `next` in the order: target, then what follows
  std::vector<uint32_t> ways;            // as `next`, behind the passages
};

struct Program {
  std::vector<Instruction> instructions;  // in the order of the code; then those of passages that were copied
  std::vector<uint32_t> at;               // bytes: where each of them stands
  std::vector<uint32_t> call;             // the call that each of them belongs to, 0: none
  std::vector<uint32_t> return_at;        // by call, bytes: what follows it
  // In the order in which a walk along `ways` comes to them, wherever their code stands. A passage only computes and goes
  // on to one place: it is part of the one way that leads through it, and stands behind all others.
  std::vector<Block> blocks;
  uint32_t n_compared = 0;  // blocks that are no passages

  // The block that begins at this byte of this call, or the one that the passage there leads to; n_compared: none.
  uint32_t block_at(uint32_t call_number, int64_t byte) const;
};

// A loop of one block that is left after the same number of passes whatever the kernel reads.
struct CountedLoop {
  uint32_t call = 0, at = 0;  // where its block begins
  uint32_t passes = 0;        // at least 1
};

// A branch that is taken by all threads of a warp that come to it, or by none.
struct CommonBranch {
  uint32_t call = 0, at = 0;
  bool operator==(const CommonBranch&) const = default;
};

struct Facts {
  std::vector<CountedLoop> loops;
  std::vector<CommonBranch> branches;
};

// Counted loops are taken apart: each pass is a block of its own, without the branch. A common branch around code that only
// computes and loads becomes a predicate of this code. If there is one, blocks that only follow each other are one block.
// kUnsupported: an instruction that is not known, a jump that is not followed. The text begins with its place.
base::Result<Program> read_program(std::span<const uint8_t> code, unsigned sm, const Facts& facts = {});

// A jump that is always made: it says nothing but where the code stands.
bool just_goes_on(const Instruction& instruction);

inline bool always(const Operand& predicate) {
  return predicate.index == kZero && !predicate.negated;
}

}  // namespace tessera::sass
