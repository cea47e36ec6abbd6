#include "kernels/sass/instruction.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace tessera::sass {
namespace {

constexpr Opcode kOpcodes[] = {
#define TS_SASS(number, meaning, name, kind, operands) {number, meaning, name, Kind::kind, operands},
#include "kernels/sass/opcodes.def"
};

const Opcode* find_opcode(uint64_t low) {
  const auto number = uint16_t(low & 0x1ff);
  const auto* found = std::lower_bound(std::begin(kOpcodes), std::end(kOpcodes), number,
                                       [](const Opcode& o, uint16_t n) { return o.number < n; });
  return found != std::end(kOpcodes) && found->number == number ? found : nullptr;
}

// Forms, bits 9..11: what stands at bit 32, and whether that is the third source.
enum Form : uint8_t {
  kRegisters = 1,
  kImmediateLast,
  kConstantLast,
  kImmediate,
  kConstant,
  kUniform,
  kUniformLast
};

constexpr unsigned kFormBegin = 9;
constexpr unsigned kSchedulingBegin =
    105;                              // stall, yield, scoreboards, operand cache: nothing of the results
constexpr unsigned kUniformBit = 91;  // a uniform register stands where a general one could

class Decoder {
 public:
  Decoder(uint64_t low, uint64_t high, unsigned sm) : sm_(sm) {
    i_.low = i_.rest_low = low;
    i_.high = i_.rest_high = high;
  }

  std::optional<Instruction> run() {
    i_.opcode = find_opcode(i_.low);
    if (!i_.opcode) return std::nullopt;
    i_.kind = i_.opcode->kind;
    clear(0, kFormBegin);
    clear(kSchedulingBegin, 128 - kSchedulingBegin);
    const char* letters = i_.opcode->operands;
    const bool more = *letters == '*';
    if (more) letters++;
    if (*letters == 'u') uniform_ = guard_is_uniform_ = true;
    if (*letters == 'g') guard_is_uniform_ = true;
    if (uniform_ || guard_is_uniform_) letters++;
    if (more && !operands()) return std::nullopt;
    for (; *letters; letters++)
      if (!operand(&letters)) return std::nullopt;
    i_.guard = predicate(12, guard_is_uniform_, true);
    if (hidden_operand()) return std::nullopt;
    if (uniform_ && take(kUniformBit, 1) != has_uniform_bit()) return std::nullopt;
    return std::move(i_);
  }

 private:
  uint64_t bits(unsigned at, unsigned n) const {
    const uint64_t v = at >= 64 ? i_.high >> (at - 64) : i_.low >> at | (at ? i_.high << (64 - at) : 0);
    return n == 64 ? v : v & ((uint64_t(1) << n) - 1);
  }
  void clear(unsigned at, unsigned n) {
    for (unsigned b = at; b < at + n; b++)
      (b >= 64 ? i_.rest_high : i_.rest_low) &= ~(uint64_t(1) << (b & 63));
  }
  uint64_t take(unsigned at, unsigned n) {
    clear(at, n);
    return bits(at, n);
  }
  Form form() const { return Form(bits(kFormBegin, 3)); }
  bool third_at_32() const {
    return form() == kImmediateLast || form() == kConstantLast || form() == kUniformLast;
  }

  Operand registers(unsigned at, File file, unsigned words) {
    Operand o;
    o.file = file;
    o.words = uint16_t(words);
    // Before sm_100 there are 63 uniform registers, and two more bits that say something else.
    const unsigned width = file == File::kUniform && sm_ < 100 ? 6 : 8;
    const auto index = uint16_t(take(at, width));
    o.index = index == (1u << width) - 1 ? kZero : index;
    return o;
  }
  Operand predicate(unsigned at, bool uniform, bool with_negation) {
    Operand o;
    o.file = uniform ? File::kUniformPredicate : File::kPredicate;
    const auto index = uint16_t(take(at, 3));
    o.index = index == 7 ? kZero : index;
    if (with_negation) o.negated = take(at + 3, 1);
    return o;
  }
  File vector_file() const { return uniform_ ? File::kUniform : File::kGeneral; }

