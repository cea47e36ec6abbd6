// Module -> PTX text. The result parses to an equal module and assembles to the same machine code.
#pragma once

#include <string>

#include "kernels/ptx/ir.h"

namespace tessera::ptx {

std::string print(const Module& module);
std::string print(const Instruction& instruction);  // one line without newline, for diagnostics

}  // namespace tessera::ptx
