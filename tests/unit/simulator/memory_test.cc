// Memory that holds fewer models than there are; cells with several GPUs.
#include "simulator/memory.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "simulator/simulation.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

TEST(ModelMemory, WithoutALimitNothingIsLoaded) {
  ModelMemory memory(0, {.load_bytes_per_ns = 1}, {100, 100});
  EXPECT_EQ(memory.begin(0, 7), 7u);
  EXPECT_EQ(memory.loads(), 0u);
}

TEST(ModelMemory, LoadsQueueAndTheOldestIdleModelMakesRoom) {
  ModelMemory memory(200, {.load_bytes_per_ns = 2}, {100, 100, 100});
  EXPECT_EQ(memory.begin(0, 10), 60u);
  EXPECT_EQ(memory.begin(1, 10), 110u);  // after the first
  EXPECT_EQ(memory.begin(2, 20), ModelMemory::kNoRoom);
  memory.end(1, 150);
  memory.end(0, 200);
  EXPECT_EQ(memory.begin(2, 210), 260u);  // in place of 1
  EXPECT_EQ(memory.begin(0, 220), 220u);  // still there
  EXPECT_EQ(memory.begin(1, 230), ModelMemory::kNoRoom);
  memory.end(2, 300);
  EXPECT_EQ(memory.begin(1, 300), 350u);
  EXPECT_EQ(memory.loads(), 4u);
}

// A model that makes room is written to the host first, and both moves take a while of their own.
TEST(ModelMemory, AParkedModelTakesTheLinkBothWays) {
  ModelMemory memory(200, {.load_bytes_per_ns = 2, .park_bytes_per_ns = 1, .move_ns = 7}, {100, 100, 150});
  EXPECT_EQ(memory.begin(0, 0), 57u);
  EXPECT_EQ(memory.begin(1, 0), 114u);
  memory.end(0, 200);
  EXPECT_EQ(memory.begin(2, 300), ModelMemory::kNoRoom) << "one of them is in use";
  memory.end(1, 400);
  EXPECT_EQ(memory.begin(2, 1000), 1000 + 2 * 107 + 82u) << "both make room";
  EXPECT_EQ(memory.loads(), 3u);
}

// Two models, room for one: every request of one after one of the other pays for loading, and none is lost.
TEST(ModelMemory, RequestsWaitForTheirModel) {
  Workload w{.name = "model", .memory_bytes = 100'000'000};
  const Kernel k{.n_blocks = 10, .block_ns = us(100), .sms_per_block = 1};
  w.steps.push_back({.segments = {{.count = 10, .kernel = k}}});
  w.steps.push_back({.segments = {{.count = 10, .kernel = k}}});
  RunInput in{
      .clients = {{.name = "a", .workload = &w, .priority = 7}, {.name = "b", .workload = &w, .priority = 7}},
      .duration_ns = ms(2000)};
  in.host.link.load_bytes_per_ns = 10;  // 10 ms
  in.clients[0].arrivals = in.clients[1].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.02};
  in.clients[1].start_ns = ms(50);  // in between those of the other
  const auto p50_ms = [&] { return double(percentile_ns(simulate(in).clients[0].first_ns, 0.5)) / 1e6; };
  EXPECT_NEAR(p50_ms(), 1, 0.1);
  in.gpu.memory_bytes = 200'000'000;
  EXPECT_NEAR(p50_ms(), 1, 0.1);
  EXPECT_EQ(simulate(in).model_loads, 2u);
  in.gpu.memory_bytes = 100'000'000;
  EXPECT_NEAR(p50_ms(), 11, 0.1);
  const RunResult r = simulate(in);
  EXPECT_GT(r.model_loads, 30u);
  EXPECT_GE(r.clients[0].jobs + r.clients[1].jobs, 37u);
  EXPECT_GT(r.clients[0].latencies_ns[0], r.clients[0].first_ns[0]);
}

}  // namespace
}  // namespace tessera::simulator
