// Machine code with a range check in front of it, for question H20 (tests/device/h20_prologue.cu): blocks
// outside of [first, end) leave at once, so that launches of the whole grid act as slices. Part of no program
// that is installed (its own CMake target). The check is not written here: it is lifted from a template that
// ptxas compiled, and only the places of the two words that it reads are set anew. What is not understood is
// refused. Untrusted bytes; any thread.
//
//   before   own code ...                                   parameters: own
//   after    check, EXIT, NOPs to 128 bytes, own code ...   parameters: own, at the next 4 bytes first, end
//
// Jumps, calls, returns and jump tables of sm_90 are relative to the instruction or to where the code began,
// so the code itself stays as it is, and so does each instruction's place in its line of 128 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/sass/instruction.h"

namespace tessera::image {

using sass::kInstructionBytes;
inline constexpr uint64_t kPrologueAlignment = 128;  // of code sections, and a line of the instruction cache
inline constexpr uint32_t kRangeBytes = 8;           // first and end, four bytes each

// The two numbers of a range count blocks or clusters. The kernel of the template is called check_blocks or check_clusters.
enum class RangeOf : uint8_t { kBlocks, kClusters };

struct Prologue {
  struct RangeRead {
    uint32_t at = 0;    // bytes: an instruction that reads
    uint32_t word = 0;  // 0: first, 1: end
  };

  RangeOf unit = RangeOf::kBlocks;
  std::vector<uint8_t> code;          // whole lines of kPrologueAlignment
  std::vector<uint32_t> exits;        // bytes: where its EXIT instructions are
  std::vector<RangeRead> reads;       // of the range
  std::vector<sass::Operand> writes;  // registers and predicates
  uint32_t registers = 0;             // per thread
  unsigned sm = 0;                    // that it was compiled for
  // Attributes of the template, as they stand. One that is not known may stay in a kernel if the template has it, too, and
  // no number of it could be the place of an instruction: then it says something about the compiler.
  std::vector<std::vector<uint8_t>> attributes;
};

// Takes everything of one kernel of `cubin` up to its last conditional EXIT. Its first parameter stands for those of the
// kernels to come. kUnsupported: it has a stack, does more than compute and leave, reads other constants than the
// driver's and its range, or leaves a result on its way when its last EXIT is passed.
base::Result<Prologue> lift_prologue(std::span<const uint8_t> cubin, RangeOf unit);

// Its code for a kernel that has `first` at this byte of constant bank 0, and `end` behind it.
base::Result<std::vector<uint8_t>> fitted_code(const Prologue& prologue, uint32_t first_at);

// The range of a kernel stands behind its own parameters.
inline uint32_t range_offset(uint32_t own_param_bytes) {
  return (own_param_bytes + 3) / 4 * 4;
}

// `cubin` with the prologue in front of one of its kernels. kUnsupported: attributes, relocations or debugging
// sections that would have to change in a way that is not known here; a stack in the way of appended
// parameters; another target; a kernel whose instructions cannot bear it (entry.h).
base::Result<std::vector<uint8_t>> prepend(std::span<const uint8_t> cubin, std::string_view kernel,
                                           const Prologue& prologue);

}  // namespace tessera::image
