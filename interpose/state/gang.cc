#include "interpose/state/gang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

namespace tessera::state {
namespace {

struct Launcher {
  const char* kind;
  const char* size;    // variable with the number of processes of the job
  const char* ids[5];  // together they identify the job; all must be set. At the end null
};

// The more particular ones come first: srun starts mpirun, and mpirun starts torchrun. RANK tells the workers of
// torchrun from programs that merely inherit the address. A worker that torchrun starts anew is of another gang: the
// collectives of its job begin anew, too.
constexpr Launcher kLaunchers[] = {
    {"torchrun",
     "WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
    {"torch", "WORLD_SIZE", {"MASTER_ADDR", "MASTER_PORT", "RANK"}},
    {"openmpi", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE"}},
    {"openmpi", "OMPI_COMM_WORLD_SIZE", {"OMPI_MCA_ess_base_jobid"}},
    {"pmi", "PMI_SIZE", {"PMI_JOBID"}},
    {"slurm", "SLURM_STEP_NUM_TASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};
// Set by each process's own value: it must be there, and is no part of the name.
constexpr const char* kOfTheProcess = "RANK";

// The name of the job, if this launcher started it. A long one is cut, and its hash tells it from others.
bool name_of(const Launcher& launcher, Environment environment, GangName* name) {
  const char* size = environment(launcher.size);
  if (!size || strtoull(size, nullptr, 10) < 2) return false;
  size_t at = 0;
  uint64_t hash = base::kFnvBasis;
  const auto add = [&](const char* text) {
    hash = base::fnv1a(text, strlen(text) + 1, hash);
    const int n = snprintf(name->text + at, sizeof name->text - at, at ? ":%s" : "%s", text);
    at += size_t(n) < sizeof name->text - at ? size_t(n) : sizeof name->text - at - 1;
  };
  add(launcher.kind);
  for (const char* const* id = launcher.ids; *id; ++id) {
    const char* value = environment(*id);
    if (!value || !*value) return *name = {}, false;
    if (strcmp(*id, kOfTheProcess) != 0) add(value);
  }
  if (at + 1 == sizeof name->text)
    snprintf(name->text + at - 17, 18, "#%016llx", static_cast<unsigned long long>(hash));
  return true;
}

}  // namespace

GangName gang_of(Environment environment) {
  GangName name;
  if (const char* told = environment("TESSERA_GANG"); told && *told) {
    if (strcmp(told, "none") != 0) snprintf(name.text, sizeof name.text, "%s", told);
    return name;
  }
  for (const Launcher& launcher : kLaunchers)
    if (name_of(launcher, environment, &name)) return name;
  return {};
}

}  // namespace tessera::state
