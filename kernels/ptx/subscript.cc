#include "kernels/ptx/subscript.h"

#include <utility>
#include <vector>

#include "kernels/ptx/build.h"

namespace tessera::ptx {
namespace {

using build::integer;
using build::reg;

constexpr Name kNumber = "%tessera_number", kOffset = "%tessera_offset", kElement = "%tessera_element";

Name unsigned_name(Type type) {
  switch (type_bytes(type)) {
    case 1:
      return "u8";
    case 2:
      return "u16";
    case 4:
      return "u32";
    default:
      return "u64";
  }
}

}  // namespace

bool write_out(const Subscript& subscript, unsigned address_bits, Statement* statement) {
  Instruction& i = statement->instruction;
  const bool accesses = i.opcode == "ld" || i.opcode == "ldu" || i.opcode == "st";
  const size_t which = i.opcode == "st" ? 0 : 1;
  if ((!accesses && i.opcode != "mov" && i.opcode != "cvta") || i.operands.size() <= which ||
      i.operands[which].kind != Operand::Kind::kSymbol)
    return false;
  const Operand array = std::as_const(i).operands[which];
  Operand& element = i.operands[which];
  element.kind = accesses ? Operand::Kind::kAddress : Operand::Kind::kSymbol;
  if (subscript.index.empty()) {
    element.bits = subscript.constant * subscript.element_bytes;
    return true;
  }
  // The number of the element counts 32 bits, as do the bytes before it; narrower registers are unsigned.
  const Type address = !accesses && type_bytes(i.type()) == 4 ? Type::kB32
                       : address_bits == 32                   ? Type::kB32
                                                              : Type::kB64;
  const bool wide = address == Type::kB64;
  std::vector<Statement> list;
  const auto declare = [&](Name name, Type type) {
    list.push_back(build::declare(build::variable(Space::kReg, type, name)));
  };
  const auto emit = [&](Name opcode, List<Name> modifiers, List<Operand> operands) {
    list.push_back(build::make(opcode, std::move(modifiers), std::move(operands)));
    list.back().instruction.at = i.at;
  };
  declare(kNumber, Type::kB32);
  declare(kElement, address);
  emit("cvt", {"u32", unsigned_name(subscript.index_type)}, {reg(kNumber), reg(subscript.index)});
  emit("add", {"u32"}, {reg(kNumber), reg(kNumber), integer(subscript.constant)});
  emit("mul", {"lo", "u32"}, {reg(kNumber), reg(kNumber), integer(subscript.element_bytes)});
  emit("mov", {wide ? "u64" : "u32"}, {reg(kElement), array});
  if (wide) {
    declare(kOffset, Type::kB64);
    emit("cvt", {"u64", "u32"}, {reg(kOffset), reg(kNumber)});
    emit("add", {"u64"}, {reg(kElement), reg(kElement), reg(kOffset)});
  } else {
    emit("add", {"u32"}, {reg(kElement), reg(kElement), reg(kNumber)});
  }
  element.kind = accesses ? Operand::Kind::kAddress : Operand::Kind::kRegister;
  element.name = kElement;
  element.base_is_register = accesses;
  list.push_back(std::move(*statement));
  *statement = Statement();
  statement->kind = Statement::Kind::kScope;
  statement->scope = Box(std::move(list));
  return true;
}

}  // namespace tessera::ptx
