#include "ipc/channel/packet.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "ipc/channel/client.h"

namespace tessera::ipc {
namespace {

struct SocketPair {
  base::ScopedFd a, b;
  SocketPair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    a.reset(fds[0]);
    b.reset(fds[1]);
  }
};

int open_descriptors() {
  int n = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++n;
  closedir(folder);
  return n;
}

// This holds for an attachment, too, each descriptor by itself, and kinds of anonymous files are told apart.
TEST(Descriptor, OfAnAttachmentAreClosedAsFarAsTheyAreOurs) {
  for (const bool socket_lost : {false, true}) {
    Attachment a;
    a.socket = base::ScopedFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    a.wake = base::ScopedFd(::eventfd(0, EFD_CLOEXEC));
    const int socket = a.socket.get(), wake = a.wake.get();
    const base::ScopedFd hosts(::epoll_create1(EPOLL_CLOEXEC));
    const int lost = socket_lost ? socket : wake;
    ASSERT_EQ(::dup2(hosts.get(), lost), lost);
    EXPECT_FALSE(descriptors_intact(a));
    close_descriptors(a);
    EXPECT_GE(::fcntl(lost, F_GETFD), 0);  // the host's
    EXPECT_EQ(::fcntl(socket, F_GETFD) >= 0, socket_lost);
    ::close(socket);
    ::close(wake);
  }
}

// A host that closes all descriptors and uses the numbers again keeps its own.
TEST(Descriptor, OnlyWhatWasTakenIsClosed) {
  int reused;
  {
    base::ScopedFd ours(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(ours.intact());
    ::close(ours.get());
    EXPECT_FALSE(ours.intact());
    reused = ::dup2(STDERR_FILENO, ours.get());
    ASSERT_EQ(reused, ours.get());
    EXPECT_FALSE(ours.intact());
    ours = base::ScopedFd(::dup(STDERR_FILENO));
    EXPECT_TRUE(ours.intact());
    EXPECT_GE(::fcntl(reused, F_GETFD), 0);
    reused = ours.get();
  }
  EXPECT_LT(::fcntl(reused, F_GETFD), 0);  // it was ours
}

TEST(Packet, MessageAndDescriptorsArrive) {
  SocketPair p;
  abi::Query query{make_header(abi::kQuery, sizeof query), 9, 0};
  int fds[] = {p.a.get(), p.b.get()};
  ASSERT_EQ(send_packet(p.a.get(), &query, sizeof query, fds, 2), Send::kSent);
  Packet packet;
  ASSERT_EQ(receive_packet(p.b.get(), kMaxPacketFds, &packet), Receive::kPacket);
  ASSERT_NE(packet_as<abi::Query>(packet), nullptr);
  EXPECT_EQ(packet_as<abi::Query>(packet)->what, 9u);
  EXPECT_EQ(packet_as<abi::Hello>(packet), nullptr);  // longer than what came
  ASSERT_EQ(packet.n_fds, 2u);
  EXPECT_GE(packet.fds[0].get(), 3);
  EXPECT_EQ(fcntl(packet.fds[0].get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kNothing);
  EXPECT_EQ(packet.n_fds, 0u);  // an old packet's descriptors do not survive
}

TEST(Packet, GarbageIsMalformedAndNeverInstallsDescriptors) {
  SocketPair p;
  Packet packet;
  int before = open_descriptors();
  abi::Query good{make_header(abi::kQuery, sizeof good), 0, 0};

  std::vector<char> longest(abi::kMaxMessageBytes + 1, 'x');
  send(p.a.get(), longest.data(), longest.size(), 0);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kMalformed);
  send(p.a.get(), "short", 5, 0);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kMalformed);
  abi::Query bad = good;
  bad.header.magic ^= 1;
  send(p.a.get(), &bad, sizeof bad, 0);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kMalformed);
  bad = good;
  bad.header.bytes = 0xffffffff;
  send(p.a.get(), &bad, sizeof bad, 0);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kMalformed);
  int fds[] = {p.a.get(), p.a.get(), p.a.get()};
  send_packet(p.a.get(), &good, sizeof good, fds, 3);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kMalformed);  // none allowed
  EXPECT_EQ(packet.n_fds, 0u);
  EXPECT_EQ(receive_packet(p.b.get(), 1, &packet), Receive::kMalformed);  // still there, more than allowed
  for (base::ScopedFd& fd : packet.fds) fd.reset();
  EXPECT_EQ(open_descriptors(), before);

  send_packet(p.a.get(), &good, sizeof good);
  EXPECT_EQ(receive_packet(p.b.get(), 0, &packet), Receive::kPacket);  // and it goes on
}

TEST(Packet, AFullOrClosedPeerIsReportedAndRaisesNoSignal) {
  SocketPair p;
  abi::Query query{make_header(abi::kQuery, sizeof query), 0, 0};
  Send last = Send::kSent;
  for (int i = 0; i < 100000 && last == Send::kSent; ++i) last = send_packet(p.a.get(), &query, sizeof query);
  EXPECT_EQ(last, Send::kFull);
  p.b.reset();
  EXPECT_EQ(send_packet(p.a.get(), &query, sizeof query), Send::kClosed);
  Packet packet;
  EXPECT_EQ(receive_packet(p.a.get(), 0, &packet), Receive::kClosed);
}

}  // namespace
}  // namespace tessera::ipc
