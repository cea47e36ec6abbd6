// `tessera-ptxas`, which `tessera ptxas` execs: a drop-in for ptxas. Runs the real one with the same arguments, and
// puts the PTX beside the machine code that it wrote, in a fat binary: the driver takes the same machine code, and a
// kernel of it can be cut. Compiles the cut variants in the same way, and keeps those that are proved behind the PTX
// (docs/slicing.md, "Keeping the PTX"). Triton and XLA find it under the name `ptxas` in the folders of keep_ptx.h.
// Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::cli {

// Exit status of the real one; does not return where there is nothing to add (that one takes this process's
// place), nor after a signal that ended it (which ends this process, too). 127: there is none.
// `called_as`: argv[0].
int ptxas(const std::string& called_as, const std::vector<std::string>& arguments);

// Pure, of the above: what the arguments say is read and written.
struct PtxasFiles {
  std::string input, output;
  std::string options;  // that decide about the code, as nvcc keeps them beside PTX
};
// Nothing if it is not one PTX file that becomes one named file: several inputs, standard input, PTX as an
// option, an options file.
std::optional<PtxasFiles> ptxas_files(const std::vector<std::string>& arguments);

// Machine code and the PTX that it was made from as one fat binary, both uncompressed: every driver reads
// those. `options`: how the PTX was compiled, and shall be again. kInvalid: it is not machine code that a driver loads (a relocatable object), or not from this PTX.
base::Result<std::vector<uint8_t>> with_ptx(std::span<const uint8_t> code, std::span<const uint8_t> ptx,
                                            const std::string& options = "");

}  // namespace tessera::cli
