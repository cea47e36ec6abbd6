// In place of libcuda.so.1: memory is the host's, and everything has happened when a call returns. As much of the driver as
// splitting asks for. FAKE_FREE: bytes that are free; FAKE_FAIL: name of a function that fails. A context ends by a call of the test's.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace {

std::mutex g_mutex;
std::map<uint64_t, size_t> g_allocated;
uintptr_t g_context = 1;
size_t g_held_bytes = 0, g_most_bytes = 0;  // now, and ever since fake_most_bytes() was asked

// A driver may be asked nothing about a context that has ended.
void expect_alive(void* handle) {
  if (reinterpret_cast<uintptr_t>(handle) != g_context) abort();
}

// Some of what splitting calls ends a capture that another thread has open, unless the thread is in this mode.
constexpr int kRelaxed = 2;
thread_local int t_capture_mode = 0;
void expect_relaxed() {
  if (t_capture_mode != kRelaxed) abort();
}

bool fails(std::string_view function) {
  const char* named = getenv("FAKE_FAIL");
  return named && function == named;
}

}  // namespace

#define TS_FUNCTION(name, params) extern "C" __attribute__((visibility("default"))) int name params
#define TS_MAY_FAIL \
  if (fails(__func__)) return 999

TS_FUNCTION(cuInit, (unsigned)) {
  return 0;
}
TS_FUNCTION(cuDevicePrimaryCtxRetain, (void** context, int)) {
  *context = reinterpret_cast<void*>(g_context);
  return 0;
}
TS_FUNCTION(cuCtxSetCurrent, (void*)) {
  return 0;
}
TS_FUNCTION(cuCtxSynchronize, ()) {
  return 0;
}
TS_FUNCTION(cuCtxGetCurrent, (void** context)) {
  TS_MAY_FAIL;
  *context = reinterpret_cast<void*>(g_context);
  return 0;
}
TS_FUNCTION(cuCtxGetDevice, (int* device)) {
  TS_MAY_FAIL;
  return *device = 0;
}
TS_FUNCTION(cuDeviceGetName, (char* name, int length, int)) {
  TS_MAY_FAIL;
  const char* given = getenv("FAKE_GPU");
  strncpy(name, given ? given : "a GPU", size_t(length));
  return 0;
}
TS_FUNCTION(cuDriverGetVersion, (int* version)) {
  TS_MAY_FAIL;
  *version = 13000;
  return 0;
}
TS_FUNCTION(cuDeviceGetAttribute, (int* value, int, int)) {
  TS_MAY_FAIL;
  const char* given = getenv("FAKE_SMS");
  *value = given ? atoi(given) : 132;
  return 0;
}
TS_FUNCTION(cuMemGetInfo_v2, (size_t * free, size_t* total)) {
  TS_MAY_FAIL;
  const char* given = getenv("FAKE_FREE");
  *free = given ? strtoull(given, nullptr, 10) : size_t(1) << 30;
  *total = size_t(1) << 31;
  return 0;
}
TS_FUNCTION(cuMemAlloc_v2, (uint64_t * address, size_t bytes)) {
  TS_MAY_FAIL;
  void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!memory) return 2;
  memset(memory, 0x5a, bytes);
  *address = reinterpret_cast<uint64_t>(memory);
  const std::lock_guard lock(g_mutex);
  g_allocated[*address] = bytes;
  g_held_bytes += bytes;
  if (g_held_bytes > g_most_bytes) g_most_bytes = g_held_bytes;
  return 0;
}
TS_FUNCTION(cuMemFree_v2, (uint64_t address)) {
  const std::lock_guard lock(g_mutex);
  const auto found = g_allocated.find(address);
  if (found == g_allocated.end()) abort();
  g_held_bytes -= found->second;
  g_allocated.erase(found);
  free(reinterpret_cast<void*>(address));
  return 0;
}
TS_FUNCTION(cuMemGetAddressRange_v2, (uint64_t * base, size_t* bytes, uint64_t address)) {
  TS_MAY_FAIL;
  const std::lock_guard lock(g_mutex);
  auto after = g_allocated.upper_bound(address);
  if (after == g_allocated.begin()) return 1;
  --after;
  if (address >= after->first + after->second) return 1;
  *base = after->first;
  *bytes = after->second;
  return 0;
}
TS_FUNCTION(cuMemcpyHtoD_v2, (uint64_t to, const void* from, size_t bytes)) {
  memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
TS_FUNCTION(cuMemcpyDtoH_v2, (void* to, uint64_t from, size_t bytes)) {
  memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
TS_FUNCTION(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void*)) {
  TS_MAY_FAIL;
  memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
TS_FUNCTION(cuMemcpyDtoHAsync_v2, (void* to, uint64_t from, size_t bytes, void*)) {
  TS_MAY_FAIL;
  memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
// A test's questions: how much is still allocated; how much more than now ever was, since it was asked before.
TS_FUNCTION(fake_allocations, ()) {
  const std::lock_guard lock(g_mutex);
  return int(g_allocated.size());
}
TS_FUNCTION(fake_most_bytes, ()) {
  const std::lock_guard lock(g_mutex);
  return int(std::exchange(g_most_bytes, g_held_bytes) - g_held_bytes);
}
// The context ends, with all that is allocated and all events; the next one is another.
TS_FUNCTION(fake_reset, ()) {
  const std::lock_guard lock(g_mutex);
  for (const auto& [address, bytes] : g_allocated) free(reinterpret_cast<void*>(address));
  g_allocated.clear();
  g_held_bytes = 0;
  g_context++;
  return 0;
}
TS_FUNCTION(cuStreamCreate, (void** stream, unsigned)) {
  TS_MAY_FAIL;
  *stream = &g_mutex;
  return 0;
}
TS_FUNCTION(cuStreamDestroy_v2, (void*)) {
  return 0;
}
TS_FUNCTION(cuThreadExchangeStreamCaptureMode, (int* mode)) {
  std::swap(*mode, t_capture_mode);
  return 0;
}
TS_FUNCTION(cuStreamSynchronize, (void*)) {
  expect_relaxed();
  TS_MAY_FAIL;
  return 0;
}
TS_FUNCTION(cuEventCreate, (void** event, unsigned)) {
  expect_relaxed();
  TS_MAY_FAIL;
  *event = reinterpret_cast<void*>(g_context);
  return 0;
}
TS_FUNCTION(cuEventDestroy_v2, (void* event)) {
  expect_relaxed();
  expect_alive(event);
  return 0;
}
TS_FUNCTION(cuEventRecord, (void* event, void*)) {
  TS_MAY_FAIL;
  expect_alive(event);
  return 0;
}
TS_FUNCTION(cuEventQuery, (void* event)) {
  TS_MAY_FAIL;
  expect_alive(event);
  return 0;
}
