// Hooks of the life of contexts and streams. They keep the books of interpose/track around the driver's own
// call, whose result is always what the program gets. Slow path; any thread of the program.
#include "base/errno_guard.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/memory.h"
#include "interpose/memory/memory.h"
#include "interpose/slice/confine.h"
#include "interpose/slice/trial.h"
#include "interpose/state/note.h"
#include "interpose/state/process.h"
#include "interpose/track/graphs.h"
#include "interpose/track/track.h"

namespace {

using namespace tessera;
using driver_api::real;
using state::live;

// Nobody may ask about its events any more.
void ended(CUcontext context, uint64_t kept = 0) {
  cut::forget_trials(context);
  track::context_ended(context, kept);
  memory::context_ended(context);
  if (const auto* listener = state::g_listener.load(std::memory_order_acquire))
    listener->context_ended(context);
}

// Contexts. Whatever makes one current is a chance to prepare it; whatever may end one must find the helper
// outside.
template <class F>
CUresult current_changes(F&& call) {
  const CUresult result = hooks::with_memory(call);
  if (result == CUDA_SUCCESS && live()) {
    const base::ErrnoGuard keep_errno;
    track::prepare_context();
  }
  return result;
}

template <class F>
CUresult context_ends(CUcontext context, F&& call) {
  if (!live()) return call();
  const gate::Blocked waits;
  track::graphs_lose_what_they_name();
  track::siblings_pause(context);
  state::enter_exclusive();
  if (context) confine::forget(context);
  const bool is_face = state::owner_of(context) != context;  // whose streams do not end
  const uint64_t kept = is_face ? ~uint64_t(0) : context ? gate::accounts_of_others(context) : 0;
  const CUresult result = call();
  if (result == CUDA_SUCCESS) ended(context, kept);
  state::leave_exclusive();
  track::siblings_resume(context, result == CUDA_SUCCESS);
  if (result == CUDA_SUCCESS) memory::look_at_pools(true);  // what they had there is gone
  return result;
}

// Primary contexts by device: released ones end with their last reference, which only the driver counts.
constexpr int kDevices = 64;
constinit std::atomic<CUcontext> g_primary[kDevices] = {};

// A driver that does not say whether it lives on has ended it: nothing of ours may outlive it.
bool lives_on(CUdevice device) {
  unsigned flags = 0;
  int active = 0;
  return real().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

// As retained; asked for where somebody else had it retained. Null: there is none, or a capture is open.
CUcontext primary_of(CUdevice device) {
  if (device < 0 || device >= kDevices) return nullptr;
  if (const CUcontext known = g_primary[device].load()) return known;
  if (!state::enter_driver()) return nullptr;
  CUcontext context = nullptr;
  if (lives_on(device) && real().cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS) {
    g_primary[device].store(context);
    real().cuDevicePrimaryCtxRelease_v2(device);
  }
  state::leave_driver();
  return context;
}

template <class F>
CUresult primary_ends(CUdevice device, bool always, F&& call) {
  if (!live()) return call();
  const gate::Blocked waits;
  const CUcontext context = primary_of(device);
  const bool unknown = !context && state::capture_open();
  track::graphs_lose_what_they_name();
  track::siblings_pause(context);
  state::enter_exclusive();
  if (context || always) confine::forget(context);  // green contexts hold their primary one
  const uint64_t kept = context ? gate::accounts_of_others(context) : 0;
  const CUresult result = call();
  const bool active = !always && lives_on(device);
  const bool over = result == CUDA_SUCCESS && !active && (context || unknown);
  if (over) ended(context, kept);
  if (over && context) g_primary[device].store(nullptr);
  state::leave_exclusive();
  track::siblings_resume(context, over);
  if (over) memory::look_at_pools(true);
  return result;
}

template <class F>
CUresult stream_ends(CUstream stream, F&& call) {
  if (!live()) return call();
  gate::mark_before_end(stream);
  const bool had_capture = stream && track::has_capture(stream);
  state::enter_exclusive();
  const CUresult result = call();
  if (result == CUDA_SUCCESS) confine::stream_ends(stream);
  state::leave_exclusive();
  if (result == CUDA_SUCCESS) track::stream_gone(stream, had_capture);
  return result;
}

}  // namespace

#define TS_AROUND(wrapper, symbol, params, args)        \
  extern "C" CUresult hook_##symbol params noexcept {   \
    return wrapper([&] { return real().symbol args; }); \
  }
