#include "tests/unit/scheduler/core_fixture.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "admission/lease.h"
#include "base/units.h"
#include "ipc/channel/memfd.h"
#include "ipc/channel/pulse.h"
#include "scheduler_daemon/learning/store.h"

namespace tessera::core {
namespace {

TEST_F(CoreTest, WelcomeCarriesSealedMemoryAndAFreeLeaseUntilTheGpuIsKnown) {
  Connection c = connect(10);
  say(c, hello(3));
  auto* m = peers_.last(c, abi::kWelcome);
  ASSERT_NE(m, nullptr);
  ASSERT_EQ(m->fds.size(), 3u);
  EXPECT_EQ(reinterpret_cast<abi::Welcome*>(m->bytes.data())->now_ns, now_ns_);
  EXPECT_TRUE(ipc::check_memfd(m->fds[0].get(), ipc::kRegionSeals, abi::kRegionBytes).ok());
  EXPECT_TRUE(ipc::check_memfd(m->fds[2].get(), ipc::kPulseOwnerSeals, abi::kPulseBytes).ok());
  auto region = ipc::map_shared(m->fds[0].get(), abi::kRegionBytes, ipc::Access::kReadWrite);
  auto* header = region->as<abi::RegionHeader>();
  EXPECT_TRUE(ipc::check_region_header(*header, abi::kRegionBytes).ok());
  EXPECT_EQ(header->daemon_epoch, 42u);
  EXPECT_EQ(region->as<abi::Region>()->lease.word & abi::kLeaseStateMask, kFree);
  say(c, kMapped);
  EXPECT_TRUE(ipc::check_memfd(m->fds[2].get(), ipc::kPulseSharedSeals, abi::kPulseBytes).ok());
}

TEST_F(CoreTest, PrioritiesAreBoundedByUidAndGid) {
  Settings s;
  s.default_max_priority = 1;
  s.priority_limits = {{false, 500, 7}, {true, 44, 0}};
  host(s);
  struct {
    uid_t uid;
    gid_t gid;
    uint32_t claim, granted;
  } cases[] = {{500, 44, 6, 6}, {501, 44, 6, 0}, {501, 45, 6, 1}, {501, 45, 0, 0}};
  for (auto& c : cases) {
    Connection connection = connect(10, c.uid, c.gid);
    say(connection, hello(c.claim));
    auto* m = peers_.last(connection, abi::kWelcome);
    ASSERT_NE(m, nullptr);
    EXPECT_EQ(reinterpret_cast<abi::Welcome*>(m->bytes.data())->priority, c.granted);
    EXPECT_EQ(m->fds.size(), c.granted > 0 ? 3u : 2u);
  }
  EXPECT_EQ(counters().lowered_priorities, 2u);
}

TEST_F(CoreTest, AloneIsFreeAndNeedsNoTimer) {
  Peer a = attach(1, 0, 1);
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(a.state(), kFree);
  Peer other_gpu = attach(2, 0, 2);
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(other_gpu.state(), kFree);
  EXPECT_EQ(a.state(), kFree);
}

TEST_F(CoreTest, AloneIsMeasuredWhileSomebodyLooksAndHindersNothing) {
  Peer a = attach(1, 0, 1);
  run();
  ASSERT_EQ(a.state(), kFree);
  const auto ask = [&](uint32_t what) {
    say(connect(9), abi::Query{ipc::make_header(abi::kQuery, sizeof(abi::Query)), what, 0});
  };
  ask(0);
  EXPECT_EQ(run(), 0u);
  EXPECT_EQ(a.state(), kFree) << "a question without measuring";
  ask(abi::kQueryStateMeasured);
  EXPECT_NE(run(), 0u) << "the lease is to be renewed";
  EXPECT_EQ(a.state(), kGranted);
  EXPECT_EQ(a.lease().slice_ns, 0u) << "nothing is cut";
  EXPECT_EQ(core_->snapshot(now_ns_).clients[0].state, "free");
  Peer b = attach(2, 0, 1);
  run();
  EXPECT_NE(core_->snapshot(now_ns_).clients[0].state, "free") << "not alone any more";
  core_->disconnected(b.connection);
  const uint64_t start_ns = now_ns_;
  for (uint64_t next = run(); next != 0; next = run()) {
    ASSERT_GT(next, now_ns_);
    ASSERT_LT(now_ns_, start_ns + ms(60'000)) << "measuring ends";
    EXPECT_TRUE(a.state() == kFree || a.lease().expires_ns > next) << "renewed in time";
    now_ns_ = next;
  }
  EXPECT_EQ(a.state(), kFree);
}

TEST_F(CoreTest, TracesAreForWhoMaySeeThem) {
  const auto client_of = [&](uid_t uid) {
    const Connection c = connect(1, uid);
    say(c, hello(0));
    return c;
  };
  const auto tracer_of = [&](uid_t uid) {
    const Connection c = connect(2, uid);
    say(c, abi::Trace{ipc::make_header(abi::kTrace, sizeof(abi::Trace)), 0, 0});
    return c;
  };
  const Connection own = client_of(1000), foreign = client_of(1001);
  const Connection tracer = tracer_of(1000);
  EXPECT_EQ(peers_.count(own, abi::kTraceMemory), 1u);
  EXPECT_EQ(peers_.count(foreign, abi::kTraceMemory), 0u) << "another user's";
  ASSERT_EQ(peers_.count(tracer, abi::kTraced), 1u);
  EXPECT_EQ(peers_.last(tracer, abi::kTraced)->fds.size(), 1u);

  const Connection later = client_of(1000);
  EXPECT_EQ(peers_.count(later, abi::kTraceMemory), 1u);
  say(later, device(1));
  EXPECT_EQ(peers_.count(tracer, abi::kTraced), 3u) << "it came, and its GPU is known";
  core_->disconnected(later);
  const auto* gone = peers_.last(tracer, abi::kTraced);
  EXPECT_EQ(reinterpret_cast<const abi::Traced*>(gone->bytes.data())->gone, 1u);

  const Connection root = tracer_of(0);
  EXPECT_EQ(peers_.count(foreign, abi::kTraceMemory), 1u);
  EXPECT_EQ(peers_.count(own, abi::kTraceMemory), 1u) << "it traces already";
  core_->disconnected(root);
  ASSERT_EQ(peers_.count(foreign, abi::kTraceMemory), 2u);
  EXPECT_EQ(peers_.last(foreign, abi::kTraceMemory)->fds.size(), 0u) << "nobody traces it any more";
  EXPECT_EQ(peers_.count(own, abi::kTraceMemory), 1u) << "somebody does";

  peers_.deaf = own;
  core_->disconnected(tracer);
  EXPECT_FALSE(peers_.is_closed(own)) << "a client is not lost for a trace";
  tracer_of(1000);
  EXPECT_FALSE(peers_.is_closed(own));
  Connection last = 0;
  for (int i = 0; i < 10; i++) last = tracer_of(1000);
  EXPECT_TRUE(peers_.is_closed(last)) << "there is a limit";
}

TEST_F(CoreTest, BestEffortGetsThePulseAndANudgeAfterTheGuardTime) {
  Peer service = attach(1, 7, 1);
  Peer trainer = attach(2, 0, 1);
  ASSERT_EQ(peers_.count(trainer.connection, abi::kPeerPulse), 1u);
  EXPECT_EQ(peers_.count(service.connection, abi::kPeerPulse), 0u);
  auto& fd = peers_.last(trainer.connection, abi::kPeerPulse)->fds[0];
  EXPECT_TRUE(ipc::check_memfd(fd.get(), ipc::kPulseSharedSeals, abi::kPulseBytes).ok());
  run();
  EXPECT_EQ(trainer.state(), kGranted);

  ipc::pulse_set_busy(service.pulse(), 1, 0, 1, now_ns_);
  trainer.usage().waiting = 1;
  notify(trainer);
  run();
  EXPECT_EQ(trainer.state(), kGranted);  // it watches by itself
  uint32_t word = trainer.lease().word;
  now_ns_ += ms(1);
  ipc::pulse_try_idle(service.pulse(), 1, now_ns_);
  notify(service);
  uint64_t next = run();
  EXPECT_EQ(next, now_ns_ + us(200));
  EXPECT_EQ(trainer.lease().word, word);
  run(us(200));
  EXPECT_NE(trainer.lease().word, word);
  EXPECT_EQ(counters().nudges, 1u);
}

TEST_F(CoreTest, DeathOfAProtectedClientTellsItsWatchersAndFreesTheRest) {
  Peer service = attach(1, 7, 1);
  Peer trainer = attach(2, 0, 1);
  run();
  core_->disconnected(service.connection);
  EXPECT_EQ(peers_.count(trainer.connection, abi::kPeerGone), 1u);
  run();
  EXPECT_EQ(trainer.state(), kFree);
}

// Nothing else passes these turns on: neither their length, nor a drain, nor the end of a lease.
Settings only_death_ends_turns() {
  Settings s;
  s.policy_name = "temporal";
  s.parameters.quantum_ns = s.parameters.max_hold_ns = s.parameters.drain_timeout_ns = s.parameters.lease_ns =
      s.parameters.idle_grace_ns = ms(60'000);
  return s;
}

TEST_F(CoreTest, ADyingHolderPassesTheTurnOnBeforeItsProcessHasEnded) {
  host(only_death_ends_turns());
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1), c = attach(3, 0, 1);
  a.usage().in_flight_ns = ms(1);
  run();
  ASSERT_EQ(a.state(), kGranted);
  peers_.dying = {a.connection};
  run(ms(50));
  EXPECT_EQ(peers_.death_looks, 0);  // nobody waits for it
  b.usage().waiting = 1;
  notify(b);
  const uint64_t next_ns = run();
  ASSERT_NE(next_ns, 0u);
  ASSERT_LE(next_ns, now_ns_ + ms(3));
  EXPECT_EQ(b.state(), kHold);
  now_ns_ = std::max(next_ns, now_ns_ + ms(2));
  run();
  EXPECT_EQ(b.state(), kGranted);
  EXPECT_EQ(a.state(), kHold);  // whatever of it still runs starts nothing more
  EXPECT_FALSE(peers_.is_closed(a.connection));
  const auto s = core_->snapshot(now_ns_);
  EXPECT_EQ(s.clients[0].state, "dying");
  EXPECT_EQ(s.gpus[0].clients, 2u);
  EXPECT_EQ(s.counters.early_deaths, 1u);
  EXPECT_EQ(s.counters.attached, s.counters.detached + s.clients.size());

  // Its last message changes nothing, and nobody can set it.
  EXPECT_TRUE(core_->find_clients(1, "").empty());
  EXPECT_FALSE(core_->set_client(uint32_t(s.clients[0].id), {.passthrough = true}).ok());
  notify(a);
  run();
  EXPECT_EQ(a.state(), kHold);
  core_->disconnected(a.connection);
  run();
  EXPECT_EQ(b.state(), kGranted);
  EXPECT_EQ(c.state(), kHold);
  EXPECT_EQ(counters().detached, 1u);
}

TEST_F(CoreTest, ADyingBusyProtectedClientHoldsNobody) {
  Peer service = attach(1, 7, 1), trainer = attach(2, 0, 1);
  ipc::pulse_set_busy(service.pulse(), 1, 0, 1, now_ns_);
  trainer.usage().waiting = 1;
  notify(trainer);
  EXPECT_LE(run(), now_ns_ + ms(3));
  run(ms(3));
  EXPECT_GE(peers_.death_looks, 1);
  EXPECT_EQ(peers_.count(trainer.connection, abi::kPeerGone), 0u);
  peers_.dying = {service.connection};
  run(ms(3));
  EXPECT_EQ(peers_.count(trainer.connection, abi::kPeerGone), 1u);
  EXPECT_EQ(trainer.state(), kFree);
  core_->disconnected(service.connection);
  EXPECT_EQ(peers_.count(trainer.connection, abi::kPeerGone), 1u);
}

TEST_F(CoreTest, NobodyIsLookedAtWhoHoldsNobodyUp) {
  Peer service = attach(1, 7, 1), trainer = attach(2, 0, 1), other = attach(3, 0, 1);
  trainer.usage().waiting = 1;  // for its own window: it has the turn, the service is idle
  notify(trainer);
  for (int i = 0; i < 10; ++i) run(ms(5));
  EXPECT_EQ(peers_.death_looks, 0);
}

TEST_F(CoreTest, EverybodyOnAGpuMayDieAtOnce) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1), service = attach(3, 7, 1);
  ipc::pulse_set_busy(service.pulse(), 1, 0, 1, now_ns_);
  run();
  a.usage().waiting = b.usage().waiting = 1;
  notify(b);
  peers_.dying = {a.connection, b.connection, service.connection};
  for (int i = 0; i < 10; ++i) run(ms(3));
  for (const Peer* p : {&a, &b, &service}) core_->disconnected(p->connection);
  EXPECT_EQ(run(), 0u);
  EXPECT_TRUE(core_->snapshot(now_ns_).gpus.empty());
}

TEST_F(CoreTest, SoManyPulsesAreWatchedAtMostAndAPlaceIsRefilled) {
  Peer trainer = attach(100, 0, 1);
  std::vector<Peer> services;
  for (uint32_t i = 0; i < abi::kMaxWatchedPulses + 2; ++i) services.push_back(attach(pid_t(i + 1), 3, 1));
  EXPECT_EQ(peers_.count(trainer.connection, abi::kPeerPulse), abi::kMaxWatchedPulses);
  ipc::pulse_set_busy(services.back().pulse(), 1, 0, 1, now_ns_);  // not watched
  run(ms(1));
  EXPECT_EQ(trainer.state(), kHold);
  core_->disconnected(services[0].connection);
  core_->disconnected(services[1].connection);
  EXPECT_EQ(peers_.count(trainer.connection, abi::kPeerPulse), abi::kMaxWatchedPulses + 2);
  run(ms(1));
  EXPECT_EQ(trainer.state(), kGranted);
}

TEST_F(CoreTest, TurnsAlternateAndPassOnlyAfterTheDrain) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
  run();
  ASSERT_EQ(a.state(), kGranted);
  ASSERT_EQ(b.state(), kHold);
  a.usage().in_flight_ns = us(500);
  b.usage().waiting = 1;
  notify(b);
  run();
  for (int i = 0; i < 100 && a.state() == kGranted; ++i) run(ms(1));
  ASSERT_EQ(a.state(), kHold);
  EXPECT_EQ(b.state(), kHold);
  run(ms(1));
  EXPECT_EQ(b.state(), kHold);  // not drained
  a.usage().drained_word = a.lease().word;
  notify(a);
  run();
  EXPECT_EQ(b.state(), kGranted);
  EXPECT_EQ(counters().revocations, 1u);
}

TEST_F(CoreTest, AHolderWithNothingInFlightPassesTheTurnInOneStep) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
  run();
  b.usage().waiting = 1;
  notify(b);
  run();
  run(ms(3));
  EXPECT_EQ(a.state(), kHold);
  EXPECT_EQ(b.state(), kGranted);
}

