// Gates on the device, as the daemon's core sees to them: who gets a page, who closes it, what opens it.
#include "ipc/channel/gate.h"
#include "ipc/channel/pulse.h"
#include "ipc/channel/ring.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

class Gates : public CoreTest {
 protected:
  struct Trainer : Peer {
    ipc::Mapping page;
    abi::GatePage& gate() const { return *page.as<abi::GatePage>(); }
    bool open() const { return ipc::gate_is_open(gate()); }
    uint8_t byte(uint32_t i) const { return ipc::gate_byte(gate(), i).load(); }
  };

  static Settings device_gate(const char* policy = "temporal") {
    Settings s;
    s.policy_name = policy;
    s.gate = abi::kGateDevice;
    return s;
  }
  void SetUp() override { host(device_gate()); }

  Trainer trainer(pid_t pid, abi::GateChoice choice = abi::kGateAuto, bool mps = false, uint32_t usable = 1) {
    Trainer t;
    t.connection = connect(pid);
    say(t.connection, hello(0));
    t.region = ipc::map_shared(peers_.last(t.connection, abi::kWelcome)->fds[0].get(), abi::kRegionBytes,
                               ipc::Access::kReadWrite)
                   .value();
    abi::Device d = device(1, mps);
    d.gate = choice;
    say(t.connection, d);
    if (auto* m = peers_.last(t.connection, abi::kGateMemory)) {
      t.page = ipc::map_shared(m->fds[0].get(), abi::kGateBytes, ipc::Access::kReadWrite).value();
      say(t.connection, abi::GateReady{ipc::make_header(abi::kGateReady, sizeof(abi::GateReady)), usable, 0});
    }
    return t;
  }
  Peer service(pid_t pid) { return attach(pid, 5, 1); }
  // The service's library has the page: it closes and opens it as in interpose/gate/peer_gates.cc.
  uint32_t map_gate(const Peer& s, const Trainer& t) {
    auto* m = peers_.last(s.connection, abi::kPeerGate);
    if (m == nullptr) return 0;
    abi::PeerGate told;
    std::memcpy(&told, m->bytes.data(), sizeof told);
    EXPECT_EQ(told.client_id, t.gate().client_id);
    ipc::close_gate(t.gate(), told.byte, 0);
    ipc::reopen_gate(t.gate(), told.byte, 0);
    return told.byte;
  }
  Trainer trainer_of(const Peer& s, pid_t pid) {
    Trainer t = trainer(pid);
    map_gate(s, t);
    return t;
  }
  void begin(const Peer& s, const Trainer& t, uint32_t byte, uint32_t burst) {
    ipc::pulse_set_busy(s.pulse(), burst, 0, burst, now_ns_);
    ipc::close_gate(t.gate(), byte, burst);
  }
  void end(const Peer& s, uint32_t burst) { EXPECT_TRUE(ipc::pulse_try_idle(s.pulse(), burst, now_ns_)); }
  std::string gate_of(const Peer& p) {
    for (const auto& row : core_->snapshot(now_ns_).clients)
      if (Connection(row.pid) == p.connection) return row.gate;  // tests connect by process id
    return "?";
  }
};

TEST_F(Gates, OnlyWhoCanAndIsAskedForGetsAPage) {
  EXPECT_TRUE(trainer(1).page.valid());
  EXPECT_FALSE(trainer(2, abi::kGateThread).page.valid());
  Settings s = device_gate();
  s.gate = abi::kGateAuto;
  host(s);
  EXPECT_FALSE(trainer(3).page.valid());
  EXPECT_TRUE(trainer(4, abi::kGateDevice).page.valid());
  s.gate = abi::kGateThread;
  host(s);
  EXPECT_FALSE(trainer(5, abi::kGateDevice).page.valid());
}

// Nobody closes its gate any more, and its work behind it goes.
TEST_F(Gates, AProcessThatComesToAFurtherGpuWaitsInItsThreads) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  begin(s, t, byte, 1);
  notify(t);
  run();
  ASSERT_FALSE(t.open());
  ASSERT_GT(t.lease().quantum_us, 0);
  say(t.connection, device(2));
  run();
  EXPECT_TRUE(t.open());
  EXPECT_EQ(t.lease().quantum_us, 0);
  EXPECT_EQ(peers_.count(s.connection, abi::kPeerGone), 1u);
  EXPECT_NE(gate_of(t).find("one of a gang"), std::string::npos) << gate_of(t);
  say(t.connection, abi::GateReady{ipc::make_header(abi::kGateReady, sizeof(abi::GateReady)), 1, 0});
  EXPECT_FALSE(peers_.is_closed(t.connection)) << "an answer that was under way";
}

