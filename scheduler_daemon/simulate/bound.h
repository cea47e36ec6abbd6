// What no scheduler of this model can exceed: best-effort share under a clairvoyant, fluid one that knows
// every arrival, cuts work anywhere, loses no time to guards, wake-ups, markers or running blocks, and always
// packs the classes that disturb each other least. What is left are the GPU's time, contention, and the cold
// start of a program that finds the GPU used by another (GpuSpec::refill_ns).
//
// A request may be lengthened until it takes (1 + allowed) times the p99 alone; one in a hundred may be
// lengthened at will. That allowance buys packed work at 1 / contention, and pays for cold starts. Latency
// from the start of service, as on the grid: with queueing the allowance would be smaller, so the bound still
// holds. Pure; called by the report's thread.
#pragma once

#include <string>
#include <vector>

#include "scheduler_daemon/simulate/scenario.h"

namespace tessera::simulate {

struct BoundRow {  // one cell with one protected and one best-effort client
  size_t cell = 0;
  double busy_share = 0;          // of the time, the protected client alone
  double contention = 0;          // of the pair of classes that disturbs least, per whole GPU packed
  std::vector<double> be_shares;  // one per allowance, mean over seeds
};

struct Bound {
  std::vector<double> allowed;  // p99 over alone, less 1
  std::vector<BoundRow> rows;
  std::vector<double> mean_be_shares;  // over the rows, the same allowance in each
  size_t n_skipped = 0;                // cells of another shape
};

Bound bound(const Scenario& scenario, const std::vector<double>& allowed, uint32_t seeds,
            uint64_t first_seed);
std::string bound_text(const Scenario& scenario, const Bound& bound);

}  // namespace tessera::simulate
