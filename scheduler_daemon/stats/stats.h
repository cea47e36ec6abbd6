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
  std::string gpu;    // "GPU-..." or empty while the client has announced none
  std::string state;  // best-effort: held, granted, packed, free; protected: busy, idle
  bool mps = false;
  uint64_t attached_ns = 0;  // for how long
  ClientCounters counters;
};

struct GpuRow {
  std::string uuid, policy;
  bool mps = false;  // leases overlap
  uint64_t sm_count = 0, clients = 0;
};

struct Snapshot {
  std::string version, policy, socket;
  int64_t pid = 0;
  uint64_t epoch = 0, uptime_ns = 0;
  DaemonCounters counters;
  std::vector<GpuRow> gpus;
  std::vector<ClientRow> clients;
};

std::string to_json(const Snapshot& snapshot);
// Name, unit and description of every counter, as JSON.
std::string schema_json();

}  // namespace tessera::stats
