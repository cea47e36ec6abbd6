#include "interpose/gate/trace.h"

#include <cstring>

#include "base/hash.h"
#include "interpose/state/kernels.h"
#include "ipc/channel/trace_ring.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;

// Functions whose name was said: direct-mapped, so that one may be said again. With the number of the trace, or of the time that
// handles came to other functions, above the handle's 48 bits.
constexpr uint32_t kNamed = 4096;
constinit std::atomic<uint64_t> g_named[kNamed] = {};
constinit std::atomic<uint64_t> g_trace_number{0};

uint32_t thread_number() {
  const Thread& t = t_thread;
  return t.slot ? uint32_t(t.slot - g_slots) + 1 : 0;
}

}  // namespace

constinit std::atomic<abi::TraceHeader*> g_trace{nullptr};

void trace(const TracedCall& call) {
  abi::TraceHeader* ring = g_trace.load(std::memory_order_acquire);  // pairs with set_trace
  if (!ring) return;
  abi::TraceEvent e{};
  e.a = call.a;
  e.kind = call.kind;
  e.detail = call.detail;
  e.thread = thread_number();
  e.at = {call.start_ns, call.end_ns, call.stream, call.b, call.c};
  ipc::trace_write(ring, e);
}

bool was_named(uint64_t id) {
  const uint64_t said = (g_trace_number.load(kRelaxed) << 48) ^ id;
  std::atomic<uint64_t>& place = g_named[base::slot_of(id, 12)];
  if (place.load(kRelaxed) == said) [[likely]]
    return true;
  place.store(said, kRelaxed);
  return false;
}

void trace_name(const void* function) {
  const uint64_t handle = reinterpret_cast<uint64_t>(function);
  if (!tracing() || was_named(handle)) return;
  const auto f = static_cast<CUfunction>(const_cast<void*>(function));
  const char* name = nullptr;
  if (const state::KernelRecord* kernel = state::find_kernel(f)) name = kernel->loaded.name;
  if (!name || !*name) return;
  trace_text(handle, name, size_t(abi::kTraceNameBytes) * abi::kTraceNamePieces);
}

void trace_text(uint64_t id, const char* text, size_t most_bytes) {
  abi::TraceHeader* ring = g_trace.load(std::memory_order_acquire);
  if (!ring) return;
  const size_t bytes = strnlen(text, most_bytes);
  for (uint16_t piece = 0; size_t(piece) * abi::kTraceNameBytes < bytes; piece++) {
    abi::TraceEvent e{};
    e.kind = abi::kTraceName;
    e.a = id;
    e.detail = piece;
    const size_t at = size_t(piece) * abi::kTraceNameBytes, left = bytes - at;
    memcpy(e.name, text + at, left < sizeof e.name ? left : sizeof e.name);
    ipc::trace_write(ring, e);
  }
}

void forget_names() {
  g_trace_number.fetch_add(1, kRelaxed);
}

void set_trace(abi::TraceHeader* memory) {
  if (memory) forget_names();
  g_trace.store(memory, std::memory_order_release);
}

}  // namespace tessera::gate
