// Does what a kernel does depend on which multiprocessor its blocks are on? A slice has other blocks beside
// each other, on other multiprocessors, than the whole grid.
#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

using ptx::Operand;

bool reads_placement(const auto& operands) {
  return std::any_of(operands.begin(), operands.end(), [](const Operand& o) {
    return (o.kind == Operand::Kind::kSpecial && (o.name == "%smid" || o.name == "%nsmid")) ||
           reads_placement(o.children);
  });
}

}  // namespace

bool reads_placement(const Node& node) {
  return reads_placement(node.instruction->operands);
}

Verdict check_placement(const FunctionFacts& facts, Closure& closure) {
  const Flow& flow = facts.flow;
  if (!facts.reads_placement) return {};
  std::vector<uint8_t> depends(flow.n_objects, 0);
  auto called = [&](const Node& node) {
    return node.instruction->opcode == "call" ? closure.facts(callee_of(*node.instruction)) : nullptr;
  };
  auto is_source = [&](const Node& node) {
    const FunctionFacts* callee = called(node);
    return reads_placement(node) || (callee && callee->reads_placement);
  };
  size_t work = 0;
  for (bool changed = true; changed; work += flow.nodes.size()) {
    if (work > 20'000'000)
      return refuse(Refusal::kTooComplex, "what depends on %smid is not followed to its end");
    changed = false;
    for (const Node& node : flow.nodes) {
      const auto reads = flow.reads(node);
      if (!is_source(node) && std::none_of(reads.begin(), reads.end(), [&](Object o) { return depends[o]; }))
        continue;
      for (Object o : flow.writes(node)) {
        changed |= !depends[o];
        depends[o] = 1;
      }
    }
  }
  for (const Node& node : flow.nodes) {
    const ptx::Instruction& i = *node.instruction;
    bool found = node.guard != kNoObject && depends[node.guard];
    if (i.opcode == "call" || i.opcode == "brx") {  // to a function, for which it may be an address
      const FunctionFacts* callee = called(node);   // which may find it in memory, too
      const bool by_memory = callee && callee->reads_memory;
      const auto reads = flow.reads(node);
      found |= std::any_of(reads.begin(), reads.end(), [&](Object o) {
        return depends[o] && (o >= kFirstRegister || (by_memory && is_memory(o)));
      });
    }
    for (size_t n = 0; n < i.operands.size(); ++n) {
      const Operand::Kind kind = i.operands[n].kind;
      if (kind == Operand::Kind::kAddress || kind == Operand::Kind::kBracket)
        flow.each_object(node, n, [&](Object o) { found |= o >= kFirstRegister && depends[o]; });
    }
    if (found && ptx::space_of(i) != ptx::Space::kParam) return refuse(Refusal::kPlacement, at(i));
  }
  return {};
}

}  // namespace tessera::slice
