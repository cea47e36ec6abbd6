// Machine code with a range check in front of it, for question H20 (tests/device/h20_prologue.cu): blocks
// outside of [first, end) leave at once, so that launches of the whole grid act as slices. Part of no program
// that is installed (its own CMake target). The check is not written here: it is lifted from a template that
// ptxas compiled. What is not understood is refused. Untrusted bytes; any thread.
//
//   before   own code ...                            parameters: own
//   after    check, EXITs, NOPs to 128 bytes, own code ...   parameters: own, first block, end block
//
// Jumps, calls, returns and jump tables of sm_90 are relative to the instruction or to where the code began,
// so the code itself stays as it is, and so does each instruction's place in its line of 128 bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tessera::image {

inline constexpr uint64_t kInstructionBytes = 16;    // sm_70 and newer
inline constexpr uint64_t kPrologueAlignment = 128;  // of code sections, and a line of the instruction cache

struct Prologue {
  std::vector<uint8_t> code;         // whole lines of kPrologueAlignment
  std::vector<uint32_t> exits;       // bytes: where its EXIT instructions are
  uint32_t registers = 0;            // per thread
  uint32_t own_param_bytes = 0;      // of the kernels that it fits
  uint32_t param_bytes = 0;          // with those that it reads
  uint64_t constant_bytes = 0;       // of constant bank 0, those included
  unsigned sm = 0;                   // that it was compiled for
  std::vector<uint8_t> parameters;   // attribute records of its parameters, as they stand in the template
  std::vector<uint8_t> workarounds;  // attribute: which the compiler assumed
};

// From the only kernel of `cubin`: everything up to its last conditional EXIT. Its first parameter stands for
// those of the kernels to come. kUnsupported: it has a stack, or leaves a result on its way when its last EXIT
// is passed.
base::Result<Prologue> lift_prologue(std::span<const uint8_t> cubin);

// `cubin` with the prologue in front of one of its kernels. kUnsupported: attributes, relocations or debugging
// sections that would have to change in a way that is not known here; a stack in the way of appended
// parameters; another target.
base::Result<std::vector<uint8_t>> prepend(std::span<const uint8_t> cubin, std::string_view kernel,
                                           const Prologue& prologue);

}  // namespace tessera::image
