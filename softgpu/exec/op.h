// Decoded instructions: what decode_*.cc makes and the handlers run. Private to softgpu/exec.
//
// One Op is one PTX instruction for 32 lanes. Operands are byte offsets with a tag in the two low bits:
//   0 register window of the running frame, 1 constant pool of the function, 2 special registers of the warp,
//   3 special registers and parameters that are the same for the block.
// A register is 32 lanes x 4 bytes (types up to 32 bits; bits above a narrow type are unspecified) or 32 x 8
// bytes; a predicate is one 32-bit mask. Handlers read all sources of a lane before they write it. Plain data
// only: this header is compiled once per instruction set and must not instantiate library code.
#pragma once

#include <cstdint>

namespace tessera::softgpu::exec {

using Mask = uint32_t;  // one bit per lane
inline constexpr unsigned kLanes = 32;
inline constexpr uint32_t kNoOperand = 3;  // tag 3 without an offset: the field holds no operand

struct Op;
struct Warp;
// Executes op for the lanes of warp.mask; the next op, or nullptr to leave the warp (warp.stop says why).
using Handler = const Op* (*)(Warp& warp, const Op* op);

// Types of data operations; .bN is treated as .uN.
enum class Ty : uint8_t {
  kU8,
  kS8,
  kU16,
  kS16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF16x2,
  kBf16,
  kBf16x2,
  kF32,
  kF64,
  kTf32,
  kPred,
  kCount
};
inline constexpr unsigned kTypes = static_cast<unsigned>(Ty::kCount);

// Operations that handler tables are indexed by (together with Ty).
enum class Operation : uint8_t {
#define TS_OPERATION(id) id,
#include "softgpu/exec/operations.def"
  kCount
};
inline constexpr unsigned kOperations = static_cast<unsigned>(Operation::kCount);

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };
enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp, kAway };
enum class Compare : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

enum Flag : uint16_t {
  kFtz = 1,
  kSat = 2,
  kNanResult = 4,
  kXorSign = 8,
  kRelu = 16,       // arithmetic
  kToInteger = 32,  // cvt.rni and friends on float -> float
  kApprox = 64,
  kCarryIn = 128,
  kCarryOut = 256,
  kNegate = 512,   // branch or predicate operand inverted
  kSecond = 1024,  // second predicate result present (d2)
  kBoolAnd = 2048,
  kBoolOr = 4096,
  kBoolXor = 8192,     // setp/set with a predicate operand c
  kAddress32 = 16384,  // address operand is a 32-bit register
  kVolatile = 32768,   // volatile, relaxed, acquire, release: one atomic access per lane
};

struct alignas(64) Op {
  Handler fn = nullptr;
  uint32_t d = kNoOperand, d2 = kNoOperand, a = kNoOperand, b = kNoOperand, c = kNoOperand;  // tagged offsets
  uint32_t extra = 0;          // first entry in Code::extra (vectors, fragments, calls)
  int64_t imm = 0;             // address offset, shift table, lut, ...
  const Op* target = nullptr;  // branches
  uint32_t line = 0;           // PTX line
  uint32_t issue = 0;          // real instructions before this one: issue slots are differences of it
  uint16_t flags = 0;
  Ty type = Ty::kU32, type2 = Ty::kU32;
  uint8_t sub = 0;    // Compare, Rounding, mode ... as the handler says
  uint8_t count = 1;  // vector elements
  uint8_t cache = 0;  // which cached allocation range a memory op uses
  uint8_t space = 0;  // Space
};
static_assert(sizeof(Op) == 64);

// Handlers that exist once per instruction set (fast.cc): null where only the scalar version exists.
struct FastTable {
  Handler by_type[kOperations][kTypes];
};

}  // namespace tessera::softgpu::exec
