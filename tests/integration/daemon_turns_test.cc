// The policy as clients see it through a real daemon.
#include <fstream>

#include "base/clock.h"
#include "base/units.h"
#include "daemon_test.h"
#include "ipc/channel/lease.h"
#include "ipc/channel/pulse.h"

namespace tessera::test {
namespace {

using namespace ipc::abi;  // NOLINT: lease states
constexpr auto seq_cst = std::memory_order_seq_cst;

TEST_F(DaemonTest, TwoBestEffortClientsTakeTurnsAndNeverWorkAtOnce) {
  start();
  Worker a{on_gpu(0)}, b{on_gpu(0)};
  // Until the daemon has heard of both GPUs they are free-running.
  ASSERT_TRUE(
      eventually([&] { return lease_state(a.a) == kLeaseGranted && lease_state(b.a) == kLeaseHold; }));
  bool overlapped = false;
  EXPECT_TRUE(eventually([&] {
    a.step();
    b.step();
    overlapped |= a.working && b.working;
    return a.turns >= 4 && b.turns >= 4;
  }));
  EXPECT_FALSE(overlapped);
  auto s = stats();
  EXPECT_GE(s["daemon"]["revocations"].get<uint64_t>(), 6u);
  EXPECT_EQ(s["gpus"][0]["clients"], 2);
}

TEST_F(DaemonTest, AClientThatNeverDrainsIsOvertakenAfterTheTimeout) {
  start();
  auto hung = on_gpu(0);
  ipc::store(hung.usage()->in_flight_ns, uint64_t(1), seq_cst);
  Worker b{on_gpu(0)};
  ASSERT_TRUE(
      eventually([&] { return lease_state(hung) == kLeaseGranted && lease_state(b.a) == kLeaseHold; }));
  EXPECT_TRUE(eventually([&] {
    b.step();
    return b.turns > 0;
  }));
  EXPECT_EQ(lease_state(hung), uint32_t(kLeaseHold));
}

TEST_F(DaemonTest, UnderMpsBothHoldLeases) {
  start();
  auto a = on_gpu(0, 1, true), b = on_gpu(0, 1, true);
  EXPECT_TRUE(eventually([&] { return lease_state(a) == kLeaseGranted && lease_state(b) == kLeaseGranted; }));
}

TEST_F(DaemonTest, AWaiterIsWokenAfterAProtectedClientBecameIdle) {
  std::ofstream(folder_ + "/config.toml") << "[policy]\nname = \"temporal\"\n";  // the others wait for gaps
  start({"--config", folder_ + "/config.toml"});
  auto service = on_gpu(7), trainer = on_gpu(0);
  ipc::PeerEvent pulse = await_event(trainer);
  ASSERT_EQ(pulse.kind, ipc::PeerEvent::Kind::kPeerPulse);
  const auto& page = *pulse.page.as<PulsePage>();
  ASSERT_TRUE(eventually([&] { return lease_state(trainer) == kLeaseGranted; }));

  ipc::pulse_set_busy(*service.pulse(), 1, 2, 1, base::now_ns());
  EXPECT_TRUE(ipc::pulse_is_busy(page, base::now_ns()));  // seen without the daemon
  ipc::store(trainer.usage()->waiting, 1u, seq_cst);
  uint32_t word = ipc::load(trainer.lease()->word, std::memory_order_acquire);
  ASSERT_TRUE(ipc::pulse_try_idle(*service.pulse(), 1, base::now_ns()));
  ASSERT_TRUE(ipc::notify(service));
  EXPECT_TRUE(
      eventually([&] { return ipc::load(trainer.lease()->word, std::memory_order_acquire) != word; }));
  EXPECT_EQ(lease_state(trainer), uint32_t(kLeaseGranted));
  EXPECT_GE(counter("nudges"), 1u);
}

TEST_F(DaemonTest, TheTerminalsListingShowsWhatClientsCount) {
  start();
  auto a = attach(0, "a \"name\"");
  a.usage()->launches = 12;
  a.usage()->held_ns = 34;
  auto row = stats()["clients"][0];
  EXPECT_EQ(row["name"], "a \"name\"");
  EXPECT_EQ(row["pid"], getpid());
  EXPECT_EQ(row["launches"], 12);
  EXPECT_EQ(row["held_ns"], 34);
  EXPECT_EQ(row["gpu"], "");
  EXPECT_EQ(row["state"], "free");
}

}  // namespace
}  // namespace tessera::test
