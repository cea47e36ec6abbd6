// One message per SOCK_SEQPACKET packet, descriptors by SCM_RIGHTS: bounded send and receive for both ends.
// Never blocks, never raises SIGPIPE. Everything received is untrusted: packet_as<T>() checks magic, length
// and type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/scoped_fd.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/region.h"

namespace tessera::ipc {

inline constexpr unsigned kMaxPacketFds = 3;

struct Packet {
  size_t bytes = 0;  // as received, <= kMaxMessageBytes
  unsigned n_fds = 0;
  base::ScopedFd fds[kMaxPacketFds];  // close-on-exec, >= 3
  alignas(8) unsigned char data[abi::kMaxMessageBytes];

  const abi::MessageHeader& header() const { return *reinterpret_cast<const abi::MessageHeader*>(data); }
};

enum class Receive {
  kPacket,
  kNothing,    // no packet now
  kClosed,     // the peer closed (or sent an empty packet, which nobody sends)
  kMalformed,  // too long, bad header, descriptors where none are allowed
};
// Descriptors beyond max_fds are never installed into this process. With max_fds 0 a packet that brings any
// is malformed and stays in the queue: to take it would be to close them (peer_socket.h).
Receive receive_packet(int socket, unsigned max_fds, Packet* out);

enum class Send { kSent, kFull, kClosed };
Send send_packet(int socket, const void* message, size_t bytes, const int* fds = nullptr, unsigned n_fds = 0);

inline bool versions_agree(uint16_t version, uint16_t compat_version) {
  return version >= abi::kCompatVersion && abi::kVersion >= compat_version;
}

inline abi::MessageHeader make_header(abi::MessageType type, size_t bytes) {
  return {abi::kMessageMagic, type, abi::kVersion, abi::kCompatVersion, 0, uint32_t(bytes)};
}

// The packet as message T, or nullptr if it is shorter. A longer one is a newer sender's: the tail is
// ignored.
template <class T>
inline const T* packet_as(const Packet& packet) {
  return packet.bytes >= sizeof(T) ? reinterpret_cast<const T*>(packet.data) : nullptr;
}

}  // namespace tessera::ipc
