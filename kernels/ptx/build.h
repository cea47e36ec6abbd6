// Operands and statements that are made rather than parsed. Names are views: text that is not a literal comes
// from Module::keep. Used by the parser (subscripts) and the rewrites of kernels/slice.
#pragma once

#include <utility>

#include "kernels/ptx/ir.h"

namespace tessera::ptx::build {

inline Operand named(Operand::Kind kind, Name name, uint64_t bits = 0) {
  Operand o;
  o.kind = kind;
  o.name = name;
  o.bits = bits;
  return o;
}
inline Operand reg(Name name) {
  return named(Operand::Kind::kRegister, name);
}
inline Operand symbol(Name name) {
  return named(Operand::Kind::kSymbol, name);
}
inline Operand address(Name base, uint64_t offset) {
  return named(Operand::Kind::kAddress, base, offset);
}
inline Operand integer(uint64_t bits) {
  return named(Operand::Kind::kInteger, {}, bits);
}
inline Statement make(Name opcode, List<Name> modifiers, List<Operand> operands) {
  Statement s;
  s.kind = Statement::Kind::kInstruction;
  s.instruction.opcode = opcode;
  s.instruction.modifiers = std::move(modifiers);
  s.instruction.operands = std::move(operands);
  return s;
}
inline Statement declare(Variable variable) {
  Statement s;
  s.kind = Statement::Kind::kVariable;
  s.variable = std::move(variable);
  return s;
}
inline Variable variable(Space space, Type type, Name name) {
  Variable v;
  v.space = space;
  v.type = type;
  v.name = name;
  return v;
}

}  // namespace tessera::ptx::build