  // The uniform unit's instructions have it, all but moves of an immediate, UPLOP3 and ULDC.
  bool has_uniform_bit() const {
    const uint16_t n = i_.opcode->number;
    return n != 0x09c && n != 0x0b9 && !(n == 0x082 && form() == kImmediate);
  }
  // Something that nobody took stands where registers do, or where nothing is known to be.
  bool hidden_operand() const {
    // Masks, tables, immediates; barriers; a uniform register of six bits beside two that say something else.
    constexpr uint16_t kOthers[] = {0x003, 0x004, 0x01c, 0x034, 0x04c, 0x083, 0x09c, 0x118,
                                    0x11a, 0x11d, 0x146, 0x148, 0x15c, 0x15d, 0x141, 0x142,
                                    0x145, 0x147, 0x18e, 0x1a3, 0x1a6, 0x1a7, 0x1a8, 0x1ae};
    if (std::find(std::begin(kOthers), std::end(kOthers), i_.opcode->number) != std::end(kOthers))
      return false;
    const auto left = [&](unsigned at, unsigned n) {
      return (at >= 64 ? i_.rest_high >> (at - 64) : i_.rest_low >> at) & ((uint64_t(1) << n) - 1);
    };
    for (const unsigned at : {16u, 24u, 32u, 64u})
      if (left(at, 8) != 0 && left(at, 8) != 0xff) return true;
    // Bit 101, of loads and stores: which lines of the cache give way is described by a register.
    const bool may_hint = i_.opcode->number == 0x181 || i_.opcode->number == 0x186;
    return (left(92, kSchedulingBegin - 92) & ~uint64_t(may_hint ? 0x200 : 0)) != 0;
  }

  // Reads the operand at bit 32, whose kind the form says. The form is cleared: the operand says it from now on.
  bool at_32(unsigned words) {
    clear(kFormBegin, 3);
    switch (form()) {
      case kRegisters:
        i_.reads.push_back(registers(32, vector_file(), words));
        return true;
      case kUniform:
      case kUniformLast:
        i_.reads.push_back(registers(32, File::kUniform, words));
        if (i_.kind == Kind::kPure) clear(kUniformBit, 1);
        return bits(kUniformBit, 1);
      case kImmediate:
      case kImmediateLast: {
        Operand o{.kind = Operand::Kind::kImmediate};
        o.words = uint16_t(words);
        o.value = uint32_t(take(32, 32));
        i_.reads.push_back(o);
        return true;
      }
      case kConstant:
      case kConstantLast:
        i_.reads.push_back(constant(words));
        return true;
    }
    return false;
  }
  Operand constant(unsigned words) {
    Operand o{.kind = Operand::Kind::kConstant};
    o.words = uint16_t(words);
    o.value = uint32_t(take(38, 16));
    o.bank = uint8_t(take(54, 5));
    return o;
  }

  bool operand(const char** letters) {
    const char c = **letters;
    const unsigned words = (*letters)[1] >= '1' && (*letters)[1] <= '9' ? unsigned(*++*letters - '0') : 1;
    switch (c) {
      case 'D':
        i_.writes.push_back(registers(16, vector_file(), words));
        return true;
      case 'E':
        i_.writes.push_back(registers(16, File::kUniform, words));
        return true;
      case 'A':
        i_.reads.push_back(registers(24, vector_file(), words));
        return true;
      case 'X':
        i_.reads.push_back(registers(24, File::kUniform, words));
        return true;
      case 'R':
        i_.reads.push_back(registers(32, File::kGeneral, words));
        return true;
      case 'Y':
        i_.reads.push_back(registers(32, File::kUniform, words));
        return true;
      case 'Z':
        i_.reads.push_back(registers(64, File::kUniform, words));
        return true;
      case 'B':
        if ((*letters)[1] == 'C') {
          *letters += 2;
          const auto third = unsigned(**letters - '0');
          i_.swapped = third_at_32();
          if (!i_.swapped && !at_32(words)) return false;
          i_.reads.push_back(registers(64, vector_file(), i_.swapped ? words : third));
          return !i_.swapped || at_32(third);
        }
        return !third_at_32() && at_32(words);
      case 'G':
        return (third_at_32() || form() == kRegisters) && at_32(words);
      case 'F':
        if (third_at_32()) return at_32(words);
        if (form() != kRegisters) return false;
        i_.reads.push_back(registers(64, vector_file(), words));
        return true;
      case 'P':
        i_.writes.push_back(predicate(81, uniform_, false));
        return true;
      case 'Q':
        i_.writes.push_back(predicate(84, uniform_, false));
        return true;
      case 'p':
        i_.reads.push_back(predicate(87, uniform_, true));
        return true;
      case 'q':
        i_.reads.push_back(predicate(77, uniform_, true));
        return true;
      case 'r':
        i_.reads.push_back(predicate(68, uniform_, true));
        return true;
      default:
        return false;
    }
  }

