// Programs by themselves: how long a job takes alone, of which lengths jobs are, what a history says of a kernel.
#include "simulator/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/units.h"
#include "simulator/simulation.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

Workload service(uint32_t launches, uint64_t kernel_ns, uint64_t gap_ns = 0) {
  const Kernel k{.n_blocks = 8, .block_ns = kernel_ns, .sms_per_block = 1};
  Workload w{.name = "service"};
  w.steps.push_back({.segments = {{.count = launches, .kernel = k}}, .gap_ns = gap_ns});
  return w;
}

TEST(Workload, AloneItTakesKernelsGapsAndLaunches) {
  const LaunchCosts costs{.launch_ns = us(4), .gap_ns = us(1), .sync_ns = us(8)};
  // The GPU is behind: one launch, ten kernels, nine gaps, the synchronise.
  EXPECT_EQ(service(10, us(20)).alone_ns(108, costs), us(4 + 200 + 9 + 8));
  // The host is behind: ten launches and the last kernel.
  EXPECT_EQ(service(10, us(2)).alone_ns(108, costs), us(40 + 2 + 8));
  EXPECT_EQ(service(1, us(20), us(100)).alone_ns(108, costs), us(4 + 20 + 8 + 100));
  Workload two = service(10, us(20));
  two.lengths = {1, 3};
  EXPECT_EQ(two.alone_ns(108, costs), us(4 + 400 + 19 + 8));
}

// The model agrees with the arithmetic.
TEST(Workload, ALoadIsTheShareOfTimeThatJobsTakeAlone) {
  for (const Workload& w : {service(380, us(10)), service(20, us(2), us(50)), service(5, us(300))}) {
    RunInput in{.clients = {{.name = "service", .workload = &w, .priority = 7}}, .duration_ns = ms(4000)};
    in.clients[0].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.5};
    in.record_bursts = true;
    const RunResult r = simulate(in);
    double served_ns = 0;
    for (const uint64_t ns : r.clients[0].latencies_ns) served_ns += double(ns);
    served_ns += double(r.clients[0].jobs * w.steps[0].gap_ns);
    EXPECT_NEAR(served_ns / double(in.duration_ns), 0.5, 0.005);
  }
}

TEST(Workload, GammaGapsHaveTheirMeanAndSpread) {
  ArrivalProcess process({.kind = ArrivalKind::kGamma, .rate_per_s = 1000, .burst_cv = 4}, ms(1), Random(1));
  double sum = 0, squares = 0, before = 0;
  constexpr int kGaps = 200'000;
  for (int i = 0; i < kGaps; ++i) {
    const auto at = double(process.next_ns());
    sum += at - before;
    squares += (at - before) * (at - before);
    before = at;
  }
  const double mean = sum / kGaps;
  EXPECT_NEAR(mean, 1e6, 5e4);
  EXPECT_NEAR(std::sqrt(squares / kGaps - mean * mean) / mean, 4, 0.2);
}

TEST(Workload, JobsHaveTheLengthsThatItNames) {
  Workload w = service(10, us(20));
  w.lengths = {1, 2};
  Random random(1);
  std::vector<Launch> job;
  std::set<size_t> seen;
  for (int i = 0; i < 50; ++i) {
    draw_job(w, &random, &job);
    seen.insert(job.size());
  }
  EXPECT_EQ(seen, (std::set<size_t>{10, 20}));
}

TEST(Workload, ShortJobsHaveALatencyOfTheirOwn) {
  Workload w = service(10, us(20));
  RunInput in{.duration_ns = ms(200)};
  in.clients.push_back({.name = "service", .workload = &w, .priority = 7});
  in.clients[0].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 0.2};
  EXPECT_TRUE(simulate(in).clients[0].short_latencies_ns.empty());  // all are alike
  w.lengths = {1, 2};
  const ClientResult r = simulate(in).clients[0];
  ASSERT_FALSE(r.short_latencies_ns.empty());
  ASSERT_LT(r.short_latencies_ns.size(), r.latencies_ns.size());
  EXPECT_LT(percentile_ns(r.short_latencies_ns, 0.99) * 3, percentile_ns(r.latencies_ns, 0.99) * 2);
}

TEST(Workload, AHistoryKnowsTheMeanOfAShape) {
  Workload w = service(50, us(100));
  w.steps[0].segments[0].cv = 1;
  Random random(1);
  std::set<uint64_t> lengths;
  std::vector<Launch> job;
  draw_job(w, &random, &job);
  for (const Launch& l : job) {
    lengths.insert(l.kernel.block_ns);
    EXPECT_EQ(l.kernel.usual().block_ns, us(100));
  }
  EXPECT_GT(lengths.size(), 40u);
}

// A client whose kernels are known by their shape only has other slices than one that is told each launch's length.
TEST(Workload, EstimatesByShapeChangeWhatTheGateDoes) {
  const Workload hp = service(100, us(20));
  Workload be{.name = "trainer"};
  const Kernel k{.n_blocks = 108 * 40, .block_ns = us(50), .sms_per_block = 1};
  be.steps.push_back({.segments = {{.count = 20, .kernel = k, .cv = 1}}});
  RunInput in{
      .clients = {{.name = "service", .workload = &hp, .priority = 7}, {.name = "trainer", .workload = &be}},
      .run = {.policy = "temporal"},
      .duration_ns = ms(300)};
  in.clients[0].arrivals = {.kind = ArrivalKind::kPoisson, .load = 0.3};
  const RunResult exact = simulate(in);
  in.estimates = Estimates::kShape;
  const RunResult by_shape = simulate(in);
  EXPECT_NE(exact.clients[1].launches, by_shape.clients[1].launches);
  EXPECT_GT(by_shape.clients[1].work_ns, 0);
}

}  // namespace
}  // namespace tessera::simulator
