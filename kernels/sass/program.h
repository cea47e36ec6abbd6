// The instructions of a kernel that can be reached, in basic blocks. Functions that it calls are part of it once for
// each call, so that what comes back is what this call gave. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/sass/instruction.h"

namespace tessera::sass {

struct Block {
  uint32_t begin = 0, end = 0;           // of Program::instructions
  std::vector<uint32_t> next, previous;  // blocks; `next` in the order: target, then what follows
};

struct Program {
  std::vector<Instruction> instructions;  // in the order of the code
  std::vector<uint32_t> at;               // bytes: where each of them stands
  std::vector<uint32_t> call;             // the call that each of them belongs to, 0: none
  std::vector<uint32_t> return_at;        // by call, bytes: what follows it
  std::vector<Block> blocks;              // calls one after another, each in the order of the code

  // Block of this call that begins at this byte; blocks.size(): none does.
  size_t block_at(uint32_t call_number, int64_t byte) const;
};

// kUnsupported: an instruction that is not known, a jump that is not followed. The text begins with its place.
base::Result<Program> read_program(std::span<const uint8_t> code, unsigned sm);

inline bool always(const Operand& predicate) {
  return predicate.index == kZero && !predicate.negated;
}

}  // namespace tessera::sass
