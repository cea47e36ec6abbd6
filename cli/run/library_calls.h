// Is a program worth preloading libtessera_ops.so into (docs/library-calls.md)? Main thread; reads the program's file.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/elf.h"

namespace tessera::cli {

// False only of a program that is known to call no cuBLAS which it is linked with: it has GPU code of its own, and needs
// nothing but the driver and the libraries of the C and CUDA runtimes. Interpreters, shells and whatever cannot be read
// may.
bool may_call_cublas(const ElfFacts& program);
bool may_call_cublas(const std::vector<std::string>& command);

}  // namespace tessera::cli
