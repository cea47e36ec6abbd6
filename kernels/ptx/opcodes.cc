#include "kernels/ptx/opcodes.h"

#include <algorithm>

namespace tessera::ptx {
namespace {

constexpr Opcode kOpcodes[] = {
#define TS_OPCODE(name, op_class, writes) {#name, OpClass::op_class, Writes::writes},
#include "kernels/ptx/opcodes.def"
};

// `and`, `or`, `xor`, `not` are operators in C++: the names above come from tokens, so this only checks the
// order.
static_assert(std::is_sorted(std::begin(kOpcodes), std::end(kOpcodes),
                             [](const Opcode& a, const Opcode& b) { return a.name < b.name; }));

}  // namespace

const Opcode* find_opcode(Name name) {
  const Opcode* row = std::lower_bound(std::begin(kOpcodes), std::end(kOpcodes), name,
                                       [](const Opcode& o, Name n) { return o.name < n; });
  return row != std::end(kOpcodes) && row->name == name ? row : nullptr;
}

int written_operand(const Opcode& opcode, const Instruction& i) {
  if (i.operands.empty()) return -1;
  Operand::Kind first = i.operands[0].kind;
  switch (opcode.writes) {
    case Writes::kNone:
      return -1;
    case Writes::kFirst:
      return 0;
    case Writes::kFirstUnlessAddress:
      return first == Operand::Kind::kAddress || first == Operand::Kind::kBracket ? -1 : 0;
    case Writes::kFirstIfRed:
      return i.has("red") ? 0 : -1;
    case Writes::kCall:
      return first == Operand::Kind::kList ? 0 : -1;
  }
  return -1;
}

Space space_of(const Instruction& i) {
  for (Name m : i.modifiers) {
    if (m == "global") return Space::kGlobal;
    if (m.starts_with("shared"))  // shared, shared::cta, shared::cluster
      return Space::kShared;
    if (m == "local") return Space::kLocal;
    if (m == "const") return Space::kConst;
    if (m.starts_with("param"))  // param, param::entry, param::func
      return Space::kParam;
  }
  return Space::kNone;
}

}  // namespace tessera::ptx
