// The daemon's heart: clients, GPUs and time become observations, decisions become lease words. No socket, no
// clock, no thread of its own: transport/ feeds it and carries out what it asks of Peers, tests do the same
// in process. One thread. Everything that a client wrote is untrusted here: counted, and at worst that client
// is disconnected.
//
//   Core       sessions: connections, greeting, seats, messages, what an operator changes and sees. Owns the rest:
//   Common     configuration, transport, time, counters, clients: what all parts use
//   Gpus       one Gpu for each: its clients and its policy, which decides; leases and gates
//   Gangs      clients that run together, on whatever GPUs
//   PeerPages  whose pulse pages and gate pages each client has
//   Parking    who leaves its GPU, and who comes back; Engines are those who do it themselves
//   Memory     limits of memory, and reservations
//   Placement  the GPU for a new program
//   Traces     who traces whom
//
// A part knows those that its constructor names, and no other.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler_daemon/core/common.h"
#include "scheduler_daemon/core/gangs.h"
#include "scheduler_daemon/core/gpu.h"
#include "scheduler_daemon/core/memory.h"
#include "scheduler_daemon/core/parking.h"
#include "scheduler_daemon/core/peer_pages.h"
#include "scheduler_daemon/core/placement.h"
#include "scheduler_daemon/core/traces.h"

namespace tessera::core {

// A change of one client while it runs; what is not set stays.
struct ClientChange {
  std::optional<uint32_t> priority;  // 0..7; may exceed what the client could claim: the operator decides
  std::optional<uint32_t> weight;    // 1..10000
  std::optional<uint64_t> slo_ns;    // 0 = none
  std::optional<bool> passthrough;   // forward everything, as if the client were not managed
};

class Core {
 public:
  Core(Settings settings, Peers& peers, uint64_t now_ns);
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Events. A connection may be closed inside any of them.
  void connected(Connection connection, const ipc::PeerIdentity& identity, uint64_t now_ns);
  void received(Connection connection, const ipc::Packet& packet, uint64_t now_ns);
  void malformed(Connection connection);  // the transport could not even read a packet
  void notified(Connection connection);   // its wake eventfd was written
  void writable(Connection connection);   // it has read, after a send that found it full
  void disconnected(Connection connection) { drop(connection); }  // EOF, error, or the process ended
  // `failure`: why it did not do it; empty: it did.
  void engine_answered(uint64_t request, const std::string& failure, uint64_t now_ns);
  void parker_answered(const parker::Answer& answer) { parking_.parker_answered(answer); }

  // Lets the policies decide where something happened or is due. Returns when to call again, 0 = only on
  // events.
  uint64_t run(uint64_t now_ns);

  // Operator (core/control.cc). Takes effect at once; run() must follow. Errors: kNotFound, kInvalid,
  // kUnsupported (a library too old to change between best-effort and protected). All or nothing.
  base::Status set_client(uint32_t client_id, const ClientChange& change);
  // An engine of its own is asked instead, if it has one. `gpu`: where it comes back, at once; all zero: where it was,
  // when it is needed. Errors: kNotFound, kUnavailable, kExhausted (that GPU has too little room).
  base::Status park_client(uint32_t client_id, bool parked, const Uuid& gpu = {});
  // Clients by pid or by exact name, in order of arrival; both empty/0: everyone.
  std::vector<uint32_t> find_clients(pid_t pid, const std::string& name) const;
  // New configuration for a running daemon: policy and its parameters, limits, hold and spin. Epoch, version
  // and socket stay. What a client was told when it attached (priority, guard time, on_daemon_loss) stays
  // with it.
  void reconfigure(const Settings& settings, uint64_t now_ns);

  // Leaves everyone free-running, as if the daemon had never been there.
  void release_all();

  const std::vector<MemoryLimit>& memory_limits() const { return common_.settings.memory_limits; }
  // Control groups whose memory limit the kernel keeps too, for `tessera ps`.
  void set_kept_by_kernel(std::set<std::string> cgroups) { memory_.set_kept_by_kernel(std::move(cgroups)); }
  void set_mps(stats::Mps state) { mps_ = std::move(state); }  // for `tessera ps` and `tessera run`

  stats::Snapshot snapshot(uint64_t now_ns) const;
  stats::DaemonCounters& counters() { return common_.counters; }

 private:
  struct Pending {  // connected, not greeted yet
    ipc::PeerIdentity identity;
    uint64_t connected_ns = 0;
  };

  bool keeps_a_seat(const ipc::PeerIdentity& who) const;
  bool has_seat_for(const ipc::PeerIdentity& who) const;
  void evict_silent(const ipc::PeerIdentity& newcomer);
  uint64_t close_silent(uint64_t now_ns);
  uint64_t close_deaf(uint64_t now_ns);
  void refuse(Connection, base::Code code, const std::string& text);
  void drop(Connection connection);  // forgets and closes
  void drop_unreachable();
  void forget(Connection connection);
  void leave_gpu(Client& client);
  void take_off_dying(uint64_t now_ns);  // clients that die while they have the turn or are busy (death.cc)
  std::string who(Connection connection) const;
  base::Result<Client*> find_client(uint32_t id) const;  // not one that is dying

  // First messages of a connection, then those of clients. False: malformed.
  void on_hello(Connection, const ipc::Packet&, uint64_t now_ns);
  void on_query(Connection, const ipc::Packet&, uint64_t now_ns);
  void on_trace(Connection, const ipc::Packet& packet);
  bool on_client_message(Client& client, const ipc::Packet& packet);
  bool on_pulse_mapped(Client& client);
  bool on_gate_ready(Client& client, const ipc::Packet& packet);
  bool on_device(Client& client, const ipc::Packet& packet);
  uint64_t gate_guard_ns() const;
  base::Status change_priority(Client& client, uint32_t priority);

  void consume_all_records(uint64_t now_ns);
  bool consume_records(Client& client, uint32_t most, uint64_t now_ns);  // false: impossible ring head

  Common common_;
  Traces traces_{common_};
  Parking parking_{common_};
  Memory memory_{common_, parking_};
  Placement placement_{common_, memory_};
  Gpus gpus_{common_};
  Gangs gangs_{common_, gpus_};
  PeerPages pages_{common_, gpus_, gangs_};
  uint32_t next_client_id_ = 1;
  stats::Mps mps_;
  std::map<Connection, Pending> pending_;  // the oldest first
};

}  // namespace tessera::core
