// Tests of which program leaves its GPU for which (`[park]`, scheduler_daemon/core/park_policy.cc). The clients are the test's.
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

constexpr uint64_t kGiB = 1024 * base::kMiB;
constexpr uint64_t kIdleS = 10;

class ParkPolicy : public CoreTest {
 protected:
  void policy(uint64_t idle_s, uint32_t for_priority = 0) {
    Settings s = temporal();
    s.park_idle_ns = idle_s * base::ms(1000);
    s.park_for_priority = for_priority;
    host(s);
  }
  // Has `used_bytes` of a device of 64 GiB.
  Peer with(uint64_t used_bytes, uint32_t priority = 0, uint8_t gpu = 1) {
    Peer p = attach(pid_t(100 + last_), priority, gpu);
    row(p).uuid[0] = gpu;
    row(p).total_bytes = 64 * kGiB;
    row(p).used_bytes = used_bytes;
    row(p).ready = 1;
    return p;
  }
  void wait_for(const Peer& p, uint64_t bytes) {
    p.region.as<abi::Region>()->memory.totals.waits_since_ns = bytes == 0 ? 0 : now_ns_;
    row(p).waits_bytes = bytes;
    notify(p);
  }
  // Time goes by in the daemon's own steps.
  void idle_for(uint64_t seconds) {
    for (uint64_t i = 0; i < 10 * seconds; ++i) run(ms(100));
  }
  static abi::MemoryDevice& row(const Peer& p) { return p.region.as<abi::Region>()->memory.devices[0]; }
  static abi::ParkLines& park(const Peer& p) { return p.region.as<abi::Region>()->park; }
  static bool asked(const Peer& p) { return park(p).order.number != 0 && park(p).order.parked == 1; }
  static void refuse(const Peer& p) {
    park(p).report.refusal = abi::kNotParkable;
    park(p).report.answered = park(p).order.number;
  }
};

TEST_F(ParkPolicy, IsOffUnlessItIsAskedFor) {
  host();
  const Peer idle = with(40 * kGiB), needs = with(1 * kGiB);
  idle_for(100);
  wait_for(needs, 30 * kGiB);
  run();
  EXPECT_FALSE(asked(idle));
}

TEST_F(ParkPolicy, ParksWhoIsIdleAsSoonAsSomebodyWaits) {
  policy(kIdleS);
  const Peer idle = with(40 * kGiB), needs = with(1 * kGiB);
  idle_for(kIdleS + 2);
  EXPECT_FALSE(asked(idle));
  wait_for(needs, 30 * kGiB);
  run();
  EXPECT_TRUE(asked(idle));
}

TEST_F(ParkPolicy, LeavesAloneWhoWorks) {
  policy(kIdleS);
  const Peer works = with(40 * kGiB), needs = with(1 * kGiB);
  wait_for(needs, 30 * kGiB);
  for (int i = 0; i < 10; ++i) {
    works.usage().launches += 1;
    idle_for(kIdleS / 2);
  }
  EXPECT_FALSE(asked(works));
  idle_for(kIdleS + 2);
  EXPECT_TRUE(asked(works));
}

TEST_F(ParkPolicy, TakesTheLowestLevelFirstAndThenTheLongestIdle) {
  policy(kIdleS);
  const Peer high = with(20 * kGiB, 1), later = with(20 * kGiB), earlier = with(20 * kGiB);
  const Peer needs = with(1 * kGiB, 1);
  later.usage().launches = 1;
  idle_for(kIdleS + 2);
  later.usage().launches = 2;
  idle_for(kIdleS + 2);
  wait_for(needs, 10 * kGiB);
  run();
  EXPECT_TRUE(asked(earlier));
  EXPECT_FALSE(asked(later));
  EXPECT_FALSE(asked(high));
  row(needs).waits_bytes = 30 * kGiB;
  run();
  EXPECT_TRUE(asked(later));
  EXPECT_FALSE(asked(high));
}

