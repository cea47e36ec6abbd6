// Tests of engines that give memory back themselves (`[[park.engine]]`, scheduler_daemon/core/engines.cc). Clients and engines are
// the test's.
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

constexpr uint64_t kGiB = 1024 * base::kMiB;
constexpr uid_t kUid = 1000;
constexpr uint64_t kIdleS = 10;
const std::string kSleep = "http://127.0.0.1:8000/sleep", kWake = "http://127.0.0.1:8000/wake_up";

class Engines : public CoreTest {
 protected:
  void SetUp() override {
    Settings s = temporal();
    s.user = kUid;
    s.park_idle_ns = kIdleS * ms(1000);
    s.engines = {{"vllm-*", std::nullopt, kSleep, kWake}};
    host(s);
  }
  // A client that uses these bytes of a device of 64 GiB.
  Peer with(const char* name, uint64_t used_bytes, uid_t uid = kUid) {
    Peer p;
    p.connection = connect(pid_t(100 + last_), uid);
    say(p.connection, hello(0, name));
    p.region = ipc::map_shared(peers_.last(p.connection, abi::kWelcome)->fds[0].get(), abi::kRegionBytes,
                               ipc::Access::kReadWrite)
                   .value();
    say(p.connection, device(1));
    row(p).uuid[0] = 1;
    row(p).total_bytes = 64 * kGiB;
    row(p).used_bytes = used_bytes;
    row(p).ready = 1;
    return p;
  }
  base::Status park(const std::string& name, bool parked = true) {
    base::Status status = base::ok();
    for (uint32_t id : core_->find_clients(0, name)) status = core_->park_client(id, parked);
    run();
    return status;
  }
  base::Status unpark(const std::string& name) { return park(name, false); }
  // The latest request is answered.
  void answer(const std::string& failure = "") {
    core_->engine_answered(peers_.engine_requests.back().first, failure, now_ns_);
    run();
  }
  std::vector<std::string> urls() const {
    std::vector<std::string> all;
    for (const auto& [request, url] : peers_.engine_requests) all.push_back(url);
    return all;
  }
  stats::ParkRow told(const std::string& name) {
    for (const stats::ClientRow& client : core_->snapshot(now_ns_).clients)
      if (client.name == name) return client.park;
    return {};
  }
  void idle_for(uint64_t seconds) {
    for (uint64_t i = 0; i < 10 * seconds; ++i) run(ms(100));
  }
  void wait_for(const Peer& p, uint64_t bytes) {
    p.region.as<abi::Region>()->memory.totals.waits_since_ns = bytes == 0 ? 0 : now_ns_;
    row(p).waits_bytes = bytes;
    notify(p);
  }
  static abi::MemoryDevice& row(const Peer& p) { return p.region.as<abi::Region>()->memory.devices[0]; }
  static uint32_t orders(const Peer& p) { return p.region.as<abi::Region>()->park.order.number; }
  using Urls = std::vector<std::string>;
};

