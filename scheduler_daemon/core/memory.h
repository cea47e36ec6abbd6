// Decides who may have how much memory (ipc/abi/memory.h): limits (memory.cc), and memory that a run has for itself (reserve.cc). A limit
// is of one device, and of all clients that share it. It is kept by the sum of what they were granted, which is the
// daemon's own; what a client does not use of its grant is taken back when another one needs it. A client that is gone
// has no grant. Owned by Core; one thread.
#pragma once

#include <set>

#include "scheduler_daemon/core/common.h"
#include "scheduler_daemon/core/parking.h"

namespace tessera::core {

class Memory {
 public:
  Memory(Common& common, const Parking& parking) : common_(common), parking_(parking) {}

  void answer(Client& client);  // its questions, by device
  void tell_limits();           // to all, after a change of the configuration
  void add_limits(const Client& client, stats::ClientRow& out) const;
  // Control groups whose memory limit the kernel keeps too.
  void set_kept_by_kernel(std::set<std::string> cgroups) { kept_by_kernel_ = std::move(cgroups); }

  // `tessera run --memory-reserve`: an empty text, or who has how much instead. No value: malformed.
  std::optional<std::string> reserve(const ipc::PeerIdentity& asks, const ipc::Packet& packet);
  uint64_t reserved_and_unused(const Uuid& device) const;

 private:
  using Row = uint32_t;  // of a client's table
  struct Bound {
    uint64_t limit_bytes = 0;
    uint64_t ungranted_bytes = 0;                  // used of it, and granted to no sharer
    std::vector<std::pair<Client*, Row>> sharers;  // the client itself among them
  };
  struct Reserved {
    ipc::PeerIdentity owner;  // its process, or what it has become
    base::ScopedFd process;   // pidfd
    uint64_t group, bytes;
    std::vector<Uuid> devices;
    bool is_on(const Uuid& device) const;
    bool is_for(const Client& client) const;
  };
  std::vector<Bound> bounds_of(const Client& client, const ipc::abi::MemoryDevice& row) const;
  bool grant(Client& client, ipc::abi::MemoryDevice& row, std::vector<Bound>& bounds);
  uint64_t limit_of(const Client& client, const ipc::abi::MemoryDevice& row) const;  // the least; 0: none

  const Reserved* reservation_of(const Client& client, const Uuid& device) const;
  uint64_t memory_of(const Reserved& reserved, const Uuid& device) const;
  void add_rest(const Client& client, const ipc::abi::MemoryDevice& row, std::vector<Bound>* bounds) const;
  void forget_reserved();

  Common& common_;
  const Parking& parking_;
  std::set<std::string> kept_by_kernel_;
  std::vector<Reserved> reserved_;
};

}  // namespace tessera::core
