// Counting calls by shape into the file of operations/table.h. Any thread, any number of processes; no lock, no
// allocation. What finds no slot is counted without its shape.
#pragma once

#include "interpose/operations/call.h"
#include "operations/table.h"

namespace tessera::library {

// Once. False: no path, or not such a file.
bool open_table(const char* path);

extern constinit std::atomic<operations::TableHeader*> g_table;  // null: none. Stored once
inline bool has_table() {
  return g_table.load(std::memory_order_relaxed) != nullptr;  // what is in it: count_call()
}

// Number of the operation's slot + 1; 0: none, or no table.
uint64_t count_call(const Operation& operation);
// Says that what this thread launches from now on belongs to that slot, for the software GPU's trace.
void tag_launches(uint64_t slot);
// From now on to none. What has become nodes of graphs counts when they are launched.
void call_ends(uint64_t slot);

}  // namespace tessera::library
