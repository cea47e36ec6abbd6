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
#include "daemon_process.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/pulse.h"
#include "ipc/channel/region_layout.h"

namespace tessera::test {
namespace {

using namespace ipc::abi;  // NOLINT: message names

base::ScopedFd raw_connection(const std::string& path) {
  base::ScopedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

// The daemon closed this connection. What it may have sent before is skipped.
bool is_closed(int fd) {
  char skipped[kMaxMessageBytes];
  ssize_t n;
  while ((n = recv(fd, skipped, sizeof skipped, MSG_DONTWAIT)) > 0) {
  }
  return n == 0 || errno == ECONNRESET;
}

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
    ipc::send_packet(fd.get(), &hello, sizeof hello, gifts, 3);
    EXPECT_TRUE(eventually([&] { return is_closed(fd.get()); }));
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
  auto processor_ns = [&] {
    uint64_t ns = 0;
    std::ifstream("/proc/" + std::to_string(daemon_->pid()) + "/schedstat") >> ns;
    return ns;
  };
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
  // 64 at most; who comes later is refused, and with the silent gone there is room again.
  EXPECT_TRUE(eventually([&] {
    size_t n = 0;
    for (auto& fd : silent) n += fd.valid() && is_closed(fd.get());
    return n >= 100 - 64;
  }));
  silent.clear();
  EXPECT_TRUE(eventually([&] { return ipc::attach(socket_, {}).ok(); }));
}

// ---- neighbours: what a hostile one does, while two others take turns

struct Hostile {
  std::string socket;
  std::mt19937 random{1};
  std::vector<base::ScopedFd> fds;
  std::optional<ipc::Attachment> a;
  uint64_t head = 0;
  pid_t child = -1;
  std::function<void()> meanwhile;  // lets the others go on

