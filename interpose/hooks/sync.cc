// Hooks of the classes sync, query and event: what a returning call proves to have ended.
#include <unistd.h>

#include <algorithm>

#include "interpose/gate/ask.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "interpose/gate/trace.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/checkpoint.h"
#include "interpose/hooks/hooks.h"
#include "interpose/memory/memory.h"
#include "interpose/state/note.h"

namespace tessera::hooks {

using namespace gate;
using namespace state;

namespace {

using driver_api::StreamArg;

enum class Extent { kStream, kContext, kEvent };

// A launch of this thread that a signal handler jumped out of has never said that it ended.
[[gnu::always_inline]] inline void end_left_calls() {
  Thread& t = t_thread;
  const auto is_open = [](const StreamCount& c) {
    return c.begun.load(std::memory_order_relaxed) != c.ended.load(std::memory_order_relaxed);
  };
  if (!t.slot || t.shared || !find_stream(*t.slot, is_open)) return;
  if (is_left(t.launching, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)))) end_calls(*t.slot);
}

// Sample before, call, apply after. A query that answers "not ready" proves nothing.
template <bool kWaits, class F>
inline CUresult proving(Extent extent, StreamArg stream, CUevent event, F&& call) {
  const Role role = g_state.role.load(std::memory_order_relaxed);
  if (role == Role::kForward) {
    const CUresult result = call();
    if (kWaits && result == CUDA_SUCCESS) memory::synchronised();
    return result;
  }
  if (role == Role::kProtected) {
    if (kWaits) end_left_calls();
    Cover cover;
    if (extent == Extent::kStream) cover_stream(cover, stream_key(stream));
    if (extent == Extent::kContext) cover_context(cover);
    if (extent == Extent::kEvent) cover_event(cover, event);
    const CUresult result = call();
    if (result == CUDA_SUCCESS) {
      covered(cover, kWaits);
      if (kWaits) memory::synchronised();
    }
    return result;
  }
  AccountCover cover;
  if (extent == Extent::kStream) cover_account_of(cover, stream);
  if (extent == Extent::kContext) cover_all_accounts(cover);
  const CUresult result = kWaits ? blocked(call) : call();
  if (result == CUDA_SUCCESS) {
    accounts_covered(cover);
    if (kWaits) memory::synchronised();
    // There may be no further launch that does. Queries are polled: the helper reads what is left over.
    if (kWaits && samples_pending()) harvest_samples();
    if (kWaits) {
      if (const auto* listener = state::g_listener.load(std::memory_order_acquire)) [[unlikely]]
        listener->waited();
    }
  } else if (is_sticky(result)) {
    poison();
  }
  return result;
}

template <class... A>
inline CUevent event_in(CUevent event, A...) {
  return event;
}
template <class T, class... A>
inline CUevent event_in(T, A...) {
  return nullptr;
}
inline CUevent event_in() {
  return nullptr;
}

template <class... A>
constexpr Extent extent_of(const A&...) {
  if constexpr ((std::is_same_v<A, CUevent> || ...))
    return Extent::kEvent;
  else if constexpr ((std::is_same_v<A, CUstream> || ...))
    return Extent::kStream;
  else
    return Extent::kContext;
}

void blind(StreamArg stream) {
  end_quantum(stream);
  StreamAccount* account = account_of(stream);
  // One without a key has the work of many streams, of which few wait: it counts, for as long as estimates say.
  if (account->key.load(std::memory_order_relaxed) != 0)
    account->blind.fetch_add(1, std::memory_order_relaxed);
  if (ThreadSlot* own = t_thread.slot) settle_credit(*own);
}

template <class... A>
bool may_wait(A...) {
  return true;
}
bool may_wait(CUstream, unsigned n, CUstreamBatchMemOpParams* ops, unsigned) {
  const auto waits = [](const CUstreamBatchMemOpParams& op) {
    return op.operation != CU_STREAM_MEM_OP_WRITE_VALUE_32 &&
           op.operation != CU_STREAM_MEM_OP_WRITE_VALUE_64 && op.operation != CU_STREAM_MEM_OP_BARRIER &&
           op.operation != CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
  };
  return std::any_of(ops, ops + n, waits);
}

// The call with its times around it, for who traces this client. `stream`: 0 for a whole context, or account_key().
template <class F>
inline CUresult traced(abi::TraceKind kind, uint64_t stream, uint64_t a, uint64_t b, F&& call) {
  const uint64_t start_ns = clock_ns();
  const CUresult result = call();
  trace({.kind = kind,
         .detail = uint16_t(result),
         .start_ns = start_ns,
         .end_ns = clock_ns(),
         .stream = stream,
         .a = a,
         .b = b});
  return result;
}