TEST_F(CoreTest, WithMpsLeasesOverlapUnlessOneClientIsOutsideMps) {
  Peer a = attach(1, 0, 1, true), b = attach(2, 0, 1, true);
  run();
  EXPECT_EQ(a.state(), kGranted);
  EXPECT_EQ(b.state(), kGranted);
  Peer c = attach(3, 0, 1, false);
  run();
  EXPECT_EQ((a.state() == kGranted) + (b.state() == kGranted) + (c.state() == kGranted), 1);
}

TEST_F(CoreTest, LeasesAreRenewedAtHalfWithoutWakingAnyone) {
  Peer service = attach(1, 7, 1);
  Peer trainer = attach(2, 0, 1);
  uint64_t next = run();
  EXPECT_EQ(next, now_ns_ + ms(500));  // 2 wakes a second
  uint32_t word = trainer.lease().word;
  uint64_t end = trainer.lease().expires_ns;
  run(ms(500));
  EXPECT_EQ(trainer.lease().word, word);
  EXPECT_EQ(trainer.lease().expires_ns, end + ms(500));
}

TEST_F(CoreTest, WhatAClientScribblesOverItsRegionHarmsOnlyItself) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
  run();
  std::memset(a.region.data(), 0xff, abi::kRegionBytes);
  notify(a);
  run(ms(1));
  EXPECT_TRUE(peers_.is_closed(a.connection));  // impossible ring head
  EXPECT_EQ(counters().bad_rings, 1u);
  run(ms(1));
  EXPECT_EQ(b.state(), kFree);
}

