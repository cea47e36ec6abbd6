// Hooks of the classes launch and launch_whole. The order of tests is the order of cost: role, then what it
// needs.
#include "interpose/gate/launch.h"

#include <cstddef>

#include "interpose/entry/hooks.h"
#include "interpose/gate/credit.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/signals.h"
#include "interpose/slice/cut.h"

namespace tessera::gate {
namespace {

using driver_api::Flavour;
using driver_api::StreamArg;
constexpr auto kRelaxed = std::memory_order_relaxed;

uint64_t id(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
}

using admission::Action;

// Whole launches of a kernel are asked about like this; cut::launch asks for each slice.
CUresult uncut_kernel(const LaunchCall& launch, KernelRecord* kernel, Timing* timing, TimeIt time_it,
                      uint64_t expected_ns, bool may_cut) {
  const uint64_t blocks = launch.blocks();
  Wait wait;
  if (may_cut && cut::wanted(launch, timing)) {
    if (CUresult result; cut::launch(launch, *kernel, timing, wait, &result)) return result;
  }
  if (!may_cut && is_wide(launch, kernel)) count_uncut();
  Thread& t = t_thread;
  admission::Ask what{
      .estimate_ns = lane_of(launch.stream)->blind.load(kRelaxed) ? 0 : expected_ns,
      .blocks = blocks,
      .resource_class = kernel ? kernel->resource_class : uint32_t(abi::kResourceUnknown),
      .may_narrow = may_cut && blocks > 1,
  };
  const bool pays = what.estimate_ns != 0 && what.estimate_ns <= admission::kShortLaunchNs && !t.shared;
  Reservation reservation;
  Action action = ask(what, launch.stream, wait, reservation, pays ? t.slot : nullptr);
  if (action == Action::kNarrow) {  // the lease became a packed one while this waited
    if (CUresult result; cut::launch(launch, *kernel, timing, wait, &result)) return result;
    what.may_narrow = false;
    action = ask(what, launch.stream, wait, reservation);
  }
  if (action == Action::kForward) return issue(launch);
  const bool timed =
      action == Action::kGo &&
      (time_it == TimeIt::kYes || (time_it == TimeIt::kIfLoaded && load_code(launch.function, kernel)));
  if (timed) note_shape(timing, launch, kernel);
  const uint64_t key = timing ? timing->key.load(kRelaxed) : 0;
  Sample* sample = timed ? sample_begin(timing, launch.stream, key) : nullptr;
  const CUresult result = issue(launch);
  sample_end(sample, launch.stream, blocks, sample ? width_of(launch, kernel).wave_blocks : 0, result);
  reservation.settle(launch.stream, result);
  return result;
}

__attribute__((noinline)) CUresult best_effort_kernel(const LaunchCall& launch) {
  Thread& t = t_thread;
  if (!t.slot) claim_slot(t);
  // Already inside: a signal handler, or the driver calling back.
  if (t.depth || t.slot->credit.in_gate.load(kRelaxed)) return issue(launch);
  count_launch(id(launch.function));
  count_blocks(launch.blocks());
  if (g_state.captures.load(kRelaxed) && capturing(launch.stream)) return issue(launch);
  const Link* link = g_state.link.load(std::memory_order_acquire);
  // Free: nobody else on this GPU. acquire: pairs with lease_publish.
  if ((ipc::load(link->lease->word, std::memory_order_acquire) & abi::kLeaseStateMask) == abi::kLeaseFree)
    return issue(launch);
  KernelRecord* kernel = find_kernel(launch.function);
  if (kernel && kernel->never_hold) return issue(launch);  // a held collective stops its peers on other GPUs
  const uint64_t function = kernel ? kernel->hash : id(launch.function);
  Timing* timing = timing_of(timing_key({function, launch.blocks(), launch.threads(), launch.shared_bytes}));
  const uint64_t expected_ns = estimate_kernel(timing, launch.blocks());
  const TimeIt time_it = should_time(timing);
  if (expected_ns <= admission::kShortLaunchNs && !t.shared && time_it == TimeIt::kNo) {
    if (!launch.config || launch.config->numAttrs == 0) remember(t, launch, expected_ns);
    if (enter_on_credit(t, lane_key(launch.stream), expected_ns)) {
      const CUresult result = issue(launch);
      leave_on_credit(t, expected_ns, result);
      return result;
    }
  }
  const DepthGuard depth;
  const bool may_cut = kernel && kernel->has_variant && cut::allowed(launch, *kernel);
  describe(link, launch, kernel, may_cut);
  return uncut_kernel(launch, kernel, timing, time_it, expected_ns, may_cut);
}

// The launch that the thread remembers, by its credit.
template <class F>
inline CUresult on_credit(Thread& t, F&& call) {
  const uint64_t expected_ns = t.memo.expected_ns;
  t.until_timed--;
  count_launch(id(t.memo.function));
  count_blocks(t.memo.blocks);
  const CUresult result = call();
  leave_on_credit(t, expected_ns, result);
  return result;
}

template <class F>
CUresult whole(StreamArg stream, const void* what, F&& call) {
  const Role role = g_state.role.load(kRelaxed);
  if (role == Role::kForward) return call();
  if (role == Role::kProtected) return protected_launch(stream, id(what), call);
  Thread& t = t_thread;
  if (!t.slot) claim_slot(t);
  count_launch(id(what));
  count_uncut();
  describe_whole(g_state.link.load(std::memory_order_acquire));
  KernelRecord* kernel = find_kernel(static_cast<CUfunction>(const_cast<void*>(what)));
  if (kernel && kernel->never_hold) return call();
  const uint64_t key = timing_key({id(what), 1, 0, 0});
  Timing* timing = timing_of(key);
  return best_effort_unit(stream, estimate_of(timing, 1), timing, key, false, call);
}

}  // namespace

CUresult issue(const LaunchCall& c) {
  const auto& real = driver_api::real();
  const bool per_thread = c.stream.flavour == Flavour::kPerThread;
  if (c.config) {
    CUlaunchConfig config = *c.config;
    config.gridDimX = c.grid[0];
    config.gridDimY = c.grid[1];
    config.gridDimZ = c.grid[2];
    return per_thread ? real.cuLaunchKernelEx_ptsz(&config, c.function, c.params, c.extra)
                      : real.cuLaunchKernelEx(&config, c.function, c.params, c.extra);
  }
  return (per_thread ? real.cuLaunchKernel_ptsz : real.cuLaunchKernel)(
      c.function, c.grid[0], c.grid[1], c.grid[2], c.block[0], c.block[1], c.block[2], c.shared_bytes,
      c.stream.stream, c.params, c.extra);
}

bool capturing(StreamArg s) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const auto& real = driver_api::real();
  // The same family as the call: stream 0 is another stream in the other one.
  const CUresult r = s.flavour == Flavour::kPerThread ? real.cuStreamIsCapturing_ptsz(s.stream, &status)
                                                      : real.cuStreamIsCapturing(s.stream, &status);
  return r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace tessera::gate

using tessera::gate::LaunchCall;
using tessera::gate::Role;

// The hooks themselves are in by_role.S: they look at the role and jump to one of these.
static_assert(offsetof(tessera::gate::State, role) == 8);
static_assert(uint32_t(Role::kForward) == 0 && uint32_t(Role::kProtected) == 1 &&
              uint32_t(Role::kBestEffort) == 2);

#define TS_KERNEL_PARAMS                                                                       \
  (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
   unsigned shared, CUstream stream, void** params, void** extra)
#define TS_KERNEL_ARGS (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)

#define TS_KERNEL(symbol, family)                                                                            \
  extern "C" CUresult protected_##symbol TS_KERNEL_PARAMS noexcept {                                         \
    return tessera::gate::protected_launch(                                                                  \
        {stream, tessera::driver_api::Flavour::family}, reinterpret_cast<uint64_t>(f),                       \
        [&] { return tessera::driver_api::real().symbol TS_KERNEL_ARGS; });                                  \
  }                                                                                                          \
  extern "C" CUresult best_effort_##symbol TS_KERNEL_PARAMS noexcept {                                       \
    tessera::gate::Thread& t = tessera::gate::t_thread;                                                      \
    const tessera::driver_api::StreamArg s{stream, tessera::driver_api::Flavour::family};                    \
    if (tessera::gate::remembers(t, f, {gx, gy, gz}, {bx, by, bz}, shared, s) &&                             \
        tessera::gate::enter_on_credit(t, t.memo.lane_key, t.memo.expected_ns)) [[likely]]                   \
      return tessera::gate::on_credit(t, [&] { return tessera::driver_api::real().symbol TS_KERNEL_ARGS; }); \
    return tessera::gate::best_effort_kernel(                                                                \
        LaunchCall{f, {gx, gy, gz}, {bx, by, bz}, shared, s, params, extra, nullptr});                       \
  }
