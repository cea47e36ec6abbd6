// The border between the program and everything else in interpose/: exported stubs, first call, kill switch.
//
// How a call travels:   program -> exported stub cuX -> dispatch[cuX] -> hook_cuX -> real().cuX -> driver
//                                                                   \-> the real driver's cuX (pass rows)
// Before the first call every dispatch slot leads to init: the real driver is found and opened (driver_api),
// both tables are filled, tessera_on_first_call() runs, and the call goes on. So a hook never runs before
// real() is valid.
//
// The hooks, and tessera_on_first_call(), are declared in interpose/hooks/hooks.h. The rooms below define
// them; where they are not linked, or a hook is missing, calls are simply forwarded. They reach the driver by
// real() from driver_api/real_table.h.
//
// Threads: everything here may be called by any thread. Nothing allocates after init. It does not gate
// anything.
#pragma once

#include <cstdint>

#include "driver_api/real_table.h"

namespace tessera::entry {

// Runs init if it did not run yet. False only inside init itself (a call that the real driver makes while it
// is being opened): forward nothing, answer CUDA_ERROR_NOT_INITIALIZED. Stubs do this by themselves.
bool ensure_ready();

// Address of our exported stub: what dlsym and cuGetProcAddress hand to the program for a hooked entry.
void* exported_address(driver_api::Entry e);

// How often the program came through the stub of this row (hooked rows too). Approximate: 16 shards chosen by
// thread, incremented without a lock, so two threads that share a shard may lose a count. Modulo 2^32 per
// shard.
uint64_t call_count(driver_api::Entry e);

// Holes in coverage, for stats. Relaxed counters; read them at any time.
struct Counters {
  uint64_t lookups;              // cuGetProcAddress* calls
  uint64_t lookups_substituted;  // answered with our stub
  uint64_t lookups_ambiguous;    // one address, several entries of different classes: driver's pointer kept
  uint64_t lookups_unindexed;    // known name, address not among the driver's exports: driver's pointer kept
  uint64_t lookups_unknown;      // name not in entries.def and the driver knows it: forwarded
  uint64_t unlisted_called;      // functions that only the driver knows and the program has called: not gated
  uint64_t entries_missing;      // rows that the installed driver does not export
  uint64_t captured_relocations;  // driver's own references that bind to our stubs (0 in a sane set-up)
  uint64_t reopened_deepbind;     // 1 if the driver had to be reopened with RTLD_DEEPBIND
  uint64_t nested_in_init;        // calls that arrived while init was running in the same thread
};
Counters counters();

}  // namespace tessera::entry
