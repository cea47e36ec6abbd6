// Gangs in the simulator (docs/gangs.md): best-effort programs with one rank on each of several GPUs. The decision is the
// daemon's (policy/gang.h). A collective is a kernel of each rank that stands still until the last rank has begun it.
// Under time slices ranks are paced one by one, because turns of gangs are not modelled. Single thread; simulate_gpus()
// owns the gangs and the GPUs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "admission/rule.h"
#include "scheduler_daemon/policy/policy.h"
#include "simulator/simulation.h"

namespace tessera::simulator {

class World;

class Gang {
 public:
  void add(World* world, uint32_t client) { ranks_.push_back({world, client, {}}); }
  // The rank there left. All ranks of a gang leave at one time, so that counting begins anew.
  void leave(const World& world);

  // The policy there offers the rank this. Returns what the rank gets; ranks on other GPUs follow at once.
  policy::Lease share(const World& world, const policy::Lease& offered, uint64_t now_ns);
  // Adds the pulses of the protected programs on the other GPUs.
  void add_pulses(const World& besides, std::vector<admission::PulseView>* pulses) const;
  // A protected program there fell idle.
  void wake_watchers(const World& world, uint64_t now_ns);

  uint64_t begun() const { return begun_; }  // collectives that any rank has launched
  void begin(uint64_t number) { begun_ = std::max(begun_, number); }
  // Lets a collective go on that all ranks have begun.
  void meet(uint64_t now_ns);

 private:
  struct Rank {
    World* world = nullptr;
    uint32_t client = 0;  // of the world
    std::optional<policy::Lease> offered;
  };
  std::vector<Rank> ranks_;
  uint64_t begun_ = 0;
};

// Several GPUs of one node, with a policy object each. Clients keep their places in the result.
RunResult simulate_gpus(const RunInput& input);

}  // namespace tessera::simulator
