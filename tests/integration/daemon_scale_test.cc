// Many clients, many that come and go, and daemons that follow one another.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/clock.h"
#include "base/units.h"
#include "daemon_test.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/lease.h"

namespace tessera::test {
namespace {

using namespace ipc::abi;  // NOLINT: lease states

class ScaleTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    rlimit limit;  // three descriptors per client at this end
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 4096) GTEST_SKIP() << "this machine allows " << limit.rlim_cur << " descriptors";
  }
  void start_with(const std::string& text) {
    std::ofstream(folder_ + "/c.toml") << text;
    start({"--config", folder_ + "/c.toml", "--log-level", "warn"});
  }
};

void wait_in(const ipc::Attachment& a) {
  ipc::store(a.usage()->waiting_since_ns, base::now_ns(), std::memory_order_relaxed);
  ipc::store(a.usage()->waiting, 1u, std::memory_order_release);
  ipc::notify(a);
}

TEST_F(ScaleTest, ThreeHundredClientsOnFourGpusAreAllServed) {
  start_with("[daemon]\nmax_clients = 512\n[policy]\nidle_grace_us = 100\nquantum_us = 1000\n");
  constexpr size_t kClients = 300, kGpus = 4;
  std::vector<ipc::Attachment> clients;
  for (size_t i = 0; i < kClients; ++i) clients.push_back(on_gpu(0, uint8_t(1 + i % kGpus)));
  ASSERT_EQ(stats()["clients"].size(), kClients);
  ASSERT_EQ(stats()["gpus"].size(), kGpus);
  for (const auto& a : clients) wait_in(a);
  // Each has its turn, does nothing with it, and loses it.
  std::vector<bool> served(kClients);
  EXPECT_TRUE(eventually(
      [&] {
        for (size_t i = 0; i < kClients; ++i) {
          if (served[i] || lease_state(clients[i]) != kLeaseGranted) continue;
          served[i] = true;
          ipc::store(clients[i].usage()->waiting, 0u, std::memory_order_release);
        }
        return std::count(served.begin(), served.end(), true) == kClients;
      },
      30'000));
  size_t holders = 0;
  const auto s = stats();
  for (const auto& client : s["clients"]) holders += client["state"] == "granted";
  EXPECT_EQ(holders, kGpus);  // one per GPU
}

TEST_F(ScaleTest, AThousandConnectionsLeaveNothingBehind) {
  start_with("");
  const auto come_and_go = [&](int n) {
    for (int i = 0; i < n; ++i) {
      if (i % 3 == 0) {
        auto a = on_gpu(uint32_t(i) % 2 * 5, uint8_t(1 + i % 7));
      } else if (i % 3 == 1) {
        (void)stats();
      } else {
        (void)attach(0);
      }
    }
    const uint64_t attached = counter("attached");
    EXPECT_TRUE(counts("detached", attached));
  };
  come_and_go(200);  // what is allocated once has been
  const size_t descriptors = open_descriptors(daemon_->pid());
  const uint64_t kib = resident_kib(daemon_->pid());
  come_and_go(1000);
  // The daemon closes a question's connection after its answer was read.
  EXPECT_TRUE(eventually([&] { return open_descriptors(daemon_->pid()) <= descriptors; }));
  EXPECT_LE(resident_kib(daemon_->pid()), kib + 512);
  const auto s = stats();
  EXPECT_TRUE(s["clients"].empty());
  EXPECT_TRUE(s["gpus"].empty());
}

// The sums that docs/running.md promises.
TEST_F(ScaleTest, CountersAddUp) {
  start_with("[priority]\ndefault_max = 3\n");
  auto a = on_gpu(7), b = on_gpu(0), c = on_gpu(0);
  { auto gone = attach(0); }
  ASSERT_TRUE(counts("detached", 1));
  EXPECT_FALSE(ipc::query(socket_, 99).ok());  // asked, then refused
  ASSERT_TRUE(eventually([&] { return lease_state(b) == kLeaseGranted; }));
  wait_in(c);
  ASSERT_TRUE(eventually([&] { return lease_state(c) == kLeaseGranted; }));
  const auto s = stats();
  const auto& d = s["daemon"];
  const uint64_t n_clients = s["clients"].size();
  EXPECT_EQ(n_clients, 3u);
  EXPECT_EQ(d["attached"].get<uint64_t>(), d["detached"].get<uint64_t>() + n_clients);
  EXPECT_EQ(d["connections"].get<uint64_t>(),
            d["attached"].get<uint64_t>() + d["queries"].get<uint64_t>() + d["silent_peers"].get<uint64_t>());
  EXPECT_EQ(d["lowered_priorities"], 1);
  uint64_t grants = 0, revocations = 0, leases_out = 0;
  for (const auto& client : s["clients"]) {
    const uint64_t own = client["grants"], taken = client["revocations"];
    grants += own;
    revocations += taken;
    EXPECT_LE(own - taken, 1u) << client;
    leases_out += client["state"] == "granted";
  }
  EXPECT_EQ(d["grants"], grants);  // nobody who had one has left
  EXPECT_EQ(d["revocations"], revocations);
  EXPECT_EQ(leases_out, 1u);
}

// A client that keeps asking through the deaths of daemons: each epoch is another, and in no epoch do two
// clients of one GPU hold a lease at once (a lease of a dead daemon ends by itself, and its client attaches
// anew).
TEST_F(ScaleTest, NoLeaseIsGrantedTwiceInOneEpoch) {
  std::set<uint64_t> epochs;
  for (int generation = 0; generation < 4; ++generation) {
    start_with("[policy]\nidle_grace_us = 100\nquantum_us = 1000\n");
    std::vector<ipc::Attachment> clients;
    for (int i = 0; i < 4; ++i) clients.push_back(on_gpu(0));
    for (const auto& a : clients) {
      EXPECT_EQ(a.daemon_epoch, clients[0].daemon_epoch);
      EXPECT_EQ(a.header().daemon_epoch, a.daemon_epoch);
    }
    EXPECT_TRUE(epochs.insert(clients[0].daemon_epoch).second) << "an epoch came twice";
    // Free-running until the second one came; from then on one at a time.
    ASSERT_TRUE(eventually([&] {
      for (const auto& a : clients)
        if (lease_state(a) == kLeaseFree) return false;
      return true;
    }));
    for (int round = 0; round < 20; ++round) {
      const auto& next = clients[size_t(round) % clients.size()];
      wait_in(next);
      ASSERT_TRUE(eventually([&] { return lease_state(next) == kLeaseGranted; }));
      ipc::store(next.usage()->waiting, 0u, std::memory_order_release);
      // The others' hold was published before this grant.
      for (const auto& other : clients) {
        if (&other == &next || lease_state(next) != kLeaseGranted) continue;
        EXPECT_EQ(lease_state(other), uint32_t(kLeaseHold));
      }
    }
    daemon_->signal(SIGKILL);
    daemon_->wait();
    for (const auto& a : clients) EXPECT_EQ(await_event(a).kind, ipc::PeerEvent::Kind::kLost);
  }
}

}  // namespace
}  // namespace tessera::test