TEST_F(CoreTest, OnlyTheMisbehavingConnectionIsClosed) {
  Peer good = attach(1, 0, 1);
  auto expect_closed = [&](Connection c, const char* what) { EXPECT_TRUE(peers_.is_closed(c)) << what; };
  Connection c = connect(2);
  say(c, hello(8));
  expect_closed(c, "priority out of range");
  c = connect(2);
  say(c, device(1));
  expect_closed(c, "device before hello");
  c = connect(2);
  say(c, hello(0));
  say(c, hello(0));
  expect_closed(c, "second hello");
  c = connect(2);
  say(c, hello(0));
  say(c, kMapped);
  expect_closed(c, "acknowledges a pulse it does not have");
  c = connect(2);
  say(c, hello(0));
  say(c, device(1));
  say(c, device(2));
  say(c, device(1));
  expect_closed(c, "a device twice");
  c = connect(2);
  say(c, hello(0));
  for (uint32_t gpu = 1; gpu <= abi::kMemoryDevices + 1; ++gpu) say(c, device(uint8_t(gpu)));
  expect_closed(c, "more devices than one client may be on");
  c = connect(2);
  ipc::Packet cut = packet_of(hello(0));
  cut.bytes = 32;
  core_->received(c, cut, now_ns_);
  expect_closed(c, "short hello");
  EXPECT_EQ(counters().malformed, 7u);

  c = connect(2);
  abi::Hello old = hello(0);
  old.header.version = 0;
  say(c, old);
  expect_closed(c, "too old");
  EXPECT_NE(peers_.last(c, abi::kRefused), nullptr);
  c = connect(2);
  old.header.version = abi::kVersion + 9, old.header.compat_version = abi::kVersion + 1;
  say(c, old);
  expect_closed(c, "too new");
  c = connect(2);
  old.header.compat_version = abi::kVersion;
  say(c, old);
  EXPECT_NE(peers_.last(c, abi::kWelcome), nullptr);  // newer, but it still speaks ours

  core_->received(999, packet_of(hello(0)), now_ns_);  // events of closed connections are ignored
  core_->notified(999);
  core_->disconnected(999);
  run();
  EXPECT_FALSE(peers_.is_closed(good.connection));
}

