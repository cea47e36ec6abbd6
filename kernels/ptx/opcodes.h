// Facts about opcodes for analyses: rows of opcodes.def. Any thread, no state. An opcode without a row is not an error
// here: find_opcode says nullptr, and a caller that must understand the instruction refuses it.
#pragma once

#include <cstdint>

#include "kernels/ptx/ir.h"

namespace tessera::ptx {

enum class OpClass : uint8_t {
  kAlu,
  kLoad,
  kStore,
  kAtomic,
  kTexture,
  kMultimem,
  kAsyncCopy,
  kBlockBarrier,
  kFence,
  kWarp,
  kTensor,
  kCluster,
  kControl,
  kHint,
  kSleep,
  kStack,
  kSpecial,
};
enum class Writes : uint8_t { kNone, kFirst, kFirstUnlessAddress, kFirstIfRed, kCall };

struct Opcode {
  Name name;
  OpClass op_class;
  Writes writes;
};

const Opcode* find_opcode(Name name);

// Index of the operand that the instruction writes, -1 if none.
int written_operand(const Opcode& opcode, const Instruction& instruction);

// State space that a memory instruction names; kNone = generic addressing.
Space space_of(const Instruction& instruction);

}  // namespace tessera::ptx
