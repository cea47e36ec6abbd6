// Is a module well-formed in what the parser does not look at: every register, label and symbol that an
// instruction names is declared where it is used, guards are predicates, no label or function is defined
// twice, call targets are functions. Run on what comes in before it is analysed, and between the passes of
// kernels/slice. Any thread.
#pragma once

#include "base/result.h"
#include "kernels/ptx/ir.h"

namespace tessera::ptx {

// kInvalid with "line:column: what is wrong" for the first finding.
base::Status verify(const Module& module);
base::Status verify(const Module& module, const Function& function);

}  // namespace tessera::ptx
