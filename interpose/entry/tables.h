// The tables behind the stubs; interpose/entry only. Defined in stubs.S (all but hook addresses).
#pragma once

#include <atomic>
#include <cstdint>

#include "driver_api/real_table.h"
#include "interpose/entry/entry.h"

inline constexpr uint32_t kTesseraShards = 16;         // stubs.S: bits 12..15 of the thread pointer
inline constexpr uint32_t kTesseraShardCounts = 1024;  // 4 KiB of counters per shard
static_assert(tessera::driver_api::kEntryCount <= kTesseraShardCounts, "a shard has room for 1024 rows");

extern "C" {
// The targets of the stubs, by row. Written by init (one thread); read by the stubs with plain loads: a word is
// either the old or the new target, both right.
extern __attribute__((visibility("hidden"))) void* tessera_dispatch[tessera::driver_api::kEntryCount];
extern __attribute__((
    visibility("hidden"))) void* const tessera_stub_addresses[tessera::driver_api::kEntryCount];
// The stubs to which slots of dispatch and of the real table lead while the process is parked.
extern __attribute__((
    visibility("hidden"))) void* const tessera_first_addresses[tessera::driver_api::kEntryCount];
extern __attribute__((
    visibility("hidden"))) void* const tessera_away_addresses[tessera::driver_api::kEntryCount];
extern __attribute__((visibility("hidden"))) uint32_t tessera_counts[kTesseraShards][kTesseraShardCounts];
// Every hook and its row, in the order of hooks.def (default_hooks.S).
struct TesseraHookRow {
  uint64_t row;
  void* hook;
};
extern __attribute__((visibility("hidden"))) const TesseraHookRow tessera_hook_table[];
// A function that the driver exports and entries.def does not list, as cli/run/newer_names.cc writes it into a library.
struct TesseraUnlisted {
  void* target;      // where its stub jumps
  const char* name;  // of the export
};
// Target of a row after init, or of a TesseraUnlisted, by its address; called by stubs.S only. A row of the real table
// counts on from kEntryCount; it comes here only while the process is parked.
__attribute__((visibility("hidden"))) void* tessera_resolve(uint64_t row_or_unlisted) noexcept;
}

namespace tessera::entry {

inline constexpr uint32_t kHookCount = 0
#define TS_HOOK(klass, symbol, base, since, stream, ret, params, args) +1
#include "driver_api/hooks.def"
    ;

// get_proc_address.cc: index of the driver's addresses; called once by init after the real table is filled.
void build_address_index();

// TESSERA_PARKABLE=1: cuGetProcAddress answers with our stub for rows that nobody handles, too. Written once by init.
extern bool g_every_row;

// Storage of counters(). Relaxed: only the totals matter and nothing is ordered by them.
extern Counters g_counters;
inline void bump(uint64_t Counters::*field, uint64_t by = 1) {
  std::atomic_ref<uint64_t>(g_counters.*field).fetch_add(by, std::memory_order_relaxed);
}

}  // namespace tessera::entry
