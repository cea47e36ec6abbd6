// Whatever arrives on the socket or stands in a region: the daemon lives, and the others notice nothing.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>

#include "base/clock.h"
#include "daemon_test.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/pulse.h"
#include "ipc/channel/socket_path.h"
#include "tests/support/hostile.h"

namespace tessera::test {
namespace {

using namespace ipc::abi;  // NOLINT: message names

class HostileTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    start();
    bystander_ = on_gpu(0);
  }
  void TearDown() override {
    EXPECT_FALSE(daemon_->exited()) << daemon_->errors();
    EXPECT_EQ(ipc::next_event(bystander_).kind, ipc::PeerEvent::Kind::kNothing);
    auto late = on_gpu(5);  // and it still serves
    EXPECT_EQ(await_event(bystander_).kind, ipc::PeerEvent::Kind::kPeerPulse);
    DaemonTest::TearDown();
  }
  // Sends raw bytes as the first packet and expects to be thrown out.
  void expect_thrown_out(const void* bytes, size_t n, const char* what) {
    base::ScopedFd fd = raw_connection(socket_);
    ASSERT_TRUE(fd.valid());
    send(fd.get(), bytes, n, MSG_NOSIGNAL);
    EXPECT_TRUE(eventually([&] { return is_closed(fd.get()); })) << what;
  }
  ipc::Attachment bystander_;
};

TEST_F(HostileTest, GarbageOfAllKinds) {
  uint64_t before = counter("malformed");
  Hello hello{};
  hello.header = ipc::make_header(kHello, sizeof hello);
  expect_thrown_out("x", 1, "one byte");
  std::vector<char> longest(100'000, 'A');
  expect_thrown_out(longest.data(), longest.size(), "longer than any message");
  Hello bad = hello;
  bad.header.bytes = 0xffffffff;
  expect_thrown_out(&bad, sizeof bad, "huge length");
  bad = hello;
  bad.header.bytes = 4;
  expect_thrown_out(&bad, sizeof bad, "short length");
  bad = hello;
  bad.header.magic = 0;
  expect_thrown_out(&bad, sizeof bad, "magic");
  bad = hello;
  bad.header.type = 4711;
  expect_thrown_out(&bad, sizeof bad, "unknown type");
  bad = hello;
  bad.header.type = kWelcome;
  expect_thrown_out(&bad, sizeof bad, "a message that only daemons send");
  bad = hello;
  bad.priority = 8;
  expect_thrown_out(&bad, sizeof bad, "priority");
  EXPECT_GE(counter("malformed"), before + 8);

  bad = hello;
  bad.header.version = bad.header.compat_version = 999;
  expect_thrown_out(&bad, sizeof bad, "version");
  EXPECT_GE(counter("refused"), 1u);
  expect_thrown_out("", 0, "empty packet");
}

TEST_F(HostileTest, RandomPackets) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    base::ScopedFd fd = raw_connection(socket_);
    ASSERT_TRUE(fd.valid());
    for (int j = 0; j < 4; ++j) {
      alignas(8) unsigned char bytes[256];
      for (unsigned char& b : bytes) b = (unsigned char)(random());
      size_t n = 16 + random() % 240;
      auto header = ipc::make_header(MessageType(random() % 20), n);
      if (random() % 8 != 0) std::memcpy(bytes, &header, sizeof header);
      send(fd.get(), bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  EXPECT_TRUE(eventually([&] { return stats()["clients"].size() == 1; }));
}

TEST_F(HostileTest, DescriptorsFromAClientAreNotTakenIn) {
  ASSERT_TRUE(eventually([&] { return stats()["clients"].size() == 1; }));
  const size_t before = open_descriptors(daemon_->pid());
  for (int i = 0; i < 50; ++i) {
    base::ScopedFd fd = raw_connection(socket_);
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    int gifts[] = {0, 1, 2};
    const bool refused = ipc::send_packet(fd.get(), &hello, sizeof hello, gifts, 3) != ipc::Send::kSent;
    EXPECT_TRUE(refused || eventually([&] { return is_closed(fd.get()); }));  // Linux 6.16: by the kernel
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors(daemon_->pid()) <= before; }));
}

