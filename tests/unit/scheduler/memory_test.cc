// Limits of memory: what the daemon grants of them, takes back, and says (ipc/abi/memory.h). The clients are the test's.
#include <unistd.h>

#include <random>

#include "ipc/abi/placement.h"
#include "tests/unit/scheduler/core_fixture.h"

namespace tessera::core {
namespace {

constexpr uint64_t kMiB = base::kMiB;

class Memory : public CoreTest {
 protected:
  void limits(std::vector<MemoryLimit> rules, uint64_t ahead_bytes = 0) {
    Settings s = temporal();
    s.memory_limits = std::move(rules);
    s.memory_ahead_bytes = ahead_bytes;
    host(s);
  }
  // A client that has used a device; its own limit and group, if any.
  Peer on_device(pid_t pid, uid_t uid = 1000, uint8_t gpu = 1, uint64_t limit_bytes = 0, uint64_t group = 0) {
    abi::Hello greeting = hello(0);
    greeting.memory_limit_bytes = limit_bytes;
    greeting.memory_group = group;
    const Connection c = connect(pid, uid);
    say(c, greeting);
    auto* welcome = peers_.last(c, abi::kWelcome);
    auto region = ipc::map_shared(welcome->fds[0].get(), abi::kRegionBytes, ipc::Access::kReadWrite);
    Peer peer{c, std::move(*region), {}};
    row(peer).uuid[0] = gpu;
    row(peer).total_bytes = kDevice;
    row(peer).ready = 1;
    return peer;
  }
  static constexpr uint64_t kDevice = 64 * 1024 * kMiB, kForPrograms = kDevice - kDevice / 64;
  static abi::MemoryDevice& row(const Peer& peer, uint32_t i = 0) {
    return peer.region.as<abi::Region>()->memory.devices[i];
  }
  // As interpose/memory does it. False: refused.
  bool take(const Peer& peer, uint64_t bytes) {
    if (row(peer).left_bytes < int64_t(bytes) && !ask(peer, bytes)) return false;
    if (row(peer).limit_bytes == 0) return true;
    row(peer).left_bytes -= int64_t(bytes);
    return true;
  }
  // `tessera run --memory-reserve`, as this process. Empty: done; else who has how much.
  std::string reserve(uint64_t group, uint64_t bytes, uint64_t gpu_bytes, uid_t uid = 1000, uint8_t gpu = 1) {
    abi::PlaceGpu on{{gpu}, gpu_bytes};
    abi::ReserveQuery question{};
    question.memory_bytes = bytes;
    question.memory_group = group;
    question.n_gpus = 1;
    ipc::Packet packet;
    packet.bytes = sizeof question + sizeof on;
    question.query = {ipc::make_header(abi::kQuery, packet.bytes), abi::kQueryReserve, 0};
    std::memcpy(packet.data, &question, sizeof question);
    std::memcpy(packet.data + sizeof question, &on, sizeof on);
    const Connection c = connect(getpid(), uid);
    core_->received(c, packet, now_ns_);
    const auto* reply = peers_.last(c, abi::kReply);
    EXPECT_NE(reply, nullptr);
    return reply == nullptr ? "nothing"
                            : std::string(reply->bytes.begin() + sizeof(abi::Reply), reply->bytes.end());
  }
  bool ask(const Peer& peer, uint64_t bytes) {
    row(peer).wanted_bytes = bytes;
    ++row(peer).question;
    core_->notified(peer.connection);
    EXPECT_EQ(row(peer).answered, row(peer).question);
    return row(peer).refused == 0;
  }
  static void give(const Peer& peer, uint64_t bytes) { row(peer).left_bytes += int64_t(bytes); }
};

TEST_F(Memory, WithoutALimitNothingIsRefused) {
  limits({});
  const Peer a = on_device(1);
  EXPECT_TRUE(take(a, 1000 * kMiB));
  EXPECT_EQ(row(a).limit_bytes, 0u);
}

TEST_F(Memory, ALimitIsOfAllWhomItNamesOnEachDevice) {
  limits({{.id = 500, .bytes = 100 * kMiB}});
  const Peer a = on_device(1, 500), b = on_device(2, 500), other = on_device(3, 501),
             elsewhere = on_device(4, 500, 2);
  EXPECT_TRUE(take(a, 60 * kMiB));
  EXPECT_FALSE(take(b, 60 * kMiB));
  EXPECT_TRUE(take(b, 40 * kMiB));
  EXPECT_FALSE(take(a, 1));
  EXPECT_TRUE(take(other, 500 * kMiB));
  EXPECT_TRUE(take(elsewhere, 100 * kMiB));
  EXPECT_TRUE(ask(a, 0));
  EXPECT_EQ(row(a).limit_bytes, 100 * kMiB);
  EXPECT_EQ(row(a).free_bytes, 0u);
  give(b, 40 * kMiB);
  EXPECT_TRUE(ask(a, 0));
  EXPECT_EQ(row(a).free_bytes, 40 * kMiB);
}

TEST_F(Memory, WhatOneDoesNotUseIsTakenBackWhenAnotherNeedsIt) {
  limits({{.id = 500, .bytes = 100 * kMiB}}, 64 * kMiB);
  const Peer a = on_device(1, 500), b = on_device(2, 500);
  EXPECT_TRUE(take(a, kMiB));
  EXPECT_EQ(row(a).left_bytes, int64_t(64 * kMiB)) << "granted ahead";
  EXPECT_TRUE(take(b, 99 * kMiB));
  EXPECT_EQ(row(a).left_bytes, 0);
  EXPECT_FALSE(take(a, 1));
}

// 13 and 14: what a process had is gone with it, and its successor begins at zero.
TEST_F(Memory, ADeadClientHasNothingAndItsSuccessorStartsAtZero) {
  limits({{.id = 500, .bytes = 100 * kMiB}}, 64 * kMiB);
  const Peer a = on_device(1, 500), b = on_device(2, 500);
  EXPECT_TRUE(take(a, 90 * kMiB));
  EXPECT_FALSE(take(b, 20 * kMiB));
  core_->disconnected(a.connection);
  EXPECT_TRUE(take(b, 20 * kMiB));
  const Peer next = on_device(1, 500);
  EXPECT_TRUE(take(next, 80 * kMiB));
  EXPECT_FALSE(take(next, 1));
}

// 13: its question was never told, or was answered to nobody; half of a change stands in its row.
TEST_F(Memory, AClientThatDiesInTheMiddleOfAQuestionHoldsUpNobody) {
  limits({{.id = 500, .bytes = 100 * kMiB}}, 16 * kMiB);
  const Peer neighbour = on_device(1, 500);
  EXPECT_TRUE(take(neighbour, 10 * kMiB));
  for (const bool told : {false, true}) {
    const Peer dies = on_device(2, 500);
    EXPECT_TRUE(take(dies, 30 * kMiB));
    row(dies).wanted_bytes = 40 * kMiB;
    ++row(dies).question;
    if (told) core_->notified(dies.connection);
    row(dies).left_bytes -= int64_t(35 * kMiB);  // taken, and not in its figures yet
    core_->disconnected(dies.connection);
    EXPECT_TRUE(take(neighbour, 90 * kMiB)) << told;
    EXPECT_FALSE(take(neighbour, 1));
    give(neighbour, 90 * kMiB);
  }
}

TEST_F(Memory, ProcessesOfOneRunShareItsLimitAndOthersDoNot) {
  limits({});
  const Peer a = on_device(1, 500, 1, 100 * kMiB, 7), b = on_device(2, 500, 1, 100 * kMiB, 7),
             alone = on_device(3, 500, 1, 100 * kMiB, 0), foreign = on_device(4, 501, 1, 100 * kMiB, 7);
  EXPECT_TRUE(take(a, 70 * kMiB));
  EXPECT_FALSE(take(b, 40 * kMiB));
  EXPECT_TRUE(take(alone, 100 * kMiB));
  EXPECT_TRUE(take(foreign, 100 * kMiB));
}

TEST_F(Memory, TheLeastOfTwoLimitsCounts) {
  limits({{.id = 500, .bytes = 50 * kMiB}});
  const Peer a = on_device(1, 500, 1, 100 * kMiB, 7), small = on_device(2, 500, 1, 10 * kMiB, 8);
  EXPECT_FALSE(take(a, 51 * kMiB));
  EXPECT_TRUE(take(a, 45 * kMiB));
  EXPECT_EQ(row(a).limit_bytes, 50 * kMiB);
  EXPECT_FALSE(take(small, 6 * kMiB));
  EXPECT_TRUE(take(small, 5 * kMiB));
}

TEST_F(Memory, ALimitThatComesWithAReloadIsToldAndWhatIsUsedCounts) {
  limits({});
  const Peer a = on_device(1, 500);
  EXPECT_TRUE(take(a, 0));
  Settings s = temporal();
  s.memory_limits = {{.id = 500, .bytes = 100 * kMiB}};
  s.memory_ahead_bytes = 0;
  core_->reconfigure(s, now_ns_);
  EXPECT_EQ(row(a).limit_bytes, 100 * kMiB);
  row(a).left_bytes = -int64_t(70 * kMiB);  // what it took before
  EXPECT_FALSE(take(a, 40 * kMiB));
  EXPECT_TRUE(take(a, 30 * kMiB));
}

TEST_F(Memory, WhatAClientSaysIsToldByDeviceAndOfItsOwnGpu) {
  limits({{.id = 500, .bytes = 100 * kMiB}});
  const Peer a = on_device(1, 500);
  say(a.connection, device(1));
  row(a).used_bytes = 5, row(a).peak_bytes = 6, row(a).imported_bytes = 7, row(a).refusals = 8;
  row(a, 1).uuid[0] = 2, row(a, 1).used_bytes = 9, row(a, 1).ready = 1;
  const auto client = core_->snapshot(now_ns_).clients[0];
  EXPECT_EQ(client.counters.memory_used_bytes, 5u);
  EXPECT_EQ(client.counters.memory_peak_bytes, 6u);
  EXPECT_EQ(client.counters.memory_imported_bytes, 7u);
  EXPECT_EQ(client.counters.memory_refusals, 8u);
  EXPECT_EQ(client.counters.memory_limit_bytes, 100 * kMiB);
  ASSERT_EQ(client.memory.size(), 2u);
  EXPECT_EQ(client.memory[1].used_bytes, 9u);
  EXPECT_NE(stats::to_json(core_->snapshot(now_ns_)).find("\"memory\":[{\"gpu\":"), std::string::npos);
}

// A client's words change nobody's limit but that of those who share it, and nothing overflows.
TEST_F(Memory, AHostileClientHarmsNobodyElse) {
  limits({{.id = 500, .bytes = 100 * kMiB}});
  const Peer hostile = on_device(1, 500), honest = on_device(2, 501);
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    abi::MemoryDevice& r = row(hostile, uint32_t(random() % abi::kMemoryDevices));
    for (uint64_t* word : {&r.used_bytes, &r.wanted_bytes, &r.limit_bytes, &r.free_bytes}) *word = random();
    r.left_bytes = int64_t(random());
    r.ready = uint32_t(random() % 3);
    r.uuid[0] = uint8_t(random() % 3);
    r.question = uint32_t(random());
    core_->notified(hostile.connection);
    EXPECT_TRUE(take(honest, 1000 * kMiB));
  }
  (void)core_->snapshot(now_ns_);
}

// 12: whoever asks for whatever in whatever order, all together never have more.
TEST_F(Memory, SixteenThatRaceNeverPassTheLimit) {
  constexpr uint64_t kLimit = 1024 * kMiB;
  limits({{.id = 500, .bytes = kLimit}}, 64 * kMiB);
  std::vector<Peer> peers;
  std::vector<uint64_t> has(16, 0);
  for (int i = 0; i < 16; ++i) peers.push_back(on_device(i + 1, 500));
  std::mt19937 random(5);
  uint64_t sum = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const size_t i = random() % peers.size();
    const uint64_t bytes = (1 + random() % 256) * kMiB;
    if (random() % 2 == 0) {
      if (!take(peers[i], bytes)) {
        EXPECT_GT(sum + bytes, kLimit) << "refused although there was room";
        ++refused;
        continue;
      }
      has[i] += bytes, sum += bytes;
    } else {
      const uint64_t back = std::min(has[i], bytes);
      give(peers[i], back);
      has[i] -= back, sum -= back;
    }
    ASSERT_LE(sum, kLimit) << round;
  }
  EXPECT_GT(refused, 100u);
}

