// `tessera simulate SCENARIO.toml`: policies on a modelled GPU in virtual time. Prints a table; writes JSON,
// CSV and plots when asked. Returns the exit status.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "simulator/scenario.h"

namespace tessera::cli {

struct SimulateOptions {
  std::string scenario;
  uint32_t seeds = 0;  // 0: the scenario's
  uint64_t first_seed = 1;
  std::vector<std::string> policies;  // empty: the scenario's
  std::vector<std::string> tune;      // NAME=VALUE: constants of the policies
  std::string contention;             // file: what H16 measured, in place of the scenario's tables
  uint64_t duration_ms = 0;           // 0: the scenario's
  std::string json, csv, plot;        // files; plot is a folder
  bool cells = false;                 // also print every cell
  bool bound = false;                 // instead: what no scheduler can exceed
};

int simulate(const SimulateOptions& options);

// Options --policy and --tune: only these runs, with these constants.
base::Status choose_runs(const std::vector<std::string>& policies, const std::vector<std::string>& tune,
                         simulator::Scenario* scenario);

// Becomes the program that plots results into a folder. Returns if there is none: the exit status.
int plot_simulation(const std::string& json, const std::string& folder);

}  // namespace tessera::cli
