// Programs whose CPU is their limit: what a held launch stops and a queue in the driver does not, and what a change
// of process costs.
#include <gtest/gtest.h>

#include "base/units.h"
#include "simulator/report.h"
#include "simulator/scenario.h"
#include "simulator/simulation.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

constexpr uint64_t kComputeNs = us(96), kLaunchNs = us(4);  // of the CPU, per launch
constexpr uint64_t kKernelNs = us(20);

Kernel full_kernel(uint64_t block_ns) {
  return {.n_blocks = 108 * 4, .block_ns = block_ns, .sms_per_block = 0.25, .can_cut = false};
}

// A program that computes for 96 us before each launch of 4 us, and is `steps_ahead` steps of ten ahead of the GPU.
struct HostBench {
  explicit HostBench(const std::string& policy, uint32_t steps_ahead = 2) {
    program.steps_ahead = steps_ahead;
    program.steps = {{.segments = {{.count = 10, .kernel = full_kernel(kKernelNs), .host_ns = kComputeNs}}}};
    service.steps = {{.segments = {{.kernel = full_kernel(ms(5))}}}};
    input.run = {.policy = policy, .regime = Regime::kTimesliced};
    input.gpu.block_jitter = 0;
    input.host.queue_launches = 1021;
    input.duration_ns = ms(200);
    input.clients = {{.name = "program", .workload = &program}};
  }
  HostBench& during_bursts() {  // of 5 ms, one every 10 ms
    input.clients.push_back({.name = "service", .workload = &service, .priority = 7});
    input.clients.back().arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.5};
    return *this;
  }
  double launches() const { return double(simulate(input).clients[0].launches); }

  Workload program{.name = "program"}, service{.name = "service"};
  RunInput input;
};

const double kAloneLaunches = double(ms(200)) / double(kComputeNs + kLaunchNs);

TEST(HostTime, AProgramLaunchesAsFastAsItsCpu) {
  EXPECT_NEAR(HostBench("none").launches(), kAloneLaunches, kAloneLaunches * 0.02);
}

TEST(HostTime, ASynchroniseInEachStepWaitsForTheDevice) {
  const double step_ns = double(10 * (kComputeNs + kLaunchNs) + kKernelNs + HostSpec{}.sync_ns);
  EXPECT_NEAR(HostBench("none", 0).launches(), double(ms(200)) / step_ns * 10, 40);
}

// The CPU time of what comes after a held launch is not spent meanwhile: half of the time is lost, and the wake-ups.
TEST(HostTime, AHeldLaunchStopsTheProgram) {
  const double launches = HostBench("temporal").during_bursts().launches();
  EXPECT_LT(launches, kAloneLaunches * 0.5);
  EXPECT_GT(launches, kAloneLaunches * 0.4);
}

// Behind a queue in the driver the CPU goes on while the device is another's.
TEST(HostTime, RunAheadDoesNotStopIt) {
  EXPECT_NEAR(HostBench("none", 20).during_bursts().launches(), kAloneLaunches, kAloneLaunches * 0.02);
}

TEST(HostTime, AFullQueueStopsIt) {
  HostBench b("none", 20);
  b.input.host.queue_launches = 8;
  EXPECT_LT(b.during_bursts().launches(), kAloneLaunches * 0.7);
}

TEST(HostTime, EachLaunchUnderALeaseTakesLonger) {
  HostBench free("temporal"), leased("temporal");
  for (HostBench* b : {&free, &leased}) {
    b->during_bursts();
    b->input.clients[1].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.001};
  }
  leased.input.host.gate_ns = us(10);
  EXPECT_NEAR(leased.launches() * 1.1, free.launches(), free.launches() * 0.01);
}

TEST(HostTime, AGraphIsOneCall) {
  const Segment kernels{.count = 20, .kernel = full_kernel(us(1)), .host_ns = us(5)};
  Segment graph = kernels;
  graph.graph = true;
  const Workload one_by_one{.steps = {{.segments = {kernels}}}}, at_once{.steps = {{.segments = {graph}}}};
  const LaunchCosts costs{.launch_ns = us(4), .gap_ns = us(1), .sync_ns = us(8)};
  EXPECT_EQ(one_by_one.alone_ns(108, costs), us(20 * 9 + 1 + 8));
  EXPECT_EQ(at_once.alone_ns(108, costs), us(9 + 20 + 19 + 8));
}

// The service pays the cost of the regime alone, too: its requests are longer, and not over alone.
TEST(HostTime, AloneIsAloneInTheSameRegime) {
  const auto scenario = read_scenario(R"(
    duration_ms = 500
    warmup_ms = 100
    seeds = 1
    [[workload]]
    name = "service"
    [[workload.step]]
    segment = [{ us = 1000, blocks_per_sm = 4 }]
    [[cell]]
    name = "service"
    client = [{ workload = "service", priority = 7, load = 0.1, arrivals = "periodic" }]
    [[run]]
    name = "costs"
    regime_overhead = 0.5
    [[run]]
    name = "costs nothing"
    [[run]]
    name = "slower"
    regime_overhead = 0.5
    protected_overhead = 0.2
  )",
                                      "regime.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  const Report report = run_scenario(*scenario, {.seeds = 1});
  ASSERT_EQ(report.rows.size(), 3u);
  const ProtectedRow &costs = report.rows[0].protected_clients[0],
                     &nothing = report.rows[1].protected_clients[0],
                     &slower = report.rows[2].protected_clients[0];
  EXPECT_NEAR(costs.p50_over_alone, 1, 0.01);
  EXPECT_NEAR(costs.p99_over_alone, 1, 0.01);
  EXPECT_NEAR(costs.p50_ms, 1.5 * nothing.p50_ms, 0.02);
  EXPECT_NEAR(slower.p50_over_alone, 1.2, 0.01);
}

}  // namespace
}  // namespace tessera::simulator
