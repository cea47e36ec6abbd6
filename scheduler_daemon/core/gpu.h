// One GPU: its clients in order of arrival, and the policy that decides about them. One thread.
//
//   clients' memory -> ClientView -> policy -> leases -> gangs cut them down -> apply -> clients' memory
//
// Gpu knows nothing of connections and messages. A client on several GPUs is in each of them.
#pragma once

#include "base/clock.h"
#include "ipc/abi/region.h"
#include "scheduler_daemon/core/common.h"

namespace tessera::core {

class Gangs;
class Gpus;

class Gpu {
 public:
  Gpu(Common& common, Gpus& all, const Uuid& uuid, uint32_t sm_count);

  const Uuid& uuid() const { return uuid_; }
  uint32_t sm_count() const { return sm_count_; }
  const char* policy_name() const { return policy_->name(); }
  const std::vector<Client*>& clients() const { return clients_; }
  void add(Client& client) { clients_.push_back(&client); }
  void remove(const Client& client) { std::erase(clients_, &client); }

  void decide_soon() { dirty_ = true; }  // at the next run
  void look_by(uint64_t ns) { next_look_ns_ = base::earlier_due(next_look_ns_, ns); }
  // Decides, if something happened or is due.
  void run(Gangs& gangs, uint64_t now_ns);
  uint64_t next_ns() const { return base::earlier_due(next_look_ns_, death_look_ns_); }  // 0: only on events
  void replace_policy(uint64_t now_ns);  // as the settings have it

  bool overlapping() const;  // leases may overlap: nobody takes turns
  bool takes_turns() const;  // several best-effort clients do
  // Adds what ran here during the burst of that client: policy::Burst.
  void add_neighbours(const Client& client, uint64_t start_ns, uint64_t now_ns, policy::Burst* burst) const;
  // Chooses whose pulses are watched, and the bytes and pages of gates. PeerPages tells the clients.
  void assign_places();
  // Clients that others wait for and that die (death.cc). `looks` counts the questions to the transport.
  void find_dying(uint64_t now_ns, int* looks, std::vector<Connection>* dying);
  // Why the client's work waits in its thread, for people; null: it waits on the device (gates.cc).
  const char* no_device_gate(const Client& client) const;

 private:
  bool decide(Gangs& gangs, uint64_t now_ns);  // true: a revoked client had drained already, decide again
  bool settling(uint64_t now_ns);              // exclusive turns, new policy: true while somebody drains
  void measure_alone(Client& client, policy::Lease& lease, uint64_t now_ns);
  void note_overdue_drain(Client& client, uint64_t now_ns);
  void report_cutting(Client& client, uint64_t now_ns) const;
  void note_packing(uint64_t now_ns);
  void plan_death_look(uint64_t now_ns);
  void assign_gates();
  void open_gates(const Client& idle, uint64_t now_ns);
  void note_gates(uint64_t now_ns) const;

  Common& common_;
  Gpus& all_;
  Uuid uuid_;
  uint32_t sm_count_;
  std::unique_ptr<policy::Policy> policy_;
  std::vector<Client*> clients_;
  bool dirty_ = true;  // decide at the next run
  uint64_t next_look_ns_ = 0;
  uint64_t death_look_ns_ = 0;           // whom others wait for is looked at then; 0: nobody waits
  uint64_t packed_until_ns_ = 0;         // a packed lease was last out then
  uint64_t minimum_share_until_ns_ = 0;  // likewise one that may start whatever protected clients do
  uint64_t settle_since_ns_ = 0;         // a new policy took over then; 0: settled
};

// The GPUs that have clients.
class Gpus {
 public:
  explicit Gpus(Common& common) : common_(common) {}

  std::map<Uuid, Gpu>& all() { return gpus_; }
  const std::map<Uuid, Gpu>& all() const { return gpus_; }
  Gpu& at(const Uuid& uuid) { return gpus_.at(uuid); }
  std::vector<Gpu*> of(const Client& client);     // none: it is on no GPU, or dying
  void join(Client& client, uint32_t sm_count);   // where it came to last
  std::vector<Gpu*> leave(const Client& client);  // returns those that others are on
  // The client's record of a burst. The daemon knows which lower leases were at work, the record does not.
  void add_burst(Client& client, const ipc::abi::Record& record, uint64_t now_ns);
  std::string gate_of(const Client& client) const;  // for people (gates.cc)
  stats::ClientRow::Starved starved(const Client& client,
                                    uint64_t now_ns) const;  // with cause and remedy (starvation.cc)

 private:
  Common& common_;
  std::map<Uuid, Gpu> gpus_;
};

// Writes what a policy decided into the client's shared memory, unless the client knows it already (leases.cc).
void apply(Common& common, Client& client, const policy::Lease& lease, uint64_t now_ns,
           bool tell_busy = false);

// starvation.cc
void watch_starvation(OnGpu& on, const policy::ClientView& view, const policy::Lease& lease,
                      uint64_t services_busy_ns, uint64_t now_ns);

// gates.cc
void set_gate(Client& client);  // to what its lease says
void take_gate(
    Client& client);  // one that comes to a further GPU waits in its threads from now on, as gangs do

}  // namespace tessera::core
