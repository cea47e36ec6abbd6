// Statements that the rewrites make, beside those of kernels/ptx/build.h. Private to kernels/slice.
#pragma once

#include <utility>
#include <vector>

#include "kernels/ptx/build.h"

namespace tessera::slice::build {

using ptx::build::address;
using ptx::build::declare;
using ptx::build::make;
using ptx::build::named;
using ptx::build::reg;
using ptx::build::symbol;
using ptx::build::variable;

inline ptx::Variable bytes_parameter(ptx::Name name, uint32_t align, uint64_t bytes) {
  ptx::Variable v = variable(ptx::Space::kParam, ptx::Type::kB8, name);
  v.align = align;
  v.is_array = true;
  v.dims = {bytes};
  return v;
}

void each_instruction(std::vector<ptx::Statement>& list, auto&& f) {
  for (ptx::Statement& s : list)
    if (s.kind == ptx::Statement::Kind::kInstruction)
      f(s.instruction);
    else if (s.kind == ptx::Statement::Kind::kScope)
      each_instruction(s.scope.edit(), f);
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
  while (operands[n].kind == ptx::Operand::Kind::kList) ++n;
  operands[n].name = callee;
  if (n + 1 == operands.size()) operands.push_back(named(ptx::Operand::Kind::kList, {}));
  operands[n + 1].children.push_back(symbol(parameter.name));
  list.push_back(declare(std::move(parameter)));
  for (ptx::Statement& s : stores) list.push_back(std::move(s));
  list.push_back(std::move(call));
  return scope;
}

}  // namespace tessera::slice::build
