// Events for who traces this client (docs/trace.md). While nobody does, g_trace is null: the fast path of launches never
// looks at it, because tracing exchanges the driver's entry points (hooks/trace.cc); slow paths pay one load. Any thread.
#pragma once

#include "interpose/state/clock.h"
#include "ipc/abi/trace.h"

namespace tessera::gate {

extern constinit std::atomic<ipc::abi::TraceHeader*> g_trace;

inline bool tracing() {
  return g_trace.load(std::memory_order_relaxed) != nullptr;
}

struct TracedCall {  // what a traced event says; see abi::TraceKind
  ipc::abi::TraceKind kind;
  uint16_t detail = 0;
  uint64_t start_ns, end_ns, stream = 0, a = 0, b = 0, c = 0;
};
void trace(const TracedCall& event);  // nothing if nobody traces
// Says what `function` is called, unless it was said in this trace. Its launches may be slices of it.
void trace_name(const void* function);
void forget_names();  // a handle may stand for another function by now: all is said again
// Was this said in this trace? From then on it counts as said.
bool was_named(uint64_t id);
void trace_text(uint64_t id, const char* text, size_t most_bytes);

inline void trace_now(ipc::abi::TraceKind kind, uint64_t stream, uint64_t a) {
  if (!tracing()) [[likely]]
    return;
  const uint64_t now = state::clock_ns();
  trace({.kind = kind, .start_ns = now, .end_ns = now, .stream = stream, .a = a});
}

// Helper thread. Null: no longer. The memory is never unmapped, because a thread may still write there.
void set_trace(ipc::abi::TraceHeader* memory);

}  // namespace tessera::gate
