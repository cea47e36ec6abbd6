// Is a module well-formed in what the parser does not look at: every register, label and symbol that an
// instruction names is declared where it is used, guards are predicates, no label or function is defined
// twice, call targets are functions. Run on what comes in before it is analysed, and between the passes of
// kernels/slice. Any thread.
#pragma once

#include <span>

#include "base/result.h"
#include "kernels/ptx/ir.h"

namespace tessera::ptx {

// kInvalid with "line:column: what is wrong" for the first finding.
base::Status verify(const Module& module);
// Only these functions of the module; its names are gathered once.
base::Status verify(const Module& module, std::span<const Function* const> functions);

}  // namespace tessera::ptx