  // Memory: the code of the size is log2 of the bytes, signed ones apart.
  static unsigned words_of_size(uint64_t code) {
    return code == 5 ? 2 : code == 6 ? 4 : 1;  // U8 S8 U16 S16 32 64 128
  }
  unsigned memory_words() const { return words_of_size(bits(73, 3)); }
  void result(unsigned words) { i_.writes.push_back(registers(16, File::kGeneral, words)); }
  void general(unsigned at, unsigned words) { i_.reads.push_back(registers(at, File::kGeneral, words)); }
  void uniform(unsigned at, unsigned words) { i_.reads.push_back(registers(at, File::kUniform, words)); }
  // A base register and, where the bit says so, a uniform one (of global memory: two, an address or descriptor).
  void global_address(unsigned uniform_at) {
    general(24, bits(72, 1) ? 2 : 1);
    if (bits(kUniformBit, 1)) uniform(uniform_at, 2);
  }
  void shared_address(unsigned uniform_at) {
    general(24, 1);
    if (bits(kUniformBit, 1)) uniform(uniform_at, 1);
  }
  void result_predicate() { i_.writes.push_back(predicate(81, false, false)); }
  void weak_or_ordered() {
    // .CONSTANT (4) is read only; any other scope or order is more than a load.
    const uint64_t order = bits(77, 4);
    if (order != 0 && order != 4) i_.kind = Kind::kMemory;
  }
  // Sizes of the operands of conversions: log2 of the bytes.
  bool conversion() {
    result(bits(75, 2) == 3 ? 2 : 1);
    return !third_at_32() && at_32(bits(84, 2) == 3 ? 2 : 1);
  }
  void predicates_of_mask(Operands* to) {
    const auto mask = uint32_t(bits(32, 32));
    for (uint16_t p = 0; p < 7; p++)
      if (mask >> p & 1)
        to->push_back({.file = uniform_ ? File::kUniformPredicate : File::kPredicate, .index = p});
  }
  bool only(unsigned at, unsigned n, std::initializer_list<uint64_t> known) const {
    return std::find(known.begin(), known.end(), bits(at, n)) != known.end();
  }
  void relative_target(unsigned at) {
    if (sm_ >= 90 && at == 16) {  // in words of four bytes, low byte apart
      const uint64_t value = take(16, 8) | take(34, 48) << 8;
      i_.target = int64_t(value << 8) >> 6;
    } else {
      i_.target = int64_t(take(32, 48) << 16) >> 16;
    }
  }

  // The words of a pair of floats: one register, if the bit says that it stands for both.
  unsigned words_of_pair(unsigned bit) const { return bits(bit, 1) ? 1 : 2; }

