// Shared by the null driver's files: counting and handles.
#pragma once

#include <atomic>
#include <cstdint>

#include "driver_api/real_table.h"
#include "tests/null_driver/null_driver.h"

namespace tessera::null_driver {

using driver_api::Entry;
using driver_api::kEntryCount;

// Calls by thread and entry point, so that threads which launch at the same time share no line: what a bench
// adds in front of this driver must not be measured by a line that this driver bounces.
inline constexpr uint32_t kCountShards = 64;  // threads beyond share, and may lose counts unless exact
extern uint64_t g_counts[kCountShards][kEntryCount];
extern bool g_exact;
extern thread_local uint32_t t_shard __attribute__((tls_model("initial-exec")));  // 0: not chosen yet
uint32_t choose_shard();
using Hear = void (*)(const char* symbol);
extern std::atomic<Hear> g_tool;  // where counts are exact
void open_tool();                 // at CUDA_INJECTION64_PATH, once

inline void count(Entry e) {
  if (t_shard == 0) [[unlikely]]
    t_shard = choose_shard();
  std::atomic_ref<uint64_t> n(g_counts[t_shard - 1][static_cast<uint16_t>(e)]);
  // Relaxed: a count orders nothing.
  if (g_exact) {
    n.fetch_add(1, std::memory_order_relaxed);
    // Relaxed: the tool's own data is not ours to order.
    if (const Hear hear = g_tool.load(std::memory_order_relaxed)) hear(driver_api::info(e).symbol);
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

// The calling thread has none.
inline bool no_context() {
  CUcontext current = nullptr;
  return cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr;
}

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
