// One instruction of NVIDIA machine code, sm_80 to sm_121: 128 bits, taken apart into what it reads, what it writes
// and the rest. The rest is not interpreted: who compares two instructions compares it bit by bit. Nothing is ever
// encoded here. Untrusted bytes; pure; any thread. Facts: docs/notes/machine-code.md.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sass {

inline constexpr size_t kInstructionBytes = 16;

// The last one is no register: it holds whether a branch would be taken that became a predicate (program.h).
enum class File : uint8_t { kGeneral, kUniform, kPredicate, kUniformPredicate, kStack, kCondition };
inline constexpr uint16_t kZero = 0xffff;  // in place of a register's number: RZ, URZ; of a predicate's: true

struct Operand {
  enum class Kind : uint8_t { kRegister, kImmediate, kConstant } kind = Kind::kRegister;
  File file = File::kGeneral;
  uint16_t index =
      kZero;             // first register; kStack: first word above the stack pointer; kCondition: its number
  uint16_t words = 1;    // 32-bit registers; 1 of a predicate
  bool negated = false;  // of a predicate
  uint8_t bank = 0;      // kConstant
  // kImmediate: as it stands. Of two words it is the upper one of a double, else the lower one. kConstant: offset, bytes
  uint32_t value = 0;

  bool operator==(const Operand&) const = default;
  bool is_predicate() const {
    return file == File::kPredicate || file == File::kUniformPredicate || file == File::kCondition;
  }
};

using Operands = boost::container::small_vector<Operand, 4>;

enum class Kind : uint8_t {
  kNothing,   // computes nothing and waits for nobody
  kAll,       // whether all predicates that it reads hold; in no file
  kPure,      // results from operands
  kWarp,      // results from the operands of all threads of the warp that execute it
  kSpecial,   // reads a special register
  kConstant,  // reads constant memory
  kLoad,      // reads memory
  kSync,      // threads of a warp meet
  kMemory,    // writes memory, orders it, or waits for it
  kBranch,
  kCall,
  kReturn,
  kExit,
};

struct Opcode {
  uint16_t number, meaning;
  const char* name;
  Kind kind;
  const char* operands;
};

struct Instruction {
  const Opcode* opcode = nullptr;
  uint64_t low = 0, high = 0;            // as they stand
  uint64_t rest_low = 0, rest_high = 0;  // without operands, guard, opcode, form and scheduling
  bool swapped = false;                  // the form has its second and third source in each other's place
  Kind kind = Kind::kNothing;
  Operand guard;
  Operands writes, reads;
  int64_t target = 0;  // kBranch, kCall, BSSY: bytes, relative to the next instruction
};

// Nothing: an instruction, or a form of one, that is not known for this target (90 = sm_90).
std::optional<Instruction> decode(uint64_t low, uint64_t high, unsigned sm);

// Instead of what it was: a move of whole words.
void become_move(Instruction* instruction, Operand to, Operand from);

// "FFMA", or "opcode 0x1a6" of one that is not known.
std::string name_of(uint64_t low);

// As text, for comparing with a disassembler: "name | guard | writes | reads", sorted.
std::string text_of(const Instruction& instruction);

}  // namespace tessera::sass
