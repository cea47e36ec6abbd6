// Gangs: ranks on several GPUs meet in collectives, are held together, and leave GPUs to others while they are.
#include <gtest/gtest.h>

#include "base/units.h"
#include "simulator/report.h"
#include "simulator/scenario.h"
#include "simulator/simulation.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

constexpr uint64_t kPartNs = us(500), kRingNs = us(100);

Kernel part_kernel(uint64_t block_ns) {
  return {.n_blocks = 108 * 4, .block_ns = block_ns, .sms_per_block = 0.25};
}

// A training with a rank on each GPU, and a service on the first.
struct GangBench {
  explicit GangBench(uint32_t gpus) {
    Kernel ring = copy_kernel(kRingNs);
    ring.collective = true;
    rank.steps = {
        {.segments = {{.count = 4, .kernel = part_kernel(kPartNs)}, {.kernel = ring}}, .repeat = 5}};
    trainer.steps = {{.segments = {{.count = 20, .kernel = part_kernel(kPartNs)}}}};
    service.steps = {{.segments = {{.kernel = part_kernel(ms(3))}}}};
    input.run = {.policy = "temporal"};
    input.gpu.block_jitter = 0;
    input.duration_ns = ms(400);
    input.gpus = gpus;
    for (uint32_t gpu = 0; gpu < gpus; ++gpu)
      input.clients.push_back({.name = "rank", .workload = &rank, .gpu = gpu, .gang = "training"});
  }
  void add_service(uint32_t gpu, double load = 0.5) {
    input.clients.push_back({.name = "service", .workload = &service, .priority = 7, .gpu = gpu});
    input.clients.back().arrivals = {.kind = ArrivalKind::kPoisson, .load = load};
  }
  RunResult run() const { return simulate(input); }

  Workload rank{.name = "rank"}, trainer{.name = "trainer"}, service{.name = "service"};
  RunInput input;
};

TEST(SimulatedGang, RanksOfOnePaceEndTheirJobsTogether) {
  GangBench bench(8);
  const RunResult result = bench.run();
  for (const ClientResult& rank : result.clients) EXPECT_EQ(rank.jobs, result.clients[0].jobs);
  EXPECT_GT(result.clients[0].jobs, 10u);
}

TEST(SimulatedGang, ACollectiveWaitsForTheLastRank) {
  GangBench bench(2);
  const double alone = bench.run().clients[0].work_ns;
  bench.add_service(1);
  bench.input.run = {.policy = "none"};  // the service's blocks are placed first
  const RunResult result = bench.run();
  EXPECT_LT(result.clients[0].work_ns, 0.8 * alone) << "the rank on the first GPU has it for itself";
  EXPECT_NEAR(result.clients[0].work_ns, result.clients[1].work_ns, 0.05 * alone);
}

TEST(SimulatedGang, NoRankStartsInABurstOfAnyOfItsGpus) {
  for (const uint32_t gpus : {2u, 4u, 8u}) {
    GangBench bench(gpus);
    bench.add_service(0);
    if (gpus > 2) bench.add_service(2);
    const RunResult result = bench.run();
    EXPECT_EQ(result.audit.starts_under_pulse, 0u);
    EXPECT_EQ(result.audit.starts_without_lease, 0u);
    for (const ClientResult& client : result.clients) EXPECT_GT(client.jobs, 0u);
  }
}

// While the first GPU is busy, the second runs what is not of the gang.
TEST(SimulatedGang, HeldTogetherItLeavesItsGpusToOthers) {
  GangBench bench(2);
  bench.add_service(0);
  bench.input.clients.push_back({.name = "trainer", .workload = &bench.trainer, .gpu = 1});
  const RunResult together = bench.run();
  bench.input.run.gangs = false;
  const RunResult apart = bench.run();
  EXPECT_GT(together.clients.back().work_ns, apart.clients.back().work_ns);
}