  ~Hostile() { end_child(); }
  void end_child() {
    if (child <= 0) return;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    child = -1;
  }
  bool attach(uint32_t priority) {
    auto attached = ipc::attach(socket, {.priority = priority, .name = "hostile"}, 10'000);
    if (!attached.ok()) return false;
    a.emplace(std::move(*attached));
    const uint8_t gpu[16] = {1};  // the others' one
    return ipc::announce_device(*a, gpu, 100, false).ok();
  }
  // Greets without the library: what the daemon gave comes as it was sent.
  ipc::Packet welcome(int fd, uint32_t priority) {
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    hello.priority = priority;
    send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    ipc::Packet packet;
    EXPECT_TRUE(eventually([&] { return ipc::receive_packet(fd, 3, &packet) == ipc::Receive::kPacket; }));
    return packet;
  }
};

void sends_wrong_lengths(Hostile& h) {
  for (unsigned type = 0; type < 20; ++type)
    for (int error : {-8, -1, 1, 8, 4000}) {
      alignas(8) unsigned char bytes[8192] = {};
      const size_t n = 16 + h.random() % 200;
      const auto header = ipc::make_header(MessageType(type), size_t(std::max(0, int(n) + error)));
      std::memcpy(bytes, &header, sizeof header);
      const bool greeted = type % 2 != 0 && h.attach(0);
      const base::ScopedFd raw = raw_connection(h.socket);
      send(greeted ? h.a->socket.get() : raw.get(), bytes, n, MSG_NOSIGNAL);
    }
}

void changes_priority_all_the_time(Hostile& h) {
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t priority = i * 5 % 8;
    if (!h.attach(priority)) continue;
    if (priority > 0) ipc::pulse_set_busy(*h.a->pulse(), 1, 0, 3, base::now_ns());
    ipc::notify(*h.a);
  }
  h.a.reset();
}

void fills_the_ring_for_ever(Hostile& h) {
  if (!h.a && h.attach(0)) h.head = 0;
  for (int i = 0; i < 200 && h.a; ++i) {
    Record record{};
    record.kind = uint32_t(h.random() % 4);
    record.duration_ns = h.random();
    h.a->ring()->slots[i % ipc::kRingSlots] = record;
    ipc::store(h.a->ring()->head, h.head += ipc::kRingSlots, std::memory_order_release);
    if (!ipc::notify(*h.a)) break;
  }
  if (h.a && ipc::next_event(*h.a).kind == ipc::PeerEvent::Kind::kLost) h.a.reset();  // comes back next time
}

void writes_old_words(Hostile& h) {
  if (!h.a && !h.attach(0)) return;
  const LeaseLine lease = *h.a->lease();
  for (int i = 0; i < 200; ++i) {
    auto& usage = *h.a->usage();
    h.a->region.as<RegionHeader>()->daemon_epoch -= 1;
    ipc::store(h.a->lease()->word, lease.word - uint32_t(h.random() % 64), std::memory_order_seq_cst);
    ipc::store(h.a->lease()->expires_ns, ~uint64_t(0), std::memory_order_seq_cst);
    ipc::store(usage.drained_word, lease.word - uint32_t(h.random() % 64), std::memory_order_seq_cst);
    ipc::store(usage.in_flight_ns, uint64_t(h.random()), std::memory_order_seq_cst);
    ipc::store(usage.completed_ns, uint64_t(h.random()) << 40, std::memory_order_seq_cst);
    ipc::store(usage.waiting, uint32_t(h.random() % 2), std::memory_order_seq_cst);
    ipc::store(usage.waiting_since_ns, uint64_t(h.random() % 2), std::memory_order_seq_cst);
    ipc::notify(*h.a);
  }
}

void closes_its_descriptors_anywhere(Hostile& h) {
  for (unsigned stage = 0; stage < 24; ++stage) {
    base::ScopedFd fd = raw_connection(h.socket);
    if (stage % 6 == 1) send(fd.get(), "TS", 2, MSG_NOSIGNAL);
    if (stage % 6 >= 2) {
      ipc::Packet given = h.welcome(fd.get(), stage % 2 * 5);
      if (stage % 6 >= 3) given.fds[stage % 3].reset();
      Device device{};
      device.header = ipc::make_header(kDevice, sizeof device);
      device.uuid[0] = 1;
      PulseMapped mapped{ipc::make_header(kPulseMapped, sizeof mapped)};
      if (stage % 6 >= 4) send(fd.get(), &device, sizeof device, MSG_NOSIGNAL);
      if (stage % 6 == 5) send(fd.get(), &mapped, sizeof mapped, MSG_NOSIGNAL);
      if (given.n_fds > 1 && given.fds[1].valid()) h.fds.push_back(std::move(given.fds[1]));  // its eventfd
    }
    if (stage >= 12) shutdown(fd.get(), stage % 2 ? SHUT_RD : SHUT_WR);
  }
  const uint64_t one = 1;
  for (const auto& fd : h.fds) (void)!write(fd.get(), &one, sizeof one);
  h.fds.clear();
}

void stops_while_it_has_the_turn(Hostile& h) {
  h.end_child();
  h.child = fork();
  if (h.child == 0) {
    if (!h.attach(0)) _exit(1);
    ipc::store(h.a->usage()->waiting, 1u, std::memory_order_seq_cst);
    ipc::notify(*h.a);
    while (lease_state(*h.a) != kLeaseGranted) poll(nullptr, 0, 1);
    ipc::store(h.a->usage()->in_flight_ns, uint64_t(1), std::memory_order_seq_cst);
    raise(SIGSTOP);
    _exit(0);
  }
  EXPECT_TRUE(eventually([&] {
    h.meanwhile();
    int status = 0;
    return waitpid(h.child, &status, WNOHANG | WUNTRACED) == h.child && WIFSTOPPED(status);
  }));
}

void connects_hundreds_of_times(Hostile& h) {
  for (int i = 0; i < 400; ++i) {
    const base::ScopedFd fd = raw_connection(h.socket);
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    if (i % 2 == 0) send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL);
  }
}

void sends_floods_of_descriptors(Hostile& h) {
  constexpr size_t kMost = 253;  // that the kernel passes at once (SCM_MAX_FD)
  for (int i = 0; i < 10; ++i) {
    const base::ScopedFd fd = raw_connection(h.socket);
    if (i % 2 != 0) (void)h.welcome(fd.get(), 0);
    const std::vector<int> gifts(kMost, i % 3 == 0 ? fd.get() : 0);  // also the connection itself
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    alignas(cmsghdr) unsigned char control[CMSG_SPACE(kMost * sizeof(int))] = {};
    iovec io{&hello, sizeof hello};
    msghdr m{};
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(kMost * sizeof(int));
    std::memcpy(CMSG_DATA(c), gifts.data(), kMost * sizeof(int));
    for (int j = 0; j < 4; ++j) sendmsg(fd.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

// The daemon would die of SIGBUS if a file that it maps could shrink.
void takes_the_memory_away(Hostile& h) {
  for (uint32_t priority : {0u, 5u}) {
    base::ScopedFd fd = raw_connection(h.socket);
    ipc::Packet given = h.welcome(fd.get(), priority);
    ASSERT_EQ(given.n_fds, priority == 0 ? 2u : 3u);
    for (unsigned i = 0; i < given.n_fds; i += 2) {  // region and pulse
      const int memory = given.fds[i].get();
      EXPECT_NE(ftruncate(memory, 0), 0);
      EXPECT_NE(ftruncate(memory, 1 << 20), 0);
      EXPECT_EQ(fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
      if (h.random() % 2 != 0) fcntl(memory, F_ADD_SEALS, F_SEAL_SEAL);  // the daemon cannot seal its pulse
    }
    PulseMapped mapped{ipc::make_header(kPulseMapped, sizeof mapped)};
    Device device{};
    device.header = ipc::make_header(kDevice, sizeof device);
    device.uuid[0] = 1;
    send(fd.get(), &device, sizeof device, MSG_NOSIGNAL);
    if (priority > 0) send(fd.get(), &mapped, sizeof mapped, MSG_NOSIGNAL);
    const uint64_t one = 1;
    (void)!write(given.fds[1].get(), &one, sizeof one);
    h.fds.push_back(std::move(fd));
  }
  if (h.fds.size() > 4) h.fds.clear();
}

struct Behaviour {
  const char* name;
  void (*act)(Hostile&);
};
constexpr Behaviour kBehaviours[] = {
    {"WrongLengths", sends_wrong_lengths},
    {"ChangingPriorities", changes_priority_all_the_time},
    {"AnEndlessRing", fills_the_ring_for_ever},
    {"OldEpochsAndWords", writes_old_words},
    {"DescriptorsClosedAnywhere", closes_its_descriptors_anywhere},
    {"StoppedWithTheTurn", stops_while_it_has_the_turn},
    {"ThousandsOfConnections", connects_hundreds_of_times},
    {"FloodsOfDescriptors", sends_floods_of_descriptors},
    {"MemoryTakenAway", takes_the_memory_away},
};

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
    // What is allocated once has been after the first round.
    if (round == 0) descriptors = open_descriptors(daemon_->pid());
    if (round == 0) kib = resident_kib(daemon_->pid());
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors(daemon_->pid()) <= descriptors; }));
  EXPECT_LE(resident_kib(daemon_->pid()), kib + 512);
}

INSTANTIATE_TEST_SUITE_P(Hostile, Neighbours, ::testing::ValuesIn(kBehaviours),
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
  std::vector<base::ScopedFd> many;
  for (int i = 0; i < 40; ++i) many.push_back(raw_connection(socket_));
  many.clear();
  // Until the daemon has noticed that there is room again, a question may fail: it needs a descriptor itself.
  EXPECT_TRUE(eventually([&] {
    auto text = ipc::query(socket_);
    return text.ok() && nlohmann::json::parse(*text)["daemon"]["accept_failures"] >= 1;
  }));
  auto a = on_gpu(7);
  EXPECT_TRUE(eventually([&] { return stats()["clients"].size() == 1; }));
}

}  // namespace
}  // namespace tessera::test