TEST_F(Memory, WhatARunReservedNobodyElseHas) {
  limits({});
  const Peer before = on_device(1), service = on_device(2, 1000, 1, 0, 7);
  EXPECT_TRUE(take(before, 10 * kMiB));
  row(before).used_bytes = 10 * kMiB;  // as it publishes it
  EXPECT_EQ(reserve(7, kForPrograms - 100 * kMiB, kDevice), "");
  EXPECT_EQ(row(before).limit_bytes, 100 * kMiB) << "told at once";
  const Peer late = on_device(3), elsewhere = on_device(4, 1000, 2);
  EXPECT_FALSE(take(late, 91 * kMiB)) << "what was used before counts";
  EXPECT_TRUE(take(late, 90 * kMiB));
  row(before).left_bytes -= 10 * kMiB;  // it follows from now on
  EXPECT_FALSE(take(before, kMiB));
  EXPECT_TRUE(take(elsewhere, kDevice));
  EXPECT_TRUE(take(service, kForPrograms - 100 * kMiB));
  EXPECT_EQ(row(service).limit_bytes, 0u) << "nobody else reserved anything";
}

// 18.
TEST_F(Memory, AReservationThatDoesNotFitIsRefusedAndHoldersAreNamed) {
  limits({});
  const Peer holder = on_device(1);
  row(holder).used_bytes = 40 * 1024 * kMiB;
  EXPECT_EQ(reserve(7, 20 * 1024 * kMiB, kDevice), "");
  const std::string text = reserve(8, 4 * 1024 * kMiB, kDevice);
  EXPECT_NE(
      text.find("has 63.00 GiB for programs, 60.00 GiB are taken: test (pid 1) 40.00 GiB, the run of pid " +
                std::to_string(getpid()) + ", reserved, 20.00 GiB"),
      std::string::npos)
      << text;
  EXPECT_EQ(reserve(8, 3 * 1024 * kMiB, kDevice), "");
  EXPECT_EQ(reserve(9, kForPrograms, kDevice, 1000, 2), "") << "another GPU";
  EXPECT_NE(reserve(10, kMiB, 0, 1000, 3), "") << "nobody knows how much it has";
}

