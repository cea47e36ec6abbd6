// The shipped gate on the null driver with a clock that stands still, against the rule: the same verdict for
// random leases, pulses, windows and asks.
#include <random>

#include "tests/unit/interpose/harness.h"

namespace tessera::test {
namespace {

using admission::Action;
using admission::Reason;

class RuleTrace : public Gate {
 protected:
  void SetUp() override {
    Gate::SetUp();
    attach(state::Role::kBestEffort, 200'000);
    watch(&page_, 5);
  }
  uint64_t one_of(std::initializer_list<uint64_t> values) {
    return *(values.begin() + random_() % values.size());
  }
  void draw_lease(uint64_t now) {
    ipc::LeaseTerms terms;
    terms.state = uint32_t(one_of({0, 1, 1, 1, 1, 1, 2}));
    terms.packed = random_() % 2;
    terms.confine_all = random_() % 2;
    terms.burst_classes = uint32_t(one_of({0, 2, 4}));
    terms.expires_ns = one_of({now - 1, now, now + 1, now + 1'000'000});
    terms.window_ns = one_of({0, 1'000, 500'000, 2'000'000});
    terms.slice_ns = 100'000;
    terms.marker_spacing_ns = 1'000'000'000;
    terms.max_hold_ms = 60'000;
    terms.priority = uint32_t(one_of({0, 0, 4, 5}));
    terms.passthrough = random_() % 16 == 0;
    ipc::lease_publish(region->lease, region->word, terms);
  }
  void draw_pulse(uint64_t now) {
    page_.busy = uint32_t(one_of({0, 0, 1}));
    page_.busy_since_ns =
        one_of({0, now - 1'000, now - 2 * abi::kPulseStaleNs, now + 5 * abi::kPulseStaleNs});
    page_.heartbeat_ns = one_of({0, now - 1'000});
    page_.idle_since_ns = one_of({0, now - 1'000, now - 200'000, now - 199'999, now + 1'000});
  }
  std::mt19937_64 random_{20261123};
  abi::PulsePage page_{};
};

TEST_F(RuleTrace, TheGateDoesWhatTheRuleSays) {
  StoppedClock clock;
  const uint64_t now = state::clock_ns();
  int seen[5] = {};
  for (int i = 0; i < 16'000; i++) {
    draw_lease(now);
    draw_pulse(now);
    const uint64_t in_flight_ns = one_of({0, 0, 1, 400'000, 1'999'000});
    std::atomic_ref(region->usage.in_flight_ns).store(in_flight_ns);
    const admission::Ask what{.estimate_ns = one_of({0, 1'000, 100'000, 3'000'000}),
                              .resource_class = uint32_t(one_of({0, 1, 2})),
                              .may_confine = random_() % 2 != 0};
    const admission::Verdict expected = admission::judge(what, gate::current_lease(), gate::current_pulses(),
                                                         link->guard_ns, in_flight_ns, {}, now);
    const int n = seen[size_t(expected.action)]++;
    if (expected.action == Action::kWait && n % 16 != 0) continue;  // a thread each: a part must do
    state::g_state.holding.store(0);
    gate::Wait wait;
    gate::Reservation reservation;
    if (expected.action != Action::kWait) {
      ASSERT_EQ(gate::ask(what, {}, wait, reservation), expected.action) << i;
      const bool reserves = expected.action == Action::kGo;
      ASSERT_EQ(in_flight(), in_flight_ns + (reserves ? what.estimate_ns : 0)) << i;
      continue;
    }
    std::thread asks([&] { ASSERT_EQ(gate::ask(what, {}, wait, reservation), Action::kForward); });
    ASSERT_TRUE(eventually([&] { return waiting() == 1; })) << i;
    EXPECT_EQ(state::g_state.holding.load(), expected.reason == Reason::kWindow ? 0u : 1u) << i;
    ipc::LeaseTerms free{.state = abi::kLeaseFree};
    ipc::lease_publish(region->lease, region->word, free);
    asks.join();
    ASSERT_EQ(in_flight(), in_flight_ns) << i;
  }
  for (const Action action : {Action::kForward, Action::kGo, Action::kWait})
    EXPECT_GT(seen[size_t(action)], 50) << int(action);
  std::atomic_ref(region->usage.in_flight_ns).store(0);
}

}  // namespace
}  // namespace tessera::test