TEST_F(ParkPolicy, ParksNobodyInVain) {
  policy(kIdleS);
  const Peer idle = with(10 * kGiB), high = with(40 * kGiB, 2), elsewhere = with(60 * kGiB, 0, 2);
  const Peer needs = with(1 * kGiB);
  idle_for(kIdleS + 2);
  wait_for(needs, 30 * kGiB);
  run();
  // Even without the idle one it would not fit, and who is of a higher level does not leave.
  for (const Peer* p : {&idle, &high, &elsewhere}) EXPECT_FALSE(asked(*p));
  row(needs).waits_bytes = 20 * kGiB;
  run();
  EXPECT_TRUE(asked(idle));
  EXPECT_FALSE(asked(elsewhere));
}

// The small one was idle for longer, but the large one has to leave anyway, and is enough.
TEST_F(ParkPolicy, TakesNoMoreThanIsNeeded) {
  policy(kIdleS);
  const Peer small = with(4 * kGiB), large = with(40 * kGiB), needs = with(1 * kGiB, 1);
  large.usage().launches = 1;
  idle_for(kIdleS + 2);
  large.usage().launches = 2;
  idle_for(kIdleS + 2);
  wait_for(needs, 30 * kGiB);
  run();
  EXPECT_TRUE(asked(large));
  EXPECT_FALSE(asked(small));
}

TEST_F(ParkPolicy, IsForTheLevelsThatItNames) {
  policy(kIdleS, 3);
  const Peer idle = with(40 * kGiB), low = with(1 * kGiB, 2), high = with(1 * kGiB, 3);
  idle_for(kIdleS + 2);
  wait_for(low, 30 * kGiB);
  run();
  EXPECT_FALSE(asked(idle));
  wait_for(high, 30 * kGiB);
  wait_for(low, 0);
  run();
  EXPECT_TRUE(asked(idle));
}

TEST_F(ParkPolicy, WhoRefusedIsAskedAgainAfterAnotherIdleTimeOnly) {
  policy(kIdleS);
  const Peer first = with(30 * kGiB), second = with(30 * kGiB), needs = with(1 * kGiB);
  idle_for(kIdleS + 2);
  wait_for(needs, 20 * kGiB);
  run();
  ASSERT_TRUE(asked(first));
  ASSERT_FALSE(asked(second));
  refuse(first);
  run(ms(10));
  EXPECT_EQ(park(first).order.number, 1u);
  ASSERT_TRUE(asked(second));
  refuse(second);
  idle_for(kIdleS);
  EXPECT_EQ(park(first).order.number, 1u);
  idle_for(2);
  EXPECT_EQ(park(first).order.number, 2u);
}

// 30: of two that wait for each other only one leaves.
TEST_F(ParkPolicy, WhoWaitedLongerStays) {
  policy(kIdleS);
  const Peer first = with(30 * kGiB), second = with(30 * kGiB);
  wait_for(first, 20 * kGiB);
  run(ms(1));
  wait_for(second, 20 * kGiB);
  idle_for(kIdleS + 2);
  EXPECT_TRUE(asked(second));
  park(second).report.answered = 1;
  park(second).report.since_ns = now_ns_;
  park(second).report.need = 1;
  park(second).report.state = abi::kParkWaits;  // it asks for its return at once
  run(ms(1));
  EXPECT_FALSE(asked(first));
  EXPECT_EQ(park(second).order.room_for, 0u);
}

TEST_F(ParkPolicy, WhoIsParkedAndNeededNeedsRoom) {
  policy(kIdleS);
  const Peer service = with(30 * kGiB, 1), trainer = with(50 * kGiB);
  park(service).report.state = abi::kParkParked;
  idle_for(kIdleS + 2);
  EXPECT_FALSE(asked(trainer));
  park(service).report.since_ns = now_ns_;
  park(service).report.need = 1;
  park(service).report.state = abi::kParkWaits;
  notify(service);
  run();
  EXPECT_TRUE(asked(trainer));
  EXPECT_EQ(park(service).order.room_for, 0u);
  park(trainer).report.answered = 1;
  park(trainer).report.state = abi::kParkParked;
  for (const Peer* p : {&service, &trainer}) {
    run(ms(10));
    row(*p).kept_seen = row(*p).kept;  // no allocation is under way
  }
  run(ms(10));
  EXPECT_EQ(park(service).order.room_for, 1u);
}