TS_KERNEL(cuLaunchKernel, kLegacy)
TS_KERNEL(cuLaunchKernel_ptsz, kPerThread)
#undef TS_KERNEL

#define TS_KERNEL_EX(symbol, family)                                                                  \
  extern "C" CUresult protected_##symbol(const CUlaunchConfig* c, CUfunction f, void** params,        \
                                         void** extra) noexcept {                                     \
    const auto forward = [&] { return tessera::driver_api::real().symbol(c, f, params, extra); };     \
    if (!c) return forward();                                                                         \
    return tessera::gate::protected_launch({c->hStream, tessera::driver_api::Flavour::family},        \
                                           reinterpret_cast<uint64_t>(f), forward);                   \
  }                                                                                                   \
  extern "C" CUresult best_effort_##symbol(const CUlaunchConfig* c, CUfunction f, void** params,      \
                                           void** extra) noexcept {                                   \
    const auto forward = [&] { return tessera::driver_api::real().symbol(c, f, params, extra); };     \
    if (!c) return forward();                                                                         \
    const tessera::driver_api::StreamArg s{c->hStream, tessera::driver_api::Flavour::family};         \
    tessera::gate::Thread& t = tessera::gate::t_thread;                                               \
    if (c->numAttrs == 0 &&                                                                           \
        tessera::gate::remembers(t, f, {c->gridDimX, c->gridDimY, c->gridDimZ},                       \
                                 {c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, s) && \
        tessera::gate::enter_on_credit(t, t.memo.lane_key, t.memo.expected_ns)) [[likely]]            \
      return tessera::gate::on_credit(t, forward);                                                    \
    return tessera::gate::best_effort_kernel(LaunchCall{f,                                            \
                                                        {c->gridDimX, c->gridDimY, c->gridDimZ},      \
                                                        {c->blockDimX, c->blockDimY, c->blockDimZ},   \
                                                        c->sharedMemBytes,                            \
                                                        s,                                            \
                                                        params,                                       \
                                                        extra,                                        \
                                                        c});                                          \
  }
TS_KERNEL_EX(cuLaunchKernelEx, kLegacy)
TS_KERNEL_EX(cuLaunchKernelEx_ptsz, kPerThread)
#undef TS_KERNEL_EX
#undef TS_KERNEL_PARAMS
#undef TS_KERNEL_ARGS

// What identifies a whole launch for timing: its first pointer argument (function, graph, parameter list).
template <class First, class... Rest>
static const void* first_of(First first, Rest...) {
  return reinterpret_cast<const void*>(first);
}

#define TS_HOOK_launch_whole(symbol, base, since, stream, ret, params, args)                       \
  extern "C" ret hook_##symbol params noexcept {                                                   \
    return tessera::gate::whole(TS_STREAM_ARG(stream), first_of args,                              \
                                [&]() -> ret { return tessera::driver_api::real().symbol args; }); \
  }
#include "driver_api/hooks.def"
