// A scenario: machine, workloads, who runs beside whom, under which policies and perturbations. TOML text ->
// typed, bounded values, or every mistake with its place and remedy. Format: docs/simulator.md.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "base/result.h"
#include "simulator/simulation.h"

namespace tessera::simulator {

struct Cell {  // programs that share one GPU, or several if there is a gang
  std::string name;
  std::vector<ClientSpec> clients;
  uint32_t gpu = 0;               // of several: equal clients draw differently on each
  uint32_t gpus = 1;              // ClientSpec::gpu says which
  std::string pool;               // the cell of the file that this is one GPU of; empty: it has one
  std::vector<std::string> runs;  // under which it runs; empty: under all

  bool has_run(const std::string& run) const {
    return runs.empty() || std::find(runs.begin(), runs.end(), run) != runs.end();
  }
};

struct Scenario {
  std::string name;
  uint64_t duration_ns = 0, warmup_ns = 0;
  uint32_t seeds = 1;
  bool latency_from_arrival = true;
  bool report_steps = false;  // of protected clients: how long their jobs' first and further steps took
  Estimates estimates = Estimates::kLaunch;
  GpuSpec gpu;
  HostSpec host;
  std::deque<Workload> workloads;  // addresses are kept by the cells
  std::vector<Cell> cells;
  std::vector<RunSpec> runs;
  std::vector<Perturbation> perturbations;
  std::vector<std::string> inferred;  // of recorded programs: what was inferred, "NAME: sentence"

  Scenario() = default;
  Scenario(Scenario&&) = default;
  Scenario& operator=(Scenario&&) = default;
  Scenario(const Scenario&) = delete;
};

// `include = ["a.toml"]` is looked up beside the file. The error text lists every mistake, one per line.
base::Result<Scenario> load_scenario(const std::string& path);

// The text of a scenario as if it stood in the file `path`, beside which included files are.
base::Result<Scenario> read_scenario(const std::string& text, const std::string& path);

// Keeps the runs that are named; "policy" or "policy@regime" adds one that the scenario does not have.
base::Status select_runs(Scenario* scenario, const std::vector<std::string>& names);

}  // namespace tessera::simulator
