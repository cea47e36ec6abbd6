// Gate on the device: the program goes on while its work waits there, and of a stream one quantum at most is in a
// burst's way.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "admission/boundary.h"
#include "base/units.h"
#include "simulator/report.h"
#include "simulator/scenario.h"
#include "simulator/simulation.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

constexpr uint64_t kBurstNs = ms(5), kSlackNs = us(10);  // gaps between kernels

Kernel whole_kernel(uint64_t block_ns) {
  return {.n_blocks = 108 * 4, .block_ns = block_ns, .sms_per_block = 0.25, .can_cut = false};
}

// Launches of `kernel_ns` without end, as fast as the CPU can, during bursts of 5 ms.
struct GateBench {
  explicit GateBench(uint64_t kernel_ns) {
    program.steps_ahead = 100;
    program.steps = {{.segments = {{.count = 100, .kernel = whole_kernel(kernel_ns)}}}};
    service.steps = {{.segments = {{.kernel = whole_kernel(kBurstNs)}}}};
    input.run = {.policy = "temporal",
                 .regime = Regime::kTimesliced,
                 .gate = GateKind::kDevice,
                 .gate_quantum_ns = us(100)};
    input.run.parameters.guard_ns = 0;
    input.gpu.block_jitter = 0;
    input.gpu.switch_ns = input.gpu.idle_switch_ns = 0;
    input.duration_ns = ms(200);
    input.clients = {{.name = "program", .workload = &program},
                     {.name = "service", .workload = &service, .priority = 7}};
    input.clients[1].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.5};
  }
  // The delay of the worst burst: from the launch to the end of the synchronise, without its own time.
  uint64_t longest_delay_ns() const {
    const auto latencies = simulate(input).clients[1].latencies_ns;
    const uint64_t own_ns = kBurstNs + input.host.launch_ns + input.host.sync_ns;
    return *std::max_element(latencies.begin(), latencies.end()) - own_ns;
  }

  Workload program{.name = "program"}, service{.name = "service"};
  RunInput input;
};

TEST(DeviceGate, ABurstMeetsOneQuantumAtMost) {
  for (const uint64_t quantum_ns : {us(50), us(100), us(400)}) {
    GateBench b(us(20));
    b.input.run.gate_quantum_ns = quantum_ns;
    EXPECT_LE(b.longest_delay_ns(), quantum_ns + kSlackNs * quantum_ns / us(100));
    EXPECT_GT(b.longest_delay_ns(), 0u);
  }
}

TEST(DeviceGate, ALongKernelIsAQuantumOfItsOwn) {
  const uint64_t delay_ns = GateBench(us(500)).longest_delay_ns();
  EXPECT_GT(delay_ns, us(100));
  EXPECT_LE(delay_ns, us(500) + kSlackNs);
}

// Half of the time is the service's; what waits behind the gate meanwhile fills the rest.
TEST(DeviceGate, TheRestOfTheTimeIsUsed) {
  GateBench b(us(20));
  EXPECT_GT(simulate(b.input).clients[0].work_ns, double(ms(200)) * 0.43);
}

TEST(DeviceGate, EachQuantumPaysForItsBoundary) {
  GateBench b(us(100));
  b.input.clients[1].start_ns = UINT64_MAX / 2;
  b.input.clients.push_back({.name = "idle", .workload = &b.service, .priority = 7});
  b.input.clients[2].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.001};
  const double per_quantum_ns = double(us(100) + b.input.gpu.kernel_gap_ns + b.input.host.boundary_ns);
  const double expected_ns = double(ms(200) - b.input.host.setup_ns) / per_quantum_ns * double(us(100));
  EXPECT_NEAR(simulate(b.input).clients[0].work_ns, expected_ns, expected_ns * 0.005);
}

TEST(DeviceGate, RunAheadIsBounded) {
  GateBench calls(us(1)), work(us(500));
  for (GateBench* b : {&calls, &work}) {  // one burst for all of the time
    b->service.steps[0].segments[0].kernel.block_ns = ms(900);
    b->input.gpu.timeslice_ns = ms(900);
    b->input.clients[1].arrivals = {.kind = ArrivalKind::kClosed};
  }
  // The driver took some until the daemon knew of both; the gate allows the others.
  EXPECT_LE(simulate(calls.input).clients[0].launches,
            64 + admission::kRunAheadCalls + admission::kCallsPerMarker);
  EXPECT_LE(simulate(work.input).clients[0].launches, 64 + admission::kRunAheadNs / us(500));
}