TEST_F(Gates, AServiceOnTwoGpusClosesThoseOfBoth) {
  Trainer t = trainer(1);
  Peer s = attach(2, 5, 2), first = service(3);
  ASSERT_NE(map_gate(first, t), 0u);
  EXPECT_EQ(peers_.count(s.connection, abi::kPeerGate), 0u);
  say(s.connection, device(1));
  const uint32_t byte = map_gate(s, t);
  ASSERT_NE(byte, 0u);
  notify(t);
  run();
  EXPECT_TRUE(t.open());
  begin(s, t, byte, 1);
  EXPECT_FALSE(t.open());
  core_->disconnected(s.connection);
  run();
  EXPECT_TRUE(t.open());
}

TEST_F(Gates, OneThatIsAloneIsOpen) {
  Trainer t = trainer(1);
  run();
  EXPECT_EQ(t.state(), kFree);
  EXPECT_TRUE(t.open());
}

TEST_F(Gates, TheQuantumComesWhenEveryProtectedClientHasTakenItsPlace) {
  Trainer t = trainer(1);
  Peer s = service(2);
  run();
  EXPECT_EQ(t.state(), kGranted);
  EXPECT_EQ(t.lease().quantum_us, 0);
  EXPECT_FALSE(t.open()) << "a service that has not mapped the page could not close it";
  EXPECT_NE(gate_of(t).find("has not taken its place"), std::string::npos) << gate_of(t);
  ASSERT_NE(map_gate(s, t), 0u);
  notify(t);
  run();
  EXPECT_GT(t.lease().quantum_us, 0);
  EXPECT_TRUE(t.open());
  EXPECT_EQ(gate_of(t), "device");
}

TEST_F(Gates, ALateServiceClosesUntilItHasThePage) {
  Trainer t = trainer(1);
  Peer first = service(2);
  map_gate(first, t);
  run();
  EXPECT_TRUE(t.open());
  Peer second = service(3);
  EXPECT_FALSE(t.open());
  run();
  EXPECT_EQ(t.lease().quantum_us, 0);
  map_gate(second, t);
  notify(t);
  run();
  EXPECT_TRUE(t.open());
  EXPECT_GT(t.lease().quantum_us, 0);
}

TEST_F(Gates, ABurstClosesWithoutTheDaemonAndTheDaemonOpensAfterTheGuard) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  EXPECT_NE(s.lease().rights.keeps_closed, 0) << "`temporal` waits out its guard time";
  begin(s, t, byte, 7);
  EXPECT_FALSE(t.open());
  run(us(500));
  EXPECT_FALSE(t.open()) << "it is busy";
  end(s, 7);
  notify(s);
  run();
  EXPECT_FALSE(t.open()) << "the guard time is not over";
  run(us(300));
  EXPECT_TRUE(t.open());
}

TEST_F(Gates, ABurstThatBeganMeanwhileStaysClosed) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  begin(s, t, byte, 7);
  end(s, 7);
  notify(s);
  run(us(100));
  begin(s, t, byte, 8);
  run(us(300));
  EXPECT_FALSE(t.open());
}

TEST_F(Gates, AServiceThatLeavesInABurstLeavesItOpen) {
  Trainer t = trainer(1);
  Peer s = service(2), other = service(3);
  const uint32_t byte = map_gate(s, t);
  map_gate(other, t);
  run();
  begin(s, t, byte, 3);
  core_->disconnected(other.connection);
  EXPECT_FALSE(t.open());
  core_->disconnected(s.connection);
  run();
  EXPECT_TRUE(t.open());
}

TEST_F(Gates, OneThatHangsInABurstIsOpenedWhenItsPulseIsStale) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  begin(s, t, byte, 7);
  for (int i = 0; i < 8; i++) run(ms(500));
  EXPECT_TRUE(t.open());
}

