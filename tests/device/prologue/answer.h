// The answer that a GPU gave to H20, as scripts/gpu/lab.sh keeps it (profiles/README.md). Code with a
// check in front may be used for a kind of kernel only if this GPU under this driver answered "equal" for that kind. Nothing
// that is installed asks so far. Untrusted text; pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tessera::image {

// The kinds of kernels (names of h20_kernels.cu) that were equal on `gpu` (as the driver names it) under `driver`
// ("580.159.04"). kInvalid: no answer to H20; kUnsupported: of another GPU or driver, or not of machine code.
base::Result<std::vector<std::string>> equal_kinds(std::string_view answer, std::string_view gpu,
                                                   std::string_view driver);

}  // namespace tessera::image