  // Decodes the operands of rows with `*`. False: a form that is not known.
  bool operands() {
    switch (i_.opcode->number) {
      case 0x002:
      case 0x082: {
        if (form() == kImmediateLast) {  // of 64 bits
          clear(kFormBegin, 3);
          i_.writes.push_back(registers(16, vector_file(), 2));
          for (const unsigned at : {24u, 56u})
            i_.reads.push_back({.kind = Operand::Kind::kImmediate, .value = uint32_t(take(at, 32))});
          return sm_ >= 100;
        }
        const unsigned words = bits(80, 1) ? 2 : 1;
        i_.writes.push_back(registers(16, vector_file(), words));
        return !third_at_32() && at_32(words);
      }
      case 0x003:
      case 0x083:
        predicates_of_mask(&i_.reads);
        return form() == kImmediate;
      case 0x004:
        predicates_of_mask(&i_.writes);
        return form() == kImmediate;
      case 0x005:  // of special registers only the zero
        result(bits(80, 1) ? 2 : 1);
        return bits(72, 8) == 0xff;
      case 0x007: {  // from sm_120 on of 64 bits, too: forms of their own
        const unsigned words = third_at_32() ? 2 : 1;
        result(words), general(24, words);
        if (words == 1) return at_32(1);
        if (form() == kConstantLast)
          general(32, 2);
        else
          for (const auto& [at, n] : {std::pair{32u, 32u}, {64u, 1u}})  // what the upper word is full of
            i_.reads.push_back({.kind = Operand::Kind::kImmediate, .value = uint32_t(take(at, n))});
        return sm_ >= 120 && form() != kUniformLast;
      }
      case 0x087: {  // likewise
        const unsigned words = form() == kUniform ? 2 : 1;
        i_.writes.push_back(registers(16, vector_file(), words));
        i_.reads.push_back(registers(24, vector_file(), words));
        if (words == 1) return !third_at_32() && at_32(1);
        uniform(32, 2);
        return sm_ >= 120;
      }
      case 0x00c:
      case 0x08c: {  // from sm_100 on of 64 bits, too
        const unsigned words = sm_ >= 100 && bits(80, 1) ? 2 : 1;
        i_.reads.push_back(registers(24, vector_file(), words));
        return !third_at_32() && at_32(words);
      }
      case 0x017: {  // from sm_120 on of 64 bits, too: a form of its own
        const unsigned words = bits(74, 1) ? 2 : 1;
        result(words), general(24, words);
        if (third_at_32() || !at_32(words)) return false;
        if (words == 1) return true;
        for (const unsigned at : {81u, 84u}) i_.writes.push_back(predicate(at, false, false));
        i_.reads.push_back(predicate(77, false, true));
        return sm_ >= 120;
      }
      case 0x01c:
      case 0x09c: {
        i_.reads.push_back(predicate(68, uniform_ || bits(67, 1), true));
        clear(67, 1);
        return true;
      }
      case 0x035:
        if (sm_ >= 100) {  // IADD, of 64 bits if the bit says so
          const unsigned words = bits(73, 1) ? 2 : 1;
          result(words);
          general(24, words);
          if (third_at_32() || !at_32(words)) return false;
          i_.writes.push_back(predicate(81, false, false));
          i_.reads.push_back(predicate(87, false, true));
          return true;
        }
        result(1);
        general(24, 1);
        i_.swapped = third_at_32();
        if (i_.swapped) {
          general(64, 1);
          return at_32(1);
        }
        if (!at_32(1)) return false;
        general(64, 1);
        return true;
      case 0x03b:
        result(1u << bits(72, 2));
        shared_address(32);
        return bits(72, 2) < 3;
      case 0x044:
        shared_address(64);
        general(32, 1u << bits(72, 2));
        return bits(72, 2) < 3;
      case 0x03c: {  // 16816 with f32 sums, of f16 or bf16
        if (!only(72, 16, {0x18, 0x418})) return false;
        result(4), general(24, 4), general(32, 2), general(64, 4);
        return form() == kRegisters;
      }
      case 0x049: {
        result(2), general(24, words_of_pair(82));
        const unsigned second = words_of_pair(88), third = words_of_pair(85);
        i_.swapped = third_at_32();
        if (!i_.swapped && !at_32(second)) return false;
        general(64, i_.swapped ? second : third);
        return !i_.swapped || at_32(third);
      }
      case 0x04a:
        if (sm_ >= 120) {  // UVIMNMX
          uniform_ = guard_is_uniform_ = true;
          i_.writes.push_back(registers(16, File::kUniform, 1));
          for (const unsigned at : {81u, 84u}) i_.writes.push_back(predicate(at, true, false));
          i_.reads.push_back(registers(24, File::kUniform, 1));
          i_.reads.push_back(predicate(87, true, true));
          return !third_at_32() && at_32(1);
        }
        result(2), general(24, words_of_pair(82));
        return !third_at_32() && at_32(words_of_pair(88));
      case 0x04b:
        result(2), general(24, words_of_pair(82));
        return (third_at_32() || form() == kRegisters) && at_32(words_of_pair(85));
      case 0x086:
        i_.writes.push_back(predicate(81, true, false));
        return true;
      case 0x104:
      case 0x105:
      case 0x106:
      case 0x107:
      case 0x110:
      case 0x111:
      case 0x112:
        return conversion();
      case 0x11a:
        clear(44, 3);
        return true;  // which scoreboard: scheduling
      case 0x11d:
        return form() == kConstant && only(72, 9, {0x100});  // BAR.SYNC of a number
      case 0x0b9:
        i_.writes.push_back(registers(16, File::kUniform, memory_words()));
        i_.reads.push_back(constant(memory_words()));
        clear(kFormBegin, 3);
        return form() == kConstant;
      case 0x182:
      case 0x1ac: {
        i_.writes.push_back(registers(16, vector_file(), memory_words()));
        i_.reads.push_back(constant(memory_words()));
        if (i_.opcode->number == 0x1ac) i_.reads.back().value = uint32_t(take(37, 17));
        i_.reads.push_back(registers(24, vector_file(), 1));  // added to the offset
        clear(kFormBegin, 3);
        return form() == (i_.opcode->number == 0x1ac ? kConstantLast : kConstant);
      }
      case 0x147:
        relative_target(16);
        if (form() == kImmediateLast) i_.reads.push_back(predicate(24, true, true));
        if (bits(82, 5) || (form() == kImmediate && bits(24, 8)) ||
            (sm_ >= 90 && bits(32, 2) != (form() == kImmediateLast ? 1u : 0u)))
          return false;
        if (form() != kImmediate && form() != kImmediateLast) return false;
        clear(kFormBegin, 3), clear(32, 1);  // whether a uniform predicate is asked, the operands say
        return take(kUniformBit, 1) == (form() == kImmediateLast);
      case 0x140:
        return form() == kImmediateLast;
      case 0x148:
        if (form() == kRegisters) general(24, 1);
        // The target of .COLLECTIVE is compared as it stands. Only BRA.DIV leads there, which is refused.
        return form() == kRegisters || form() == kImmediate;
      case 0x15d:
        return form() == kImmediate;
      case 0x17e:  // 32 bytes, the upper ones into registers of their own
        i_.writes.push_back(registers(64, File::kGeneral, 4));
        result(4), global_address(32), weak_or_ordered();
        return only(73, 3, {4});
      case 0x17f:
        general(24, 2), uniform(64, 2), general(32, 4), general(16, 4);
        return only(72, 20, {0xf1218});
      case 0x181:
        result(memory_words()), global_address(32), weak_or_ordered();
        return true;
      case 0x183:
      case 0x184:
        result(memory_words()), shared_address(32);
        return true;
      case 0x186:
        global_address(64), general(32, memory_words());
        return true;
      case 0x187:
      case 0x188:
        shared_address(64), general(32, memory_words());
        return true;
      case 0x189: {
        result(1), result_predicate(), general(24, 1);
        if (form() == kRegisters || form() == kImmediateLast) general(32, 1);
        if (form() == kRegisters || form() == kImmediate) general(64, 1);
        return form() == kRegisters || form() == kImmediateLast || form() == kImmediate ||
               form() == kUniformLast;
      }
      case 0x18c:
        result(1), shared_address(64), general(32, 1);
        return only(73, 3, {0, 1}) && !bits(72, 1);
      case 0x18e:
        global_address(64), general(32, 1);
        return only(73, 3, {0, 1, 3});
      case 0x18f:
        return form() == kImmediate && bits(24, 8) == 0xff && !bits(kUniformBit, 1);
      case 0x1a3:
      case 0x1a8:
        result(1), result_predicate(), global_address(64), general(32, 1);
        return only(73, 3, {0, 1, 3});
      case 0x1a9:
        result(1), result_predicate(), global_address(0), general(32, 1), general(64, 1);
        return only(73, 3, {0, 1}) && !bits(kUniformBit, 1);
      case 0x1a6:  // sums of one, two or four f32
        if (!only(73, 3, {1, 2, 3})) return false;
        global_address(64), general(32, 1u << (bits(73, 3) - 1));
        return true;
      case 0x1a7:
        if (form() == kImmediateLast)
          result_predicate();
        else
          result(1);
        general(24, 1), general(32, 1), uniform(64, 1);
        return form() == kImmediateLast || form() == kImmediate;
      case 0x1ae:
        general(16, 1), general(24, 2), uniform(64, 2);
        i_.reads.push_back(predicate(87, false, true));
        // The value has 8 or 16 bytes; of 16, the second level of the cache may be asked for 128.
        return bits(kUniformBit, 1) &&
               (sm_ >= 100 ? only(72, 9, {0x14, 0x18, 0x1a}) : only(72, 9, {0x1a, 0x1c, 0x1d}));
      case 0x145:
        i_.target = int32_t(take(32, 32));
        return true;
      case 0x144:
      case 0x150:
        relative_target(16);
        return true;
      case 0x1b1:
      case 0x1b2:
      case 0x1b9:
      case 0x1e9:
        return true;
      case 0x1b4:
      case 0x1b5:
        return only(72, 24, {0x080080});  // of two dimensions
      case 0x1e3:
        i_.writes.push_back(registers(16, File::kUniform, 1));
        i_.reads.push_back(registers(32, File::kUniform, 1));
        if (form() == kImmediateLast) i_.writes.push_back(predicate(81, true, false));
        return true;
      case 0x1ea:
        uniform(24, form() == kImmediateLast ? 2 : 1), uniform(32, 2), uniform(40, 2), uniform(64, 1);
        i_.reads.push_back(predicate(87, true, true));
        guard_is_uniform_ = true;
        return bits(48, 16) == 0xff;
      case 0x1ed:
        general(32, 1u << bits(83, 3));
        return bits(83, 3) <= 7;
      case 0x1ee:
        result(1u << bits(83, 3));
        return bits(83, 3) <= 7;
      case 0x1f0: {  // 64xNx16 with f32 sums of bf16; whether it adds to what is there, the rest says
        const auto words = unsigned(bits(53, 6) + 1) * 4;
        if (!only(72, 24, {0x087018, 0x080018, 0x0c7018, 0x0c0018}) || bits(40, 13) || !only(59, 3, {0, 4}) ||
            bits(63, 1) || words > 128)
          return false;
        result(words), general(64, words);
        if (form() != kUniform) {
          uniform(24, 4);  // descriptors of both matrices
          return form() == kImmediate;
        }
        general(24, 4), uniform(32, 4);
        Operand& descriptors = i_.reads.back();
        if (descriptors.index == kZero) return false;
        descriptors.index +=
            2;  // the first matrix is in registers: in the place of its descriptor stands anything
        descriptors.words = 2;
        return true;
      }
      default:
        return false;
    }
  }

