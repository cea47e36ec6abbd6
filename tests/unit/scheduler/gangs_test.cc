// Gangs: the rule, and what the daemon's core makes of it.
#include <nlohmann/json.hpp>

#include "ipc/channel/pulse.h"
#include "ipc/channel/ring.h"
#include "scheduler_daemon/policy/gang.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

using policy::Allowed;
using policy::GangMember;
using policy::Grant;
using policy::kUnlimited;
using policy::Lease;

constexpr Lease kOfferedHold{.client_id = 1, .grant = Grant::kHold};
constexpr Lease kOffered{.client_id = 2, .grant = Grant::kGranted, .window_ns = 10};
constexpr Lease kPacked{.client_id = 3, .grant = Grant::kGranted, .packed = true, .together = true};
constexpr Lease kAlone{.client_id = 4, .grant = Grant::kFree};

std::vector<Lease> leases(const std::vector<Lease>& one_per_gpu) {
  std::vector<GangMember> gang;
  for (const Lease& lease : one_per_gpu) gang.push_back({gang.size(), lease});
  return policy::leases_of(gang);
}

TEST(GangRule, WhatOneGpuForbidsNoMemberMayDo) {
  for (const Lease& lease : leases({kOffered, kPacked, kOfferedHold, kAlone}))
    EXPECT_EQ(lease.grant, Grant::kHold) << lease.client_id;
}

TEST(GangRule, NobodyStartsBesideBurstsUnlessAllMay) {
  const auto mixed = leases({kOffered, kPacked, kAlone});
  for (const Lease& lease : mixed) {
    EXPECT_EQ(lease.grant, Grant::kGranted);
    EXPECT_FALSE(lease.packed || lease.together);
  }
  EXPECT_EQ(mixed[0].window_ns, 10u);  // its own, but for when it may start
  EXPECT_EQ(mixed[2].window_ns, kUnlimited.window_ns);
  EXPECT_EQ(mixed[2].client_id, kAlone.client_id);
  for (const Lease& lease : leases({kPacked, kAlone})) {
    EXPECT_EQ(lease.grant, Grant::kGranted);
    EXPECT_TRUE(lease.packed);
  }
}

TEST(GangRule, AloneOnAllItsGpusItIsFree) {
  for (const Lease& lease : leases({kAlone, kAlone})) EXPECT_EQ(lease.grant, Grant::kFree);
}

TEST(GangRule, MembersOnOneGpuMayTakeTurns) {
  const std::vector<GangMember> gang{{0, kOfferedHold}, {0, kOffered}, {1, kOffered}};
  const auto got = policy::leases_of(gang);
  EXPECT_EQ(got[0].grant, Grant::kHold);
  EXPECT_EQ(got[1].grant, Grant::kGranted);
  EXPECT_EQ(got[2].grant, Grant::kGranted);
}

TEST(GangRule, AClientOnSeveralGpusHasTheLeastOfItsLeases) {
  Lease lease = kAlone;
  policy::cut_down_to(kOffered, &lease);
  EXPECT_EQ(lease.grant, Grant::kGranted);
  EXPECT_EQ(lease.window_ns, 10u);
  EXPECT_EQ(lease.client_id, kAlone.client_id);
  lease = kPacked;
  policy::cut_down_to(kOffered, &lease);
  EXPECT_FALSE(lease.packed || lease.together);
  const Lease held{.client_id = 5, .grant = Grant::kHold, .held_by = policy::HeldBy::kGap};
  policy::cut_down_to(held, &lease);
  EXPECT_EQ(lease.grant, Grant::kHold);
  EXPECT_EQ(lease.held_by, policy::HeldBy::kGap);
  lease = {.grant = Grant::kFree, .keeps_closed = true, .opens_gates = true, .quiet = true};
  policy::cut_down_to({.grant = Grant::kFree}, &lease);
  EXPECT_EQ(lease.grant, Grant::kFree);
  EXPECT_FALSE(lease.keeps_closed || lease.quiet) << "one of its GPUs wants to hear of its bursts";
  EXPECT_TRUE(lease.opens_gates) << "those of this GPU";
}

class Gangs : public CoreTest {
 protected:
  Peer rank(pid_t pid, uint8_t gpu, const char* gang = "job", uid_t user = 1000) {
    Peer p;
    p.connection = connect(pid, user);
    abi::Hello h = hello(0);
    std::strcpy(h.gang, gang);
    say(p.connection, h);
    p.region = ipc::map_shared(peers_.last(p.connection, abi::kWelcome)->fds[0].get(), abi::kRegionBytes,
                               ipc::Access::kReadWrite)
                   .value();
    say(p.connection, device(gpu));
    return p;
  }
  void wait(const Peer& p) {
    p.usage().waiting = 1;
    p.usage().waiting_since_ns = now_ns_;
    notify(p);
  }
};

