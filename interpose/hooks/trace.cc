#include "interpose/hooks/trace.h"

#include "driver_api/transfer.h"
#include "interpose/gate/trace.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/units.h"

namespace tessera::hooks {
namespace {

using driver_api::Entry;
using driver_api::Flavour;
using driver_api::StreamArg;
using ipc::abi::TraceKind;

constinit driver_api::RealDriver g_untraced = {};  // written before the first exchange, constant from then on

inline const driver_api::RealDriver& untraced() {
  // Pairs with exchange(): a hook loads the slot that leads here without an order, and the jump makes none.
  std::atomic_thread_fence(std::memory_order_acquire);
  return g_untraced;
}

// The driver's call with its times around it. Slices of a cut kernel are named by what the program launched.
template <class F>
inline CUresult timed(TraceKind kind, StreamArg stream, uint64_t a, uint64_t b, uint64_t c, F&& call) {
  const uint64_t start = state::clock_ns();
  const CUresult result = call();
  gate::trace({.kind = kind,
               .detail = uint16_t(result),
               .start_ns = start,
               .end_ns = state::clock_ns(),
               .stream = gate::account_key(stream),
               .a = a,
               .b = b,
               .c = c});
  return result;
}

// Says of a launch that goes whole whether its kernel can be cut, and why not.
uint64_t whole_facts(const void* function) {
  const auto f = static_cast<CUfunction>(const_cast<void*>(function));
  const state::KernelRecord* kernel = state::find_kernel(f);
  return ipc::abi::launch_facts(kernel ? kernel->variant.whole_outcome.load(std::memory_order_relaxed)
                                       : ipc::abi::kOutcomeOther);
}

bool is_best_effort() {
  return state::g_state.role.load(std::memory_order_relaxed) == state::Role::kBestEffort;
}

template <class F>
inline CUresult launched(StreamArg stream, const void* function, uint64_t blocks, uint64_t facts, F&& call) {
  const void* cut = state::t_thread.cutting;
  gate::trace_name(cut ? cut : function);
  return timed(cut ? ipc::abi::kTraceSlice : ipc::abi::kTraceLaunch, stream,
               reinterpret_cast<uint64_t>(cut ? cut : function), blocks, cut || !is_best_effort() ? 0 : facts,
               call);
}

uint64_t facts(const driver_api::Transfer& moved) {
  using driver_api::Direction;
  uint64_t out = 0;
  if (moved.ended_on_return) out |= ipc::abi::kTraceCopyEnded;
  if (moved.direction == Direction::kHostToDevice) out |= ipc::abi::kTraceCopyIn;
  if (moved.direction == Direction::kDeviceToHost) out |= ipc::abi::kTraceCopyOut;
  return out;
}

#define TS_KERNEL(symbol, family)                                                                         \
  CUresult traced_##symbol(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                           unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {  \
    return launched({stream, Flavour::family}, f, uint64_t(gx) * gy * gz, whole_facts(f), [&] {           \
      return untraced().symbol(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);                 \
    });                                                                                                   \
  }
TS_KERNEL(cuLaunchKernel, kLegacy)
TS_KERNEL(cuLaunchKernel_ptsz, kPerThread)
#undef TS_KERNEL

#define TS_KERNEL_EX(symbol, family)                                                                     \
  CUresult traced_##symbol(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {         \
    const auto call = [&] { return untraced().symbol(c, f, params, extra); };                            \
    if (!c) return call();                                                                               \
    return launched({c->hStream, Flavour::family}, f, uint64_t(c->gridDimX) * c->gridDimY * c->gridDimZ, \
                    whole_facts(f), call);                                                               \
  }
TS_KERNEL_EX(cuLaunchKernelEx, kLegacy)
TS_KERNEL_EX(cuLaunchKernelEx_ptsz, kPerThread)
#undef TS_KERNEL_EX

#define TS_HOOK_launch_whole(symbol, base, since, stream, ret, params, args) \
  ret traced_##symbol params {                                               \
    return launched(TS_STREAM_ARG(stream), first_of args, 0,                 \
                    ipc::abi::launch_facts(ipc::abi::kOutcomeWhole),         \
                    [&]() -> ret { return untraced().symbol args; });        \
  }
#define TS_HOOK_launch_graph TS_HOOK_launch_whole
#define TS_HOOK_copy(symbol, base, since, stream, ret, params, args)                                \
  ret traced_##symbol params {                                                                      \
    const driver_api::Transfer moved = driver_api::transfer::of_##symbol args;                      \
    return timed(ipc::abi::kTraceCopy, TS_STREAM_ARG(stream), uint64_t(Entry::symbol), moved.bytes, \
                 facts(moved), [&]() -> ret { return untraced().symbol args; });                    \
  }
#define TS_HOOK_memset TS_HOOK_copy
#include "driver_api/hooks.def"

// Threads jump through the slots meanwhile: each is one word.
template <class Pointer>
void exchange(Pointer& slot, Pointer to) {
  std::atomic_ref(slot).store(to, std::memory_order_release);  // pairs with untraced()
}

}  // namespace

void trace_driver_calls(bool on) {
  if (!g_untraced.cuLaunchKernel) g_untraced = driver_api::real();
  auto& slots = driver_api::exchangeable_real();
#define TS_HOOK_launch(symbol, ...) exchange(slots.symbol, on ? &traced_##symbol : g_untraced.symbol);
#define TS_HOOK_launch_graph TS_HOOK_launch
#define TS_HOOK_launch_whole TS_HOOK_launch
#define TS_HOOK_copy TS_HOOK_launch
#define TS_HOOK_memset TS_HOOK_launch
#include "driver_api/hooks.def"
}

}  // namespace tessera::hooks