TEST_F(Engines, IsAskedToSleepAndToWake) {
  const Peer engine = with("vllm-a", 40 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  EXPECT_EQ(urls(), Urls{kSleep});
  EXPECT_EQ(told("vllm-a").state, "falling asleep");
  row(engine).used_bytes = 1 * kGiB;
  answer();
  EXPECT_EQ(told("vllm-a").state, kAsleep);
  EXPECT_EQ(told("vllm-a").bytes, 39 * kGiB);
  EXPECT_EQ(orders(engine), 0u);
  ASSERT_TRUE(unpark("vllm-a").ok());
  EXPECT_EQ(urls(), (Urls{kSleep, kWake}));
  EXPECT_EQ(told("vllm-a").state, "waking");
  answer();
  EXPECT_EQ(told("vllm-a").state, "");
  EXPECT_EQ(orders(engine), 0u);
}

TEST_F(Engines, OfSeveralProcessesIsAskedOnce) {
  const Peer first = with("vllm-a", 20 * kGiB), second = with("vllm-a", 20 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  EXPECT_EQ(urls(), Urls{kSleep});
}

TEST_F(Engines, ThatDoNotSleepAreParkedByACheckpoint) {
  const Peer engine = with("vllm-a", 40 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  answer("HTTP status 500");
  EXPECT_EQ(orders(engine), 1u);
  EXPECT_EQ(told("vllm-a").engine, "its engine did not sleep: HTTP status 500");
  EXPECT_EQ(told("vllm-a").state, "");
  ASSERT_TRUE(park("vllm-a").ok());  // once more
  EXPECT_EQ(urls(), (Urls{kSleep, kSleep}));
  EXPECT_EQ(told("vllm-a").engine, "");
  answer("HTTP status 500");
  engine.region.as<abi::Region>()->park.report.state = abi::kParkParked;
  ASSERT_TRUE(unpark("vllm-a").ok());  // it is ordered back, as it was ordered to leave
  EXPECT_EQ(orders(engine), 3u);
  EXPECT_EQ(told("vllm-a").engine, "");
  EXPECT_EQ(urls(), (Urls{kSleep, kSleep}));
}

TEST_F(Engines, OthersAreNotAsked) {
  const Peer other = with("trainer", 40 * kGiB), of_another_user = with("vllm-b", 1 * kGiB, kUid + 1);
  ASSERT_TRUE(park("trainer").ok());
  ASSERT_TRUE(park("vllm-b").ok());
  EXPECT_EQ(urls(), Urls{});
  EXPECT_EQ(orders(other), 1u);
  EXPECT_EQ(orders(of_another_user), 1u);
}

TEST_F(Engines, WakeWhenThereIsRoom) {
  const Peer engine = with("vllm-a", 40 * kGiB), other = with("trainer", 10 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  row(engine).used_bytes = 0;
  answer();
  row(other).used_bytes = 50 * kGiB;
  other.usage().launches = 1;
  ASSERT_TRUE(unpark("vllm-a").ok());
  EXPECT_EQ(told("vllm-a").state, "waits for memory");
  EXPECT_EQ(urls(), Urls{kSleep});
  row(other).used_bytes = 10 * kGiB;
  run(ms(10));
  EXPECT_EQ(urls(), (Urls{kSleep, kWake}));
  answer("no answer in time");
  EXPECT_EQ(told("vllm-a").state, kAsleep);
  EXPECT_EQ(told("vllm-a").engine, "its engine did not wake up: no answer in time");
  EXPECT_EQ(orders(engine), 0u);  // it is not to be parked
}

TEST_F(Engines, ThatWaitForRoomHaveIdleProgramsParked) {
  const Peer engine = with("vllm-a", 40 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  row(engine).used_bytes = 0;
  answer();
  const Peer idle = with("trainer", 50 * kGiB);
  idle_for(kIdleS + 2);
  EXPECT_EQ(orders(idle), 0u);
  ASSERT_TRUE(unpark("vllm-a").ok());
  EXPECT_EQ(orders(idle), 1u);
}

TEST_F(Engines, AreAskedWhenAnotherProgramNeedsTheirMemory) {
  const Peer engine = with("vllm-a", 40 * kGiB), needs = with("trainer", 1 * kGiB);
  idle_for(kIdleS + 2);
  wait_for(needs, 30 * kGiB);
  run();
  EXPECT_EQ(urls(), Urls{kSleep});
  EXPECT_EQ(orders(engine), 0u);
  // It keeps too much: the rest goes by a checkpoint.
  row(engine).used_bytes = 35 * kGiB;
  answer();
  idle_for(kIdleS + 2);
  EXPECT_EQ(urls(), Urls{kSleep});
  EXPECT_EQ(orders(engine), 1u);
}

TEST_F(Engines, ThatLaunchAreAwake) {
  const Peer engine = with("vllm-a", 40 * kGiB);
  engine.usage().launches = 7;
  ASSERT_TRUE(park("vllm-a").ok());
  answer();
  engine.usage().launches = 8;  // it was launched before, and is told late
  run();
  EXPECT_EQ(told("vllm-a").state, kAsleep);
  run(ms(1500));
  engine.usage().launches = 9;
  run();
  EXPECT_EQ(told("vllm-a").state, "");
}

TEST_F(Engines, ThatAreWantedMeanwhileWakeAtOnce) {
  const Peer engine = with("vllm-a", 40 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  ASSERT_TRUE(unpark("vllm-a").ok());
  EXPECT_EQ(urls(), Urls{kSleep});
  answer();
  EXPECT_EQ(urls(), (Urls{kSleep, kWake}));
  EXPECT_FALSE(park("vllm-a").ok());  // it is on its way
  answer();
  ASSERT_TRUE(park("vllm-a").ok());
  ASSERT_TRUE(unpark("vllm-a").ok());
  answer("connection refused");
  EXPECT_EQ(orders(engine), 0u);  // it need not leave any more
}

TEST_F(Engines, AnAnswerAfterTheEndOfItsProgramsIsForgotten) {
  Peer engine = with("vllm-a", 40 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  core_->disconnected(engine.connection);
  run();
  answer();
  engine = with("vllm-a", 40 * kGiB);
  EXPECT_EQ(told("vllm-a").state, "");
}

TEST_F(Engines, OfTheSameRuleStayAsTheyAreUnderANewConfiguration) {
  const Peer engine = with("vllm-a", 40 * kGiB);
  ASSERT_TRUE(park("vllm-a").ok());
  answer();
  Settings s = temporal();
  s.engines = {{"other", std::nullopt, kSleep, kWake}, {"vllm-*", std::nullopt, kSleep, kWake}};
  core_->reconfigure(s, now_ns_);
  run();
  EXPECT_EQ(told("vllm-a").state, kAsleep);
  s.engines.clear();
  core_->reconfigure(s, now_ns_);
  run();
  EXPECT_EQ(told("vllm-a").state, "");
}

}  // namespace
}  // namespace tessera::core