TEST_F(HostileTest, ScribblingOverTheWholeRegion) {
  auto hostile = on_gpu(0);
  ASSERT_TRUE(eventually([&] { return lease_state(hostile) == kLeaseHold; }));
  std::memset(hostile.region.data(), 0xff, hostile.region.bytes());
  ipc::notify(hostile);
  EXPECT_EQ(await_event(hostile).kind, ipc::PeerEvent::Kind::kLost);
  EXPECT_TRUE(counts("bad_rings", 1));
  EXPECT_TRUE(eventually([&] { return lease_state(bystander_) == kLeaseFree; }));
}

TEST_F(HostileTest, NotificationsWithoutEndLeaveRoomForOthers) {
  auto hostile = on_gpu(0);
  for (int i = 0; i < 20'000; ++i) ipc::notify(hostile);
  EXPECT_EQ(stats()["clients"].size(), 2u);
}

TEST_F(HostileTest, AnEventfdThatOutlivesItsConnectionIsNotWatched) {
  auto gone = on_gpu(0);
  gone.socket.reset();
  ASSERT_TRUE(counts("detached", 1));
  uint64_t one = 1;
  ASSERT_EQ(write(gone.wake.get(), &one, sizeof one), ssize_t(sizeof one));
  uint64_t before = processor_ns();
  poll(nullptr, 0, 300);  // a daemon that still watched it would do nothing else now
  EXPECT_LT(processor_ns() - before, 100'000'000u);
}

TEST_F(HostileTest, ConnectionsThatSayNothingAreBounded) {
  std::vector<base::ScopedFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(raw_connection(socket_));
  // 64 at most; who comes later takes the place of the oldest.
  EXPECT_TRUE(eventually([&] {
    size_t n = 0;
    for (auto& fd : silent) n += fd.valid() && is_closed(fd.get());
    return n >= 100 - 64;
  }));
  EXPECT_FALSE(is_closed(silent.back().get()));
  EXPECT_TRUE(eventually([&] { return ipc::attach(socket_, {}).ok(); }));
}

// Also if nothing happens any more.
TEST_F(HostileTest, LinesThatWereLeftOutAreCountedInTheLog) {
  for (int i = 0; i < 200; ++i) expect_thrown_out("x", 1, "one byte");
  EXPECT_TRUE(
      eventually([&] { return daemon_->errors().find("lines suppressed") != std::string::npos; }, 20'000))
      << daemon_->errors();
}

// ---- neighbours: what a hostile one does, while two others take turns

class Neighbours : public DaemonTest, public ::testing::WithParamInterface<Behaviour> {};

TEST_P(Neighbours, OfAHostileClientAreServedAndTheDaemonDoesNotGrow) {
  std::ofstream(folder_ + "/c.toml") << "[policy]\nquantum_us = 1000\nmax_hold_ms = 10\ndrain_timeout_ms = "
                                        "10\nlease_ms = 50\nidle_grace_us = 500\n";
  start({"--config", folder_ + "/c.toml", "--log-level", "error"});
  Worker one{on_gpu(0)}, two{on_gpu(0)};
  const auto both = [&] {
    for (Worker* w : {&one, &two}) {
      w->step();
      // Pulses come and go; it stays attached.
      EXPECT_NE(ipc::next_event(w->a).kind, ipc::PeerEvent::Kind::kLost);
    }
  };
  const auto both_have_turns = [&](uint64_t more) {
    const uint64_t first = one.turns + more, second = two.turns + more;
    return eventually([&] {
      both();
      return one.turns >= first && two.turns >= second;
    });
  };
  ASSERT_TRUE(both_have_turns(2));
  size_t descriptors = 0;
  uint64_t kib = 0;
  for (int round = 0; round < 3; ++round) {
    {
      Hostile hostile;
      hostile.socket = socket_;
      hostile.found = [](const std::string& what) { ADD_FAILURE() << what; };
      hostile.meanwhile = both;
      for (int i = 0; i < 4; ++i) {
        GetParam().act(hostile);
        ASSERT_FALSE(daemon_->exited()) << daemon_->errors();
        ASSERT_TRUE(both_have_turns(1)) << "after " << i << " times";
      }
    }
    ASSERT_TRUE(eventually([&] {
      both();
      const auto s = stats();
      return s["clients"].size() == 2 && s["gpus"].size() == 1;
    }));
    ASSERT_TRUE(both_have_turns(2));
    // Objects that are allocated once exist after the first round.
    if (round == 0) descriptors = open_descriptors(daemon_->pid());
    if (round == 0) kib = resident_kib(daemon_->pid());
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors(daemon_->pid()) <= descriptors; }));
  EXPECT_LE(resident_kib(daemon_->pid()), kib + 512);
}

INSTANTIATE_TEST_SUITE_P(Hostile, Neighbours, ::testing::ValuesIn(behaviours().begin(), behaviours().end()),
                         [](const auto& row) { return std::string(row.param.name); });

TEST_F(DaemonTest, OutOfDescriptorsTheDaemonWaitsAndGoesOn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan's check of virtual calls opens a pipe and takes its failure for a bad object";
#endif
  start();
  rlimit old;
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, nullptr, &old), 0);
  rlimit few{24, old.rlim_max};
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  // Until the daemon has noticed that there is room again, a question may fail: it needs a descriptor itself.
  const auto noticed = [&] {
    auto text = ipc::query(socket_);
    return text.ok() && nlohmann::json::parse(*text)["daemon"]["accept_failures"] >= 1;
  };
  EXPECT_TRUE(eventually([&] {
    std::vector<base::ScopedFd> many;
    for (int i = 0; i < 40; ++i) many.push_back(raw_connection(socket_));
    EXPECT_TRUE(
        eventually([&] { return open_descriptors(daemon_->pid()) > few.rlim_cur; }));  // with . and ..
    many.clear();
    return eventually(noticed, 1000);  // again, if they went before the daemon asked for one more
  }));
  auto a = on_gpu(7);
  EXPECT_TRUE(eventually([&] { return stats()["clients"].size() == 1; }));
}

