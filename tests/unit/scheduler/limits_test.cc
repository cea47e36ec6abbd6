// Values that options.def accepts are obeyed: each number at its least and at its most, seen where it takes effect.
#include <functional>

#include "admission/lease.h"
#include "scheduler_daemon/config/config.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

using base::kNsPerMs;
using base::kNsPerUs;
using config::Config;

struct Number {
  const char *section, *key;
  uint64_t least, most;
};
constexpr Number kNumbers[] = {
#define TS_NUMBER(section, key, initial, least, most, description) {#section, #key, least, most},
#include "scheduler_daemon/config/options.def"
};

std::string line(const Number& n, const std::string& value) {
  return std::string("[") + n.section + "]\n" + n.key + " = " + value + "\n";
}

// Time until a turn that `active` or not fills with work is revoked; then until its drain is given up.
struct TurnTimes {
  uint64_t turn_ns = 0, drain_ns = 0;
};
TurnTimes turn_times(const Config& c, bool active, uint64_t step_ns) {
  const auto policy = policy::make_policy("temporal", config::settings_of(c).parameters);
  policy::Observation o;
  o.now_ns = ms(1000);
  o.clients.resize(2);
  o.clients[0].id = 1, o.clients[1].id = 2;
  policy->decide(o);  // the first one has the turn
  const uint64_t start_ns = o.now_ns;
  o.clients[1].waiting = true;
  o.clients[1].waiting_since_ns = start_ns;
  o.clients[0].in_flight_ns = active ? 1 : 0;
  TurnTimes t;
  while (policy->decide(o).leases[0].grant == policy::Grant::kGranted) o.now_ns += step_ns;
  t.turn_ns = o.now_ns - start_ns;
  const uint64_t revoked_ns = o.now_ns;
  o.clients[0].drained = false;
  while (policy->decide(o).leases[1].grant == policy::Grant::kHold) o.now_ns += step_ns;
  t.drain_ns = o.now_ns - revoked_ns;
  return t;
}

class Limits : public CoreTest {
 protected:
  struct Seen {
    admission::LeaseView lease;
    uint64_t granted_at_ns;
    ipc::abi::RegionHeader header;
  };
  // The first of two best-effort clients sees this.
  Seen see(const Config& c, const char* policy = "temporal") {
    Settings settings = config::settings_of(c);
    settings.policy_name = policy;
    host(settings);
    Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
    run();
    EXPECT_EQ(a.state(), kGranted);
    return {admission::decode(a.lease()), now_ns_, *a.region.as<abi::RegionHeader>()};
  }
  uint64_t priority_of_a_claim(const Config& c) {
    host(config::settings_of(c));
    const Connection connection = connect(10);
    say(connection, hello(abi::kMaxPriority));
    auto* m = peers_.last(connection, abi::kWelcome);
    return m == nullptr ? ~0u : reinterpret_cast<abi::Welcome*>(m->bytes.data())->priority;
  }