TEST(SimulatedGang, ARankThatComesAnewMeetsTheOthersAgain) {
  GangBench bench(4);
  bench.add_service(0);
  bench.input.perturbation.churn = true;
  const RunResult result = bench.run();
  GangBench calm(4);
  calm.add_service(0);
  EXPECT_GT(double(result.clients[3].jobs), 0.6 * double(calm.run().clients[3].jobs));
}

TEST(SimulatedGang, EqualSeedsGiveEqualResults) {
  GangBench bench(4);
  bench.add_service(0);
  bench.add_service(2);
  const RunResult a = bench.run(), b = bench.run();
  EXPECT_EQ(a.n_events, b.n_events);
  for (size_t i = 0; i < a.clients.size(); ++i) EXPECT_EQ(a.clients[i].work_ns, b.clients[i].work_ns);
}

std::string scenario_of(const std::string& clients) {
  return R"(
duration_ms = 100
[gpu]
sm_count = 8
[[workload]]
name = "rank"
[[workload.step]]
segment = [{ count = 5, us = 500 }, { us = 100, collective = true }]
[[workload]]
name = "service"
[[workload.step]]
segment = [{ count = 10, us = 50 }]
[[run]]
policy = "temporal"
[[run]]
name = "apart"
policy = "temporal"
gangs = false
[[cell]]
gpus = 4
client = [)" +
         clients + "]";
}

TEST(SimulatedGang, AScenarioPutsRanksOnGpusInTurn) {
  const auto scenario = read_scenario(
      scenario_of(
          R"({ workload = "service", priority = 7, gpu = 2 }, { workload = "rank", gang = "g", count = 4 })"),
      "gang.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  ASSERT_EQ(scenario->cells.size(), 1u) << "a gang joins its GPUs";
  EXPECT_EQ(scenario->cells[0].gpus, 4u);
  uint32_t ranks_on[4] = {}, services_on[4] = {};
  for (const ClientSpec& client : scenario->cells[0].clients)
    ++(client.gang.empty() ? services_on : ranks_on)[client.gpu];
  for (const uint32_t ranks : ranks_on) EXPECT_EQ(ranks, 1u);
  EXPECT_EQ(services_on[2], 1u);

  const Report report = run_scenario(*scenario, {.seeds = 1});
  ASSERT_EQ(report.rows.size(), 2u);
  for (const CellRow& row : report.rows) {
    ASSERT_EQ(row.be_shares.size(), 4u);
    EXPECT_GT(row.be_share, 0.1);
    EXPECT_LT(row.be_share, 1.01) << "the gang is one program, compared with the gang alone";
    EXPECT_DOUBLE_EQ(row.be_share, row.gang_share);
  }
}

TEST(SimulatedGang, EachCellIsComparedWithItsOwnGangAlone) {
  const auto scenario = read_scenario(
      scenario_of(R"({ workload = "rank", gang = "g", count = 2 }, { workload = "rank", count = 2 })") +
          R"(
[[cell]]
gpus = 4
client = [{ workload = "rank", gpu = 0 }, { workload = "rank", gang = "g", count = 4 }, { workload = "rank", gpu = 1 }])",
      "gang.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  for (const CellRow& row : run_scenario(*scenario, {.seeds = 1}).rows)
    for (const double share : row.be_shares) {
      EXPECT_GT(share, 0.1);
      EXPECT_LT(share, 1.01);
    }
}

TEST(SimulatedGang, MistakesAreNamed) {
  for (const auto& [clients, why] :
       {std::pair(R"({ workload = "rank", gang = "g", count = 5 })", "more ranks than `gpus`"),
        std::pair(R"({ workload = "rank", gang = "g", count = 4, priority = 7 })",
                  "best-effort if it has `gang`"),
        std::pair(R"({ workload = "rank", gang = "g", gpu = 4 })", "gpu")}) {
    const auto scenario = read_scenario(scenario_of(clients), "gang.toml");
    ASSERT_FALSE(scenario.ok()) << clients;
    EXPECT_NE(scenario.error().text.find(why), std::string::npos) << scenario.error().text;
  }
}

}  // namespace
}  // namespace tessera::simulator
