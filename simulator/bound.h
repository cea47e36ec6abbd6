// Bounds what any scheduler of this model can reach: best-effort share under one that knows every arrival, cuts
// kernels into runs of blocks anywhere, loses nothing to guards, wake-ups, markers, running blocks and cold
// caches, runs as wide as it likes beside the protected client, and always meets the class that it disturbs
// least. What is left are the GPU's time and contention. Every one of these can only raise the share, so
// packing cannot get above the bound either (docs/simulator.md has the argument).
//
// A request may be lengthened until it takes (1 + allowed) times the p99 alone; those that p99 does not see
// may be overrun at will while they last. Latency counts from the start of service, as on the grid: with
// queueing the allowance would be smaller, so the bound still holds. Pure; called by the report's thread.
#pragma once

#include <string>
#include <vector>

#include "simulator/scenario.h"

namespace tessera::simulator {

struct BoundRow {  // one cell with one protected and one best-effort client
  size_t cell = 0;
  double busy_share = 0;          // of the time, the protected client alone
  std::vector<double> be_shares;  // one per allowance, mean over seeds
};

struct Bound {
  std::vector<double> allowed;  // p99 over alone, less 1; increasing
  std::vector<BoundRow> rows;
  std::vector<double> mean_be_shares;  // over the rows, the same allowance in each
  // The same where `allowed` is the mean over the cells, spent where it buys most, each cell within the last.
  std::vector<double> best_split_be_shares;
  size_t n_skipped = 0;  // cells of another shape
};

Bound bound(const Scenario& scenario, const std::vector<double>& allowed, uint32_t seeds,
            uint64_t first_seed);
std::string bound_text(const Scenario& scenario, const Bound& bound);

}  // namespace tessera::simulator
