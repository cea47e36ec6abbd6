// tesserad's configuration: TOML text -> typed, bounded values (options.def), or every mistake with its line,
// column and remedy. Pure but for load_config's reading of the file. Used by main and by tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "scheduler_daemon/core/settings.h"

namespace tessera::config {

struct Config {
#define TS_NUMBER(section, key, initial, least, most, description) uint64_t section##_##key = initial;
#define TS_CHOICE(section, key, initial, choices, description) std::string section##_##key = initial;
#define TS_TEXT(section, key, initial, description) std::string section##_##key = initial;
#include "scheduler_daemon/config/options.def"
  std::vector<core::MemoryLimit> memory_limits;      // [[memory.limit]] uid|gid|cgroup, max_mib
  std::vector<core::EngineRule> park_engines;        // [[park.engine]] name, uid, sleep, wake
  std::vector<core::PriorityLimit> priority_limits;  // [[priority.limit]] uid|gid|cgroup, max
};

// One line per mistake: "file:line:column: what; remedy".
struct Parsed {
  Config config;
  std::vector<std::string> errors;
};
// `initial`: what holds where the file says nothing.
Parsed parse_config(const std::string& text, const std::string& file_name, const Config& initial = {});
base::Result<Parsed> load_config(const std::string& path, const Config& initial = {});

core::Settings settings_of(const Config& config);

// checkpoints.toml, as scripts/gpu/checkpoints.py writes it: [[checkpoint]] gpu, driver, by. Mistakes as those of parse_config; a
// row with one is left out.
struct Checkpoints {
  std::vector<core::CheckpointRule> rules;
  std::vector<std::string> errors;
};
Checkpoints parse_checkpoints(const std::string& text, const std::string& file_name);
// The files of these folders, in order. One that is not there is no mistake.
Checkpoints load_checkpoints(const std::vector<std::string>& folders);

// Keys that differ and that a running daemon does not change, as "daemon.socket, mps.mode"; empty: none.
std::string needs_restart(const Config& running, const Config& wanted);

// The reference part of docs/configuration.md.
std::string reference_markdown();

}  // namespace tessera::config
