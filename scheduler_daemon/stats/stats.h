// Counters of tesserad (stats.def) and their JSON text for `tessera ps`. Plain data; one thread; no I/O.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ipc/abi/memory.h"

namespace tessera::stats {

struct DaemonCounters {
#define TS_DAEMON(name, unit, description) uint64_t name = 0;
#include "scheduler_daemon/stats/stats.def"
};

struct ClientCounters {
#define TS_CLIENT(name, unit, description) uint64_t name = 0;
#include "scheduler_daemon/stats/stats.def"
};

struct OperationRow {  // calls of one function of a library, of one element type
  std::string name, type, resource_class;
  uint64_t calls = 0, gpu_ns = 0, launches = 0;
  double flop = 0, bytes = 0;
};

struct RequestRow {  // requests of one kind (ipc/abi/requests.h)
  std::string kind;
  uint64_t sum_ns = 0;
  uint64_t slo_ns = 0, within_slo = 0;  // slo_ns 0: none
  std::vector<uint64_t> counts;         // by bucket of base/latency_buckets.h
};

struct OutcomeRow {  // launches of one outcome (ipc/abi/cutting.h)
  const char* name;
  uint64_t launches, gpu_ns;
};

struct MemoryRow {  // of one client on one device (ipc/abi/memory.h)
  std::string gpu;
#define TS_ROW(field, name, meaning) uint64_t field = 0;
  TS_MEMORY_FIGURES(TS_ROW)
#undef TS_ROW
  uint64_t limit_bytes = 0;                    // 0 = none
  bool limit_by_kernel = false;                // the kernel keeps it too (scheduler_daemon/kernel_limits)
  uint64_t reserved_bytes = 0;                 // for its run, whoever of it uses them; 0 = none
  uint64_t waits_bytes = 0, waits_for_ns = 0;  // allocations that wait for room
};

struct ParkRow {         // of one client (ipc/abi/park.h)
  std::string state;     // empty: it runs
  std::string refusal;   // why it was not parked
  std::string engine;    // why its engine did not do what it was asked; empty: it did, or has none
  bool answered = true;  // the latest order
  uint64_t bytes = 0, for_ns = 0, park_ns = 0, return_ns = 0, parks = 0, lacks_bytes = 0;
};

struct ClientRow {
  uint64_t id = 0;
  int64_t pid = 0;
  uint64_t uid = 0;
  std::string name;
  uint32_t priority = 0, claimed_priority = 0, weight = 100;
  uint64_t slo_ns = 0;                    // 0 = none
  bool passthrough = false;               // as the operator set it
  std::string gpu;                        // "GPU-..." or empty while the client has announced none
  std::vector<std::string> further_gpus;  // of a process on several (docs/gangs.md)
  std::string state;                      // best-effort: held, granted, packed, free; protected: busy, idle
  std::string gate;                       // best-effort: where its work waits, "device", or "thread" and why
  bool mps = false;
  uint64_t attached_ns = 0;  // for how long
  // Best-effort, if it wants the GPU and had next to nothing of it in the last seconds.
  struct Starved {
    std::string by;                       // services, gaps, turns, shares, long_blocks; empty: it does not
    double share = 0, services_busy = 0;  // of the time: what it had, what protected clients worked
    std::string why, remedy;              // for people
  } starved;
  struct Gang {                        // docs/gangs.md
    std::string name;                  // empty: it is in none
    uint64_t member = 0, members = 0;  // its number, in order of arrival, of how many
    std::string held_at, why;          // the first GPU that holds them all, and why; empty: none does
  } gang;
  ClientCounters counters;
  // Best-effort: classes of work that its lease lets start during bursts now.
  std::vector<std::string> during_bursts;
  std::vector<OperationRow> operations;  // best-effort: what it asked of libraries
  std::vector<RequestRow> requests;      // protected: how long its bursts and requests took
  std::vector<MemoryRow> memory;         // by device
  ParkRow park;
  std::vector<OutcomeRow> outcomes;  // best-effort: which of its launches were or can be cut, and why not
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
  uint64_t memory_limit_bytes = 0;  // of each GPU, for who asks; 0: none in the configuration
};

struct GpuCost {
  std::string uuid;
  double cost = 0;          // part of its time that the program is expected to lose there
  bool memory_fits = true;  // as far as it is known
  uint64_t programs = 0;    // there, or placed there and on their way
};
struct Placement {  // where a program should start
  size_t chosen = 0;
  std::vector<GpuCost> gpus;  // in the order of the question; not empty
};

struct Snapshot {
  std::string version, policy, socket;
  int64_t pid = 0;
  uint64_t epoch = 0, uptime_ns = 0;
  uint64_t min_share_percent = 0;
  DaemonCounters counters;
  Mps mps;
  std::vector<GpuRow> gpus;
  std::vector<ClientRow> clients;
};

std::string to_json(const Snapshot& snapshot);
std::string mps_json(const Mps& mps);
std::string placement_json(const Placement& placement);
// Name, unit and description of every counter, as JSON.
std::string schema_json();

}  // namespace tessera::stats
