#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "tests/null_driver/internal.h"

#define TS_EXPORT extern "C" __attribute__((visibility("default")))

namespace tessera::null_driver {

uint64_t g_counts[kCountShards][kEntryCount];
bool g_exact = getenv("TESSERA_NULL_EXACT") != nullptr;
thread_local uint32_t t_shard = 0;

std::atomic<Hear> g_tool{nullptr};

void open_tool() {
  static std::atomic_flag opened;  // a tool may call cuInit
  // Relaxed: only the caller that finds it unset goes on.
  if (opened.test_and_set(std::memory_order_relaxed)) return;
  const char* path = getenv("CUDA_INJECTION64_PATH");
  void* tool = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (auto* begin = tool ? reinterpret_cast<int (*)()>(dlsym(tool, "InitializeInjection")) : nullptr) begin();
}

uint32_t choose_shard() {
  static std::atomic<uint32_t> next{0};
  return next.fetch_add(1, std::memory_order_relaxed) % kCountShards + 1;
}

namespace {

struct Write {
  CUdeviceptr address;
  uint64_t value;
  unsigned bytes;
};
std::mutex g_writes_mutex;  // guards g_writes and the order of writes
std::vector<Write>& writes() {
  static auto* list = new std::vector<Write>;  // leaked: programs may call us while they exit
  return *list;
}
std::atomic<bool> g_held{false};
constexpr CUdeviceptr kDeviceFirst = 0x10'0000'0000'0000, kDeviceLast = 0x20'0000'0000'0000;

void perform(const Write& w) {
  if (is_device_address(w.address) || w.address == 0) return;
  // Release: a marker read by the program's threads orders what was done before it.
  if (w.bytes == 8) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(w.address))
        .store(w.value, std::memory_order_release);
  } else {
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(w.address))
        .store(static_cast<uint32_t>(w.value), std::memory_order_release);
  }
}

}  // namespace

bool held() {
  return g_held.load(std::memory_order_acquire);
}
bool is_device_address(CUdeviceptr address) {
  return address >= kDeviceFirst && address < kDeviceLast;
}

void write_word(CUdeviceptr address, uint64_t value, unsigned bytes) {
  const Write w{address, value, bytes};
  if (!held()) {
    perform(w);
    return;
  }
  const std::lock_guard lock(g_writes_mutex);
  writes().push_back(w);
}

}  // namespace tessera::null_driver

using namespace tessera::null_driver;  // NOLINT: this file is the C surface

TS_EXPORT uint64_t tessera_null_calls(const char* symbol) {
  const Entry e = tessera::driver_api::find_entry(symbol);
  if (e == Entry::kCount) return 0;
  uint64_t sum = 0;
  for (auto& shard : g_counts) sum += std::atomic_ref<uint64_t>(shard[static_cast<uint16_t>(e)]).load();
  return sum;
}
TS_EXPORT void tessera_null_reset() {
  std::memset(g_counts, 0, sizeof g_counts);
}
TS_EXPORT unsigned tessera_null_release(unsigned count) {
  const std::lock_guard lock(g_writes_mutex);
  const unsigned n = count < writes().size() ? count : static_cast<unsigned>(writes().size());
  for (unsigned i = 0; i < n; ++i) perform(writes()[i]);
  writes().erase(writes().begin(), writes().begin() + n);
  return n;
}
TS_EXPORT void tessera_null_hold(int on) {
  g_held.store(on != 0, std::memory_order_release);
  if (on == 0) tessera_null_release(~0u);
}
