// Folders for `tessera run --keep-ptx`: those in which `tessera-ptxas` stands in for ptxas, and that of the real one.
//   FOLDER/triton/bin/{ptxas,ptxas-blackwell}   for Triton and what compiles by it (torch.compile)
//   FOLDER/cuda/                                a toolkit of links with bin/ptxas ours, for XLA
// FOLDER is below the user's cache folder. The stand-in was called in one of the two, which tells the caller's own
// ptxas. It is used, so that machine code is the same as without us. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/client_environment.h"

namespace tessera::cli {

struct KeptPtx {
  std::vector<std::string> variables;  // NAME=VALUE, to be set for the program
  std::vector<std::string> notes;      // one line each: what the user has set otherwise, and is left alone
};

// Makes the folders. `command`: path of `tessera-ptxas`. Errors: no place for them.
base::Result<KeptPtx> keep_ptx(const std::string& command, Lookup old = own_environment, void* of = nullptr);

// NVIDIA's ptxas for someone who called us as `called_as`: $TESSERA_PTXAS, the one that the calling process
// brought with Triton or XLA, that of PATH, $CUDA_HOME, $CUDA_PATH, /usr/local/cuda; never ourselves.
base::Result<std::string> find_ptxas(const std::string& called_as);

}  // namespace tessera::cli
