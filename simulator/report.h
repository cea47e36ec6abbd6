// Runs a scenario (cells x runs x perturbations x seeds, and each program alone) and sums it up. Runs are
// independent, so several threads share them; results do not depend on how many.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "simulator/scenario.h"

namespace tessera::simulator {

struct Estimate {                   // over seeds
  double mean = 0, half_width = 0;  // 95 % confidence, Student's t; 0 with one seed
};
Estimate estimate(const std::vector<double>& values);

struct ProtectedRow {
  std::string name;
  double p50_over_alone = 0, p99_over_alone = 0, mean_over_alone = 0, throughput = 0;
  double p50_ms = 0, p99_ms = 0, p99_alone_ms = 0;
  double short_p99_over_alone = 0;  // of the shortest requests by themselves; 0: all have one length
  uint64_t n_requests = 0;
  // Scenario::report_steps: until a request's first step was done, and each further step.
  double first_p50_over_alone = 0, first_p99_over_alone = 0, further_p50_over_alone = 0,
         further_p99_over_alone = 0;
  // A language model's server has these: time to the first token and per further token, and the share of requests in which
  // both are within the p99 alone, over the same share alone. 0 tokens: it is none.
  double first_p50_ms = 0, per_token_p50_ms = 0, tokens_per_s = 0, attained = 0, attainment = 0;
  uint64_t tokens = 0;
  std::vector<uint64_t> first_ns;  // per request: until its first step was done
};

struct CellRow {  // one cell under one run, perturbation and seed
  size_t cell = 0, run = 0, perturbation = 0;
  uint64_t seed = 0;
  std::vector<ProtectedRow> protected_clients;
  double be_share =
      0;  // GPU work of all best-effort clients over what each does alone, summed; a gang is one of them
  double gang_share = 0;  // of that: gangs
  std::vector<double> be_shares;
  uint64_t hold_expired = 0, longest_hold_ns = 0, n_events = 0;
  uint64_t model_loads = 0;
  Audit audit;
  // Share that was lost between bursts, by reason as in Losses; cells with one best-effort client.
  double lost_to_pulse = 0, lost_to_lease = 0, lost_to_window = 0, lost_to_launch = 0, lost_to_free_sms = 0;
};

struct Summary {  // one run under one perturbation, over all cells
  size_t run = 0, perturbation = 0;
  Estimate p99_mean_over_alone, p99_worst_over_alone, be_share, throughput;
};

struct PoolRow {  // all GPUs of one cell under one run and perturbation, over all seeds
  std::string pool;
  size_t run = 0, perturbation = 0, gpus = 0;
  uint64_t requests = 0, model_loads = 0;
  double p50_first_ms = 0, p99_first_ms = 0;  // until the first step of a request was done
};

struct Report {
  std::vector<CellRow> rows;
  std::vector<Summary> summaries;
  std::vector<PoolRow> pools;
  uint64_t n_events = 0;
};

struct ReportOptions {
  uint32_t seeds = 0;  // 0: the scenario's
  uint64_t first_seed = 1;
  unsigned threads = 1;
  std::function<void(size_t done, size_t total)> progress;  // from one thread at a time; may be empty
};
Report run_scenario(const Scenario& scenario, const ReportOptions& options);

std::string table_text(const Scenario& scenario, const Report& report);
// Servers of language models, means over seeds; empty: there are none.
std::string tokens_text(const Scenario& scenario, const Report& report);
std::string pools_text(const Scenario& scenario, const Report& report);  // empty: no cell has several GPUs
std::string cells_text(const Scenario& scenario, const Report& report);
std::string to_json(const Scenario& scenario, const Report& report);
std::string to_csv(const Scenario& scenario, const Report& report);

}  // namespace tessera::simulator
