// Whatever arrives on the socket or stands in a region: the daemon lives, and the others notice nothing.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "daemon_process.h"
#include "ipc/channel/packet.h"

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
  auto open_in_daemon = [&] {
    int n = 0;
    std::string folder = "/proc/" + std::to_string(daemon_->pid()) + "/fd/";
    for (int fd = 0; fd < 512; ++fd)
      n += faccessat(AT_FDCWD, (folder + std::to_string(fd)).c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    return n;
  };
  ASSERT_TRUE(eventually([&] { return stats()["clients"].size() == 1; }));
  int before = open_in_daemon();
  for (int i = 0; i < 50; ++i) {
    base::ScopedFd fd = raw_connection(socket_);
    Hello hello{};
    hello.header = ipc::make_header(kHello, sizeof hello);
    int gifts[] = {0, 1, 2};
    ipc::send_packet(fd.get(), &hello, sizeof hello, gifts, 3);
    EXPECT_TRUE(eventually([&] { return is_closed(fd.get()); }));
  }
  EXPECT_TRUE(eventually([&] { return open_in_daemon() <= before; }));
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
