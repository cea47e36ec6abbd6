// Clients leave their GPUs and come back (ipc/abi/park.h). The daemon orders and says when there is room; the client does it, or the
// parker process, or its engine. Owned by Core; one thread. What a client reports of itself is believed only as far as
// itself: room is what others have left, as they say.
#pragma once

#include <set>

#include "scheduler_daemon/core/common.h"
#include "scheduler_daemon/core/engines.h"

namespace tessera::core {

struct MemoryNeed;

class Parking {
 public:
  explicit Parking(Common& common) : common_(common), engines_(common) {}

  // As Core::park_client (park.cc).
  base::Status park(Client& client, bool parked, const Uuid& gpu);
  // Looks who needs room, who makes it and who has it. Returns when to look again; 0: only on events.
  uint64_t run(uint64_t now_ns);
  void configure() { engines_.configure(); }
  void engine_answered(uint64_t request, const std::string& failure);
  // A client's connection has ended. Its memory may be there for a while.
  void note_departed(const Client& client);
  // Whether a client with this pid was parked by this daemon before: one that moves attaches anew.
  bool was_parked_here(pid_t pid) const;
  // The number of the room that is kept on a device for a client that returns; 0: none.
  uint32_t kept_on(const Uuid& device) const;
  stats::ParkRow row(const Client& client) const;

  // Calls that the parker process makes for clients (parker.cc).
  void take_call(Client& client);
  void parker_answered(const parker::Answer& answer);

 private:
  // Orders and returns (park.cc).
  uint64_t grant_returns(uint64_t now_ns);
  std::map<Uuid, uint64_t> memory_in_use();
  uint64_t missing_on(const Uuid& device, const Client& moving);
  void order(Client& client, bool parked, const Uuid& gpu = {});
  void forget_ended();
  bool parked_by_parker(const Client& client) const;
  // True: no allocation on the device is under way, or whose it is does not answer.
  bool keep_allocations_out(const Uuid& device, uint64_t now_ns);
  void store_kept(const Uuid& device, uint32_t number);

  // Whom the policy parks (park_policy.cc).
  std::vector<MemoryNeed> memory_needs() const;
  uint64_t park_idle(uint64_t now_ns);
  std::vector<Client*> whom_to_park(const MemoryNeed& need, std::map<Uuid, uint64_t> taken,
                                    const std::set<const Client*>& before, uint64_t now_ns) const;
  bool is_leaving(const Client& client, uint64_t now_ns) const;

  struct Keep {  // of room on a device, for who comes back to it
    uint32_t number;
    uint64_t since_ns;
  };
  struct Departed {  // its connection has ended, and its process perhaps not: then its memory is still there
    pid_t pid;
    std::vector<std::pair<Uuid, uint64_t>> used;  // bytes
    bool parked_here = false;                     // it is away, by an order of this daemon
  };
  Common& common_;
  Engines engines_;
  std::vector<Departed> departed_;
  std::map<Uuid, Keep> keeps_;
  uint32_t n_keeps_ = 0;
  uint64_t n_calls_ = 0;  // of the parker process, for all clients, so far
};

}  // namespace tessera::core
