// The demo runs a service and a trainer, in CUDA, on cuBLAS, in PyTorch, or in JAX. "eager" has a trainer whose CPU is its
// limit. All take the same options, write the same CSV files and print the same words. Main thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/run/layout.h"

namespace tessera::cli {

struct Workload {
  std::string name;                           // as --workload says it
  std::vector<std::string> service, trainer;  // commands, to which options are appended
  std::vector<std::string> run_options;  // of `tessera run`, which also starts them where Tessera is not used
  std::vector<std::string> environment;  // as set_variables; on top of what a phase sets
  std::vector<std::string> trainer_environment;  // likewise, for the trainer alone
  std::string
      cache_variable;  // names a folder where its programs keep what they compiled, for all phases; "" without
  bool soft_only = false;  // is not for a real GPU
  bool hard_only = false;  // is not for the software GPU
  double compile_s = 0;    // how long its programs may compile on a busy machine, before they use the GPU
};

// The pair of a demo that was asked for none: stock PyTorch where the GPU is real and the user's python3 has PyTorch.
std::string standard_workload(bool soft);

// "samples", "eager", "transformer", "torch", "torch-resnet" or "jax". An error says what is missing here, and how to get it.
base::Result<Workload> find_workload(const std::string& name, const Layout& layout);

}  // namespace tessera::cli
