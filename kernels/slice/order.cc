// Finds operations that make a result depend on the order in which blocks run, and addresses of a block's own memory.
#include <algorithm>

#include "kernels/slice/internal.h"

namespace tessera::slice {
namespace {

using ptx::Instruction;
using ptx::Name;
using ptx::OpClass;
using ptx::Operand;
using ptx::Space;

constexpr size_t kMaxWork = 20'000'000;  // instructions looked at
constexpr Name kFloats[] = {"f16", "f16x2", "bf16", "bf16x2", "f32", "f64"};
constexpr Name kCommutative[] = {"add", "min", "max", "and", "or", "xor", "inc", "dec"};

bool any_of(const Instruction& i, const auto& names) {
  return std::any_of(i.modifiers.begin(), i.modifiers.end(), [&](Name m) {
    return std::find(std::begin(names), std::end(names), m) != std::end(names);
  });
}

// Value that an atomic returns is looked at by somebody.
bool result_used(const Flow& flow, const Node& node, const std::vector<uint8_t>& read) {
  if (node.instruction->opcode != "atom") return false;
  for (Object o : flow.writes(node))
    if (o >= kFirstRegister && read[o]) return true;
  return false;
}

// inc/dec wrap at their operand: only the same bound everywhere makes them commute. A literal is taken as
// that.
bool wraps_at_literal(const Instruction& i) {
  return (!i.has("inc") && !i.has("dec")) ||
         (!i.operands.empty() && i.operands.back().kind == Operand::Kind::kInteger);
}

// The commutative operation that this is; "" if it is none.
Name operation(const Instruction& i) {
  for (Name m : i.modifiers)
    if (std::find(std::begin(kCommutative), std::end(kCommutative), m) != std::end(kCommutative)) return m;
  return {};
}

}  // namespace

Verdict check_order(const Flow& flow, const OwnAddresses& own) {
  std::vector<uint8_t> read(flow.n_objects, 0);
  for (Object o : flow.taken) read[o] = 1;
  for (const Node& node : flow.nodes)
    for (Object o : flow.reads(node)) read[o] = 1;
  for (const Node& node : flow.nodes) {
    if (!node.opcode) continue;
    const Instruction& i = *node.instruction;
    const OpClass op_class = node.opcode->op_class;
    // cp.reduce.async[.bulk]: a reduction into global memory without result.
    bool reduction = op_class == OpClass::kAsyncCopy && i.has("reduce");
    if (op_class != OpClass::kAtomic && !reduction) continue;
    if (!reduction && own.only_own(node)) continue;  // seen by one block or one cluster only
    Name op = operation(i);
    if (op.empty() || !wraps_at_literal(i))  // exch, cas, and what later versions add
      return refuse(Refusal::kOrderDependent, at(i));
    if (op == "add" && any_of(i, kFloats))
      return refuse(Refusal::kOrderDependent, at(i) + " (floating-point sum)");
    if (op == "add" && reduction && i.has("tensor"))
      return refuse(Refusal::kOrderDependent, at(i) + " (a sum of a type that the tensor map says)");
    if (result_used(flow, node, read))
      return refuse(Refusal::kOrderDependent, at(i) + " (its result is used)");
  }
  return {};
}

// A generic address that is surely not in global memory: shared memory of the block or of another block of
// its cluster (mapa takes and gives addresses of shared memory only), local memory, parameters, constants.
bool makes_own_generic(const Instruction& i) {
  if (i.opcode == "cvta") {
    const Space space = ptx::space_of(i);
    return !i.has("to") && space != Space::kGlobal && space != Space::kNone;
  }
  return i.opcode == "mapa" && ptx::space_of(i) == Space::kNone;
}

// Objects of which every write satisfies `makes`, which may ask for what was found so far. Cycles stay out,
// what the caller writes, and what is at the end of a very long chain.
std::vector<uint8_t> all_writes(const Flow& flow, auto makes) {
  std::vector<uint8_t> found(flow.n_objects, 0), denied(flow.n_objects, 0);
  size_t work = 0;
  for (bool changed = true; changed && work <= kMaxWork; work += flow.nodes.size()) {
    changed = false;
    std::fill(denied.begin(), denied.end(), 0);
    for (Object o : flow.given) denied[o] = 1;
    for (const Node& node : flow.nodes)
      for (Object o : flow.writes(node)) denied[o] |= !makes(node, found);
    for (const Node& node : flow.nodes) {
      for (Object o : flow.writes(node))
        if (o >= kFirstRegister && !denied[o] && !found[o]) found[o] = changed = true;
    }
  }
  return found;
}

OwnAddresses::OwnAddresses(const Flow& flow) : flow_(flow) {
  using Found = std::vector<uint8_t>;
  const bool any = std::any_of(flow.nodes.begin(), flow.nodes.end(),
                               [](const Node& n) { return makes_own_generic(*n.instruction); });
  if (!any) {
    own_.assign(flow.n_objects, 0);
    return;
  }
  // Offsets: 32-bit numbers made wide. A difference of pointers is neither offset nor address here.
  const Found offset = all_writes(flow, [&](const Node& node, const Found& found) {
    const Instruction& i = *node.instruction;
    if (i.opcode == "mul" || i.opcode == "mad") return i.opcode == "mul" && i.has("wide");
    if (i.opcode == "cvt") return ptx::type_bytes(i.type(1)) <= 4 && ptx::type_bytes(i.type(1)) > 0;
    return i.opcode == "shl" && found[flow.object_of(node, 1)];
  });
  // Addresses: cvta of such a space, generic mapa, and those moved or displaced by a literal or an offset.
  own_ = all_writes(flow, [&](const Node& node, const Found& found) {
    const Instruction& i = *node.instruction;
    if (i.opcode == "cvta" || i.opcode == "mapa") return makes_own_generic(i);
    if (i.opcode == "mov" && i.operands.size() == 2) return found[flow.object_of(node, 1)] != 0;
    if (i.opcode != "add" || i.operands.size() != 3) return false;
    auto displaces = [&](size_t n) {
      return i.operands[n].kind == Operand::Kind::kInteger || offset[flow.object_of(node, n)];
    };
    return (found[flow.object_of(node, 1)] && displaces(2)) ||
           (found[flow.object_of(node, 2)] && displaces(1));
  });
}

bool OwnAddresses::only_own(const Node& node) const {
  const Instruction& i = *node.instruction;
  Space space = ptx::space_of(i);
  if (space != Space::kNone) return space != Space::kGlobal;
  size_t n = address_operand(i);
  if (n == i.operands.size()) return false;
  Object base = flow_.object_of(node, n);
  return base != kNoObject && own_[base];
}

}  // namespace tessera::slice
