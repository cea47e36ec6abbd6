// SPANK plugin: `srun --tessera=high`, `sbatch --tessera=best-effort`. Sets, for each task, the variables that
// `tessera run` sets; Slurm places the jobs, Tessera protects on the node. Options of plugstack.conf (one line):
//
//   required tessera_spank.so prefix=/usr/lib/tessera default=off partition.batch=best-effort partition.serve=high
//
// Runs inside srun, sbatch, salloc and slurmstepd: it never throws, and whatever fails, the job runs unmanaged.
extern "C" {
#include <slurm/spank.h>
}

#include <map>
#include <string>

#include "cli/run/client_environment.h"

namespace tessera::slurm {
namespace {

struct Plugin {
  cli::Layout layout;
  cli::RunOptions given;  // of the command line
  std::string level;      // --tessera; "" = as the partition says
  std::string standard = "off";
  std::map<std::string, std::string> of_partition;
  std::string gpu = "auto", socket;
};
Plugin g_plugin;  // Slurm calls us from one thread

constexpr char kOff[] = "off";

bool is_level(const std::string& text) {
  return text == kOff || cli::parse_priority(text).ok();
}

int refuse(const std::string& text) {
  slurm_error("tessera: %s", text.c_str());
  return ESPANK_BAD_ARG;
}

int on_level(int, const char* text, int) {
  if (!is_level(text))
    return refuse("--tessera=" + std::string(text) + " is none of: high, best-effort, 0..7, off");
  g_plugin.level = text;
  return ESPANK_SUCCESS;
}

// The rules of `tessera run` decide; what they lack here is filled in.
int checked(cli::RunOptions options, const char* option) {
  options.priority = "high";
  const auto variables = cli::client_environment(options, g_plugin.layout);
  return variables ? ESPANK_SUCCESS : refuse(option + (": " + variables.error().text));
}

int on_slo(int, const char* text, int) {
  g_plugin.given.slo = text;
  return checked(g_plugin.given, "--tessera-slo");
}

int on_weight(int, const char* text, int) {
  g_plugin.given.weight = text;
  return checked(g_plugin.given, "--tessera-weight");
}

spank_option g_options[] = {
    {const_cast<char*>("tessera"), const_cast<char*>("LEVEL"),
     const_cast<char*>("share the GPU: high, best-effort, 0..7, or off"), 1, 0, on_level},
    {const_cast<char*>("tessera-slo"), const_cast<char*>("DURATION"),
     const_cast<char*>("latency that a protected job must keep, e.g. 20ms"), 1, 0, on_slo},
    {const_cast<char*>("tessera-weight"), const_cast<char*>("N"),
     const_cast<char*>("share among jobs of one level, 1..10000"), 1, 0, on_weight},
};

void read_configuration(int count, char** words) {
  std::string prefix = "/usr/lib/tessera";
  for (int i = 0; i < count; i++) {
    const std::string word = words[i];
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals),
                      value = equals == word.npos ? "" : word.substr(equals + 1);
    const bool level = key == "default" || key.starts_with("partition.");
    if (level && !is_level(value))
      slurm_error("tessera: plugstack.conf: %s is none of: high, best-effort, 0..7, off", word.c_str());
    else if (key == "default")
      g_plugin.standard = value;
    else if (key.starts_with("partition."))
      g_plugin.of_partition[key.substr(sizeof "partition." - 1)] = value;
    else if (key == "prefix")
      prefix = value;
    else if (key == "gpu")
      g_plugin.gpu = value;
    else if (key == "socket")
      g_plugin.socket = value;
    else
      slurm_error("tessera: plugstack.conf: unknown option %s", word.c_str());
  }
  g_plugin.layout = cli::layout_below(prefix);
}

std::string of_job(const char* name, void* spank) {
  char text[32768];
  return spank_getenv(static_cast<spank_t>(spank), name, text, sizeof text) == ESPANK_SUCCESS ? text : "";
}

std::string level_of(spank_t spank) {
  if (!g_plugin.level.empty()) return g_plugin.level;
  const auto found = g_plugin.of_partition.find(of_job("SLURM_JOB_PARTITION", spank));
  return found == g_plugin.of_partition.end() ? g_plugin.standard : found->second;
}

// Before a task's program starts: its environment.
void make_client(spank_t spank) {
  cli::RunOptions options = g_plugin.given;
  options.priority = level_of(spank);
  if (options.priority == kOff || !of_job("TESSERA_RUN", spank).empty()) return;
  uint32_t job = 0;
  spank_get_item(spank, S_JOB_ID, &job);
  options.name = "job-" + std::to_string(job);
  options.gpu = g_plugin.gpu;
  options.socket = g_plugin.socket;
  const auto variables = cli::client_environment(options, g_plugin.layout, of_job, spank);
  if (!variables) {
    slurm_error("tessera: %s; the task runs unmanaged", variables.error().text.c_str());
    return;
  }
  for (const std::string& variable : *variables) {
    const size_t equals = variable.find('=');
    spank_setenv(spank, variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
}

}  // namespace
}  // namespace tessera::slurm

#pragma GCC visibility push(default)
extern "C" {
// SPANK_PLUGIN defines these; constants of C++ are not visible outside unless they are declared so.
extern const char plugin_name[], plugin_type[];
extern const unsigned int plugin_version, spank_plugin_version;
SPANK_PLUGIN(tessera, 1)

int slurm_spank_init(spank_t spank, int count, char** words) {
  tessera::slurm::read_configuration(count, words);
  if (spank_context() == S_CTX_SLURMD || spank_context() == S_CTX_JOB_SCRIPT) return ESPANK_SUCCESS;
  for (spank_option& option : tessera::slurm::g_options)
    if (const auto failed = spank_option_register(spank, &option); failed != ESPANK_SUCCESS) return failed;
  return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int, char**) {
  if (spank_remote(spank) == 1) tessera::slurm::make_client(spank);
  return ESPANK_SUCCESS;
}
}
#pragma GCC visibility pop
