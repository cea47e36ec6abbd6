// Shared by the null driver's files: counting and handles.
#pragma once

#include <atomic>
#include <cstdint>

#include "driver_api/real_table.h"
#include "tests/null_driver/null_driver.h"

namespace tessera::null_driver {

using driver_api::Entry;
using driver_api::kEntryCount;

extern uint64_t g_counts[kEntryCount];
extern bool g_exact;

inline void count(Entry e) {
  std::atomic_ref<uint64_t> n(g_counts[static_cast<uint16_t>(e)]);
  // Relaxed: a count orders nothing.
  if (g_exact) {
    n.fetch_add(1, std::memory_order_relaxed);
  } else {
    n.store(n.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

struct Stream {
  uint64_t id;
  unsigned flags;
  int priority;
  bool capturing;
};
// The stream behind a handle; 0, 1 and 2 have static ones.
Stream* stream_of(CUstream handle);

bool held();
// A fake device address is only a number: it must not be written through.
bool is_device_address(CUdeviceptr address);
void write_word(CUdeviceptr address, uint64_t value, unsigned bytes);  // now, or kept back while held

}  // namespace tessera::null_driver

// Opens the definition of an exported entry point with its signature spelled out; every definition counts
// itself.
#define TS_NULL(symbol, ...)                                                      \
  extern "C" __attribute__((visibility("default"))) CUresult symbol(__VA_ARGS__); \
  extern "C" CUresult symbol(__VA_ARGS__)
#define TS_NULL_COUNT(symbol) ::tessera::null_driver::count(::tessera::driver_api::Entry::symbol)
