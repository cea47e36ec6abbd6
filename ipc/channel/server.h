// The daemon's end of the channel: the listening socket, who is at the other end of a connection, the memory
// that a client gets. Used by scheduler_daemon/transport and by tests. One thread. Allocates, never throws.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/scoped_fd.h"
#include "ipc/abi/region.h"
#include "ipc/channel/map.h"
#include "ipc/channel/peer_socket.h"
#include "ipc/channel/region_layout.h"

namespace tessera::ipc {

class ListenSocket {  // owns the socket file and its lock; both are removed on destruction
 public:
  ListenSocket() = default;
  ListenSocket(ListenSocket&&) noexcept = default;
  ListenSocket& operator=(ListenSocket&&) noexcept = default;
  ~ListenSocket();
  int fd() const { return socket_.get(); }

 private:
  friend base::Result<ListenSocket> listen_on(const std::string& path, mode_t mode);
  std::string path_;
  base::ScopedFd lock_, socket_;
};

// Takes over a socket file that a dead daemon left (its lock is free and nobody answers); refuses if one is
// alive.
base::Result<ListenSocket> listen_on(const std::string& path, mode_t mode = 0600);

struct PeerIdentity {  // from the kernel: SO_PEERCRED
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::string cgroup;  // path of its control group (v2, or v1's systemd hierarchy); "" = not known
};

struct Peer {
  PeerSocket socket;  // non-blocking, close-on-exec
  // pidfd: readable when the process ended, although a forked child may hold the socket. Invalid if the
  // kernel cannot name the process (older than 6.5 and another pid namespace).
  base::ScopedFd process;
  PeerIdentity identity;
};

// kUnavailable: nobody waits. kExhausted, kPermission: out of descriptors, or refused by the kernel; try later.
base::Result<Peer> accept_peer(int listen_fd);

struct TraceMemory {  // of one client, while it is traced
  base::ScopedFd fd;
  Mapping memory;  // read-write: the daemon traces its leases
};
base::Result<TraceMemory> create_trace_memory(uint32_t client_id);

struct ClientMemory {                  // one client's memory in the daemon
  base::ScopedFd region_fd, pulse_fd;  // region_fd is closed once sent; pulse_fd is kept for the watchers
  base::ScopedFd wake;                 // eventfd, non-blocking
  Mapping region;                      // read-write
  Mapping pulse;                       // read-only here; only if priority > 0
};

struct RegionSettings {
  uint32_t on_daemon_loss = abi::kLossOpen;
  uint64_t guard_ns = 0;
  bool keeps_profiles = false;
  uint32_t answer_within_ms = kDefaultAnswerWithinMs;
};

base::Result<ClientMemory> create_client_memory(uint64_t daemon_epoch, uint32_t client_id, uint32_t priority,
                                                const RegionSettings& settings);

// Another pulse page for a client that becomes protected; the one it had, if any, is forgotten.
base::Status create_pulse(ClientMemory* memory, uint32_t client_id, uint32_t priority);

struct GateMemory {   // the gate on the device of one best-effort client
  base::ScopedFd fd;  // kept: protected clients that come later get it, too
  Mapping page;       // read-write
};
base::Result<GateMemory> create_gate(uint32_t client_id);

base::Result<base::ScopedFd> create_gang();  // its page, for all members

// After the owner's acknowledgement: from here on the page may be given to others.
base::Status seal_pulse(const ClientMemory& memory);

}  // namespace tessera::ipc
