// Nobody waits for a program that cannot run: in virtual time, programs that stop, sleep in host functions or wait for each
// other share a GPU with programs that always have work. While the GPU idles for longer than a bound, no such program is held.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "base/units.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {
namespace {

using base::ms;
using base::us;

constexpr uint64_t kTickNs = us(100), kNever = UINT64_MAX;

struct Habits {               // of a program; what it does between two windows full of work
  double stops = 0;           // part of them after which the process is stopped
  double host_functions = 0;  // after which its stream waits for one
  double waits = 0;           // after which its stream waits for progress of another program
  double pauses = 0;          // after which it wants nothing for a while
  uint64_t longest_ns = ms(2000);
  bool only_says_so = false;  // it says that it waits, and never starts anything
};

struct Tenant {
  uint64_t id = 0;
  Habits habits;
  uint32_t weight = 100;
  Grant grant = Grant::kHold;
  bool packed = false;
  uint64_t stopped_until_ns = 0, paused_until_ns = 0;  // its process, its host thread
  uint64_t blocked_until_ns = 0;                       // its stream
  const Tenant* awaited = nullptr;                     // its stream waits until that has done this amount
  uint64_t awaited_done_ns = 0;
  uint64_t left_ns = 0, done_ns = 0;  // of its work on the GPU
  uint32_t overdue_drains = 0;        // as the daemon's core counts them

  // Its reports: frozen while it is stopped.
  bool waiting = false;
  uint64_t waiting_since_ns = 0, in_flight_ns = 0, used_ns = 0;

  bool is_stuck(uint64_t now_ns) const {  // its stream
    return now_ns < blocked_until_ns || (awaited != nullptr && awaited->done_ns < awaited_done_ns);
  }
  bool runs(uint64_t now_ns) const { return left_ns > 0 && !is_stuck(now_ns); }
  bool could_start(uint64_t now_ns) const {
    return !habits.only_says_so && waiting && now_ns >= stopped_until_ns && now_ns >= paused_until_ns &&
           !is_stuck(now_ns);
  }
};

struct Machine {
  explicit Machine(const char* name, bool sharing, unsigned seed = 1, Parameters set = {})
      : parameters(set), policy(make_policy(name, parameters)), mps(sharing), random(seed) {}

  Tenant& add(Habits habits = {}) {
    tenants.push_back(std::make_unique<Tenant>());
    tenants.back()->id = tenants.size();
    tenants.back()->habits = habits;
    return *tenants.back();
  }
  void run(uint64_t for_ns) {
    for (const uint64_t end_ns = now_ns + for_ns; now_ns < end_ns; now_ns += kTickNs) {
      gpu();
      bool event = next_look_ns == 0;
      for (auto& p : tenants) event |= host(*p);
      if (event || now_ns >= next_look_ns) decide();
      watch();
    }
  }
  double share(const Tenant& p) const { return double(p.done_ns) / double(now_ns - ms(1)); }

  Parameters parameters;
  std::unique_ptr<Policy> policy;
  bool mps;
  bool service = false;  // one never rests
  std::mt19937 random;
  std::vector<std::unique_ptr<Tenant>> tenants;
  uint64_t now_ns = ms(1), next_look_ns = 0;
  bool gpu_idle = true;
  uint64_t idle_since_ns = 0, longest_ns = 0, idle_and_held_ns = 0;  // while somebody who could start is held

 private:
  bool chance(double p) { return std::uniform_real_distribution<>()(random) < p; }
  uint64_t until(const Habits& h) { return now_ns + ms(1) + random() % h.longest_ns; }

