#include "ipc/channel/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "ipc/channel/memfd.h"

namespace tessera::ipc {
namespace {

void take_descriptors(msghdr& m, Packet* out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int raw;
      std::memcpy(&raw, CMSG_DATA(c) + i * sizeof(int), sizeof raw);
      base::ScopedFd fd(raw);  // closed here if there is no room
      if (out->n_fds < kMaxPacketFds) out->fds[out->n_fds++] = above_standard_streams(std::move(fd));
    }
  }
}

bool next_brings_descriptors(int socket) {
  msghdr m{};
  ssize_t n;
  do n = ::recvmsg(socket, &m, MSG_PEEK | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n >= 0 && (m.msg_flags & MSG_CTRUNC) != 0;
}

}  // namespace

Receive receive_packet(int socket, unsigned max_fds, Packet* out) {
  out->bytes = 0;
  out->n_fds = 0;
  for (base::ScopedFd& fd : out->fds) fd.reset();
  if (max_fds == 0 && next_brings_descriptors(socket)) return Receive::kMalformed;
  if (max_fds > kMaxPacketFds) max_fds = kMaxPacketFds;
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))];
  iovec io{out->data, sizeof out->data};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = max_fds != 0 ? control : nullptr;  // no room: the kernel drops them and says MSG_CTRUNC
  m.msg_controllen = max_fds != 0 ? CMSG_LEN(max_fds * sizeof(int)) : 0;
  ssize_t n;
  do n = ::recvmsg(socket, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Receive::kNothing : Receive::kClosed;
  take_descriptors(m, out);
  if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return Receive::kMalformed;
  if (n == 0) return Receive::kClosed;
  out->bytes = size_t(n);
  const abi::MessageHeader* h = packet_as<abi::MessageHeader>(*out);
  if (h == nullptr || h->magic != abi::kMessageMagic || h->bytes != out->bytes) return Receive::kMalformed;
  return Receive::kPacket;
}

Send send_packet(int socket, const void* message, size_t bytes, const int* fds, unsigned n_fds) {
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))] = {};
  iovec io{const_cast<void*>(message), bytes};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  if (n_fds != 0 && n_fds <= kMaxPacketFds) {
    m.msg_control = control;
    m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
  }
  ssize_t n;
  do n = ::sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return Send::kSent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS ? Send::kFull
                                                                                              : Send::kClosed;
}

}  // namespace tessera::ipc