template <class F>
inline CUresult traced_event(abi::TraceKind kind, StreamArg stream, CUevent event, F&& call) {
  if (!tracing()) [[likely]]
    return call();
  return traced(kind, account_key(stream), reinterpret_cast<uint64_t>(event), 0, call);
}

template <class F>
inline CUresult waiting(driver_api::Entry entry, Extent extent, StreamArg stream, CUevent event, F&& call) {
  const auto proves = [&] { return proving<true>(extent, stream, event, call); };
  if (!tracing()) [[likely]]
    return proves();
  return traced(abi::kTraceSync, extent == Extent::kStream ? account_key(stream) : 0, uint64_t(entry),
                reinterpret_cast<uint64_t>(event), proves);
}

inline bool best_effort() {
  return g_state.role.load(std::memory_order_relaxed) == Role::kBestEffort;
}
inline bool tracked() {
  return g_state.role.load(std::memory_order_relaxed) == Role::kProtected;
}

template <class F>
CUresult wait_for_event(StreamArg stream, CUevent event, F&& call) {
  if (best_effort()) end_quantum(stream);
  // Within a capture the wait is an edge of a graph.
  const bool follows = tracked() && g_state.captures.load(std::memory_order_relaxed) == 0;
  const Point point = follows ? point_of(event) : Point{};
  const CUresult result = traced_event(abi::kTraceWait, stream, event, call);
  if (point.count != nullptr && result == CUDA_SUCCESS) note_wait(stream_key(stream), point);
  return result;
}

// A process that locks itself. Our own calls stay out until it is unlocked, as out of a capture: a helper thread that the
// driver makes wait obeys no hold limit, and the lock would wait for ever for what is behind a closed gate.
constinit std::atomic<uint32_t> g_locked{0};

}  // namespace

namespace {

template <class F>
CUresult lock_this_process(F&& call) {
  state::enter_exclusive(state::kLocked);
  const CUresult result =
      waiting(driver_api::Entry::cuCheckpointProcessLock, Extent::kContext, {}, nullptr, call);
  if (result == CUDA_SUCCESS)
    g_locked.store(1, std::memory_order_relaxed);  // relaxed: the driver orders locks and unlocks
  else
    state::leave_exclusive(state::kLocked);
  return result;
}

}  // namespace

CUresult lock_process(int pid, CUcheckpointLockArgs* args) {
  const auto call = [&] { return driver_api::real().cuCheckpointProcessLock(pid, args); };
  return pid == getpid() && state::live() ? lock_this_process(call) : call();
}

CUresult lock_by(CUresult (*lock)(unsigned within_ms), unsigned within_ms) {
  return lock_this_process([=] { return lock(within_ms); });
}

void unlocked() {
  if (g_locked.exchange(0, std::memory_order_relaxed) != 0) state::leave_exclusive(state::kLocked);
}

CUresult unlock_process(int pid, CUcheckpointUnlockArgs* args) {
  const CUresult result = driver_api::real().cuCheckpointProcessUnlock(pid, args);
  if (pid == getpid() && result == CUDA_SUCCESS) unlocked();
  return result;
}

}  // namespace tessera::hooks

#define TS_HOOK_sync(symbol, base, since, stream, ret, params, args)                                         \
  extern "C" ret hook_##symbol params noexcept {                                                             \
    using namespace tessera::hooks;                                                                          \
    return waiting(tessera::driver_api::Entry::symbol, extent_of args, TS_STREAM_ARG(stream), event_in args, \
                   [&]() -> ret { return tessera::driver_api::real().symbol args; });                        \
  }
#define TS_HOOK_query(symbol, base, since, stream, ret, params, args)                        \
  extern "C" ret hook_##symbol params noexcept {                                             \
    using namespace tessera::hooks;                                                          \
    return proving<false>(extent_of args, TS_STREAM_ARG(stream), event_in args,              \
                          [&]() -> ret { return tessera::driver_api::real().symbol args; }); \
  }
#include "driver_api/hooks.def"

extern "C" CUresult hook_cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) noexcept {
  return tessera::hooks::lock_process(pid, args);
}
extern "C" CUresult hook_cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs* args) noexcept {
  return tessera::hooks::unlock_process(pid, args);
}