// It says idle first and opens then. What stops or ends it in between leaves the byte of a burst that is over.
TEST_F(Gates, OneThatStopsBetweenItsPulseAndItsByteIsOpenedForWhoWaits) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  begin(s, t, byte, 7);
  end(s, 7);
  EXPECT_FALSE(t.open());
  notify(t);  // its helper says that work waits
  run(ms(10));
  run(ms(10));
  EXPECT_TRUE(t.open());
  EXPECT_EQ(t.byte(byte), abi::kGateByteOpen);
}

TEST_F(Gates, OneThatIsKilledBetweenItsPulseAndItsByteLeavesItOpen) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  begin(s, t, byte, 7);
  end(s, 7);
  EXPECT_FALSE(t.open());
  core_->disconnected(s.connection);
  run();
  EXPECT_TRUE(t.open());
}

// Work behind a closed gate says nothing about work that passed it, so that a turn is passed on by time.
TEST_F(Gates, WithoutMpsTwoTakeTurns) {
  Peer s = service(1);
  Trainer a = trainer_of(s, 2), b = trainer_of(s, 3);
  run();
  for (Trainer* t : {&a, &b}) {
    t->usage().in_flight_ns = ms(30);  // never less: each has more to do
    notify(*t);
  }
  EXPECT_EQ(gate_of(a), "device");
  EXPECT_EQ(gate_of(b), "device");
  uint64_t open_ns[2] = {}, completed_ns[2] = {};
  for (uint64_t until = now_ns_ + ms(600); now_ns_ < until;) {
    EXPECT_FALSE(a.open() && b.open()) << "at " << now_ns_;
    int i = 0;
    for (Trainer* t : {&a, &b}) {
      const int at = i++;
      if (!t->open()) continue;
      open_ns[at] += us(100);
      t->usage().completed_ns = completed_ns[at] += us(100);
    }
    run(us(100));
  }
  EXPECT_GT(open_ns[0], ms(200));
  EXPECT_GT(open_ns[1], ms(200));
}

TEST_F(Gates, AQueueThatStandsStillHasNoTurnForLong) {
  Peer s = service(1);
  Trainer stopped = trainer_of(s, 2), works = trainer_of(s, 3);
  run();
  stopped.usage().in_flight_ns = ms(2);
  works.usage().in_flight_ns = ms(2);
  notify(works);
  uint64_t open_ns = 0, completed_ns = 0;
  for (uint64_t until = now_ns_ + ms(600); now_ns_ < until;) {
    if (works.open()) {
      open_ns += us(100);
      works.usage().completed_ns = completed_ns += us(100);
    }
    run(us(100));
  }
  EXPECT_GT(open_ns, ms(500));
}

TEST_F(Gates, UnderMpsEachHasAPageOfItsOwn) {
  Trainer a = trainer(1, abi::kGateAuto, true), b = trainer(2, abi::kGateAuto, true);
  run();
  EXPECT_GT(a.lease().quantum_us, 0);
  EXPECT_GT(b.lease().quantum_us, 0);
  ipc::override_gate(a.gate(), abi::kGateDaemonOpens, false);
  ipc::gate_byte(a.gate(), 1).store(0);
  EXPECT_FALSE(a.open());
  EXPECT_TRUE(b.open());
}

TEST_F(Gates, MoreProtectedClientsThanPlaces) {
  Trainer t = trainer(1);
  for (pid_t pid = 2; pid < 2 + pid_t(abi::kGatePeers); pid++) map_gate(service(pid), t);
  run();
  EXPECT_EQ(gate_of(t), "device");
  Peer last = service(20);
  run();
  EXPECT_EQ(t.lease().quantum_us, 0);
  EXPECT_NE(gate_of(t).find("places"), std::string::npos) << gate_of(t);
  core_->disconnected(last.connection);
  run();
  EXPECT_EQ(gate_of(t), "device");
}

// Whoever has no byte any more must not store into one: it may be somebody else's by then.
TEST_F(Gates, AServiceThatLosesItsByteIsTold) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t id = 2;
  map_gate(s, t);
  run();
  const size_t gone = peers_.count(s.connection, abi::kPeerGone);
  ASSERT_TRUE(core_->set_client(id, {.passthrough = true}).ok());
  EXPECT_EQ(peers_.count(s.connection, abi::kPeerGone), gone + 1);
  Peer other = service(3);
  map_gate(other, t);
  run();
  EXPECT_EQ(gate_of(t), "device");
  const size_t given = peers_.count(s.connection, abi::kPeerGate);
  ASSERT_TRUE(core_->set_client(id, {.passthrough = false}).ok());
  EXPECT_EQ(peers_.count(s.connection, abi::kPeerGate), given + 1);
  const auto byte_of = [&](const Peer& p) {
    abi::PeerGate told;
    std::memcpy(&told, peers_.last(p.connection, abi::kPeerGate)->bytes.data(), sizeof told);
    return told.byte;
  };
  EXPECT_NE(byte_of(s), byte_of(other));
}

