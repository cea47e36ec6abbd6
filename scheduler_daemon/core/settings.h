// The daemon's configuration, as its core uses it; scheduler_daemon/config reads it. Plain data.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "ipc/abi/messages.h"
#include "ipc/abi/region.h"
#include "ipc/channel/region_layout.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::learning {
class Store;
}

namespace tessera::core {

struct PriorityLimit {  // most that a claim may get
  bool by_gid = false;
  uint32_t id = 0;  // uid or gid
  uint32_t max_priority = 0;
  std::string
      cgroup;  // not empty: by control group instead, a path or fnmatch(3) pattern, with what is below
};

struct MemoryLimit {  // most of each device that all whom it names have together
  bool by_gid = false;
  uint32_t id = 0;  // uid or gid
  uint64_t bytes = 0;
  std::string cgroup;  // as in PriorityLimit
};

// The maker of the driver's checkpoint calls (docs/memory.md).
enum class ParkBy { kAuto, kClient, kParker };
struct CheckpointRule {  // what was measured of a GPU under a driver
  std::string gpu;       // as cuDeviceGetName has it
  uint32_t driver = 0;   // as cuDriverGetVersion has it
  bool by_parker = false;
};

struct EngineRule {
  std::string name;          // of its programs: fnmatch(3)
  std::optional<uid_t> uid;  // whose they are; none: the daemon's own user
  std::string sleep, wake;   // URLs (scheduler_daemon/engines/local_url.h)
  bool operator==(const EngineRule&) const = default;
};

struct Settings {
  std::string version, socket_path;
  uint64_t epoch = 0;  // differs between daemon starts
  std::string policy_name = "tessera";
  policy::Parameters parameters;
  uint32_t watch_spin_us = 20;
  uint32_t on_daemon_loss = ipc::abi::kLossOpen;
  uint32_t answer_within_ms = ipc::kDefaultAnswerWithinMs;
  ipc::abi::GateChoice gate = ipc::abi::kGateAuto;
  uint32_t max_clients = 256;
  uid_t user = 0;  // the daemon's own
  uint32_t default_max_priority = ipc::abi::kMaxPriority;
  std::vector<PriorityLimit> priority_limits;  // the first that fits counts
  std::vector<MemoryLimit> memory_limits;      // likewise
  uint64_t memory_ahead_bytes = 64 * base::kMiB;
  uint64_t park_idle_ns = 0;  // programs that are idle for this time make room for others; 0: only if asked
  uint32_t park_for_priority = 0;  // for others of this level or higher
  ParkBy park_by = ParkBy::kAuto;
  std::vector<CheckpointRule> checkpoints;       // for kAuto; the first that fits counts
  std::vector<EngineRule> engines;               // the first that fits counts
  uint64_t engine_answer_ns = base::ms(60'000);  // how long a request to one may take
  learning::Store* learning = nullptr;           // not owned; null: nothing is learnt
};

}  // namespace tessera::core