// A member's own limit is the reservation: what is free of it is what the run does not use, whatever neighbours do (17).
TEST_F(Memory, NeighboursDoNotChangeWhatIsFreeOfAReservation) {
  limits({}, 64 * kMiB);
  EXPECT_EQ(reserve(7, 1024 * kMiB, kDevice), "");
  const Peer service = on_device(1, 1000, 1, 1024 * kMiB, 7), neighbour = on_device(2);
  EXPECT_TRUE(take(service, 24 * kMiB));
  for (uint64_t n = 0; take(neighbour, 512 * kMiB); ++n) {
    ASSERT_LT(n, 1000u);
    EXPECT_TRUE(ask(service, 0));
    EXPECT_EQ(row(service).limit_bytes, 1024 * kMiB);
    EXPECT_EQ(row(service).free_bytes, 1000 * kMiB);
  }
  EXPECT_TRUE(take(service, 1000 * kMiB));
}

// 12, with reservations: sixteen programs, four of which have memory for themselves, never have more than there is, and those
// four always have what is theirs.
TEST_F(Memory, SixteenThatRaceLeaveReservationsAlone) {
  constexpr uint64_t kReserved = 8 * 1024 * kMiB;
  limits({}, 64 * kMiB);
  std::vector<Peer> peers;
  for (uint64_t i = 0; i < 16; ++i) {
    if (i < 4) {
      EXPECT_EQ(reserve(i + 1, kReserved, kDevice), "");
    }
    peers.push_back(on_device(pid_t(i + 1), 1000, 1, i < 4 ? kReserved : 0, i < 4 ? i + 1 : 0));
  }
  std::vector<uint64_t> has(16, 0);
  std::mt19937 random(5);
  uint64_t sum = 0, refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const size_t i = random() % peers.size();
    const uint64_t bytes = (1 + random() % 4096) * kMiB;
    if (random() % 2 == 0) {
      if (take(peers[i], bytes)) {
        has[i] += bytes, sum += bytes;
      } else {
        ++refused;
        if (i < 4) {
          EXPECT_GT(has[i] + bytes, kReserved) << round;
        }
      }
    } else {
      const uint64_t back = std::min(has[i], bytes);
      give(peers[i], back);
      has[i] -= back, sum -= back;
    }
    row(peers[i]).used_bytes = has[i];
    ASSERT_LE(sum, kForPrograms) << round;
  }
  EXPECT_GT(refused, 100u);
}

}  // namespace
}  // namespace tessera::core
