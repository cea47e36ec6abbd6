// The modifiers of an instruction, sorted by meaning. Used by the decoder only; pure.
#pragma once

#include <string>
#include <vector>

#include "kernels/ptx/ir.h"
#include "softgpu/exec/op.h"

namespace tessera::softgpu::exec {

struct Modifiers {
  std::vector<ptx::Type> types;
  std::vector<ptx::Name> others;  // not known here: shapes, modes; the opcode's decoder must take each
  bool has_rounding = false, to_integer = false;
  Rounding rounding = Rounding::kNearest;
  uint16_t flags = 0;  // Flag bits that follow from modifiers
  bool approx = false, full = false, lo = false, hi = false, wide = false, carry_out = false;
  bool is_volatile = false;  // volatile, relaxed, acquire, release, mmio
  bool cache_hint = false;   // .L2::cache_hint: one more operand
  bool cluster = false;      // names another block's shared memory
  bool has_space = false, has_compare = false;
  Space space = Space::kGeneric;
  Compare compare = Compare::kEq;
  unsigned vector = 1;
  bool take(ptx::Name name);  // removes it from `others`; false if it is not there
};

Modifiers sort_modifiers(const ptx::Instruction& instruction);

// Ty of a PTX type; kCount if data operations do not know it.
Ty ty_of(ptx::Type type);
unsigned storage_of(Ty type);  // bytes per lane: 8, 4, or 0 for a predicate

}  // namespace tessera::softgpu::exec