// A service whose gaps the policy waits out keeps gates closed after its bursts: the daemon opens them.
TEST(DeviceGate, ItStaysClosedUntilTheDaemonOpensIt) {
  GateBench at_once(us(20)), later(us(20));
  later.input.run.parameters.guard_ns = us(1000);
  for (GateBench* b : {&at_once, &later}) b->input.warmup_ns = ms(20);
  const double bursts = double(ms(180)) / double(2 * kBurstNs);
  const double lost_ns =
      simulate(at_once.input).clients[0].work_ns - simulate(later.input).clients[0].work_ns;
  EXPECT_NEAR(lost_ns / bursts, double(us(1000)), double(us(100)));
}

TEST(DeviceGate, TwoProgramsWithoutMpsTakeTurns) {
  GateBench one(us(20)), two(us(20));
  two.input.clients.push_back({.name = "other", .workload = &two.program});
  for (GateBench* b : {&one, &two}) {
    b->input.duration_ns = ms(2000);
    b->input.warmup_ns = ms(200);
  }
  const auto alone = simulate(one.input), both = simulate(two.input);
  EXPECT_EQ(both.audit.overlaps, 0u);
  const double first_ns = both.clients[0].work_ns, other_ns = both.clients[2].work_ns;
  EXPECT_GT(first_ns + other_ns, alone.clients[0].work_ns * 0.9);
  EXPECT_NEAR(first_ns, other_ns, (first_ns + other_ns) * 0.1);
}

// A program whose CPU is its limit leaves the GPU idle in its own turns. That is no cost of passing them on, and no reason
// to wait for longer after a burst.
TEST(DeviceGate, TwoProgramsOfTheCpuKeepWhatOneKeeps) {
  for (const GateKind gate : {GateKind::kThread, GateKind::kDevice}) {
    GateBench one(us(20)), two(us(20));
    two.input.clients.push_back({.name = "other", .workload = &two.program});
    for (GateBench* b : {&one, &two}) {
      b->program.steps[0].segments[0].host_ns = us(30);
      b->service.steps[0].segments[0].kernel.block_ns = ms(1);
      b->input.clients[1].arrivals = {.kind = ArrivalKind::kPoisson, .load = 0.5};
      b->input.run.policy = "tessera";
      b->input.run.parameters = {};
      b->input.run.gate = gate;
      b->input.run.gate_quantum_ns = 0;
      b->input.duration_ns = ms(6000);
      b->input.warmup_ns = ms(2000);
    }
    const auto both = simulate(two.input).clients;
    EXPECT_GT(both[0].work_ns + both[2].work_ns, simulate(one.input).clients[0].work_ns * 0.9)
        << "gate " << int(gate);
  }
}

// Programs whose CPU is not their limit gain nothing by waiting on the device. They must lose nothing either, services least.
TEST(DeviceGate, NoServiceIsWorseOffThanBesideTheThreadsGate) {
  auto scenario = load_scenario(TESSERA_SOURCE_DIR "/scenarios/ablation.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().text;
  ASSERT_TRUE(select_runs(&*scenario, {"tessera", "on the device"}).ok());
  struct Pair {
    double tail[2] = {}, share[2] = {};
  };
  std::map<std::string, Pair> cells;
  double share[2] = {};
  for (const CellRow& row : run_scenario(*scenario, {.seeds = 1}).rows) {
    const bool device = scenario->runs[row.run].gate == GateKind::kDevice;
    Pair& pair = cells[scenario->cells[row.cell].name];
    for (const ProtectedRow& p : row.protected_clients)
      pair.tail[device] = std::max(pair.tail[device], p.p99_over_alone);
    pair.share[device] = row.be_share;
    share[device] += row.be_share;
  }
  for (const auto& [name, pair] : cells) {
    EXPECT_LT(pair.tail[1], pair.tail[0] + 0.15) << name;
    EXPECT_GT(pair.share[1], pair.share[0] - 0.12) << name;
  }
  EXPECT_GT(share[1], share[0] - 0.02 * double(cells.size()));
}

// Opened for one quantum, the gate stays so: a gap of no length lets it into the next burst.
TEST(DeviceGate, WhatIsOpenedForAQuantumStaysOpenForIt) {
  GateBench closing(us(40)), counting(us(40));
  counting.input.run.opened_quanta = 1;
  for (GateBench* b : {&closing, &counting}) {
    b->input.run.gate_quantum_ns = us(40);
    b->input.clients[1].arrivals.load = 2;  // bursts follow each other
    b->input.warmup_ns = ms(20);
  }
  EXPECT_EQ(simulate(closing.input).clients[0].work_ns, 0);
  const double bursts = double(ms(180)) / double(kBurstNs);
  EXPECT_NEAR(simulate(counting.input).clients[0].work_ns, bursts * double(us(40)), bursts * double(us(4)));
}

}  // namespace
}  // namespace tessera::simulator
