// Properties of `temporal` over generated workloads, in virtual time: a small model of clients obeys the
// leases.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/units.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;

constexpr uint64_t kStepNs = us(100);

struct Model {  // one best-effort client that always wants the GPU
  uint64_t id, weight = 100;
  Grant grant = Grant::kHold;
  uint64_t in_flight_ns = 0, used_ns = 0, waiting_since_ns = 0, longest_wait_ns = 0;

  void step(uint64_t now_ns, uint64_t window_ns) {
    uint64_t done = std::min(in_flight_ns, kStepNs);
    in_flight_ns -= done;
    used_ns += done;
    if (grant != Grant::kHold) {
      in_flight_ns = window_ns;
      waiting_since_ns = 0;
    } else if (waiting_since_ns == 0) {
      waiting_since_ns = now_ns;
    } else {
      longest_wait_ns = std::max(longest_wait_ns, now_ns - waiting_since_ns);
    }
  }
  ClientView view() const {
    return {.id = id,
            .weight = uint32_t(weight),
            .waiting = waiting_since_ns != 0,
            .waiting_since_ns = waiting_since_ns,
            .in_flight_ns = in_flight_ns,
            .drained = in_flight_ns == 0,
            .used_ns = used_ns};
  }
};

// Runs the policy as the daemon does: at its own looks and on every drain. Checks what must hold at every
// instant.
struct World {
  Parameters parameters;
  std::unique_ptr<Policy> policy = make_policy("temporal", parameters);
  std::vector<Model> clients;
  uint64_t now_ns = ms(1), next_look_ns = 0, idle_ns = 0;

  void run(uint64_t for_ns) {
    for (uint64_t end = now_ns + for_ns; now_ns < end; now_ns += kStepNs) {
      bool event = next_look_ns == 0;
      size_t in_flight = 0, granted = 0;
      for (Model& c : clients) {
        uint64_t before = c.in_flight_ns;
        bool waited = c.waiting_since_ns != 0;
        c.step(now_ns, us(300));
        event |= (before > 0 && c.in_flight_ns == 0) || (!waited && c.waiting_since_ns != 0);
        in_flight += c.in_flight_ns > 0;
      }
      ASSERT_LE(in_flight, 1u) << "two exclusive leases at work";
      if (event || now_ns >= next_look_ns) decide();
      for (const Model& c : clients) granted += c.grant != Grant::kHold;
      ASSERT_LE(granted, 1u);
      idle_ns += in_flight == 0 ? kStepNs : 0;
    }
  }
  void decide() {
    Observation o{.now_ns = now_ns, .sm_count = 100};
    for (const Model& c : clients) o.clients.push_back(c.view());
    Decision d = policy->decide(o);
    ASSERT_EQ(d.leases.size(), clients.size());
    ASSERT_TRUE(d.next_look_ns == 0 || d.next_look_ns > now_ns) << "would spin";
    next_look_ns = d.next_look_ns;
    for (size_t i = 0; i < clients.size(); ++i) clients[i].grant = d.leases[i].grant;
  }
};

TEST(Properties, ExclusiveTurnsAreFairByWeightServeEveryoneAndConserveWork) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    std::mt19937 random(seed);
    World world;
    size_t n = 2 + seed % 5;
    uint64_t weights = 0;
    for (uint64_t id = 1; id <= n; ++id) {
      world.clients.push_back({.id = id, .weight = 50 + random() % 400});
      weights += world.clients.back().weight;
    }
    constexpr uint64_t kRunNs = ms(10'000);
    world.run(kRunNs);
    uint64_t total = 0;
    for (const Model& c : world.clients) total += c.used_ns;
    for (const Model& c : world.clients) {
      double share = double(c.used_ns) / double(total), wanted = double(c.weight) / double(weights);
      EXPECT_NEAR(share, wanted, 0.05) << "seed " << seed << " client " << c.id;
      // Unequal weights make the heavy take several turns in a row, so waits are bounded by those.
      EXPECT_LE(c.longest_wait_ns, world.parameters.max_hold_ns * 4) << "seed " << seed;
    }
    EXPECT_LE(world.idle_ns, kRunNs / 10) << "seed " << seed;  // drains and hand-overs only
  }
}

TEST(Properties, EqualClientsAreServedWithinTheHoldLimit) {
  for (size_t n : {2, 3, 8, 20}) {
    World world;
    for (uint64_t id = 1; id <= n; ++id) world.clients.push_back({.id = id});
    world.run(ms(3000));
    for (const Model& c : world.clients) EXPECT_LE(c.longest_wait_ns, world.parameters.max_hold_ns) << n;
  }
}

TEST(Properties, AClientThatReturnsFromIdlingHasEarnedNothing) {
  World world;
  world.clients = {{.id = 1}, {.id = 2}};
  world.run(ms(5000));
  world.clients.push_back({.id = 3});
  uint64_t used = world.clients[0].used_ns;
  world.run(ms(3000));
  EXPECT_NEAR(double(world.clients[2].used_ns) / double(ms(3000)), 1.0 / 3, 0.05);
  EXPECT_NEAR(double(world.clients[0].used_ns - used) / double(ms(3000)), 1.0 / 3, 0.05);
}

