// Measures the cost of deciding, and the speed of the simulator.
//   policy.decisions_per_s_64x8      one decision = one client's lease decided. 8 GPUs of 64 clients each (8
//                                    protected, 56 best-effort, MPS); each call of decide() is 64 decisions
//   policy.decide_calls_per_s_64x8   the same, counted as calls
//   policy.decision_us_1000_clients  one call of decide() for a GPU with 1000 clients
//   simulate.events_per_s            one core: a service and a training under `tessera`
// The policy is `tessera`; the observations change as clients work, so nothing is answered from a cache.
#include "scheduler_daemon/policy/policy.h"
#include "simulator/simulation.h"
#include "tests/bench/timing.h"

namespace {

using namespace tessera;

constexpr size_t kBatches = 40;

struct Load {  // one GPU's clients
  policy::Observation o{.now_ns = 1'000'000, .mps = true, .sm_count = 132};
  std::unique_ptr<policy::Policy> policy = policy::make_policy("tessera", {});
  uint64_t tick = 0;

  Load(size_t n_protected, size_t n_best_effort) {
    for (uint64_t id = 1; id <= n_protected + n_best_effort; ++id) {
      policy::ClientView c{.id = id, .priority = id <= n_protected ? 7u : 0u};
      c.resource_class = id % 2 != 0 ? policy::ResourceClass::kCompute : policy::ResourceClass::kMemory;
      c.wave_blocks = 400;
      c.waiting = id > n_protected;
      c.slowdown = 1;
      c.burst_ns = id <= n_protected ? 4'000'000 : 0;
      o.clients.push_back(c);
    }
  }
  // One protected client begins or ends a burst, one best-effort client made progress.
  void change() {
    ++tick;
    o.now_ns += 300'000;
    policy::ClientView& c = o.clients[tick / 2 % o.clients.size()];
    if (c.priority > 0) {
      c.busy = tick % 2 != 0;
      (c.busy ? c.busy_since_ns : c.idle_since_ns) = o.now_ns;
      c.bursts += !c.busy;
    } else {
      c.used_ns += 300'000;
      c.in_flight_ns = tick % 2 * 100'000;
    }
  }
};

simulator::RunResult simulated(simulator::Workload& service, simulator::Workload& trainer, uint64_t seed) {
  simulator::RunInput in{.clients = {{.name = "service", .workload = &service, .priority = 7},
                                     {.name = "trainer", .workload = &trainer}},
                         .run = {.policy = "tessera"},
                         .duration_ns = 400'000'000,
                         .seed = seed};
  in.clients[0].arrivals = {.kind = simulator::ArrivalKind::kPoisson, .load = 0.5};
  return simulator::simulate(in);
}

}  // namespace

int main() {
  uint64_t checked = 0;  // keeps the work alive
  bench::Report report;
  {
    std::vector<Load> gpus;
    for (int i = 0; i < 8; ++i) gpus.emplace_back(8, 56);
    size_t next = 0;
    const auto one = [&] {
      Load& gpu = gpus[next++ % gpus.size()];
      gpu.change();
      checked += gpu.policy->decide(gpu.o).leases.size();
    };
    const double ns = bench::quantile(bench::per_call_ns(kBatches, 800, one), 0.5);
    report.add("policy.decisions_per_s_64x8", 64 * 1e9 / ns);
    report.add("policy.decide_calls_per_s_64x8", 1e9 / ns);
  }
  {
    Load gpu(20, 980);
    const auto one = [&] {
      gpu.change();
      checked += gpu.policy->decide(gpu.o).leases.size();
    };
    report.add("policy.decision_us_1000_clients",
               bench::quantile(bench::per_call_ns(kBatches, 100, one), 0.5) / 1e3);
  }
  {
    simulator::Workload service{.name = "service"}, trainer{.name = "trainer"};
    service.steps.push_back(
        {.segments = {
             {.count = 200, .kernel = {.n_blocks = 52, .block_ns = 10'000, .sms_per_block = 0.25}}}});
    trainer.steps.push_back(
        {.segments = {{.count = 100,
                       .kernel = {.n_blocks = 432 * 8, .block_ns = 25'000, .sms_per_block = 0.25},
                       .cv = 0.5}},
         .gap_ns = 1'000'000});
    std::vector<double> per_s;
    for (uint64_t seed = 1; seed <= 15; ++seed) {
      const uint64_t start = base::now_ns();
      const uint64_t events = simulated(service, trainer, seed).n_events;
      per_s.push_back(double(events) * 1e9 / double(base::now_ns() - start));
    }
    report.add("simulate.events_per_s", bench::quantile(per_s, 0.5));
  }
  if (checked == 0) return 1;
  report.print();
  return 0;
}