  void gpu() {  // those that run share it evenly
    uint64_t n = 0;
    for (const auto& p : tenants) n += p->runs(now_ns);
    gpu_idle = n == 0;
    std::vector<Tenant*> running;
    for (auto& p : tenants)
      if (p->runs(now_ns)) running.push_back(p.get());
    for (Tenant* p : running) {
      const uint64_t done_ns = std::min(p->left_ns, kTickNs / n);
      p->left_ns -= done_ns;
      p->done_ns += done_ns;
    }
  }
  void begin_something(Tenant& p) {
    const Habits& h = p.habits;
    if (chance(h.stops)) p.stopped_until_ns = until(h);
    if (chance(h.pauses)) p.paused_until_ns = until(h);
    if (chance(h.host_functions)) p.blocked_until_ns = until(h);
    if (chance(h.waits)) {
      p.awaited = tenants[random() % tenants.size()].get();
      if (p.awaited == &p || p.awaited->habits.waits > 0 || p.awaited->habits.only_says_so)
        p.awaited = nullptr;  // they would wait for each other for ever
      else
        p.awaited_done_ns = p.awaited->done_ns + ms(1 + random() % 20);
    }
  }
  bool may_start(const Tenant& p) const { return p.grant != Grant::kHold && (!service || p.packed); }
  // True if the daemon hears of it.
  bool host(Tenant& p) {
    if (now_ns < p.stopped_until_ns) return false;
    const bool drained = p.in_flight_ns != 0 && p.left_ns == 0, waited = p.waiting;
    p.used_ns = p.done_ns;
    p.in_flight_ns = p.left_ns;
    p.waiting = now_ns >= p.paused_until_ns;
    if (p.waiting && !p.habits.only_says_so && may_start(p) && p.left_ns < us(500)) {
      p.left_ns = p.in_flight_ns = p.grant == Grant::kFree ? ms(4) : parameters.window_ns;
      begin_something(p);
    }
    if (!p.waiting)
      p.waiting_since_ns = 0;
    else if (!waited || p.grant != Grant::kHold)
      p.waiting_since_ns = now_ns;
    return (drained && p.grant == Grant::kHold) || (p.waiting && !waited);
  }
  void decide() {
    Observation o{.now_ns = now_ns, .mps = mps, .sm_count = 100};
    if (service) o.clients.push_back({.id = 1000, .priority = 7, .busy = true, .busy_since_ns = ms(1)});
    for (const auto& p : tenants)
      o.clients.push_back({.id = p->id,
                           .weight = p->weight,
                           .waiting = p->waiting,
                           .waiting_since_ns = p->waiting_since_ns,
                           .in_flight_ns = p->in_flight_ns,
                           .drained = p->in_flight_ns == 0,
                           .used_ns = p->used_ns,
                           .overdue_drains = p->overdue_drains});
    const Decision d = policy->decide(o);
    next_look_ns = d.next_look_ns == 0 ? 0 : std::max(d.next_look_ns, now_ns + kTickNs);
    for (size_t i = 0; i < tenants.size(); ++i) {
      const Lease& lease = d.leases[i + service];
      tenants[i]->grant = lease.grant;
      tenants[i]->packed = lease.packed;
      tenants[i]->overdue_drains += lease.overdue;
    }
  }
  void watch() {
    const bool held = std::any_of(tenants.begin(), tenants.end(), [&](const auto& p) {
      return p->could_start(now_ns) && p->grant == Grant::kHold;
    });
    if (!gpu_idle || !held) {
      idle_since_ns = now_ns;
      return;
    }
    idle_and_held_ns += kTickNs;
    longest_ns = std::max(longest_ns, now_ns - idle_since_ns);
  }
};

constexpr const char* kPolicies[] = {"temporal", "tessera"};

TEST(Progress, OneThatIsStoppedHoldsNobody) {
  for (const char* policy : kPolicies)
    for (bool sharing : {true, false})
      for (bool with_work : {true, false}) {
        Machine machine(policy, sharing);
        Tenant &stopped = machine.add(), &other = machine.add();
        machine.run(ms(500));
        stopped.left_ns = with_work ? ms(1) : 0;
        stopped.in_flight_ns = stopped.left_ns;
        stopped.waiting = true;
        stopped.stopped_until_ns = kNever;
        machine.run(ms(2000));  // an overdue drain is waited for, for a second at first
        const uint64_t before_ns = other.done_ns;
        machine.run(ms(5000));
        EXPECT_GT(double(other.done_ns - before_ns) / double(ms(5000)), sharing || !with_work ? 0.9 : 0.85)
            << policy << (sharing ? ", sharing" : ", in turns") << (with_work ? ", with work" : "");
      }
}

TEST(Progress, OneWhoseStreamWaitsForAHostFunctionHoldsNobody) {
  Machine machine("tessera", true);
  Tenant &asleep = machine.add(), &other = machine.add();
  machine.run(ms(500));
  const uint64_t before_ns = other.done_ns;
  for (int i = 0; i < 3; ++i) {
    asleep.blocked_until_ns = machine.now_ns + ms(2000);
    machine.run(ms(2100));
  }
  EXPECT_GT(double(other.done_ns - before_ns) / double(ms(6300)), 0.9);
}

TEST(Progress, OneThatOnlySaysThatItWaitsHoldsNobody) {
  for (const char* policy : kPolicies)
    for (bool sharing : {true, false}) {
      Machine machine(policy, sharing);
      machine.add({.only_says_so = true});
      const Tenant& other = machine.add();
      machine.run(ms(5000));
      EXPECT_GT(machine.share(other), 0.9) << policy << (sharing ? ", sharing" : ", in turns");
    }
}

// Its window is full nearly all of the time, and nearly all of the time its stream waits.
TEST(Progress, OneThatUsesLittleOfWhatItIsOfferedHoldsNobodyForLong) {
  Machine machine("tessera", true);
  machine.add({.host_functions = 1, .longest_ns = ms(60)});
  machine.add({.host_functions = 1, .longest_ns = ms(60)});
  const Tenant& other = machine.add();
  machine.run(ms(10'000));
  EXPECT_GT(machine.share(other), 0.5);
}

TEST(Progress, WhoCannotRunDoesNotTakeTheMinimumShareOfOthers) {
  Parameters p;
  p.min_share = 0.2;
  Machine machine("tessera", true, 1, p);
  machine.service = true;
  machine.add({.only_says_so = true});
  const Tenant& other = machine.add();
  machine.run(ms(3000));
  EXPECT_GT(machine.share(other), 0.1);
}

TEST(Progress, WhoeverGoesOnHasItsShareAgainAndNoMore) {
  for (bool sharing : {true, false}) {
    Machine machine("tessera", sharing);
    Tenant &stopped = machine.add(), &other = machine.add();
    machine.run(ms(500));
    stopped.left_ns = stopped.in_flight_ns = 0;
    stopped.waiting = true;
    stopped.stopped_until_ns = machine.now_ns + ms(2000);
    machine.run(ms(2200));
    const uint64_t stopped_ns = stopped.done_ns, other_ns = other.done_ns;
    machine.run(ms(2000));
    const double part = double(stopped.done_ns - stopped_ns) /
                        double(stopped.done_ns - stopped_ns + other.done_ns - other_ns);
    EXPECT_NEAR(part, 0.5, 0.03) << sharing;
  }
}

// Random mixes. Bound: what a program that cannot run is waited for until that is known, here with windows of 2 ms; one after
// another if there are several.
TEST(Progress, WhileTheGpuIdlesNobodyWhoHasWorkIsHeldForLong) {
  uint64_t longest_ns = 0;
  for (unsigned seed = 1; seed <= 150; ++seed) {
    Machine machine("tessera", true, seed);
    std::mt19937 random(seed);
    const auto draw = [&](double most) { return most * double(random() % 1000) / 1000; };
    std::vector<const Tenant*> steady;
    const unsigned n = 1 + random() % 4;
    for (unsigned i = 0; i < n; ++i) {
      Habits h{.longest_ns = ms(1 + random() % 3000)};
      switch (random() % 5) {
        case 0:
          h.stops = draw(0.05);
          break;
        case 1:
          h.host_functions = draw(1);
          break;
        case 2:
          h.waits = draw(0.5);
          break;
        case 3:
          h.only_says_so = true;
          break;
        case 4:
          h = {draw(0.02), draw(0.1), draw(0.1), draw(0.2), ms(1 + random() % 500)};
          break;
      }
      machine.add(h);
    }
    for (int i = 0; i < 2; ++i) steady.push_back(&machine.add());
    machine.run(ms(5000));
    EXPECT_LE(machine.longest_ns, ms(20) * n) << "seed " << seed;
    EXPECT_LT(double(machine.idle_and_held_ns) / double(ms(5000)), 0.25) << "seed " << seed;
    EXPECT_NEAR(machine.share(*steady[0]), machine.share(*steady[1]), 0.03) << "seed " << seed;
    longest_ns = std::max(longest_ns, machine.longest_ns);
  }
  EXPECT_GT(longest_ns, us(500));  // somebody is waited for
}

}  // namespace
}  // namespace tessera::policy
