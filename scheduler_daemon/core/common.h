// All parts of the core use this: the configuration, the transport, the time, the counters and the clients. One instance, which
// Core owns. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "scheduler_daemon/core/client.h"
#include "scheduler_daemon/core/peers.h"
#include "scheduler_daemon/core/settings.h"
#include "scheduler_daemon/stats/stats.h"

namespace tessera::core {

struct Common {
  Settings settings;
  Peers& peers;
  uint64_t started_ns;
  uint64_t now_ns;  // CLOCK_MONOTONIC, as the latest event or run() said
  stats::DaemonCounters counters{};
  std::map<Connection, std::unique_ptr<Client>> clients{};  // in order of arrival
  std::map<uid_t, OverdueDrains> overdue_of_users{};        // for the next clients of each
  uint64_t measure_until_ns = 0;                            // somebody looks at who uses the GPUs
  std::vector<Connection> unreachable{};  // a message to them failed; Core::drop_unreachable ends them

  // A message with a descriptor, unless that is -1.
  template <class Message>
  ipc::Send send(Connection to, const Message& message, int fd = -1) {
    return peers.send(to, &message, sizeof message, &fd, fd >= 0 ? 1 : 0);
  }
  // As send. Who does not take it becomes unreachable.
  template <class Message>
  void tell(Connection to, const Message& message, int fd = -1) {
    if (send(to, message, fd) != ipc::Send::kSent) unreachable.push_back(to);
  }
};

}  // namespace tessera::core
