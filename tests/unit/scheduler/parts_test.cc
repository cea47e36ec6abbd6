// The parts of `tessera`: each can be switched off, and each does something; and the order of their constraints.
#include "scheduler_daemon/policy/parts/constraint.h"

#include <gtest/gtest.h>

#include <random>

#include "admission/boundary.h"
#include "base/length_class.h"
#include "base/units.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;

// A service and three trainings that come and go; every other run without MPS. Deterministic by seed.
class Programs {
 public:
  explicit Programs(uint64_t seed) : random_(seed) {
    o_ = {.now_ns = ms(5), .mps = seed % 2 == 0, .sm_count = 108};
    for (uint64_t id = 1; id <= 4; ++id) {
      ClientView c{.id = id, .priority = id == 1 ? 7u : 0u, .idle_since_ns = o_.now_ns};
      c.resource_class = ResourceClass(1 + id % 2);
      c.launch_sms = id == 4 ? 16 : 60;
      c.wave_blocks = 432;
      c.slice_overhead_ns = us(2);
      c.uncut_launches = c.can_confine = id == 4;
      o_.clients.push_back(c);
    }
    steady_ = seed % 3 != 0;
  }
  const Observation& next() {
    o_.now_ns += 1 + random_() % us(400);
    for (ClientView& c : o_.clients) c.priority > 0 ? serve(c) : train(c);
    return o_;
  }

 private:
  void serve(ClientView& c) {
    c.ended.clear();
    const uint64_t since_ns = o_.now_ns - (c.busy ? c.busy_since_ns : c.idle_since_ns);
    const uint64_t gap_ns = steady_ ? ms(12) : us(300) + random_() % ms(10);
    if (since_ns < (c.busy ? ms(4) : gap_ns)) return;
    if (c.busy) c.ended.push_back({c.busy_since_ns, o_.now_ns});
    c.busy = !c.busy;
    (c.busy ? c.busy_since_ns : c.idle_since_ns) = o_.now_ns;
    if (c.busy) return;
    ++c.bursts;
    c.burst_ns = c.next_burst_ns = ms(4);
    c.slowdown = 1 + double(random_() % 1000) / 40'000 + (steady_ || random_() % 30 != 0 ? 0 : 0.2);
  }
  void train(ClientView& c) {
    if (random_() % 3 == 0) {
      c.used_ns += random_() % us(300) * c.id;
      c.in_flight_ns = random_() % 2 * us(200);
      c.drained = c.in_flight_ns == 0;
    }
    const bool waits = random_() % 40 != 0;
    if (waits && !c.waiting) c.waiting_since_ns = o_.now_ns;
    c.waiting = waits;
  }
  std::mt19937_64 random_;
  Observation o_;
  bool steady_;
};

bool alike(const Decision& a, const Decision& b) {
  const auto same = [](const Lease& x, const Lease& y) {
    return x.grant == y.grant && x.window_ns == y.window_ns && x.slice_ns == y.slice_ns &&
           x.packed == y.packed && x.confine_all == y.confine_all && x.long_block_ns == y.long_block_ns &&
           x.spin_ns == y.spin_ns && x.sm_limit == y.sm_limit;
  };
  return std::equal(a.leases.begin(), a.leases.end(), b.leases.begin(), b.leases.end(), same);
}

bool decides_otherwise(const Tuning& tuning) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Programs programs(seed);
    const Parameters parameters{.quantum_ns = ms(2), .max_hold_ns = ms(30)};
    auto as_is = make_policy("tessera", parameters), tuned = make_policy("tessera", parameters, tuning);
    for (int step = 0; step < 4000; ++step) {
      const Observation& o = programs.next();
      if (!alike(as_is->decide(o), tuned->decide(o))) return true;
    }
  }
  return false;
}

TEST(Parts, EachCanBeSwitchedOffAndDoesSomething) {
  EXPECT_FALSE(decides_otherwise({}));
#define TS_TUNE(type, name, value, unit, why)
#define TS_PART(name, on, what)                                    \
  {                                                                \
    Tuning other;                                                  \
    other.name = !on;                                              \
    EXPECT_TRUE(decides_otherwise(other)) << #name << " " << what; \
  }
#include "scheduler_daemon/policy/tuning.def"
}

// The policy gives a client no shorter quantum than the library gives to one of its streams.
TEST(InFlightLimit, TheLeastQuantumIsThatOfAStream) {
  EXPECT_EQ(base::kLongestOfClass[0], admission::kLeastQuantumNs);
}

TEST(Constraints, LimitsAndTheLastWordOnTheStartCount) {
  const Lease granted{.grant = Grant::kGranted, .window_ns = 100, .slice_ns = 50, .marker_spacing_ns = 20};
  const Constraint limits{.window_ns = 80, .slice_ns = 60, .marker_spacing_ns = 10},
      held{.start = Constraint::Start::kHeld}, beside{.start = Constraint::Start::kDuringBursts},
      confined{.start = Constraint::Start::kConfined,
               .window_ns = 900,
               .slice_ns = 450,
               .sm_limit = 20,
               .burst_classes = 2},
      watching{.spin_ns = 5};
  Lease lease = granted;
  apply(limits, &lease);
  EXPECT_EQ(lease.window_ns, 80u);
  EXPECT_EQ(lease.slice_ns, 50u);
  EXPECT_EQ(lease.marker_spacing_ns, 10u);
  apply(held, &lease);
  EXPECT_EQ(lease.grant, Grant::kHold);
  apply(watching, &lease);
  EXPECT_EQ(lease.spin_ns, 0u) << "who is held need not watch";
  apply(beside, &lease);
  EXPECT_EQ(lease.grant, Grant::kGranted);
  EXPECT_TRUE(lease.packed);
  EXPECT_FALSE(lease.confine_all);
  apply(confined, &lease);
  EXPECT_TRUE(lease.confine_all);
  EXPECT_EQ(lease.window_ns, 900u) << "what is in flight there is in nobody's way";
  EXPECT_EQ(lease.sm_limit, 20u);
  EXPECT_EQ(lease.burst_classes, 2u);
  Lease free{.grant = Grant::kFree};
  for (const Constraint& c : {limits, held, beside, confined, watching}) apply(c, &free);
  EXPECT_EQ(free.grant, Grant::kFree);
  EXPECT_FALSE(free.packed);
}

}  // namespace
}  // namespace tessera::policy