namespace tessera::hooks {

// In a capture it stands for a place in the graph, whose launches record it only if it was to be.
struct Recorded {
  StreamArg stream;
  void operator()(CUevent event, CUstream, unsigned flags = CU_EVENT_RECORD_DEFAULT) const {
    const bool is_node = g_state.captures.load(std::memory_order_relaxed) && capturing(stream);
    if (!is_node) return note_event(event, stream_key(stream));
    flags == CU_EVENT_RECORD_EXTERNAL ? leave_to_others(event) : forget_event(event);
  }
};

}  // namespace tessera::hooks

// These calls tell which event stands for which point of which stream. Other ways to record an event make us
// forget it.
#define TS_RECORD(symbol, family, params, args)                                                  \
  extern "C" CUresult hook_##symbol params noexcept {                                            \
    using namespace tessera;                                                                     \
    const driver_api::StreamArg stream{hStream, driver_api::Flavour::family};                    \
    if (hooks::best_effort()) gate::begin_quantum_before_event(stream);                          \
    const CUresult result = hooks::traced_event(ipc::abi::kTraceRecord, stream, hEvent,          \
                                                [&] { return driver_api::real().symbol args; }); \
    if (result == CUDA_SUCCESS && hooks::tracked()) hooks::Recorded{stream} args;                \
    return result;                                                                               \
  }
TS_RECORD(cuEventRecord, kLegacy, (CUevent hEvent, CUstream hStream), (hEvent, hStream))
TS_RECORD(cuEventRecord_ptsz, kPerThread, (CUevent hEvent, CUstream hStream), (hEvent, hStream))
TS_RECORD(cuEventRecordWithFlags, kLegacy, (CUevent hEvent, CUstream hStream, unsigned flags),
          (hEvent, hStream, flags))
TS_RECORD(cuEventRecordWithFlags_ptsz, kPerThread, (CUevent hEvent, CUstream hStream, unsigned flags),
          (hEvent, hStream, flags))
#undef TS_RECORD

#define TS_WAIT(symbol, family)                                                                    \
  extern "C" CUresult hook_##symbol(CUstream stream, CUevent event, unsigned flags) noexcept {     \
    using namespace tessera;                                                                       \
    return hooks::wait_for_event({stream, driver_api::Flavour::family}, event,                     \
                                 [&] { return driver_api::real().symbol(stream, event, flags); }); \
  }
TS_WAIT(cuStreamWaitEvent, kLegacy)
TS_WAIT(cuStreamWaitEvent_ptsz, kPerThread)
#undef TS_WAIT

#define TS_FORGET(symbol, context)                                       \
  extern "C" CUresult hook_##symbol(context c, CUevent event) noexcept { \
    if (tessera::hooks::tracked()) tessera::hooks::forget_event(event);  \
    return tessera::driver_api::real().symbol(c, event);                 \
  }
TS_FORGET(cuCtxRecordEvent, CUcontext)
TS_FORGET(cuGreenCtxRecordEvent, CUgreenCtx)
#undef TS_FORGET

// Before the driver's call: behind it the handle may already be another thread's new event.
#define TS_DESTROY(symbol)                                              \
  extern "C" CUresult hook_##symbol(CUevent event) noexcept {           \
    if (tessera::hooks::tracked()) tessera::hooks::forget_event(event); \
    return tessera::driver_api::real().symbol(event);                   \
  }
TS_DESTROY(cuEventDestroy)
TS_DESTROY(cuEventDestroy_v2)
#undef TS_DESTROY

#define TS_HOOK_callback(symbol, base, since, stream, ret, params, args)                  \
  extern "C" ret hook_##symbol params noexcept {                                          \
    if (tessera::hooks::best_effort()) tessera::gate::end_quantum(TS_STREAM_ARG(stream)); \
    return tessera::driver_api::real().symbol args;                                       \
  }

// Work behind a wait for memory or a semaphore is not GPU time in flight: the stream may stand still for
// ever.
#define TS_HOOK_wait_value(symbol, base, since, stream, ret, params, args)                                \
  extern "C" ret hook_##symbol params noexcept {                                                          \
    using namespace tessera::hooks;                                                                       \
    const auto s = TS_STREAM_ARG(stream);                                                                 \
    const bool is_node = g_state.captures.load(std::memory_order_relaxed) && tessera::gate::capturing(s); \
    const ret result = tessera::driver_api::real().symbol args;                                           \
    if (result == CUDA_SUCCESS && best_effort() && !is_node && may_wait args) blind(s);                   \
    return result;                                                                                        \
  }
#include "driver_api/hooks.def"
