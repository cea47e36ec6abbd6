// Writes an edited cubin: everything but the edited sections stays what it was. Called by prologue.cc and by tests.
// Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/image/cubin_file.h"

namespace tessera::image {

// The file again. Sections come in their order, at their alignment and with the gaps they had; a segment
// begins and ends with the sections that it began and ended with. Unedited, the bytes are the same.
// kUnsupported: what lies in the file is not in the order of the section table, followed by that and by the
// program headers, as ptxas writes it.
base::Result<std::vector<uint8_t>> write_cubin_file(const CubinFile& file);

}  // namespace tessera::image
