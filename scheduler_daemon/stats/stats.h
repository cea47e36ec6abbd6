// What tesserad counts (stats.def) and its JSON text for `tessera ps`. Plain data; one thread; no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::stats {

struct DaemonCounters {
#define TS_DAEMON(name, unit, description) uint64_t name = 0;
#include "scheduler_daemon/stats/stats.def"
};

struct ClientCounters {
#define TS_CLIENT(name, unit, description) uint64_t name = 0;
#include "scheduler_daemon/stats/stats.def"
};

struct ClientRow {
  uint64_t id = 0;
  int64_t pid = 0;
  uint64_t uid = 0;
  std::string name;
  uint32_t priority = 0, claimed_priority = 0, weight = 100;
  uint64_t slo_ns = 0;       // 0 = none
  bool passthrough = false;  // as the operator set it
  std::string gpu;           // "GPU-..." or empty while the client has announced none
  std::string state;         // best-effort: held, granted, packed, free; protected: busy, idle
  bool mps = false;
  uint64_t attached_ns = 0;  // for how long
  ClientCounters counters;
};

struct GpuRow {
  std::string uuid, policy;
  bool mps = false;  // leases overlap
  uint64_t sm_count = 0, clients = 0;
};

struct Mps {                 // NVIDIA's Multi-Process Service, as scheduler_daemon/mps found or made it
  std::string mode = "off";  // as configured: off, adopt, manage
  bool active = false;       // programs started now become its clients; then there is no fault isolation
  std::string reason;        // why not, if it should be
  std::string pipe_directory, log_directory, control_program;
  uint64_t restarts = 0;
};

struct Snapshot {
  std::string version, policy, socket;
  int64_t pid = 0;
  uint64_t epoch = 0, uptime_ns = 0;
  DaemonCounters counters;
  Mps mps;
  std::vector<GpuRow> gpus;
  std::vector<ClientRow> clients;
};

std::string to_json(const Snapshot& snapshot);
std::string mps_json(const Mps& mps);
// Name, unit and description of every counter, as JSON.
std::string schema_json();

}  // namespace tessera::stats
