// PTX text -> Module. Called by interpose/track (best-effort clients, module load), softgpu/driver and tools;
// any thread, no global state. Unknown opcodes are parsed as they stand (the slicer then refuses the kernel,
// the software GPU refuses the module); malformed text gives an error "line:column: what was expected".
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/ptx/ir.h"

namespace tessera::ptx {

// The text is copied into the module. A trailing NUL (fatbin entries end with one) is accepted.
base::Result<Module> parse(std::string_view text);

}  // namespace tessera::ptx
