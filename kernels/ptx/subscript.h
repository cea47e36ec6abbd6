// Elements of arrays as operands: `ld.global.u64 %d, v[2]`, `mov.u64 %d, v[%i+1]` (PTX ISA 6.4.2). The parser
// writes them out, so that nobody behind it knows them: an element with a constant number is `v+16`, one
// whose number is in a register becomes the arithmetic that ptxas makes of it. Pure functions on the IR.
#pragma once

#include "kernels/ptx/ir.h"

namespace tessera::ptx {

struct Subscript {
  Name index;  // register; "" = constant
  Type index_type = Type::kNone;
  uint64_t constant = 0;       // added to the index
  uint32_t element_bytes = 0;  // 0: the instruction has no subscript
};

// `statement` is an instruction with one operand that stands for the array alone (kSymbol): makes it name the
// element. False if no instruction of its opcode takes elements.
bool write_out(const Subscript& subscript, unsigned address_bits, Statement* statement);

}  // namespace tessera::ptx