// Whoever has its place may be still on the way to the new daemon.
TEST_F(ParkPolicy, WhoWasParkedUnderAnEarlierDaemonWaitsUntilAllAreHere) {
  const Peer parked = with(30 * kGiB);
  park(parked).report.need = 1;
  park(parked).report.since_ns = now_ns_;
  park(parked).report.state = abi::kParkWaits;
  const auto room = [&] {
    for (int i = 0; i < 3; ++i) {
      run(ms(10));
      row(parked).kept_seen = row(parked).kept;
    }
    return park(parked).order.room_for == 1;
  };
  EXPECT_FALSE(room());
  run(ms(1000));
  const Peer late = with(40 * kGiB);
  run(ms(4000));
  EXPECT_FALSE(room());
  row(late).ready = 0;
  EXPECT_TRUE(room());
}

// A move: the client leaves as it is parked, and attaches anew with its memory counted on the other GPU. The daemon may see
// the new connection first.
TEST_F(ParkPolicy, WhoAttachesAnewAfterAMoveHasRoomAtOnce) {
  for (const bool old_leaves_first : {true, false}) {
    host();
    const auto attach_with_memory = [&](uint8_t gpu) {
      Peer p = attach(getpid(), 0, gpu);
      row(p).uuid[0] = gpu;
      row(p).total_bytes = 64 * kGiB;
      row(p).used_bytes = 30 * kGiB;
      row(p).ready = 1;
      return p;
    };
    const Peer before = attach_with_memory(1);
    const std::vector<uint32_t> ids = core_->find_clients(getpid(), "");
    ASSERT_EQ(ids.size(), 1u);
    ASSERT_TRUE(core_->park_client(ids[0], true, Uuid{2}).ok());
    park(before).report.state = abi::kParkParked;
    if (old_leaves_first) core_->disconnected(before.connection);
    const Peer after = attach_with_memory(2);
    if (!old_leaves_first) core_->disconnected(before.connection);
    park(after).report.need = 1;
    park(after).report.since_ns = now_ns_;
    park(after).report.state = abi::kParkWaits;
    for (int i = 0; i < 3; ++i) {
      run(ms(10));
      row(after).kept_seen = row(after).kept;
    }
    EXPECT_EQ(park(after).order.room_for, 1u);
  }
}

// By the books there is room, and the GPU says that there is none: nobody's allocations are kept out until it has some.
TEST_F(ParkPolicy, WhoFoundNoRoomIsNotSentBackInVain) {
  const Peer parked = with(30 * kGiB), other = with(20 * kGiB);
  run(ms(5000));
  park(parked).report.since_ns = now_ns_;
  park(parked).report.need = 1;
  park(parked).report.lacks_bytes = 1;
  park(parked).report.state = abi::kParkWaits;
  run(ms(10));
  EXPECT_EQ(row(other).kept, 0u);
  park(parked).report.lacks_bytes = 0;
  run(ms(10));
  EXPECT_NE(row(other).kept, 0u);
  for (const Peer* p : {&parked, &other}) row(*p).kept_seen = row(*p).kept;
  run(ms(10));
  EXPECT_EQ(park(parked).order.room_for, 1u);
}

// Room is given in the order in which it was asked for: who was parked for an allocation does not come back before it.
TEST_F(ParkPolicy, AnAllocationThatFitsHasItsRoomBeforeALaterReturn) {
  policy(kIdleS);
  const Peer parked = with(30 * kGiB), needs = with(30 * kGiB);
  idle_for(6);
  wait_for(needs, 20 * kGiB);
  park(parked).report.state = abi::kParkWaits;
  park(parked).report.since_ns = now_ns_ + 1;
  park(parked).report.need = 1;
  const auto room = [&] {
    for (int i = 0; i < 3; ++i) {
      run(ms(10));
      for (const Peer* p : {&parked, &needs}) row(*p).kept_seen = row(*p).kept;
    }
    return park(parked).order.room_for == 1;
  };
  EXPECT_FALSE(room());
  row(needs).waits_bytes = 40 * kGiB;  // it cannot be had: nobody waits behind that
  EXPECT_TRUE(room());
}

}  // namespace
}  // namespace tessera::core