TEST_F(Gangs, AloneOnTheirGpusTheyAreFree) {
  Peer a = rank(1, 1), b = rank(2, 2);
  run();
  EXPECT_EQ(a.state(), kFree);
  EXPECT_EQ(b.state(), kFree);
}

TEST_F(Gangs, AllMembersWatchTheServicesOfEach) {
  Peer a = rank(1, 1), b = rank(2, 2), other = rank(3, 2, "other");
  Peer service = attach(4, 5, 1);
  run();
  EXPECT_EQ(peers_.count(a.connection, abi::kPeerPulse), 1u);
  EXPECT_EQ(peers_.count(b.connection, abi::kPeerPulse), 1u);
  EXPECT_EQ(peers_.count(other.connection, abi::kPeerPulse), 0u);
  EXPECT_NE(b.state(), kFree);  // else it would not look
  core_->disconnected(a.connection);
  run();
  EXPECT_EQ(peers_.count(b.connection, abi::kPeerGone), 1u);
  core_->disconnected(other.connection);
  run();
  EXPECT_EQ(b.state(), kFree);
}

TEST_F(Gangs, AServiceThatComesAndGoesIsToldToAll) {
  Peer a = rank(1, 1), b = rank(2, 2);
  run();
  Peer service = attach(4, 5, 1);
  run();
  EXPECT_EQ(a.state(), kGranted);
  EXPECT_EQ(b.state(), kGranted);
  EXPECT_EQ(peers_.count(b.connection, abi::kPeerPulse), 1u);
  core_->disconnected(service.connection);
  run();
  EXPECT_EQ(peers_.count(b.connection, abi::kPeerGone), 1u);
  EXPECT_EQ(a.state(), kFree);
  EXPECT_EQ(b.state(), kFree);
}

