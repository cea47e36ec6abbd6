#include "cli/demo/workload.h"

#include <stdlib.h>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/demo/process.h"

namespace tessera::cli {
namespace {

// scripts/frameworks.sh makes its virtual environments in this folder.
std::string frameworks_folder() {
  if (const char* folder = getenv("TESSERA_FRAMEWORKS"); folder && *folder) return folder;
  const char* home = getenv("HOME");
  return std::string(home ? home : "") + "/.cache/tessera-frameworks";
}

base::Result<Workload> jax(const Layout& layout) {
  const std::string folder = frameworks_folder(), python = folder + "/jax/bin/python";
  const std::string programs = layout.share + "/demo_jax", handles = layout.softgpu + "/handles";
  if (access(python.c_str(), X_OK) != 0)
    return base::error(
        base::Code::kNotFound,
        fmt::format("--workload jax needs JAX, and there is no {}: scripts/frameworks.sh jax fetches it "
                    "(TESSERA_FRAMEWORKS names another folder than {})",
                    python, folder));
  for (const std::string& part : {programs + "/service.py", handles})
    if (!file_exists(part))
      return base::error(base::Code::kNotFound,
                         fmt::format("--workload jax needs {}, a part of Tessera that is not here", part));
  Workload out;
  out.name = "jax";
  out.service = {python, programs + "/service.py"};
  out.trainer = {python, programs + "/trainer.py"};
  out.run_options = {"--keep-ptx"};
  out.environment = {"TESSERA_SOFTGPU_GPU=" + programs + "/gpu.toml", "PYTHONDONTWRITEBYTECODE=1",
                     "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0",
                     "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=-1"};
  out.cache_variable = "JAX_COMPILATION_CACHE_DIR";  // XLA takes 20 s of a processor to compile a step
  out.compile_s = 300;  // 20 s of a processor for each program, of which a busy machine gives it a tenth
  out.soft_only = true;
  return out;
}

// The programs of docs/hardware-status.md, whose networks they share.
base::Result<Workload> torch(const std::string& name, const Layout& layout) {
  const std::string programs = layout.share + "/demo_torch";
  if (!file_exists(programs + "/service.py"))
    return base::error(
        base::Code::kNotFound,
        fmt::format("--workload {} needs {}, a part of Tessera that is not here", name, programs));
  Workload out;
  out.name = name;
  out.service = {"python3", programs + "/service.py"};
  out.trainer = {"python3", programs + "/trainer.py", name == "torch" ? "gpt2" : "resnet"};
  out.environment = {"PYTHONDONTWRITEBYTECODE=1"};
  out.compile_s = 60;  // importing PyTorch and its first steps
  out.hard_only = true;
  return out;
}

}  // namespace

std::string standard_workload(bool soft) {
  constexpr double kPatienceS = 60;  // of an import
  const bool stock =
      !soft && python_runs("python3", "import torch; assert torch.cuda.is_available()", kPatienceS);
  return stock ? "torch" : "samples";
}

base::Result<Workload> find_workload(const std::string& name, const Layout& layout) {
  if (name == "jax") return jax(layout);
  if (name == "torch" || name == "torch-resnet") return torch(name, layout);
  Workload out;
  out.name = name;
  if (name == "transformer") {
    const std::string program = layout.bin + "/transformer";
    out.service = {program, "serve"};
    out.trainer = {program, "train"};
    return out;
  }
  out.service = {layout.bin + "/latency_service"};
  out.trainer = {layout.bin + (name == "eager" ? "/eager_trainer" : "/batch_trainer")};
  return out;
}

}  // namespace tessera::cli