  const unsigned sm_;
  Instruction i_;
  bool uniform_ = false, guard_is_uniform_ = false;
};

}  // namespace

std::optional<Instruction> decode(uint64_t low, uint64_t high, unsigned sm) {
  constexpr unsigned kTargets[] = {80, 86, 87, 89, 90, 100, 103, 120, 121};
  if (std::find(std::begin(kTargets), std::end(kTargets), sm) == std::end(kTargets)) return std::nullopt;
  return Decoder(low, high, sm).run();
}

void become_move(Instruction* i, Operand to, Operand from) {
  constexpr uint64_t kMove = 0x002, kAllBytes = 0xf00;
  i->opcode = find_opcode(kMove);
  i->kind = i->opcode->kind;
  i->rest_low = 0;
  i->rest_high = kAllBytes;
  i->swapped = false;
  i->writes = {to};
  i->reads = {from};
}

std::string name_of(uint64_t low) {
  if (const Opcode* o = find_opcode(low)) return o->name;
  char text[24];
  snprintf(text, sizeof text, "opcode 0x%03x", unsigned(low & 0x1ff));
  return text;
}

std::string text_of(const Instruction& i) {
  static constexpr const char* kFiles[] = {"R", "UR", "P", "UP", "S"};
  const auto names = [](const Operands& operands) {
    std::vector<std::string> all;
    for (const Operand& o : operands)
      for (uint16_t w = 0; o.kind == Operand::Kind::kRegister && o.index != kZero && w < o.words; w++)
        all.push_back(kFiles[size_t(o.file)] + std::to_string(o.index + w));
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    std::string text;
    for (const std::string& n : all) text += " " + n;
    return text;
  };
  Operands reads = i.reads;
  reads.push_back(i.guard);
  char target[32] = "";
  if (i.target) snprintf(target, sizeof target, " | %lld", static_cast<long long>(i.target));
  return std::string(i.opcode->name) + " |" + names(i.writes) + " |" + names(reads) + target;
}

}  // namespace tessera::sass
