// GPUs by the names that people type: a description of profiles/gpus (h200, b200, rtx4090), or a compute
// capability (sm_90). Reads small files; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/layout.h"

namespace tessera::cli {

// The folders of descriptions: the installation's, then the source tree's. They may not exist.
std::vector<std::string> gpu_folders(const Layout& layout);

struct NamedGpu {
  std::string name;  // "NVIDIA H200", or "sm_90" where no description was asked for
  unsigned sm = 0;   // compute capability: 90 = 9.0
};

// kInvalid: no such GPU; the text lists those that there are.
base::Result<NamedGpu> find_gpu(const std::string& name, const std::vector<std::string>& folders);

}  // namespace tessera::cli
