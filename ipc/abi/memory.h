// Says who has how much memory of which device, and who may have how much: a table in the client's region. Freestanding.
// tests/unit/ipc/layout_test.cc checks every offset.
//
// The client writes a device's figures as they change; the daemon reads them when somebody asks for its state (untrusted).
// All-zero is a valid initial state: nothing is known of the device.
//
// A limit is kept by an allowance, which the daemon grants ahead of demand. `left_bytes` is what of it is not used:
//
//   granted by the daemon (its own books) = left_bytes + what the client has taken
//
// The client takes from it before an allocation, and gives back after what failed or was freed. The daemon adds what it
// grants and takes back what others need. Both do so by compare-and-swap or atomic addition, and nobody waits for a lock.
// A client that lacks something asks: it writes `wanted_bytes`, then a new number into `question`, and wakes the daemon,
// which writes that number into `answered` and wakes the client. Nothing but that client's own limit depends on its words.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kMemoryDevices = 8;

struct alignas(64) MemoryTotals {  // all written by the client
  uint64_t pinned_bytes;           // host memory that is pinned: allocated or registered
  uint64_t untracked;              // allocations that found no place in the books: they are not counted
  uint64_t waits_since_ns;         // CLOCK_MONOTONIC; the oldest allocation that waits for room; 0: none does
  uint64_t reserved[5];            // zero
};
static_assert(sizeof(MemoryTotals) == 64);

// Rows: field, name in JSON, what it is. What counts for a limit is used_bytes.
#define TS_MEMORY_FIGURES(X)                                                                 \
  X(used_bytes, "used", "allocations, physical memory, what pools and graphs hold")          \
  X(peak_bytes, "peak", "the most that this was")                                            \
  X(pool_bytes, "pools", "part of used: held by memory pools")                               \
  X(graph_bytes, "graphs", "part of used: held by graphs")                                   \
  X(managed_bytes, "managed", "managed memory, which the driver moves: not part of used")    \
  X(imported_bytes, "imported", "memory of other processes or interfaces: not part of used") \
  X(shared_bytes, "shared", "part of used: exported, other processes may have it")           \
  X(refusals, "refusals", "calls that were answered out of memory because of a limit")

struct alignas(64) MemoryDevice {
  // Written by the client. The figures of a row are stored one by one.
  uint8_t uuid[16];
  uint32_t ready;  // 1: the UUID is there (release; acquire)
  uint32_t reserved0;
#define TS_ROW(field, name, meaning) uint64_t field;
  TS_MEMORY_FIGURES(TS_ROW)
#undef TS_ROW
  uint64_t wanted_bytes;  // that shall be left, if they can be
  int64_t left_bytes;     // written by both; below zero: the client has taken more than it was granted
  uint64_t total_bytes;   // of the device; 0: not known
  uint32_t question;      // number of the latest question (release; acquire)
  uint32_t kept_seen;     // the latest `kept` that every allocation under way knows (seq_cst)
  uint64_t
      waits_bytes;  // that allocations lack which wait for room (`tessera run --memory-wait`); 0: none does
  // Written by the daemon.
  uint64_t limit_bytes;  // 0: none; else the least of those that are for this client
  uint64_t free_bytes;   // of that limit, when the latest question was answered
  uint32_t answered;     // futex word: the latest question that is answered (release; acquire)
  uint32_t refused;      // 1: not even by taking back what others do not use
  // Futex word. Not 0: room is kept for a client that comes back (park.h), and allocations wait until it is 0. A number,
  // of that keeping (seq_cst).
  uint32_t kept;
  uint32_t reserved2;     // zero
  uint64_t reserved3[4];  // zero
};
static_assert(sizeof(MemoryDevice) == 192);

struct MemoryTable {
  MemoryTotals totals;                   // of the process
  MemoryDevice devices[kMemoryDevices];  // one for each that the process has used
};

}  // namespace tessera::ipc::abi
