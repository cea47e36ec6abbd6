// Statements that the rewrites make. Names are views: text that is not a literal comes from Module::keep.
// Private to kernels/slice.
#pragma once

#include <utility>
#include <vector>

#include "kernels/ptx/ir.h"

namespace tessera::slice::build {

inline ptx::Operand named(ptx::Operand::Kind kind, ptx::Name name, uint64_t bits = 0) {
  ptx::Operand o;
  o.kind = kind;
  o.name = name;
  o.bits = bits;
  return o;
}
inline ptx::Operand reg(ptx::Name name) {
  return named(ptx::Operand::Kind::kRegister, name);
}
inline ptx::Operand symbol(ptx::Name name) {
  return named(ptx::Operand::Kind::kSymbol, name);
}
inline ptx::Operand address(ptx::Name base, uint64_t offset) {
  return named(ptx::Operand::Kind::kAddress, base, offset);
}
inline ptx::Statement make(ptx::Name opcode, ptx::List<ptx::Name> modifiers,
                           ptx::List<ptx::Operand> operands) {
  ptx::Statement s;
  s.kind = ptx::Statement::Kind::kInstruction;
  s.instruction.opcode = opcode;
  s.instruction.modifiers = std::move(modifiers);
  s.instruction.operands = std::move(operands);
  return s;
}
inline ptx::Statement declare(ptx::Variable variable) {
  ptx::Statement s;
  s.kind = ptx::Statement::Kind::kVariable;
  s.variable = std::move(variable);
  return s;
}
inline ptx::Variable variable(ptx::Space space, ptx::Type type, ptx::Name name) {
  ptx::Variable v;
  v.space = space;
  v.type = type;
  v.name = name;
  return v;
}
inline ptx::Variable bytes_parameter(ptx::Name name, uint32_t align, uint64_t bytes) {
  ptx::Variable v = variable(ptx::Space::kParam, ptx::Type::kB8, name);
  v.align = align;
  v.is_array = true;
  v.dims = {bytes};
  return v;
}

void each_instruction(std::vector<ptx::Statement>& list, auto&& f) {
  for (ptx::Statement& s : list) {
    if (s.kind == ptx::Statement::Kind::kInstruction) {
      f(s.instruction);
    } else if (s.kind == ptx::Statement::Kind::kScope) {
      each_instruction(s.scope.edit(), f);
    }
  }
}

// { .param parameter; stores; call (..), callee, (.., parameter); }
inline ptx::Statement call_with(const ptx::Instruction& original, ptx::Name callee, ptx::Variable parameter,
                                std::vector<ptx::Statement> stores) {
  ptx::Statement scope, call;
  std::vector<ptx::Statement>& list = scope.scope.edit();
  scope.kind = ptx::Statement::Kind::kScope;
  call.kind = ptx::Statement::Kind::kInstruction;
  call.instruction = original;
  auto& operands = call.instruction.operands;
  size_t n = 0;
  while (operands[n].kind == ptx::Operand::Kind::kList) {
    ++n;
  }
  operands[n].name = callee;
  if (n + 1 == operands.size()) {
    operands.push_back(named(ptx::Operand::Kind::kList, {}));
  }
  operands[n + 1].children.push_back(symbol(parameter.name));
  list.push_back(declare(std::move(parameter)));
  for (ptx::Statement& s : stores) {
    list.push_back(std::move(s));
  }
  list.push_back(std::move(call));
  return scope;
}

}  // namespace tessera::slice::build
