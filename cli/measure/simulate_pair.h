// `tessera simulate --protected serve.json.gz --best-effort train.json.gz`: what sharing two recorded programs would do,
// without a scenario file. The scenario is written here and read by the simulator as any other. Pure but for
// run_pair(), which reads files and prints. docs/plan-sharing.md.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "simulator/report.h"

namespace tessera::cli {

struct PairOptions {
  std::string protected_file, best_effort_file;
  std::string protected_range, best_effort_range;  // names of iterations begin so; empty: as recorded
  std::string protected_recorded_on, best_effort_recorded_on;  // GPUs; empty: as recorded
  // A language model's server: the protected file is a step over tokens of prompts, this one over sequences.
  std::string decode_file, requests_file;  // requests: recorded lengths and arrivals; empty: drawn
  uint32_t prefill_tokens = 2048, decode_batch = 1;
  std::string rate = "";  // "20/s"; empty: half of what the service could do
  std::string arrivals = "poisson";
  std::string gpu;  // that is simulated; empty: the one on which the service was recorded
  std::string cuttable = "none";
  std::vector<std::string> policies;
  std::vector<std::string> tune;
  std::string contention;  // file: what H16 measured, in place of the range
  uint32_t seeds = 3;
  uint64_t first_seed = 1, duration_ms = 0;  // 0: enough for 600 requests
  std::string json, plot;
};

// Requests in a second: "20/s", "90/min" or "20".
base::Result<double> parse_rate_per_s(const std::string& text);

// TOML. `contention`: a file of parts/ to include after the machine; empty: none.
base::Result<std::string> pair_scenario(const PairOptions& options, const std::string& contention);

// One way of sharing over the range of contention.
struct PairRow {
  std::string run;
  double p50_ms = 0, p99_ms = 0;           // as shipped contention has it
  double least_tail = 0, most_tail = 0;    // p99 over alone
  double least_share = 0, most_share = 0;  // of what the best-effort program does alone
};
std::string advice(const PairOptions& options, const std::vector<PairRow>& rows);

int simulate_pair(const PairOptions& options);

}  // namespace tessera::cli
