// Traces of clients: the daemon makes the memory, hands it to the client and to who traces, and writes the leases into it.
// It never reads it. Owned by Core; one thread.
#pragma once

#include "scheduler_daemon/core/common.h"

namespace tessera::core {

class Traces {
 public:
  explicit Traces(Common& common) : common_(common) {}

  bool is_full() const;
  bool has(Connection tracer) const { return tracers_.contains(tracer); }
  // `pid`: whom it traces; 0: all. Who may not be traced by it is left out.
  void begin(Connection tracer, const ipc::PeerIdentity& identity, uint32_t pid);
  void end(Connection tracer);
  void add(Client& client);  // it has come
  // A client has changed: its GPU is known, or it is gone.
  void tell(const Client& client, bool gone);

 private:
  struct Tracer {
    ipc::PeerIdentity identity;
    uint32_t pid = 0;  // 0: all
  };
  bool may_trace(const Tracer& tracer, const Client& client) const;
  void trace_for(Connection tracer, Client& client);

  Common& common_;
  std::map<Connection, Tracer> tracers_;
};

// Writes the client's lease into its trace.
void trace_lease(const Client& client, uint64_t now_ns);

}  // namespace tessera::core