// It claims work for ever, and comes as another client once it has been found out.
TEST_F(CoreTest, WhoNeverDrainsTakesLittleFromItsNeighbourAndIsNamed) {
  Peer honest = attach(1, 0, 1);
  Peer liar = attach(2, 0, 1);
  uint64_t served_ns = 0, found_out = 0;
  const uint64_t end_ns = now_ns_ + ms(60'000);
  uint32_t liar_before = kHold;
  while (now_ns_ < end_ns) {
    abi::UsageLine& usage = honest.usage();
    const bool granted = honest.state() == kGranted;
    usage.waiting = granted ? 0 : 1;
    usage.in_flight_ns = granted ? us(500) : 0;
    usage.completed_ns += granted ? us(500) : 0;
    served_ns += granted ? us(500) : 0;
    liar.usage().in_flight_ns = ms(1);
    liar.usage().waiting = liar.state() == kHold ? 1 : 0;
    notify(honest);
    run(us(500));
    if (liar_before == kGranted && liar.state() == kHold && granted == false && honest.state() == kGranted) {
      ++found_out;
      core_->disconnected(liar.connection);
      liar = attach(2, 0, 1);
    }
    if (liar.state() == kGranted) liar_before = kGranted;
  }
  EXPECT_GT(found_out, 10u);
  EXPECT_GT(served_ns, ms(40'000));
  honest.region.as<abi::Region>()->signals.cutting_off = 1;
  notify(honest);
  run();
  EXPECT_NE(peers_.lines.back().find("(pid 2), which does not drain"), std::string::npos)
      << peers_.lines.back();
}

TEST_F(CoreTest, TheOldestThatSaysNothingGivesWay) {
  Settings settings = temporal();
  settings.user = 500;
  host(settings);
  const Connection own = connect(1, 500), first = connect(2, 1001), second = connect(2, 1001);
  for (int i = 0; i < 14; ++i) connect(2, 1001);
  EXPECT_FALSE(peers_.is_closed(first));
  connect(2, 1001);  // more than one user has: its own oldest goes
  EXPECT_TRUE(peers_.is_closed(first));
  EXPECT_FALSE(peers_.is_closed(second));
  for (uid_t user = 2000; user < 2100; ++user) {  // more than there are places
    const Connection c = connect(3, user);
    EXPECT_FALSE(peers_.is_closed(c));
  }
  EXPECT_TRUE(peers_.is_closed(second));
  EXPECT_FALSE(peers_.is_closed(own));
  const Connection last = connect(4, 3000);
  say(last, hello(0));
  EXPECT_NE(peers_.last(last, abi::kWelcome), nullptr);
  say(own, hello(0));
  EXPECT_NE(peers_.last(own, abi::kWelcome), nullptr);
  EXPECT_GE(counters().silent_peers, 50u);
}

TEST_F(CoreTest, AUserHasHalfOfTheSeatsAndSomeAreKept) {
  Settings settings = temporal();
  settings.user = 500;
  settings.max_clients = 16;
  host(settings);
  const auto attaches = [&](pid_t pid, uid_t user) {
    const Connection c = connect(pid, user);
    say(c, hello(0));
    return peers_.last(c, abi::kWelcome) != nullptr;
  };
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(attaches(10 + i, 1001)) << i;
  EXPECT_FALSE(attaches(18, 1001));
  EXPECT_TRUE(attaches(0, 1002));
  for (int i = 1; i < 6; ++i) EXPECT_TRUE(attaches(20 + i, 1002)) << i;
  EXPECT_FALSE(attaches(26, 1003));  // what is left is kept ...
  EXPECT_FALSE(attaches(0, 1002));   // (a process without a number is nobody)
  EXPECT_TRUE(attaches(21, 1002));   // ... for who is attached already
  EXPECT_TRUE(attaches(27, 500));    // ... and the daemon's own user
  EXPECT_FALSE(attaches(28, 500));
}

TEST_F(CoreTest, ConnectionsAreBoundedAndTheSilentOnesClosed) {
  Settings s;
  s.max_clients = 1;
  host(s);
  Connection silent = connect(1), other = connect(2), third = connect(3);
  say(other, hello(0));
  say(third, hello(0));
  EXPECT_TRUE(peers_.is_closed(third));
  EXPECT_EQ(reinterpret_cast<abi::Refused*>(peers_.last(third, abi::kRefused)->bytes.data())->code,
            uint32_t(base::Code::kExhausted));
  Connection asks = connect(4);  // a full daemon can still be asked
  say(asks, abi::Query{ipc::make_header(abi::kQuery, sizeof(abi::Query)), 0, 0});
  EXPECT_NE(peers_.last(asks, abi::kReply), nullptr);
  uint64_t next = run();
  ASSERT_GT(next, now_ns_);
  run(next - now_ns_);
  EXPECT_TRUE(peers_.is_closed(silent));
  EXPECT_FALSE(peers_.is_closed(other));
}

TEST_F(CoreTest, AWatcherThatDoesNotReadIsDroppedAfterAWhile) {
  Peer deaf = attach(1, 0, 1), fine = attach(2, 0, 1);
  peers_.deaf = deaf.connection;
  attach(3, 7, 1);
  const uint64_t next_ns = run();
  EXPECT_FALSE(peers_.is_closed(deaf.connection));
  EXPECT_EQ(peers_.count(fine.connection, abi::kPeerPulse), 1u);
  EXPECT_GT(next_ns, now_ns_);
  now_ns_ += ms(5000);
  run();
  EXPECT_TRUE(peers_.is_closed(deaf.connection));
  EXPECT_FALSE(peers_.is_closed(fine.connection));
  EXPECT_EQ(counters().slow_peers, 1u);
}

// A burst tells some facts only if somebody acts on them (AnswerLine::quiet).
class Quiet : public CoreTest {
 protected:
  void begin(const Peer& s) {
    ++burst_;
    ipc::pulse_set_busy(s.pulse(), burst_, 0, burst_, now_ns_);
  }
  void end(const Peer& s) {
    ASSERT_TRUE(ipc::pulse_try_idle(s.pulse(), burst_, now_ns_));
    abi::Record record{.kind = abi::kRecordBurst};
    record.duration_ns = now_ns_ - s.pulse().busy_since_ns;
    record.end_ns = now_ns_;
    ipc::RingWriter(&s.region.as<abi::Region>()->ring, abi::kRingSlots).write(record);
  }
  uint32_t burst_ = 0;
};

TEST_F(Quiet, WithoutBestEffortWorkNobodyNeedHear) {
  Peer service = attach(1, 5, 1);
  run();
  EXPECT_TRUE(service.quiet());
  Peer trainer = attach(2, 0, 1);
  run();
  EXPECT_FALSE(service.quiet());
  core_->disconnected(trainer.connection);
  run();
  EXPECT_TRUE(service.quiet());
}

TEST_F(Quiet, WhileAGapIsWaitedOutFurtherBurstsOnlyMoveItsEnd) {
  Peer service = attach(1, 5, 1), trainer = attach(2, 0, 1);
  ipc::store(trainer.usage().waiting, 1u, std::memory_order_relaxed);
  run();
  begin(service);
  now_ns_ += ms(1);
  end(service);
  notify(service);
  uint64_t next_ns = run();
  EXPECT_TRUE(service.quiet());
  ASSERT_LE(next_ns, now_ns_ + us(200));
  // Unheard: another one in that gap. The look that was planned finds it idle, and plans the next.
  now_ns_ += us(20);
  begin(service);
  now_ns_ += us(20);
  end(service);
  const uint64_t idle_ns = now_ns_;
  now_ns_ = next_ns;
  next_ns = run();
  EXPECT_TRUE(service.quiet());
  EXPECT_LE(next_ns, idle_ns + us(200));
  // The gap was long enough: the end of the next one will be told.
  now_ns_ = next_ns;
  run();
  EXPECT_FALSE(service.quiet());
  EXPECT_GT(counters().nudges, 0u);
}

TEST_F(Quiet, ALookThatFindsABurstAsksToBeTold) {
  Peer service = attach(1, 5, 1), trainer = attach(2, 0, 1);
  run();
  begin(service);
  now_ns_ += ms(1);
  end(service);
  notify(service);
  const uint64_t next_ns = run();
  ASSERT_TRUE(service.quiet());
  begin(service);
  now_ns_ = next_ns;
  run();
  EXPECT_FALSE(service.quiet());
}

TEST_F(Quiet, BurstsThatNobodyHeardOfAreCountedWhenSomebodyAsks) {
  Peer service = attach(1, 5, 1);
  run();
  for (int i = 0; i < 5; ++i) {
    begin(service);
    now_ns_ += ms(1);
    end(service);
  }
  say(connect(9), abi::Query{ipc::make_header(abi::kQuery, sizeof(abi::Query)), 0, 0});
  EXPECT_EQ(core_->snapshot(now_ns_).clients[0].counters.busy_ns, ms(5));
}

// The client clears its pulse, then looks whether it has to tell; the daemon stores that, then looks at the pulse.
TEST_F(Quiet, ABurstThatEndedBetweenTheLookAndTheStoreIsSeen) {
  Client client;
  client.priority = 5;
  client.memory = ipc::create_client_memory(1, 1, 5, {}).value();
  const ipc::Mapping owners =
      ipc::map_shared(client.memory.pulse_fd.get(), abi::kPulseBytes, ipc::Access::kReadWrite).value();
  auto& page = *owners.as<abi::PulsePage>();
  policy::ClientView idle, busy{.busy = true};
  EXPECT_TRUE(client.set_quiet(true, idle));
  EXPECT_FALSE(client.set_quiet(false, busy)) << "it was busy when it was seen";
  EXPECT_TRUE(client.set_quiet(true, idle));
  page.idle_since_ns = 5;
  EXPECT_FALSE(client.set_quiet(false, idle)) << "a whole burst passed";
  EXPECT_TRUE(client.set_quiet(true, idle));
  page.busy = 1;
  EXPECT_TRUE(client.set_quiet(false, idle)) << "its end will be told";
}

// The client shares the eventfd: it could clear O_NONBLOCK and take the count before a read.
TEST_F(CoreTest, AQuestionIsAnsweredWhenTheClientNotifies) {
  Peer a = attach(1, 0, 1);
  const auto& answers = a.region.as<abi::Region>()->answer;
  a.region.as<abi::Region>()->signals.question = 7;
  run();
  EXPECT_EQ(answers.answered, 0u);
  core_->notified(a.connection);
  EXPECT_EQ(answers.answered, 7u);
}

TEST_F(CoreTest, ANoticeIsNotRead) {
  Peer a = attach(1, 0, 1);
  const int wake = peers_.wakes[a.connection];
  uint64_t count = 1;
  ASSERT_EQ(write(wake, &count, sizeof count), ssize_t(sizeof count));
  core_->notified(a.connection);
  EXPECT_EQ(counters().notifications, 1u);
  EXPECT_EQ(read(wake, &count, sizeof count), ssize_t(sizeof count));
}

// Others come and go faster than it reads: it is told what is so when it has read.
TEST_F(CoreTest, ASlowWatcherIsToldWhatIsSoWhenItHasRead) {
  Peer slow = attach(1, 0, 1), stays = attach(2, 7, 1), leaves = attach(3, 6, 1);
  ASSERT_EQ(peers_.count(slow.connection, abi::kPeerPulse), 2u);
  peers_.deaf = slow.connection;
  core_->disconnected(leaves.connection);
  for (pid_t i = 10; i < 60; ++i) core_->disconnected(attach(i, 5, 1).connection);
  Peer comes = attach(99, 4, 1);
  now_ns_ += ms(4000);
  run();
  peers_.deaf = 0;
  core_->writable(slow.connection);
  EXPECT_EQ(peers_.count(slow.connection, abi::kPeerPulse), 3u);
  EXPECT_EQ(peers_.count(slow.connection, abi::kPeerGone), 1u);
  now_ns_ += ms(4000);
  run();
  EXPECT_FALSE(peers_.is_closed(slow.connection));
  EXPECT_EQ(counters().slow_peers, 0u);
}

TEST_F(CoreTest, QueryAnswersInPackets) {
  std::vector<Peer> clients;
  for (pid_t i = 1; i <= 40; ++i) clients.push_back(attach(i, i % 2 ? 0 : 4, 1));
  run();
  Connection c = connect(99);
  say(c, abi::Query{ipc::make_header(abi::kQuery, sizeof(abi::Query)), 0, 0});
  EXPECT_GT(peers_.count(c, abi::kReply), 1u);
  std::string text;
  for (auto& m : peers_.sent[c]) {
    ASSERT_LE(m.bytes.size(), size_t(abi::kMaxMessageBytes));
    text.append(m.bytes.begin() + sizeof(abi::Reply), m.bytes.end());
    EXPECT_EQ(reinterpret_cast<abi::Reply*>(m.bytes.data())->last != 0, &m == &peers_.sent[c].back());
  }
  auto j = nlohmann::json::parse(text);
  EXPECT_EQ(j["clients"].size(), 40u);
  EXPECT_EQ(j["clients"][0]["gpu"], "GPU-01000000-0000-0000-0000-000000000000");
  EXPECT_EQ(j["clients"][1]["state"], "idle");
  EXPECT_EQ(j["gpus"][0]["clients"], 40);
  // Counters add up: everyone who attached is here or has left.
  EXPECT_EQ(j["daemon"]["attached"].get<size_t>(),
            j["clients"].size() + j["daemon"]["detached"].get<size_t>());
  EXPECT_TRUE(peers_.is_closed(c));
  c = connect(99);
  say(c, abi::Query{ipc::make_header(abi::kQuery, sizeof(abi::Query)), 777, 0});
  EXPECT_NE(peers_.last(c, abi::kRefused), nullptr);
}

TEST_F(CoreTest, RecordsAreConsumedBoundedPerWake) {
  Peer a = attach(1, 0, 1);
  ipc::RingWriter writer(&a.region.as<abi::Region>()->ring, abi::kRingSlots);
  for (int i = 0; i < 5; ++i) writer.write({.kind = abi::kRecordKernel, .duration_ns = 5});
  writer.write({.kind = abi::kRecordBurst, .duration_ns = 5});
  writer.write({.kind = 77});
  run();
  auto row = core_->snapshot(now_ns_).clients[0];
  EXPECT_EQ(row.counters.kernels_recorded, 5u);
  EXPECT_EQ(row.counters.bursts_recorded, 1u);
  EXPECT_EQ(counters().bad_records, 1u);
}

TEST_F(CoreTest, WhatAClientTimedLastIsLearntAfterItIsGone) {
  char folder[] = "/tmp/tessera-core-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  {
    auto store = learning::Store::open({.folder = folder, .interval_ms = 3'600'000});
    ASSERT_TRUE(store.ok());
    Settings settings = temporal();
    settings.learning = store->get();
    host(settings);
    Peer a = attach(1, 0, 1);
    abi::ProfileWanted wanted{ipc::make_header(abi::kProfileWanted, sizeof wanted)};
    wanted.driver = 13000;
    std::strcpy(wanted.gpu, "GPU");
    say(a.connection, wanted);
    run();
    ipc::RingWriter writer(&a.region.as<abi::Region>()->ring, abi::kRingSlots);
    for (int i = 0; i < 3; ++i)
      writer.write({.kind = abi::kRecordKernel, .key = 7, .duration_ns = 5000, .blocks = 1});
    core_->disconnected(a.connection);
    EXPECT_EQ((*store)->counters().records, 3u);
    core_.reset();  // it uses the store
  }
  std::filesystem::remove_all(folder);
}

TEST_F(CoreTest, SetChangesWeightPassthroughAndLevelsAtOnce) {
  Peer service = attach(1, 7, 1), trainer = attach(2, 0, 1), other = attach(3, 0, 1);
  run();
  const uint32_t id = core_->find_clients(1, "").at(0);
  const uint32_t trainer_id = core_->find_clients(2, "test").at(0);
  EXPECT_EQ(core_->find_clients(0, "").size(), 3u);
  EXPECT_TRUE(core_->find_clients(2, "other").empty());

  ASSERT_TRUE(core_->set_client(id, {.priority = 2, .slo_ns = ms(20)}).ok());
  auto* told = peers_.last(trainer.connection, abi::kPeerPulse);  // watchers hear of the new level
  EXPECT_EQ(reinterpret_cast<abi::PeerPulse*>(told->bytes.data())->priority, 2u);
  run();
  EXPECT_EQ(service.lease().rights.priority, 2u);

  ASSERT_TRUE(core_->set_client(trainer_id, {.weight = 900, .passthrough = true}).ok());
  run(ms(1));
  EXPECT_EQ(trainer.lease().rights.passthrough, 1u);
  EXPECT_EQ(trainer.state(), kFree);
  EXPECT_EQ(other.state(), kGranted);  // the turn is no longer shared with it
  EXPECT_EQ(core_->snapshot(now_ns_).clients[1].weight, 900u);

  EXPECT_EQ(core_->set_client(99, {}).error().code, base::Code::kNotFound);
  EXPECT_EQ(core_->set_client(id, {.priority = 8}).error().code, base::Code::kInvalid);
  EXPECT_EQ(core_->set_client(id, {.weight = 0}).error().code, base::Code::kInvalid);
  for (const uint64_t bad_ns : {uint64_t{1}, us(1500), ms(3'600'001)})
    EXPECT_EQ(core_->set_client(id, {.slo_ns = bad_ns}).error().code, base::Code::kInvalid) << bad_ns;
}

TEST_F(CoreTest, SetAcrossTheBorderGivesOrTakesThePulsePage) {
  Peer service = attach(1, 7, 1);
  Connection c = connect(2);
  say(c, hello(0, "trainer"));
  say(c, device(1));
  run();
  const uint32_t id = core_->find_clients(0, "trainer").at(0);
  ASSERT_EQ(peers_.count(c, abi::kPeerPulse), 1u);

  ASSERT_TRUE(core_->set_client(id, {.priority = 3}).ok());
  auto* m = peers_.last(c, abi::kSetPriority);
  ASSERT_NE(m, nullptr);
  ASSERT_EQ(m->fds.size(), 1u);
  EXPECT_TRUE(ipc::check_memfd(m->fds[0].get(), ipc::kPulseOwnerSeals, abi::kPulseBytes).ok());
  Peer third = attach(3, 0, 1);
  EXPECT_EQ(peers_.count(third.connection, abi::kPeerPulse), 1u);  // not mapped by its owner yet
  say(c, kMapped);
  EXPECT_EQ(peers_.count(third.connection, abi::kPeerPulse), 2u);
  run();
  EXPECT_EQ(core_->snapshot(now_ns_).clients[1].state, "idle");

  ASSERT_TRUE(core_->set_client(id, {.priority = 0}).ok());
  EXPECT_EQ(peers_.count(third.connection, abi::kPeerGone), 1u);
  EXPECT_EQ(peers_.last(c, abi::kSetPriority)->fds.size(), 0u);
  EXPECT_EQ(peers_.count(c, abi::kPeerPulse), 2u);  // it watches the service again
  run();
  EXPECT_FALSE(peers_.is_closed(c));
  EXPECT_EQ(core_->snapshot(now_ns_).clients[1].priority, 0u);
}

TEST_F(CoreTest, ProtectedClientsWatchWhoGoesFirst) {
  auto join = [&](pid_t pid, uint32_t priority, uint64_t slo_ns) {
    Connection c = connect(pid);
    abi::Hello h = hello(priority);
    h.slo_ns = slo_ns;
    say(c, h);
    say(c, kMapped);
    say(c, device(1));
    return c;
  };
  auto terms = [&](Connection c) {
    auto region = ipc::map_shared(peers_.last(c, abi::kWelcome)->fds[0].get(), abi::kRegionBytes,
                                  ipc::Access::kReadWrite);
    return admission::decode(region->as<abi::Region>()->lease);
  };
  Connection high = join(1, 5, 0), low = join(2, 2, ms(50));
  run();
  EXPECT_EQ(peers_.count(high, abi::kPeerPulse), 0u);
  EXPECT_EQ(peers_.count(low, abi::kPeerPulse), 1u);
  EXPECT_FALSE(terms(high).defers);
  EXPECT_TRUE(terms(low).defers);
  EXPECT_EQ(terms(low).slo_ns, ms(50));

  Connection twin = join(4, 2, ms(20));  // same level, both with an SLO
  run();
  EXPECT_EQ(peers_.count(twin, abi::kPeerPulse), 2u);
  EXPECT_EQ(peers_.count(low, abi::kPeerPulse), 2u);
  EXPECT_EQ(reinterpret_cast<abi::PeerPulse*>(peers_.last(low, abi::kPeerPulse)->bytes.data())->slo_ns,
            ms(20));
  const uint32_t twin_id = core_->find_clients(4, "").at(0);
  ASSERT_TRUE(core_->set_client(twin_id, {.slo_ns = 0}).ok());
  EXPECT_EQ(peers_.count(low, abi::kPeerGone), 1u);
  EXPECT_EQ(peers_.count(twin, abi::kPeerGone), 1u);
  core_->disconnected(high);
  EXPECT_EQ(peers_.count(low, abi::kPeerGone), 2u);
  run();
  EXPECT_FALSE(terms(low).defers);
}

TEST_F(CoreTest, ANewPolicyGrantsOnlyAfterEveryoneHasDrained) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
  run();
  b.usage().waiting = 1;
  notify(b);
  a.usage().in_flight_ns = us(500);
  run();
  Settings s;
  s.policy_name = "tessera";
  core_->reconfigure(s, now_ns_);
  run();
  EXPECT_EQ(a.state(), kHold);
  EXPECT_EQ(b.state(), kHold);
  a.usage().in_flight_ns = 0;
  run(us(500));
  EXPECT_EQ((a.state() == kGranted) + (b.state() == kGranted), 1);
  EXPECT_EQ(core_->snapshot(now_ns_).gpus[0].policy, "tessera");
}

// Burst records of a protected client beside a best-effort one whose activity differs.
TEST_F(CoreTest, BurstsAreSoloOnlyIfNoLowerWorkWasInFlight) {
  Peer service = attach(1, 7, 1), trainer = attach(2, 0, 1);
  run();
  ipc::RingWriter records(&service.region.as<abi::Region>()->ring, abi::kRingSlots);
  auto& signals = trainer.region.as<abi::Region>()->signals;
  auto solo_after = [&](uint64_t length_ns) {
    now_ns_ += ms(10);
    records.write({.kind = abi::kRecordBurst, .key = 5, .duration_ns = length_ns, .end_ns = now_ns_});
    run();
    return core_->snapshot(now_ns_).clients[0].counters.bursts_solo;
  };
  EXPECT_EQ(solo_after(ms(4)), 1u);  // the trainer never ran
  signals.in_flight_end_ns = now_ns_;
  EXPECT_EQ(solo_after(ms(4)), 2u);  // before this burst
  signals.in_flight_end_ns = now_ns_ + ms(7);
  EXPECT_EQ(solo_after(ms(4)), 2u);  // during it
  signals.in_flight_end_ns = now_ns_;
  trainer.usage().in_flight_ns = us(300);
  EXPECT_EQ(solo_after(ms(4)), 2u);  // now, and nobody knows since when
  signals.in_flight_since_ns = now_ns_ + ms(9);
  EXPECT_EQ(solo_after(ms(4)), 2u);  // since before the burst's end
  signals.in_flight_since_ns = now_ns_ + ms(10);
  EXPECT_EQ(solo_after(ms(4)), 3u);  // it started when the burst had ended
  trainer.usage().in_flight_ns = 0;
  EXPECT_EQ(solo_after(ms(4)), 4u);
  EXPECT_EQ(solo_after(ms(6)), 5u);
  auto counters = core_->snapshot(now_ns_).clients[0].counters;
  EXPECT_EQ(counters.burst_solo_ns, ms(4));
  EXPECT_GT(counters.bursts_compared, 0u);
}

// A service with bursts of 4 ms, and a trainer whose launches fill `launch_sms` SMs.
class PackingTest : public CoreTest {
 protected:
  void begin(uint32_t launch_sms, bool packing, uint32_t confines = 1) {
    Settings s;
    s.policy_name = "tessera";
    s.parameters.packing = packing;
    host(s);
    service_ = attach(1, 7, 1, true), trainer_ = attach(2, 0, 1, true, confines);
    records_.emplace(&service_.region.as<abi::Region>()->ring, abi::kRingSlots);
    auto& signals = trainer_.region.as<abi::Region>()->signals;
    signals.resource_class = abi::kResourceCompute;
    signals.launch_sms = launch_sms;
    trainer_.usage().waiting = 1;
  }
  // The trainer's lease while the last of n bursts runs.
  admission::LeaseView bursts(int n) {
    admission::LeaseView lease;
    for (int i = 0; i < n; ++i, ++number_) {
      ipc::pulse_set_busy(service_.pulse(), number_, abi::kResourceMemory, number_, now_ns_);
      notify(trainer_);
      run(ms(2));
      lease = admission::decode(trainer_.lease());
      run(ms(2));
      ipc::pulse_try_idle(service_.pulse(), number_, now_ns_);
      records_->write({.kind = abi::kRecordBurst, .key = 5, .duration_ns = ms(4), .end_ns = now_ns_});
      notify(service_);
      run();
      run(ms(40));
    }
    return lease;
  }
  Peer service_, trainer_;
  std::optional<ipc::RingWriter> records_;
  uint32_t number_ = 1;
};

TEST_F(PackingTest, NarrowWorkGetsALeaseForSmsOfItsOwn) {
  begin(16, false);
  const admission::LeaseView lease = bursts(20);
  EXPECT_TRUE(lease.confine_all);
  EXPECT_FALSE(lease.packed);
  EXPECT_EQ(lease.grant, admission::Grant::kGranted);
  EXPECT_EQ(lease.burst_classes, 1u << abi::kResourceCompute);
  EXPECT_GT(lease.reserved_sms, 0u);
  EXPECT_TRUE(lease.tell_busy);
  trainer_.region.as<abi::Region>()->operations.totals.during_bursts[abi::kResourceCompute] = 7;
  const stats::ClientRow row = core_->snapshot(now_ns_).clients[1];
  EXPECT_GT(row.counters.packed_grants, 0u);
  EXPECT_EQ(row.state, "packed");
  EXPECT_EQ(row.during_bursts, std::vector<std::string>{"compute"});
  EXPECT_EQ(row.counters.during_bursts_compute, 7u);
}

TEST_F(PackingTest, WideWorkDoesNotUnlessTheOperatorWantsIt) {
  for (const bool packing : {false, true}) {
    begin(0, packing);  // of any width
    const admission::LeaseView lease = bursts(20);
    EXPECT_FALSE(lease.confine_all && !packing);
    EXPECT_EQ(lease.tell_busy, packing);  // only who has something to give wants to know of busy pulses
  }
}

// A server whose burst never ends, because it begins each step before it waits for the last one.
TEST_F(PackingTest, WorkRunsBesideTheStepsOfABurstThatNeverEnds) {
  begin(0, true, 0);
  ipc::pulse_set_busy(service_.pulse(), 1, abi::kResourceMemory, 1, now_ns_);
  const uint64_t since_ns = now_ns_;
  auto& signals = trainer_.region.as<abi::Region>()->signals;
  int beside = 0;
  for (int step = 0; step < 3000; ++step) {
    for (int part = 0; part < 10; ++part) {
      const bool runs = trainer_.state() == kGranted;
      if (runs != (trainer_.usage().in_flight_ns != 0))
        (runs ? signals.in_flight_since_ns : signals.in_flight_end_ns) = now_ns_;
      trainer_.usage().in_flight_ns = runs ? ms(1) : 0;
      run(ms(1));
      beside += runs;
    }
    ipc::store(service_.pulse().heartbeat_ns, now_ns_, std::memory_order_relaxed);
    records_->write({.kind = abi::kRecordBurst, .key = 5, .duration_ns = ms(10), .end_ns = now_ns_});
    if (!service_.quiet()) notify(service_);
  }
  run();
  EXPECT_NE(ipc::load(service_.pulse().busy, std::memory_order_relaxed), 0u);
  EXPECT_GT(beside, 15'000);  // it costs nothing
  const stats::ClientRow row = core_->snapshot(now_ns_).clients[0];
  EXPECT_EQ(row.counters.busy_ns, now_ns_ - since_ns);
  EXPECT_EQ(row.counters.bursts_recorded, 3000u);
}

TEST_F(PackingTest, NobodyIsPackedWhoCannotKeepOffSms) {
  begin(16, true, 0);
  EXPECT_FALSE(bursts(20).confine_all);
}

// While no burst can come the window shrinks with each decision. Whoever waits for a turn would be woken by each, and would ask
// for the next decision.
TEST_F(PackingTest, WhoIsHeldIsNotToldOfEachWindow) {
  begin(0, false);
  Peer holder = attach(3, 0, 1);  // it does not share in space, so that they take turns
  bursts(60);
  const Peer& held = trainer_.state() == kHold ? trainer_ : holder;
  const Peer& has_turn = trainer_.state() == kHold ? holder : trainer_;
  ASSERT_EQ(held.state(), kHold);
  ASSERT_EQ(has_turn.state(), kGranted);
  bursts(1);
  now_ns_ -= ms(39);
  has_turn.usage().in_flight_ns = us(500);
  held.usage().waiting = 1;
  held.usage().waiting_since_ns = now_ns_;
  std::set<uint32_t> held_words;
  for (int i = 0; i < 390; ++i) {
    notify(held);
    run(us(100));
    if (held.state() == kHold) held_words.insert(held.lease().word);
  }
  EXPECT_LE(held_words.size(), 2u);
}

TEST_F(CoreTest, SlowBurstsReserveSmsWhereAClientCanKeepOffThem) {
  for (const uint32_t confines : {0u, 1u, 0xffu}) {  // newer libraries may say more
    Settings s;
    s.policy_name = "tessera";
    host(s);
    Peer service = attach(1, 7, 1, true), trainer = attach(2, 0, 1, true, confines);
    ipc::RingWriter records(&service.region.as<abi::Region>()->ring, abi::kRingSlots);
    auto& signals = trainer.region.as<abi::Region>()->signals;
    signals.uncut_launches = 1;
    signals.confined_launches = 3;
    uint32_t number = 1;
    const auto bursts = [&](int n, uint64_t length_ns, bool beside_work) {
      for (int i = 0; i < n; ++i, ++number) {
        ipc::pulse_set_busy(service.pulse(), number, abi::kResourceMemory, number, now_ns_);
        signals.in_flight_since_ns = beside_work ? now_ns_ - ms(1) : 0;
        trainer.usage().in_flight_ns = beside_work ? ms(1) : 0;
        run(length_ns);
        ipc::pulse_try_idle(service.pulse(), number, now_ns_);
        records.write({.kind = abi::kRecordBurst, .key = 5, .duration_ns = length_ns, .end_ns = now_ns_});
        trainer.usage().in_flight_ns = 0;
        if (beside_work) signals.in_flight_end_ns = now_ns_;
        notify(service);
        run();
        run(ms(40));
      }
    };
    bursts(60, ms(4), false);
    EXPECT_EQ(admission::decode(trainer.lease()).reserved_sms, 0u);
    bursts(2, ms(6), true);
    EXPECT_EQ(admission::decode(trainer.lease()).reserved_sms != 0, confines != 0);
    const auto client = core_->snapshot(now_ns_).clients[1];
    EXPECT_EQ(client.counters.reserved_sms, admission::decode(trainer.lease()).reserved_sms);
    EXPECT_EQ(client.counters.confined_launches, 3u);
  }
}

TEST_F(CoreTest, WhatCanBeCutOfAClientIsToldAsItStandsThere) {
  Peer trainer = attach(1, 0, 1);
  auto* lines = &trainer.region.as<abi::Region>()->cutting;
  EXPECT_TRUE(core_->snapshot(now_ns_).clients[0].outcomes.empty());
  lines->outcomes[abi::kOutcomeNoPtx] = {280'000, 12'000'000};
  lines->outcomes[abi::kOutcomeSlots - 1] = {1, 1};  // not a row of ours
  const stats::Snapshot snapshot = core_->snapshot(now_ns_);
  ASSERT_EQ(snapshot.clients[0].outcomes.size(), 1u);
  const auto told = nlohmann::json::parse(stats::to_json(snapshot))["clients"][0]["outcomes"];
  EXPECT_EQ(told, nlohmann::json::parse(R"([{"name": "no_ptx", "launches": 280000, "gpu_ns": 12000000}])"));
}

TEST_F(CoreTest, LibraryCallsOfAClientAreToldAsTheyStandThere) {
  Peer trainer = attach(1, 0, 1);
  abi::OperationTable& table = trainer.region.as<abi::Region>()->operations;
  auto* totals = &table.totals;
  auto& counts = table.counts;
  EXPECT_TRUE(core_->snapshot(now_ns_).clients[0].operations.empty());
  totals->split_calls = 4, totals->kept_form = 5, totals->narrowed_calls = 6;
  totals->kept_short = 7, totals->kept_free = 8, totals->splitting = 1;
  abi::OperationCounts& c = counts[abi::kOperationSlots - 1];
  c.calls = 3, c.flop[0] = 6, c.flop[1] = 1, c.bytes[0] = 7, c.gpu_ns = 8, c.launches = 9;
  c.resource_class = abi::kResourceMemory;
  strcpy(c.name, "cublasSgemm_v2");
  EXPECT_TRUE(core_->snapshot(now_ns_).clients[0].operations.empty());  // not ready
  c.ready = 1;
  auto client = core_->snapshot(now_ns_).clients[0];
  EXPECT_EQ(client.counters.split_calls, 4u);
  EXPECT_EQ(client.counters.kept_form, 5u);
  EXPECT_EQ(client.counters.narrowed_calls, 6u);
  EXPECT_EQ(client.counters.kept_short, 7u);
  EXPECT_EQ(client.counters.kept_free, 8u);
  EXPECT_EQ(client.counters.splitting, 1u);
  ASSERT_EQ(client.operations.size(), 1u);
  EXPECT_EQ(client.operations[0].name, "cublasSgemm_v2");
  EXPECT_EQ(client.operations[0].type, "f32");
  EXPECT_EQ(client.operations[0].resource_class, "memory");
  EXPECT_EQ(client.operations[0].flop, 0x1p64 + 6);
  EXPECT_EQ(client.operations[0].bytes, 7);
  EXPECT_EQ(client.operations[0].calls, 3u);
  EXPECT_EQ(client.operations[0].gpu_ns, 8u);
  EXPECT_EQ(client.operations[0].launches, 9u);
  counts[0] = c;  // another thread's of the same function and type
  counts[0].resource_class = abi::kResourceUnknown;
  client = core_->snapshot(now_ns_).clients[0];
  ASSERT_EQ(client.operations.size(), 1u);
  EXPECT_EQ(client.operations[0].calls, 6u);
  EXPECT_EQ(client.operations[0].flop, 2 * (0x1p64 + 6));
  EXPECT_EQ(client.operations[0].resource_class, "memory");
  // A client may write anything there.
  memset(&table, 0xff, sizeof table);
  for (uint32_t i = 0; i < abi::kOperationSlots; i++)
    counts[i].ready = 1, counts[i].type = int32_t(i * 40'000'000), counts[i].name[0] = char(i);
  client = core_->snapshot(now_ns_).clients[0];
  EXPECT_EQ(client.operations.size(), size_t(abi::kOperationSlots));
  for (const auto& o : client.operations) EXPECT_LE(o.name.size(), size_t(abi::kOperationNameBytes));
  const std::string json = stats::to_json(core_->snapshot(now_ns_));
  EXPECT_TRUE(std::ranges::all_of(json, [](char ch) { return ch >= 0x20 && ch < 0x7f; }));
}

TEST_F(CoreTest, RequestsOfAClientAreToldByKindAndBucket) {
  Peer service = attach(1, 5, 1);
  abi::RequestTable& table = service.region.as<abi::Region>()->requests;
  table.totals.missed = 2;
  abi::RequestKind& kind = table.kinds[3];
  strcpy(kind.name, "decode");
  kind.sum_ns = 7'000'000;
  kind.counts[0] = 1, kind.counts[9] = 4, kind.counts[abi::kRequestBuckets - 1] = 2;
  EXPECT_TRUE(core_->snapshot(now_ns_).clients[0].requests.empty());  // not ready
  kind.ready = 1;
  table.kinds[abi::kPrefillKind] = {.ready = 1, .name = "prefill", .slo_ns = 5, .within_slo = 4};
  const stats::Snapshot snapshot = core_->snapshot(now_ns_);
  EXPECT_EQ(snapshot.clients[0].counters.missed_requests, 2u);
  EXPECT_EQ(nlohmann::json::parse(stats::to_json(snapshot))["clients"][0]["requests"],
            nlohmann::json::parse(R"(
      [{"kind": "prefill", "count": 0, "sum_ns": 0, "slo_ns": 5, "within_slo": 4, "buckets": []},
       {"kind": "decode", "count": 7, "sum_ns": 7000000, "buckets": [[16384, 1], [36864, 4], [null, 2]]}])"));
  // A client may write anything there.
  memset(&table, 0xff, sizeof table);
  for (abi::RequestKind& k : table.kinds) k.ready = 1;
  const std::string json = stats::to_json(core_->snapshot(now_ns_));
  EXPECT_EQ(nlohmann::json::parse(json)["clients"][0]["requests"].size(), size_t(abi::kRequestKinds));
  EXPECT_TRUE(std::ranges::all_of(json, [](char ch) { return ch >= 0x20 && ch < 0x7f; }));
}

TEST_F(CoreTest, AClientThatStopsCuttingIsReportedOnce) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
  run();
  auto warnings = [&] {
    return std::count_if(peers_.lines.begin(), peers_.lines.end(), [](const std::string& line) {
      return line.find("hold limit") != std::string::npos;
    });
  };
  a.region.as<abi::Region>()->signals.cutting_off = 1;
  for (int i = 0; i < 5; ++i) {
    notify(a);
    run(ms(1));
  }
  EXPECT_EQ(warnings(), 1);
  EXPECT_EQ(core_->snapshot(now_ns_).clients[0].counters.cutting_off, 1u);
}

TEST_F(CoreTest, ReleaseLeavesEveryoneFree) {
  Peer a = attach(1, 0, 1), b = attach(2, 0, 1);
  run();
  core_->release_all();
  EXPECT_EQ(a.state(), kFree);
  EXPECT_EQ(b.state(), kFree);
}

// Clients that do anything at any time, also in wrong order: the core never loses count, never grants two
// exclusive leases, never asks to be called in the past. Meaningful under ASan.
TEST_F(CoreTest, RandomLives) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    peers_.closed.clear();
    peers_.sent.clear();
    peers_.dying.clear();
    host();
    std::vector<Peer> peers;  // best-effort and protected, some of them dead
    for (int step = 0; step < 200; ++step) {
      now_ns_ += random() % ms(20);
      size_t pick = peers.empty() ? 0 : random() % peers.size();
      switch (random() % 8) {
        case 0:
        case 1:
          if (peers.size() < 30)
            peers.push_back(attach(pid_t(step), random() % 3 ? 0 : 5, uint8_t(random() % 2)));
          break;
        case 2:
          if (!peers.empty()) core_->disconnected(peers[pick].connection);
          break;
        case 3:
          if (peers.empty()) break;
          if (random() % 2)
            say(peers[pick].connection, kMapped);
          else
            say(peers[pick].connection, device(uint8_t(random() % 3)));
          break;
        case 4:
          if (!peers.empty() && random() % 4 == 0) peers_.dying.insert(peers[pick].connection);
          if (!peers.empty() && peers[pick].pulse_page.valid())
            ipc::pulse_set_busy(peers[pick].pulse(), uint32_t(random() % 2), random(), 1, now_ns_);
          break;
        default:
          if (peers.empty()) break;
          peers[pick].usage().waiting = uint32_t(random() % 2);
          peers[pick].usage().in_flight_ns = random() % 2 ? random() : 0;
          peers[pick].usage().completed_ns = random();
          if (random() % 16 == 0) peers[pick].region.as<abi::Region>()->ring.head = random();
          notify(peers[pick]);
      }
      uint64_t next = run();
      ASSERT_TRUE(next == 0 || next > now_ns_) << "seed " << seed << " step " << step;
      auto s = core_->snapshot(now_ns_);
      ASSERT_EQ(s.counters.attached, s.clients.size() + s.counters.detached);
      std::map<std::string, int> granted;
      for (const auto& c : s.clients)
        if (!c.gpu.empty() && c.priority == 0 && c.state == "granted") {
          ++granted[c.gpu];
          for (const std::string& gpu : c.further_gpus) ++granted[gpu];
        }
      for (const auto& [gpu, n] : granted) ASSERT_LE(n, 1) << gpu;
    }
    for (const Peer& p : peers) core_->disconnected(p.connection);
    EXPECT_TRUE(core_->snapshot(now_ns_).gpus.empty());
    EXPECT_EQ(run(), 0u);
  }
}

}  // namespace
}  // namespace tessera::core
