// Does a kernel's cut variant compute the same as the kernel, bit for bit? Asked of two pieces of machine code that one
// compiler made of one text, in which the variant reads the number of its block from a parameter (kernels/slice). The
// answer does not trust the compiler: every value that reaches memory, an address, a branch or another thread is
// compared as an expression of what the kernel reads. Equal are, and are executed in the same order,
//
//   - all instructions with an effect, with the same bits but for the names of registers, and equal operands;
//   - values that are the same expression of equal values, where integer sums and products may be formed in any order,
//     and where the original reads the number of its block or the size of the grid, the variant reads the origin of the
//     slice plus its own number, or the original's size.
//
// Everything else is refused with the first instruction of the original that has no equal. Rules and reasons:
// docs/notes/machine-code.md. Untrusted bytes; pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/image/code.h"

namespace tessera::sass {

struct Proof {
  bool proved = false;
  std::string difference;     // "0x01b0 FFMA: ..." if not
  uint32_t instructions = 0;  // of the original that were compared
};

// The places of a variant's parameters (slice::KernelReport, slice::PassedGlobals).
struct VariantParameters {
  uint32_t origin_offset = 0;          // of SliceOrigin in its parameters
  uint32_t globals_offset = 0;         // of addresses, eight bytes each,
  std::vector<std::string> variables;  // of these variables of the original's module
};

Proof prove(const image::KernelCode& original, const image::KernelCode& variant,
            const VariantParameters& parameters);

}  // namespace tessera::sass