// Its library begins bursts until it has read that it has no byte any more.
TEST_F(Gates, OneThatIsProtectedNoMoreLeavesNothingClosed) {
  Peer s = service(1);
  Trainer a = trainer_of(s, 2), b = trainer_of(s, 3);
  run();
  ASSERT_TRUE(core_->set_client(1, {.priority = 0}).ok());
  ipc::close_gate(b.gate(), abi::kGateFirstPeer, 9);
  b.usage().in_flight_ns = ms(30);
  notify(b);
  run();
  EXPECT_EQ(b.byte(abi::kGateFirstPeer), abi::kGateByteOpen);
}

TEST_F(Gates, ADriverThatRefusesIsNotAskedAgain) {
  Trainer t = trainer(1, abi::kGateAuto, false, 0);
  Peer s = service(2);
  run();
  EXPECT_EQ(peers_.count(s.connection, abi::kPeerGate), 0u);
  EXPECT_EQ(t.lease().quantum_us, 0);
  EXPECT_NE(gate_of(t).find("do not allow"), std::string::npos) << gate_of(t);
}

TEST_F(Gates, TheOperatorsPassThroughOpens) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  begin(s, t, byte, 3);
  ASSERT_TRUE(core_->set_client(t.gate().client_id, {.passthrough = true}).ok());
  run();
  EXPECT_TRUE(t.open());
  ASSERT_TRUE(core_->set_client(t.gate().client_id, {.passthrough = false}).ok());
  run();
  EXPECT_FALSE(t.open());
}

TEST_F(Gates, ReloadToTheThreadAndBack) {
  Trainer t = trainer(1);
  Peer s = service(2);
  map_gate(s, t);
  run();
  Settings other = device_gate();
  other.gate = abi::kGateThread;
  core_->reconfigure(other, now_ns_);
  run();
  EXPECT_EQ(t.lease().quantum_us, 0);
  EXPECT_TRUE(t.open()) << "what waits there goes as the lease and the pulses allow";
  core_->reconfigure(device_gate(), now_ns_);
  run();
  EXPECT_GT(t.lease().quantum_us, 0);
}

// All of a queue is in flight for its client. A burst before which the gate was shut met nothing of it, and one before which
// it was open met one launch at most, the longest.
TEST_F(Gates, ABurstMeetsWhatPassedAndNothingElse) {
  Trainer t = trainer(1);
  Peer s = service(2);
  const uint32_t byte = map_gate(s, t);
  run();
  t.usage().in_flight_ns = ms(30);
  ipc::RingWriter records(&s.region.as<abi::Region>()->ring, abi::kRingSlots);
  uint32_t number = 0;
  const auto burst = [&](uint64_t gap_ns, uint64_t length_ns) {
    run(gap_ns);
    begin(s, t, byte, ++number);
    now_ns_ += length_ns;
    end(s, number);
    records.write({.kind = abi::kRecordBurst, .key = 5, .duration_ns = length_ns, .end_ns = now_ns_});
    notify(s);
    run();
  };
  const auto solo = [&] {
    uint64_t n = 0;
    for (const auto& row : core_->snapshot(now_ns_).clients) n += row.counters.bursts_solo;
    return n;
  };
  for (int i = 0; i < 20; i++) burst(ms(5), ms(4));
  EXPECT_EQ(solo(), 0u) << "the gate had opened before each";
  for (int i = 0; i < 20; i++) burst(us(50), ms(4));
  EXPECT_GE(solo(), 18u);
}

TEST_F(Gates, GarbageIsRefused) {
  Peer p = attach(1, 0, 1);
  say(p.connection, abi::GateReady{ipc::make_header(abi::kGateReady, sizeof(abi::GateReady)), 1, 0});
  EXPECT_TRUE(peers_.is_closed(p.connection)) << "it has no gate";
}

}  // namespace
}  // namespace tessera::core