TEST_F(DaemonTest, AnOperatorWaitsForADescriptorAndTheDaemonSleeps) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan's check of virtual calls opens a pipe and takes its failure for a bad object";
#endif
  start();
  rlimit old;
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, nullptr, &old), 0);
  const std::string descriptors = "/proc/" + std::to_string(daemon_->pid()) + "/fd/";
  rlimit none{0, old.rlim_max};  // the first number that is free
  while (access((descriptors + std::to_string(none.rlim_cur)).c_str(), F_OK) == 0) ++none.rlim_cur;
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  base::ScopedFd waits = raw_connection(ipc::control_socket_path(socket_));
  ASSERT_TRUE(waits.valid());
  ASSERT_TRUE(
      eventually([&] { return daemon_->errors().find("no connection can be taken") != std::string::npos; }));
  const uint64_t before = processor_ns();
  poll(nullptr, 0, 500);  // a daemon that tried without end would do nothing else now
  EXPECT_LT(processor_ns() - before, 150'000'000u);
  ASSERT_EQ(prlimit(daemon_->pid(), RLIMIT_NOFILE, &old, nullptr), 0);
  ASSERT_EQ(send(waits.get(), "x", 1, MSG_NOSIGNAL), 1);
  EXPECT_TRUE(eventually([&] { return is_closed(waits.get()); }));
}

}  // namespace
}  // namespace tessera::test