// A member that has no neighbours has a lease that ends, and is renewed before.
TEST_F(Gangs, ALeaseForAnEmptyGpuIsRenewed) {
  Peer a = rank(1, 1), b = rank(2, 2);
  Peer service = attach(4, 5, 1);
  for (uint64_t next = run(); now_ns_ < ms(10'000); next = core_->run(now_ns_ = std::max(next, now_ns_ + 1)))
    ASSERT_GT(b.lease().expires_ns, now_ns_);
}

TEST_F(Gangs, ItIsHeldOnAllItsGpusWhereOneHoldsIt) {
  Peer a = rank(1, 1), b = rank(2, 2), trainer = attach(3, 0, 1);
  run();
  EXPECT_EQ(a.state(), b.state());  // whoever has the first turn
  for (int turn = 0; turn < 20; ++turn) {
    wait(a);
    wait(b);
    wait(trainer);
    run(ms(5));
    ASSERT_EQ(a.state() == kGranted, b.state() == kGranted) << turn;
    ASSERT_NE(a.state() == kGranted, trainer.state() == kGranted) << turn;
  }
}

TEST_F(Gangs, TheStateSaysWhichGpuHoldsThem) {
  Peer a = rank(1, 1), b = rank(2, 2), trainer = attach(3, 0, 1);
  const auto gang_of = [&](size_t i) {
    return nlohmann::json::parse(stats::to_json(core_->snapshot(now_ns_)))["clients"][i]["gang"];
  };
  const std::string first_gpu =
      nlohmann::json::parse(stats::to_json(core_->snapshot(now_ns_)))["clients"][0]["gpu"];
  std::set<bool> seen;
  for (int turn = 0; turn < 20; ++turn) {
    for (const Peer* p : {&a, &b, &trainer}) wait(*p);
    run(ms(5));
    const auto gang = gang_of(1);
    EXPECT_EQ(gang["name"], "job");
    EXPECT_EQ(gang["member"], 2);
    EXPECT_EQ(gang["members"], 2);
    const bool is_held = b.state() == kHold;
    EXPECT_EQ(gang["held_at"], is_held ? first_gpu : "");
    EXPECT_EQ(gang["why"].get<std::string>().empty(), !is_held);
    seen.insert(is_held);
  }
  EXPECT_EQ(seen.size(), 2u) << "both were seen";
  EXPECT_TRUE(gang_of(2).is_null());
}

// Turns on two GPUs, each with another trainer: they meet, and everybody has some.
TEST_F(Gangs, TurnsOnSeveralGpusMeet) {
  Peer a = rank(1, 1), x = attach(3, 0, 1), y = attach(4, 0, 2), b = rank(2, 2);
  Peer c = rank(5, 3, "second"), d = rank(6, 2, "second");  // across one of them, and its own
  std::map<const Peer*, int> had;
  for (int step = 0; step < 4000; ++step) {
    for (const Peer* p : {&a, &b, &c, &d, &x, &y}) {
      const bool granted = p->state() != kHold;
      had[p] += granted;
      p->usage().waiting = 1;
      if (p->usage().waiting_since_ns == 0 || granted) p->usage().waiting_since_ns = now_ns_;
      p->usage().completed_ns += granted ? us(500) : 0;
      p->usage().in_flight_ns = granted ? us(500) : 0;
      p->usage().drained_word = granted ? 0 : p->lease().word;
      if (step % 4 == 0) notify(*p);
    }
    run(us(500));
    ASSERT_EQ(a.state() == kHold, b.state() == kHold);
    ASSERT_EQ(c.state() == kHold, d.state() == kHold);
  }
  for (const Peer* p : {&a, &b, &c, &d, &x, &y}) EXPECT_GT(had[p], 4000 / 8) << p->connection;
}

TEST_F(Gangs, AMemberThatEndsHoldsNobody) {
  Peer a = rank(1, 1), b = rank(2, 2), trainer = attach(3, 0, 1);
  for (int turn = 0; turn < 20 && b.state() != kHold; ++turn) {
    wait(a);
    wait(trainer);
    run(ms(5));
  }
  ASSERT_EQ(b.state(), kHold);
  core_->disconnected(a.connection);
  run();
  EXPECT_EQ(b.state(), kFree);
}

class SeveralGpus : public Gangs {
 protected:
  Peer process(pid_t pid, uint32_t priority, uint8_t gpu, uint8_t further) {
    Peer p = attach(pid, priority, gpu);
    say(p.connection, device(further));
    return p;
  }
  nlohmann::json row(size_t i) {
    return nlohmann::json::parse(stats::to_json(core_->snapshot(now_ns_)))["clients"][i];
  }
};

TEST_F(SeveralGpus, AServiceOnTheSecondIsWatched) {
  Peer p = process(1, 0, 1, 2), service = attach(2, 5, 2), elsewhere = attach(3, 5, 3);
  run();
  EXPECT_EQ(p.state(), kGranted);
  EXPECT_EQ(peers_.count(p.connection, abi::kPeerPulse), 1u);
  EXPECT_EQ(peers_.count(p.connection, abi::kGangMemory), 0u) << "its collectives are not counted";
  core_->disconnected(service.connection);
  run();
  EXPECT_EQ(peers_.count(p.connection, abi::kPeerGone), 1u);
  EXPECT_EQ(p.state(), kFree);
}

TEST_F(SeveralGpus, ItComesToAFurtherOneWithAServiceThatIsThere) {
  Peer p = attach(1, 0, 1), service = attach(2, 5, 2);
  run();
  EXPECT_EQ(p.state(), kFree);
  say(p.connection, device(2));
  run();
  EXPECT_EQ(p.state(), kGranted);
  EXPECT_EQ(peers_.count(p.connection, abi::kPeerPulse), 1u);
}

TEST_F(SeveralGpus, ItRunsOnBothOrOnNone) {
  Peer p = process(1, 0, 1, 2), x = attach(2, 0, 1), y = attach(3, 0, 2);
  std::map<const Peer*, int> had;
  for (int step = 0; step < 3000; ++step) {
    for (const Peer* each : {&p, &x, &y}) {
      const bool granted = each->state() != kHold;
      had[each] += granted;
      each->usage().waiting = 1;
      if (each->usage().waiting_since_ns == 0 || granted) each->usage().waiting_since_ns = now_ns_;
      each->usage().completed_ns += granted ? us(500) : 0;
      each->usage().in_flight_ns = granted ? us(500) : 0;
      each->usage().drained_word = granted ? 0 : each->lease().word;
      if (step % 4 == 0) notify(*each);
    }
    run(us(500));
    if (p.state() == kHold) continue;
    ASSERT_EQ(x.state(), kHold) << step;
    ASSERT_EQ(y.state(), kHold) << step;
  }
  for (const Peer* each : {&p, &x, &y}) EXPECT_GT(had[each], 3000 / 8) << each->connection;
}

TEST_F(SeveralGpus, ItsEndFreesBoth) {
  Peer p = process(1, 0, 1, 2), x = attach(2, 0, 1), y = attach(3, 0, 2);
  run();
  core_->disconnected(p.connection);
  run();
  EXPECT_EQ(x.state(), kFree);
  EXPECT_EQ(y.state(), kFree);
  core_->disconnected(x.connection);
  core_->disconnected(y.connection);
  EXPECT_TRUE(core_->snapshot(now_ns_).gpus.empty());
}

TEST_F(SeveralGpus, OneThatDiesFreesBothBeforeItsEnd) {
  Peer p = process(1, 0, 1, 2), x = attach(2, 0, 1), y = attach(3, 0, 2);
  for (const Peer* each : {&p, &x, &y}) wait(*each);
  peers_.dying.insert(p.connection);
  for (int i = 0; i < 20; ++i) run(ms(1));
  EXPECT_EQ(counters().early_deaths, 1u);
  EXPECT_EQ(x.state(), kFree);
  EXPECT_EQ(y.state(), kFree);
}

TEST_F(SeveralGpus, AServiceOnTwoIsProtectedOnBoth) {
  Peer service = process(1, 5, 1, 2), x = attach(2, 0, 1), y = attach(3, 0, 2);
  run();
  for (const Peer* each : {&x, &y}) {
    EXPECT_EQ(each->state(), kGranted);
    EXPECT_EQ(peers_.count(each->connection, abi::kPeerPulse), 1u);
  }
  // Its bursts are told to the policies of both.
  ipc::RingWriter records(&service.region.as<abi::Region>()->ring, abi::kRingSlots);
  abi::Record record{};
  record.kind = abi::kRecordBurst;
  record.end_ns = now_ns_;
  record.duration_ns = us(100);
  records.write(record);
  run(ms(1));
  EXPECT_EQ(row(0)["bursts_recorded"], 1);
  core_->disconnected(service.connection);
  run();
  for (const Peer* each : {&x, &y}) {
    EXPECT_EQ(peers_.count(each->connection, abi::kPeerGone), 1u);
    EXPECT_EQ(each->state(), kFree);
  }
}

TEST_F(SeveralGpus, ItChangesItsPriorityOnBoth) {
  Peer p = process(1, 0, 1, 2), x = attach(2, 0, 1), y = attach(3, 0, 2);
  run();
  ASSERT_TRUE(core_->set_client(core_->find_clients(1, "")[0], {.priority = 3}).ok());
  say(p.connection, kMapped);
  run();
  EXPECT_EQ(peers_.count(x.connection, abi::kPeerPulse), 1u);
  EXPECT_EQ(peers_.count(y.connection, abi::kPeerPulse), 1u);
  ASSERT_TRUE(core_->set_client(core_->find_clients(1, "")[0], {.priority = 0}).ok());
  run();
  EXPECT_EQ(peers_.count(x.connection, abi::kPeerGone), 1u);
  EXPECT_EQ(peers_.count(y.connection, abi::kPeerGone), 1u);
}

TEST_F(SeveralGpus, ItMayBeOneOfAGangWithOthers) {
  Peer a = rank(1, 1), b = rank(2, 2);
  say(b.connection, device(3));
  Peer service = attach(4, 5, 3);
  run();
  EXPECT_EQ(peers_.count(a.connection, abi::kPeerPulse), 1u);
  EXPECT_EQ(peers_.count(b.connection, abi::kPeerPulse), 1u);
  EXPECT_NE(a.state(), kFree);
  EXPECT_EQ(row(1)["gang"]["members"], 2);
}

TEST_F(SeveralGpus, TheStateNamesAllOfThem) {
  Peer p = process(1, 0, 2, 1), x = attach(2, 0, 1);
  const std::string first = row(1)["gpu"];
  std::set<bool> seen;
  for (int turn = 0; turn < 20; ++turn) {
    wait(p);
    wait(x);
    run(ms(5));
    EXPECT_EQ(row(0)["further_gpus"], nlohmann::json::array({first}));
    EXPECT_EQ(row(0)["gang"]["members"], 1);
    EXPECT_EQ(row(0)["gang"]["held_at"], p.state() == kHold ? first : "");
    seen.insert(p.state() == kHold);
  }
  EXPECT_EQ(seen.size(), 2u) << "both were seen";
}

TEST_F(Gangs, UsersHaveGangsOfTheirOwn) {
  Peer a = rank(1, 1), b = rank(2, 2, "job", 2000);
  Peer service = attach(4, 5, 1);
  run();
  EXPECT_EQ(peers_.count(b.connection, abi::kPeerPulse), 0u);
  EXPECT_EQ(b.state(), kFree);
}

TEST_F(Gangs, PassthroughAndProtectionTakeAMemberOut) {
  Peer a = rank(1, 1), b = rank(2, 2);
  Peer service = attach(4, 5, 1);
  run();
  ASSERT_EQ(b.state(), kGranted);
  const auto id = core_->find_clients(1, "");
  ASSERT_EQ(id.size(), 1u);
  ASSERT_TRUE(core_->set_client(id[0], {.passthrough = true}).ok());
  run();
  EXPECT_EQ(b.state(), kFree);
  EXPECT_EQ(a.state(), kFree);
}

}  // namespace
}  // namespace tessera::core