  // Number -> what takes effect, in the number's own unit. The text holds what the extreme needs beside it.
  struct Effect {
    std::string with;
    std::function<uint64_t(const Config&)> of;
  };
  std::map<std::string, Effect> effects() {
    const std::string long_hold = "[policy]\nmax_hold_ms = 60000\n";
    return {
        {"window_us",
         {"[policy]\nslice_us = 10\n", [&](auto& c) { return see(c).lease.window_ns / kNsPerUs; }}},
        {"slice_us",
         {"[policy]\nwindow_us = 1000000\n", [&](auto& c) { return see(c).lease.slice_ns / kNsPerUs; }}},
        {"lease_ms",
         {"",
          [&](auto& c) {
            const Seen s = see(c);
            return (s.lease.expires_ns - s.granted_at_ns) / kNsPerMs;
          }}},
        {"guard_us", {"", [&](auto& c) { return see(c).header.guard_ns / kNsPerUs; }}},
        {"marker_spacing_us", {"", [&](auto& c) { return see(c).lease.marker_spacing_ns / kNsPerUs; }}},
        {"max_hold_ms",
         {"[policy]\nquantum_us = 1000\n", [&](auto& c) { return see(c).lease.max_hold_ns / kNsPerMs; }}},
        {"watch_spin_us", {"", [&](auto& c) { return see(c).lease.watch_spin_ns / kNsPerUs; }}},
        {"answer_within_ms", {"", [&](auto& c) { return uint64_t(see(c).header.answer_within_ms); }}},
        {"quantum_us", {long_hold, [&](auto& c) { return turn_times(c, true, us(10)).turn_ns / kNsPerUs; }}},
        {"idle_grace_us",
         {long_hold + "quantum_us = 10000000\n",
          [&](auto& c) { return turn_times(c, false, us(10)).turn_ns / kNsPerUs; }}},
        {"drain_timeout_ms", {"", [&](auto& c) { return turn_times(c, true, us(500)).drain_ns / kNsPerMs; }}},
        {"slowdown_target_percent",
         {"",
          [&](auto& c) { return uint64_t(config::settings_of(c).parameters.slowdown_target * 100 + 0.5); }}},
        {"min_share_percent",
         {"", [&](auto& c) { return uint64_t(config::settings_of(c).parameters.min_share * 100 + 0.5); }}},
        {"default_max", {"", [&](auto& c) { return priority_of_a_claim(c); }}},
        // Settings of the daemon itself, which are used as they are.
        {"ahead_mib", {"", [&](auto& c) { return config::settings_of(c).memory_ahead_bytes / base::kMiB; }}},
        {"idle_s", {"", [&](auto& c) { return config::settings_of(c).park_idle_ns / ms(1000); }}},
        {"engine_answer_s",
         {"", [&](auto& c) { return config::settings_of(c).engine_answer_ns / ms(1000); }}},
        {"for_priority", {"", [&](auto& c) { return uint64_t(config::settings_of(c).park_for_priority); }}},
        {"max_clients", {"", [&](auto& c) { return uint64_t(config::settings_of(c).max_clients); }}},
        {"spin_us", {"", [&](auto& c) { return c.daemon_spin_us; }}},
        {"learn_interval_ms", {"", [&](auto& c) { return c.daemon_learn_interval_ms; }}},
    };
  }
};

TEST_F(Limits, WhatIsAcceptedIsObeyed) {
  const auto all = effects();
  for (const Number& n : kNumbers) {
    const auto effect = all.find(n.key);
    ASSERT_NE(effect, all.end()) << n.key << ": say here where it takes effect";
    const config::Parsed beside = config::parse_config(effect->second.with, "f");
    // As one file: what stands beside the extreme is the initial value.
    for (const uint64_t value : {n.least, n.most}) {
      const config::Parsed p = config::parse_config(line(n, std::to_string(value)), "f", beside.config);
      ASSERT_TRUE(p.errors.empty()) << n.key << ": " << p.errors[0];
      EXPECT_EQ(effect->second.of(p.config), value) << n.key;
    }
  }
}

TEST_F(Limits, WhatIsBeyondIsRefused) {
  for (const Number& n : kNumbers) {
    EXPECT_FALSE(config::parse_config(line(n, std::to_string(n.most + 1)), "f").errors.empty()) << n.key;
    EXPECT_FALSE(config::parse_config(line(n, std::to_string(int64_t(n.least) - 1)), "f").errors.empty())
        << n.key;
  }
}

TEST_F(Limits, ValuesThatContradictEachOtherAreRefused) {
  EXPECT_FALSE(config::parse_config("[policy]\nslice_us = 3000\n", "f").errors.empty());
  EXPECT_FALSE(config::parse_config("[policy]\nquantum_us = 50001\n", "f").errors.empty());
  EXPECT_TRUE(config::parse_config("[policy]\nquantum_us = 50000\n", "f").errors.empty());
  EXPECT_FALSE(config::parse_config("[policy]\nmax_hold_ms = 79\n", "f").errors.empty());
  EXPECT_TRUE(config::parse_config("[policy]\nmax_hold_ms = 1\nquantum_us = 1000\n", "f").errors.empty());
}

// The default policy waits out the gaps that it learnt; the description of guard_us says so.
TEST_F(Limits, UnderTesseraTheGatesGuardIsFiveMicrosecondsAtMost) {
  const config::Parsed p = config::parse_config("[policy]\nguard_us = 100000\n", "f");
  EXPECT_EQ(see(p.config, "tessera").header.guard_ns, us(5));
  EXPECT_NE(config::reference_markdown().find("at most 5 |"), std::string::npos);
}

}  // namespace
}  // namespace tessera::core