#define TS_AROUND_1(wrapper, first, symbol, params, args)      \
  extern "C" CUresult hook_##symbol params noexcept {          \
    return wrapper(first, [&] { return real().symbol args; }); \
  }

TS_AROUND(current_changes, cuCtxCreate, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
TS_AROUND(current_changes, cuCtxCreate_v2, (CUcontext * c, unsigned flags, CUdevice d), (c, flags, d))
TS_AROUND(current_changes, cuCtxCreate_v3,
          (CUcontext * c, CUexecAffinityParam* p, int n, unsigned f, CUdevice d), (c, p, n, f, d))
TS_AROUND(current_changes, cuCtxCreate_v4, (CUcontext * c, CUctxCreateParams* p, unsigned f, CUdevice d),
          (c, p, f, d))
TS_AROUND(current_changes, cuCtxSetCurrent, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPushCurrent, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPushCurrent_v2, (CUcontext c), (c))
TS_AROUND(current_changes, cuCtxPopCurrent, (CUcontext * c), (c))
TS_AROUND(current_changes, cuCtxPopCurrent_v2, (CUcontext * c), (c))
TS_AROUND(current_changes, cuStreamCreate, (CUstream * s, unsigned flags), (s, flags))
TS_AROUND(current_changes, cuStreamCreateWithPriority, (CUstream * s, unsigned f, int priority),
          (s, f, priority))

TS_AROUND_1(context_ends, ctx, cuCtxDestroy, (CUcontext ctx), (ctx))
TS_AROUND_1(context_ends, ctx, cuCtxDestroy_v2, (CUcontext ctx), (ctx))
TS_AROUND_1(context_ends, ctx, cuCtxDetach, (CUcontext ctx), (ctx))
TS_AROUND_1(stream_ends, stream, cuStreamDestroy, (CUstream stream), (stream))
TS_AROUND_1(stream_ends, stream, cuStreamDestroy_v2, (CUstream stream), (stream))

// The driver makes one when all work of the process has ended. It keeps its primary context.
extern "C" CUresult hook_cuGreenCtxCreate(CUgreenCtx* green, CUdevResourceDesc resources, CUdevice device,
                                          unsigned flags) noexcept {
  const CUresult result = gate::blocked([&] {
    return hooks::with_memory([&] { return real().cuGreenCtxCreate(green, resources, device, flags); });
  });
  if (result != CUDA_SUCCESS || !live() || !state::enter_driver()) return result;
  CUcontext face = nullptr;
  const bool has_face = real().cuCtxFromGreenCtx(&face, *green) == CUDA_SUCCESS && face;
  state::leave_driver();
  if (const CUcontext primary = has_face ? primary_of(device) : nullptr) state::face_made(face, primary);
  return result;
}

// Its face as a context may be one that something of ours was made in. Its streams and its memory stay, but with the last
// green context the primary one may end.
extern "C" CUresult hook_cuGreenCtxDestroy(CUgreenCtx green) noexcept {
  CUcontext face = nullptr;
  const auto call = [&] { return real().cuGreenCtxDestroy(green); };
  if (!live() || real().cuCtxFromGreenCtx(&face, green) != CUDA_SUCCESS || !face) return call();
  const CUcontext primary = state::owner_of(face);
  int device = 0;
  while (device < kDevices && (primary == face || g_primary[device].load() != primary)) ++device;
  const auto of_face = [&] { return context_ends(face, call); };
  const CUresult result = device < kDevices ? primary_ends(device, false, of_face) : of_face();
  if (result == CUDA_SUCCESS) state::face_gone(face);
  return result;
}

extern "C" CUresult hook_cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice device) noexcept {
  const CUresult result = hooks::with_memory([&] { return real().cuDevicePrimaryCtxRetain(c, device); });
  if (result == CUDA_SUCCESS && live() && c && device >= 0 && device < kDevices) {
    g_primary[device].store(*c);
    state::device_seen(device);
  }
  return result;
}
#define TS_PRIMARY(symbol, always)                                              \
  extern "C" CUresult hook_##symbol(CUdevice device) noexcept {                 \
    return primary_ends(device, always, [&] { return real().symbol(device); }); \
  }
TS_PRIMARY(cuDevicePrimaryCtxRelease, false)
TS_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
TS_PRIMARY(cuDevicePrimaryCtxReset, true)
TS_PRIMARY(cuDevicePrimaryCtxReset_v2, true)
