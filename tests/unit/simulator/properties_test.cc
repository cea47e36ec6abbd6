// Properties of every policy that protects, over generated workloads and machines. Each exception is named where the
// audit counts (simulator/gate.cc): packed leases (also those of a minimum share), and calls whose hold limit expired.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "base/units.h"
#include "simulator/simulation.h"

namespace tessera::simulator {
namespace {

using base::ms;
using base::us;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 3000, kFairSeeds = 12;
#else
constexpr uint64_t kSeeds = 3000, kFairSeeds = 60;
#endif

// For a longer search: TESSERA_TEST_SEEDS=10 tries ten times as many.
uint64_t times(uint64_t seeds) {
  const char* more = std::getenv("TESSERA_TEST_SEEDS");
  return seeds * std::max(1, more != nullptr ? std::atoi(more) : 1);
}

struct Generated {
  std::deque<Workload> workloads;
  RunInput input;
};

uint32_t between(Random* r, uint32_t least, uint32_t most) {
  return least + uint32_t(r->uniform() * (most - least + 1));
}

Workload generate_workload(Random* r, bool service) {
  Workload w{.name = "w"};
  for (uint32_t n = between(r, 1, 3); n > 0; --n) {
    Step step{.repeat = between(r, 1, 4), .gap_ns = us(between(r, 0, 400))};
    for (uint32_t k = between(r, 1, 3); k > 0; --k) {
      Kernel kernel{.n_blocks = between(r, 1, service ? 60 : 600),
                    .block_ns = us(between(r, 2, service ? 60 : 400)),
                    .sms_per_block = 1.0 / between(r, 1, 4),
                    .resource_class = policy::ResourceClass(between(r, 0, 3)),
                    .can_cut = r->uniform() < 0.8};
      step.segments.push_back({.count = between(r, 1, 10), .kernel = kernel, .cv = r->uniform()});
    }
    w.steps.push_back(step);
  }
  return w;
}

void generate(uint64_t seed, const std::string& policy, Generated* g) {
  Random r(seed, 7);
  RunInput& in = g->input;
  in.seed = seed;
  in.duration_ns = ms(25);
  in.gpu.sm_count = between(&r, 4, 64);
  for (auto& row : in.gpu.contention)
    for (double& cell : row) cell = r.uniform();
  in.run.policy = policy;
  in.run.regime = Regime(between(&r, 0, 2));
  in.run.parameters.max_hold_ns = ms(between(&r, 2, 15));
  if (r.uniform() < 0.2) in.run.parameters.min_share = 0.2;
  in.perturbation.estimate_factor = r.uniform() < 0.3 ? 0.3 + 3 * r.uniform() : 1;
  in.perturbation.observe_delay_ns = r.uniform() < 0.2 ? us(between(&r, 1, 2000)) : 0;
  in.perturbation.churn = r.uniform() < 0.2;
  for (uint32_t n = between(&r, 0, 2); n > 0; --n) {
    g->workloads.push_back(generate_workload(&r, true));
    ClientSpec c{.name = "service", .workload = &g->workloads.back(), .priority = between(&r, 1, 7)};
    c.arrivals.kind = ArrivalKind(between(&r, 0, 5));
    c.arrivals.load = 0.05 + r.uniform();
    in.clients.push_back(c);
  }
  for (uint32_t n = between(&r, 1, 4); n > 0; --n) {
    g->workloads.push_back(generate_workload(&r, false));
    in.clients.push_back({.name = "job", .workload = &g->workloads.back(), .weight = between(&r, 1, 300)});
  }
}

// Work conservation: an idle GPU with work that waits, and why.
uint64_t longest_idle_wait(const RunInput& in) {
  const uint64_t told = in.host.daemon_ns + in.perturbation.observe_delay_ns + in.host.wake_ns;
  const uint64_t guard = std::max(in.run.parameters.guard_ns, us(1500));  // learnt gaps: predicted arrivals
  const uint64_t sleeps = ms(1) + in.host.wake_ns;                        // pulses wake nobody
  uint64_t longest = guard + sleeps + 2 * told;
  // Turns: a holder that does nothing keeps the GPU for the grace, and is looked at every 2 ms.
  if (in.run.regime == Regime::kTimesliced) longest += in.run.parameters.idle_grace_ns + ms(2) + 2 * told;
  return longest;
}

class Properties : public testing::TestWithParam<const char*> {};

TEST_P(Properties, HoldOverGeneratedWorkloads) {
  uint64_t n_launches = 0, n_expired = 0, longest_idle_ns = 0;
  for (uint64_t seed = 1; seed <= times(kSeeds); ++seed) {
    Generated g;
    generate(seed, GetParam(), &g);
    g.input.audit_idle = true;
    RunResult r = simulate(g.input);
    EXPECT_EQ(r.audit.starts_under_pulse, 0u) << "seed " << seed;
    EXPECT_EQ(r.audit.starts_without_lease, 0u) << "seed " << seed;
    EXPECT_EQ(r.audit.overlaps, 0u) << "seed " << seed;
    EXPECT_LE(r.audit.longest_idle_wait_ns, longest_idle_wait(g.input)) << "seed " << seed;
    longest_idle_ns = std::max(longest_idle_ns, r.audit.longest_idle_wait_ns);
    for (size_t i = 0; i < r.clients.size(); ++i) {
      const ClientResult& c = r.clients[i];
      n_launches += c.launches;
      n_expired += c.hold_expired;
      // A wait ends at the limit; the thread then needs its time to wake.
      EXPECT_LE(c.longest_hold_ns, g.input.run.parameters.max_hold_ns + 2 * g.input.host.wake_ns) << seed;
      if (g.input.clients[i].priority > 0) {
        EXPECT_EQ(c.longest_hold_ns, 0u) << "protected, seed " << seed;
      }
    }
    if (seed % 20 != 0) continue;
    RunResult again = simulate(g.input);
    EXPECT_EQ(again.n_events, r.n_events) << "seed " << seed;
    for (size_t i = 0; i < r.clients.size(); ++i)
      EXPECT_EQ(again.clients[i].work_ns, r.clients[i].work_ns) << "seed " << seed;
  }
  EXPECT_GT(n_launches, kSeeds * 100);  // something ran
  EXPECT_GT(n_expired, 0u);             // the hold limit was among the cases
  EXPECT_GT(longest_idle_ns, us(50));   // the audit sees something
}

INSTANTIATE_TEST_SUITE_P(Policies, Properties, testing::Values("temporal", "tessera"));

Workload trainer(uint64_t gap_ns) {
  Workload w{.name = "trainer"};
  Kernel k{.n_blocks = 108 * 20, .block_ns = us(25), .sms_per_block = 1};
  w.steps.push_back({.segments = {{.count = 40, .kernel = k, .cv = 0.3}}, .gap_ns = gap_ns});
  return w;
}

double share_of_first(Regime regime, uint32_t weight, const Workload& first, const Workload& second) {
  RunInput in{.clients = {{.name = "a", .workload = &first, .weight = weight},
                          {.name = "b", .workload = &second, .weight = 100}},
              .run = {.policy = "tessera", .regime = regime},
              .duration_ns = ms(1200),
              .warmup_ns = ms(200)};
  RunResult r = simulate(in);
  return r.clients[0].work_ns / (r.clients[0].work_ns + r.clients[1].work_ns);
}

TEST(Fairness, FollowsTheWeightsOverASecond) {
  const Workload w = trainer(0);
  for (Regime regime : {Regime::kMpsPriority, Regime::kTimesliced})
    for (uint32_t weight : {100u, 300u})
      EXPECT_NEAR(share_of_first(regime, weight, w, w), weight / (weight + 100.0), 0.05)
          << regime_name(regime) << " " << weight;
}

// Shares of a second follow the weights within 5 %, whatever the clients' kernels are like. Exceptions: a
// client that does not want its share, and turns that one call cannot be divided into (kernels that may not
// be cut).
TEST(Fairness, FollowsTheWeightsOverASecondForGeneratedClients) {
  for (uint64_t seed = 1; seed <= times(kFairSeeds); ++seed) {
    Random r(seed, 11);
    std::deque<Workload> workloads;
    RunInput in{.run = {.policy = "tessera", .regime = Regime(seed % 3)},
                .duration_ns = ms(1800),
                .warmup_ns = ms(800),  // the first one was free-running: it starts far ahead
                .seed = seed};
    double weights = 0, work = 0;
    for (uint32_t n = between(&r, 2, 5); n > 0; --n) {
      const Kernel kernel{.n_blocks = 108 * between(&r, 1, 40),  // whole waves: work is time then
                          .block_ns = us(between(&r, 20, 300)),
                          .resource_class = policy::ResourceClass(between(&r, 1, 2))};
      workloads.push_back({.name = "trainer"});
      workloads.back().steps.push_back(
          {.segments = {{.count = 20, .kernel = kernel, .cv = r.uniform() / 2}}});
      in.clients.push_back(
          {.name = "trainer", .workload = &workloads.back(), .weight = between(&r, 50, 300)});
      weights += in.clients.back().weight;
    }
    const RunResult result = simulate(in);
    for (const ClientResult& c : result.clients) work += c.work_ns;
    for (size_t i = 0; i < in.clients.size(); ++i)
      EXPECT_NEAR(result.clients[i].work_ns / work, in.clients[i].weight / weights, 0.05)
          << "seed " << seed << " " << regime_name(in.run.regime) << " client " << i << " of "
          << in.clients.size();
  }
}

// Launches of 8 ms and pauses of 2 ms: each pause passes the turn on, and the heavier one can still have
// three quarters of what is done.
TEST(Fairness, FollowsTheWeightsAlthoughBothPause) {
  Workload w{.name = "trainer"};
  const Kernel k{.n_blocks = 108 * 320, .block_ns = us(25), .sms_per_block = 1};
  w.steps.push_back({.segments = {{.count = 1, .kernel = k}}, .gap_ns = ms(2)});
  EXPECT_NEAR(share_of_first(Regime::kTimesliced, 100, w, w), 0.5, 0.05);
  EXPECT_GT(share_of_first(Regime::kTimesliced, 300, w, w), 0.65);
}

TEST(Fairness, NobodyWaitsForOneThatHasLittleToDo) {
  const Workload greedy = trainer(0), lazy = trainer(ms(60));  // 20 ms of work, then 60 ms of host
  for (Regime regime : {Regime::kMpsPriority, Regime::kTimesliced})
    EXPECT_GT(share_of_first(regime, 100, greedy, lazy), 0.6) << regime_name(regime);
}

TEST(Conservation, AnIdleServiceCostsTheTrainerNothing) {
  const Workload w = trainer(0);
  RunInput in{.clients = {{.name = "service", .workload = &w, .priority = 7, .start_ns = 0},
                          {.name = "trainer", .workload = &w}},
              .run = {.policy = "tessera"},
              .duration_ns = ms(1000),
              .warmup_ns = ms(100)};
  in.clients[0].arrivals = {.kind = ArrivalKind::kPeriodic, .load = 1e-4};  // attached, never asked
  RunInput alone = in;
  alone.clients[0].start_ns = UINT64_MAX;
  EXPECT_GT(simulate(in).clients[1].work_ns / simulate(alone).clients[1].work_ns, 0.93);
}

// Gates watch 32 pulses; the others reach them by the daemon.
TEST(ManyServices, FortyAreServedAsOneIsAndATrainingGoesOn) {
  Workload service{.name = "service"};
  service.steps.push_back({.segments = {{.count = 60, .kernel = {.n_blocks = 16, .block_ns = us(50)}}}});
  const Workload w = trainer(0);
  RunInput in{.run = {.policy = "tessera", .regime = Regime::kMpsPriority, .confine = Confine::kDynamic},
              .duration_ns = ms(4000),
              .warmup_ns = ms(200),
              .latency_from_arrival = false};
  for (int i = 0; i < 40; ++i) {
    in.clients.push_back({.name = "service", .workload = &service, .priority = 7});
    in.clients.back().arrivals = {.kind = ArrivalKind::kPoisson, .load = 0.0075};
  }
  in.clients.push_back({.name = "trainer", .workload = &w});
  RunInput alone = in;
  alone.clients.back().start_ns = UINT64_MAX;
  const RunResult shared = simulate(in), without = simulate(alone);
  std::vector<uint64_t> all, all_without;
  for (size_t i = 0; i < 40; ++i) {
    all.insert(all.end(), shared.clients[i].latencies_ns.begin(), shared.clients[i].latencies_ns.end());
    all_without.insert(all_without.end(), without.clients[i].latencies_ns.begin(),
                       without.clients[i].latencies_ns.end());
  }
  EXPECT_LT(double(percentile_ns(all, 0.99)), 1.35 * double(percentile_ns(all_without, 0.99)));
  EXPECT_GT(shared.clients[40].work_ns / double(in.duration_ns), 0.35);  // bursts leave 0.74 of the time
}

TEST(Jobs, OfOneLaunchRepeatWithTheirGap) {
  Workload w{.name = "single"};
  w.steps.push_back(
      {.segments = {{.count = 1, .kernel = {.n_blocks = 108, .block_ns = ms(1)}}}, .gap_ns = ms(1)});
  RunInput in{
      .clients = {{.name = "job", .workload = &w}}, .run = {.policy = "temporal"}, .duration_ns = ms(200)};
  EXPECT_NEAR(double(simulate(in).clients[0].jobs), 100, 3);
}

TEST(MinimumShare, KeepsBestEffortAliveBesideASaturatedService) {
  const Workload w = trainer(0);
  RunInput in{
      .clients = {{.name = "service", .workload = &w, .priority = 7}, {.name = "trainer", .workload = &w}},
      .run = {.policy = "tessera", .regime = Regime::kMps},
      .duration_ns = ms(1000)};
  in.run.parameters.max_hold_ns = ms(60'000);
  EXPECT_LT(simulate(in).clients[1].work_ns / 1e9, 0.05);
  in.run.parameters.min_share = 0.2;
  EXPECT_GT(simulate(in).clients[1].work_ns / 1e9, 0.1);
}

}  // namespace
}  // namespace tessera::simulator
