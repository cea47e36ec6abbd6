// The bound holds for every policy, and is what arithmetic says where that is simple.
#include "simulator/bound.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "simulator/report.h"

namespace tessera::simulator {
namespace {

TEST(Bound, NoPolicyOnTheGridExceedsItAtItsOwnTail) {
  auto scenario = load_scenario(TESSERA_SOURCE_DIR "/scenarios/tally_grid.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  ASSERT_TRUE(select_runs(&*scenario, {"tally", "temporal", "tessera"}).ok());
  scenario->duration_ns = base::ms(2000);
  const Report report = run_scenario(*scenario, {.seeds = 1});
  const std::vector<Cell> cells = scenario->cells;
  for (const CellRow& row : report.rows) {
    const double p99 = row.protected_clients[0].p99_over_alone;
    scenario->cells = {cells[row.cell]};
    const Bound b = bound(*scenario, {std::max(0.0, p99 - 1)}, 1, 1);
    // 0.02: the run's own edges, and requests that were not served in it.
    EXPECT_LE(row.be_share, b.rows[0].be_shares[0] + 0.02)
        << cells[row.cell].name << " " << scenario->runs[row.run].name;
  }
}

TEST(Bound, WithoutPackingItIsTheIdleTime) {
  auto scenario = load_scenario(TESSERA_SOURCE_DIR "/scenarios/tally_grid.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  scenario->duration_ns = base::ms(4000);
  for (auto& row : scenario->gpu.contention)
    for (double& c : row) c = 1000;  // nothing can be packed
  const Bound b = bound(*scenario, {0}, 1, 1);
  ASSERT_EQ(b.rows.size(), scenario->cells.size());
  for (const BoundRow& row : b.rows) {
    EXPECT_LT(row.be_shares[0], (1 - row.busy_share) * 1.2);  // its host work overlaps a little
    EXPECT_GT(row.be_shares[0], (1 - row.busy_share) * 0.95);
  }
}

TEST(Bound, PackingIsFreeWithoutContentionAndBoughtByTheAllowanceWithIt) {
  auto scenario = load_scenario(TESSERA_SOURCE_DIR "/scenarios/tally_grid.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  scenario->duration_ns = base::ms(1000);
  const Bound bought = bound(*scenario, {0, 0.05, 0.1}, 1, 1);
  for (size_t i = 1; i < bought.allowed.size(); ++i) {
    EXPECT_GT(bought.mean_be_shares[i], bought.mean_be_shares[i - 1] + 0.05);
    EXPECT_GE(bought.best_split_be_shares[i], bought.mean_be_shares[i] - 1e-9);
  }
  for (auto& row : scenario->gpu.contention) row = {};
  for (const BoundRow& row : bound(*scenario, {0.01}, 1, 1).rows) EXPECT_GT(row.be_shares[0], 0.999);
}

}  // namespace
}  // namespace tessera::simulator