// Anything may come from hostile clients: the answers stay well-formed, strict and deterministic.
Observation random_observation(std::mt19937_64& random, uint64_t now_ns) {
  auto odd = [&] { return random() >> (random() % 64); };
  Observation o{.now_ns = now_ns, .mps = random() % 4 == 0, .sm_count = uint32_t(random() % 200)};
  std::set<uint64_t> ids;
  for (size_t i = random() % 12; i > 0; --i) ids.insert(1 + random() % 20);
  for (uint64_t id : ids) {
    ClientView c{.id = id, .priority = uint32_t(id % 3 == 0 ? id % 8 : 0)};
    c.weight = uint32_t(odd());
    c.busy = random() % 2;
    c.watched = random() % 5 != 0;
    c.busy_since_ns = std::min(odd(), now_ns);
    c.idle_since_ns = std::min(odd(), now_ns);
    c.waiting = random() % 2;
    c.waiting_since_ns = std::min(odd(), now_ns);
    c.in_flight_ns = random() % 2 ? odd() : 0;
    c.queued_ns = odd();
    c.drained = random() % 2;
    c.used_ns = odd();
    c.resource_class = ResourceClass(random() % 4);
    c.slo_ns = random() % 3 ? 0 : odd();
    c.slowdown = random() % 2 ? 0 : double(odd()) / 1e3;
    c.own_slowdown = random() % 2 ? 0 : double(odd()) / 1e3;
    c.bursts = odd();
    c.burst_ns = odd();
    for (size_t k = random() % 4; k > 0; --k) c.ended.push_back({odd(), odd()});
    c.uncut_launches = random() % 2 ? 0 : odd();
    c.can_confine = random() % 2 != 0;
    c.launch_sms = uint32_t(odd());
    c.wave_blocks = uint32_t(odd());
    c.slice_overhead_ns = odd();
    o.clients.push_back(c);
  }
  return o;
}

void check(const Observation& o, const Decision& d) {
  ASSERT_EQ(d.leases.size(), o.clients.size());
  ASSERT_TRUE(d.next_look_ns == 0 || d.next_look_ns > o.now_ns);
  size_t granted = 0, best_effort = 0;
  bool unwatched_busy = false;
  for (const ClientView& c : o.clients) {
    best_effort += c.priority == 0;
    unwatched_busy |= c.priority > 0 && c.busy && !c.watched;
  }
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    ASSERT_EQ(d.leases[i].client_id, c.id);
    if (c.priority > 0) {
      ASSERT_EQ(d.leases[i].grant, Grant::kFree) << "protected clients are never held";
    }
    if (c.priority == 0 && d.leases[i].grant == Grant::kGranted) {
      ++granted;
      ASSERT_FALSE(unwatched_busy) << "strict levels";
      ASSERT_GT(d.leases[i].duration_ns, 0u);
    }
    if (d.leases[i].nudge) {
      ASSERT_EQ(d.leases[i].grant, Grant::kGranted);
    }
  }
  if (!o.mps && best_effort > 1) {
    ASSERT_LE(granted, 1u) << "overlapping exclusive leases";
  }
}

bool alike(const Lease& a, const Lease& b) {
  return a.client_id == b.client_id && a.grant == b.grant && a.duration_ns == b.duration_ns &&
         a.window_ns == b.window_ns && a.slice_ns == b.slice_ns && a.confine_all == b.confine_all &&
         a.marker_spacing_ns == b.marker_spacing_ns && a.long_block_ns == b.long_block_ns &&
         a.long_width_percent == b.long_width_percent && a.spin_ns == b.spin_ns && a.packed == b.packed &&
         a.nudge == b.nudge;
}

class EveryProtecting : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryProtecting, RandomObservationsNeverBreakTheInvariantsAndAreDecidedAlikeTwice) {
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937_64 random(seed);
    Parameters parameters;
    if (seed % 3 == 0) parameters.min_share = 0.2;
    auto a = make_policy(GetParam(), parameters), b = make_policy(GetParam(), parameters);
    uint64_t now_ns = random() % ms(1000);
    for (int step = 0; step < 40; ++step) {
      now_ns += random() % ms(30);
      Observation o = random_observation(random, now_ns);
      Decision first = a->decide(o), second = b->decide(o);
      ASSERT_NO_FATAL_FAILURE(check(o, first)) << "seed " << seed << " step " << step;
      ASSERT_EQ(first.next_look_ns, second.next_look_ns);
      for (size_t i = 0; i < first.leases.size(); ++i)
        ASSERT_TRUE(alike(first.leases[i], second.leases[i])) << "seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryProtecting, ::testing::Values("temporal", "tessera"));

}  // namespace
}  // namespace tessera::policy
