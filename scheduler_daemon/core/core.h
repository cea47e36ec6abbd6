// The daemon's heart: clients, GPUs and time become observations, decisions become lease words. No socket, no
// clock, no thread of its own: transport/ feeds it and carries out what it asks of Peers, tests do the same
// in process. One thread. Everything that a client wrote is untrusted here: counted, and at worst that client
// is disconnected.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/scoped_fd.h"
#include "base/units.h"
#include "ipc/channel/packet.h"
#include "ipc/channel/server.h"
#include "scheduler_daemon/core/client.h"
#include "scheduler_daemon/core/common.h"
#include "scheduler_daemon/core/gangs.h"
#include "scheduler_daemon/core/memory.h"
#include "scheduler_daemon/core/parking.h"
#include "scheduler_daemon/core/placement.h"
#include "scheduler_daemon/core/traces.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/stats/stats.h"

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
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Events. A connection may be closed inside any of them.
  void connected(Connection connection, const ipc::PeerIdentity& identity, uint64_t now_ns);
  void received(Connection connection, const ipc::Packet& packet, uint64_t now_ns);
  void malformed(Connection connection);     // the transport could not even read a packet
  void notified(Connection connection);      // its wake eventfd was written
  void has_room(Connection connection);      // it has read, after a send that found it full
  void disconnected(Connection connection);  // EOF, error, or the process ended
  // `failure`: why it did not do it; empty: it did.
  void engine_answered(uint64_t request, const std::string& failure, uint64_t now_ns);
  void parker_answered(const parker::Answer& answer) { parking_.parker_answered(answer); }

  // Lets the policies decide where something happened or is due. Returns when to call again, 0 = only on
  // events.
  uint64_t run(uint64_t now_ns);

  // Operator (core/control.cc). Takes effect at once; run() must follow. Errors: kNotFound, kInvalid,
  // kUnsupported (a library too old to change between best-effort and protected). All or nothing.
  base::Status set_client(uint32_t client_id, const ClientChange& change);
  // core/park.cc. An engine of its own is asked instead, if it has one. `gpu`: where it comes back, at once; all zero: where
  // it was, when it is needed. Errors: kNotFound,
  // kUnavailable, kExhausted (that GPU has too little room).
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
  struct Gpu {
    Uuid uuid{};
    uint32_t sm_count = 0;
    std::unique_ptr<policy::Policy> policy;
    std::vector<Client*> clients;  // in order of arrival
    bool dirty = true;             // decide at the next run
    uint64_t next_look_ns = 0;
    uint64_t death_look_ns = 0;           // whom others wait for is looked at then; 0: nobody waits
    uint64_t packed_until_ns = 0;         // a packed lease was last out then
    uint64_t minimum_share_until_ns = 0;  // likewise one that may start whatever protected clients do
    uint64_t settle_since_ns = 0;         // a new policy took over then; 0: settled
  };
  struct Fresh {  // connected, not greeted yet
    ipc::PeerIdentity identity;
    uint64_t connected_ns = 0;
  };

  bool keeps_a_seat(const ipc::PeerIdentity& who) const;
  bool has_seat_for(const ipc::PeerIdentity& who) const;
  void evict_silent(const ipc::PeerIdentity& newcomer);
  void on_hello(Connection, const ipc::Packet&, uint64_t now_ns);
  void on_query(Connection, const ipc::Packet&, uint64_t now_ns);
  bool on_client_message(Client& client, const ipc::Packet& packet);
  bool on_device(Client& client, const ipc::Packet& packet);

  // Gangs (gangs.cc).
  void join_gang(Client& client, const std::string& name);
  void send_gang_page(const Client& client);
  void leave_gang(Client& client);
  void note_gang(const Gang& gang);
  void note_gangs_of(const Gpu& gpu);
  static stats::ClientRow::Gang gang_row(const Client& client);
  std::vector<Gpu*> may_watch_on(const Client& watcher);
  void add_gang_wishes(const Gpu& gpu, const Client& client, policy::ClientView* view);
  bool may_take_turn(const Gpu& gpu, const Client& client);
  bool takes_turns(const Gpu& gpu) const;
  void share_leases(const Gpu& gpu, const std::vector<Client*>& managed, std::vector<policy::Lease>* leases);

  void on_trace(Connection, const ipc::Packet& packet);

  void refuse(Connection, base::Code code, const std::string& text);
  uint64_t gate_guard_ns() const;
  void drop(Connection connection);  // forgets and closes
  void forget(Connection connection);
  std::string who(Connection connection) const;
  void leave_gpu(Client& client);

  // Clients that die while they have the turn or are busy (death.cc).
  void take_off_dying(uint64_t now_ns);
  void plan_death_look(Gpu& gpu, uint64_t now_ns) const;

  // Pulse pages and who watches them (pulses.cc).
  bool on_pulse_mapped(Client& client);
  void share_pulses(Gpu& gpu);
  void bring_up_to_date(Client& watcher);
  ipc::Send tell_pulses(Client& watcher);
  std::vector<Gpu*> gpus_of(const Client& client);       // none: it is on no GPU, or dying
  base::Result<Client*> find_client(uint32_t id) const;  // not one that is dying
  base::Status change_priority(Client& client, uint32_t priority);
  void drop_unreachable();

  // Gates on the device: pages, bytes, who stores into them (gates.cc).
  bool on_gate_ready(Client& client, const ipc::Packet& packet);
  bool wants_gate(const Client& client) const;
  void assign_gates(Gpu& gpu);
  void take_gate(Client& client);
  ipc::Send tell_gates(Client& client);
  // Why its work waits in its thread, for people; null: it waits on the device.
  std::string gate_of(const Client& client) const;
  const char* no_device_gate(const Gpu& gpu, const Client& client) const;
  void open_gates(Gpu& gpu, const Client& idle, uint64_t now_ns);
  void note_gates(Gpu& gpu, uint64_t now_ns) const;
  static void set_gate(Client& client);

  void note_overdue_drain(Client& client, uint64_t now_ns);
  void report_cutting(const Gpu& gpu, Client& client, uint64_t now_ns);
  void note_packing(Gpu& gpu, uint64_t now_ns);
  bool settling(Gpu& gpu, uint64_t now_ns);  // exclusive turns, new policy: true while somebody drains
  void measure_alone(Gpu& gpu, Client& client, policy::Lease& lease, uint64_t now_ns);
  // Clients that starve, with cause and remedy (starvation.cc).
  static void watch_starvation(OnGpu& on, const policy::ClientView& view, const policy::Lease& lease,
                               uint64_t services_busy_ns, uint64_t now_ns);
  stats::ClientRow::Starved starved(const Client& client, uint64_t now_ns) const;
  bool decide(Gpu& gpu, uint64_t now_ns);  // true: a revoked client had drained already, decide again
  uint32_t reserved_sms(const Client& client, const policy::Lease& lease);
  void consume_all_records(uint64_t now_ns);
  void apply(Client& client, const policy::Lease& lease, uint64_t now_ns, bool tell_busy = false);
  // False: impossible ring head.
  bool consume_records(Client& client, uint32_t most, uint64_t now_ns);
  void on_burst(Client& client, const ipc::abi::Record& record, uint64_t now_ns);
  uint64_t close_silent(uint64_t now_ns);
  uint64_t close_deaf(uint64_t now_ns);
  bool overlapping(const Gpu& gpu) const;

  Common common_;
  Traces traces_{common_};
  Parking parking_{common_};
  Memory memory_{common_, parking_};
  Placement placement_{common_, memory_};
  uint32_t next_client_id_ = 1;
  uint64_t measure_until_ns_ = 0;  // somebody looks at who uses the GPUs
  stats::Mps mps_;
  std::map<Connection, Fresh> fresh_;  // the oldest first
  std::map<Uuid, Gpu> gpus_;
  std::map<GangKey, Gang> gangs_;
  std::map<uid_t, OverdueDrains> overdue_of_users_;
};

}  // namespace tessera::core
