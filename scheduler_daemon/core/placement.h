// On which GPU of the node a program should start: the question of `tessera run --place`, answered by policy::place from
// who is on each GPU. Whoever was told and has not come yet counts as if it were there, so that programs which start
// at once do not all get the same one. Owned by Core; one thread.
#pragma once

#include "scheduler_daemon/core/common.h"
#include "scheduler_daemon/core/memory.h"
#include "scheduler_daemon/policy/placement.h"

namespace tessera::core {

class Placement {
 public:
  Placement(const Common& common, const Memory& memory) : common_(common), memory_(memory) {}

  // Empty: the question makes no sense.
  std::optional<stats::Placement> answer(const ipc::PeerIdentity& asks, const ipc::Packet& packet);
  // Its place is taken by itself from now on.
  void arrived(const Client& client, OnGpu& on);

 private:
  void forget_late();

  struct Placed {  // told where to start, and not there yet
    ipc::PeerIdentity identity;
    Uuid uuid;
    policy::Program program;
    uint64_t since_ns = 0;
  };
  const Common& common_;
  const Memory& memory_;
  std::vector<Placed> placed_;  // the oldest first
};

}  // namespace tessera::core
