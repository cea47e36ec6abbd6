// The daemon's end of a connection whose other end sends descriptors. A socket pair has no listening socket
// that refuses them, so this is what kernels before 6.16 do everywhere. What waits here waits for an hour.
#include "ipc/channel/peer_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "ipc/channel/packet.h"

namespace tessera::ipc {
namespace {

// A TCP socket whose close waits for a reader that does not read.
class Lingering {
 public:
  Lingering() : listen_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(listen_.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listen_.get(), 1), 0);
    ::getsockname(listen_.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    char much[65536] = {};
    while (::send(fd, much, sizeof much, MSG_DONTWAIT) > 0) {
    }
    const linger hour{1, 3600};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
  }
  int fd = -1;

 private:
  base::ScopedFd listen_;
};

struct Pair {
  base::ScopedFd client;
  PeerSocket daemon;
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    client.reset(fds[0]);
    daemon = PeerSocket(base::ScopedFd(fds[1]));
  }
  void give_away(int fd) {
    EXPECT_EQ(send_packet(client.get(), "x", 1, &fd, 1), Send::kSent);
    ::close(fd);
  }
};

TEST(PeerSocket, DescriptorsInItsQueueDelayNobody) {
  Lingering lingering;
  {
    Pair pair;
    pair.give_away(lingering.fd);
    Packet packet;
    EXPECT_EQ(receive_packet(pair.daemon.get(), 0, &packet), Receive::kMalformed);
  }
  EXPECT_NE(::fcntl(lingering.fd, F_GETFD), 0);  // and none is left here
}

TEST(PeerSocket, NorBehindEmptyPackets) {
  Lingering lingering;
  Pair pair;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(send_packet(pair.client.get(), "", 0), Send::kSent);
  pair.give_away(lingering.fd);
  EXPECT_EQ(send_packet(pair.client.get(), "", 0), Send::kSent);
  pair.client.reset();
}

TEST(PeerSocket, NorWhereTheKernelRefusesThem) {
  Lingering lingering;
  Pair pair;
  refuse_descriptors(pair.daemon.get());
  const Send sent = send_packet(pair.client.get(), "x", 1, &lingering.fd, 1);
  EXPECT_TRUE(sent == Send::kSent || sent == Send::kClosed);  // by the kernel's age
  const linger no{0, 0};
  ::setsockopt(lingering.fd, SOL_SOCKET, SO_LINGER, &no, sizeof no);
  ::close(lingering.fd);
}

TEST(PeerSocket, WhatWasSentBeforeTheCloseArrives) {
  Pair pair;
  const auto header = make_header(abi::kPulseMapped, sizeof(abi::MessageHeader));
  EXPECT_EQ(send_packet(pair.client.get(), &header, sizeof header), Send::kSent);  // never read
  EXPECT_EQ(send_packet(pair.daemon.get(), &header, sizeof header), Send::kSent);
  pair.daemon = PeerSocket();
  Packet packet;
  EXPECT_EQ(receive_packet(pair.client.get(), 0, &packet), Receive::kPacket);
  EXPECT_EQ(receive_packet(pair.client.get(), 0, &packet), Receive::kClosed);
  EXPECT_EQ(send_packet(pair.client.get(), &header, sizeof header), Send::kClosed);
}

}  // namespace
}  // namespace tessera::ipc
