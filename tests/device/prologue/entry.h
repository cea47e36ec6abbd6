// Can a kernel bear a check in front of it? The registers that the check writes must not be ones that the kernel reads as it
// found them: each way from its first instruction writes them before it reads them. And its blocks must not wait for all
// others, which a slice does not have. Asked by prepend(). Untrusted bytes; pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "kernels/image/code.h"
#include "tests/device/prologue/prologue.h"

namespace tessera::image {

using IndirectBranches =
    std::map<uint32_t, std::vector<uint32_t>>;  // place of a jump through a table -> targets

// kUnsupported: it cannot, or an instruction is not known that would have to be.
base::Status can_bear(const KernelCode& kernel, const IndirectBranches& branches, const Prologue& prologue);

}  // namespace tessera::image
