// Does an edited file do what the untouched one does, in the blocks of the range? Asked of two whole files, not of the edit:
// nothing but the check may differ. Called by h20_splice and by tests. Untrusted bytes; pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "tests/device/prologue/prologue.h"

namespace tessera::image {

struct PrologueProof {
  uint32_t instructions = 0;  // of the kernel, as they were, bit for bit
  uint32_t reachable = 0;     // of them: reached on the same ways; 0: kernels/sass does not follow all jumps
};

// Holds if
//   - the code is the check with this kernel's constants, then the kernel's own, bit for bit;
//   - the check only computes and leaves, reads the driver's constants and the range alone, and the kernel bears it;
//   - what kernels/sass reaches from the first instruction is the check and what it reached before, in the same calls;
//   - the kernel's other constants, its parameters, its shared memory and barriers, and all other sections are the same;
//   - debuggers find the same lines and frames at its instructions.
// kUnsupported, with the reason, otherwise.
base::Result<PrologueProof> prove_prepended(std::span<const uint8_t> before, std::span<const uint8_t> after,
                                            std::string_view kernel, const Prologue& prologue);

}  // namespace tessera::image
