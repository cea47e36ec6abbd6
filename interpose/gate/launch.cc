// Hooks of the classes launch and launch_whole. The order of tests is the order of cost: role, then what it
// needs.
#include "interpose/gate/launch.h"

#include "interpose/entry/hooks.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/signals.h"
#include "interpose/slice/cut.h"

namespace tessera::gate {
namespace {

using driver_api::Flavour;
using driver_api::StreamArg;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kShortNs =
    20'000;  // launches up to this may use credit; a clock read is nothing to longer ones

uint64_t id(const void* handle) {
  return reinterpret_cast<uint64_t>(handle);
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
  const uint64_t blocks = launch.blocks();
  const uint64_t function = kernel ? kernel->hash : id(launch.function);
  const uint64_t key = timing_key({function, blocks, launch.threads(), launch.shared_bytes});
  Timing* timing = timing_of(key);
  const uint64_t expected = estimate_kernel(timing, blocks);
  const Due due = sample_due(timing);
  if (expected <= kShortNs && !t.shared && due == Due::kNo && spend(*t.slot, launch.stream, expected)) {
    const CUresult result = issue(launch);
    spent(*t.slot, expected, result);
    return result;
  }
  const DepthGuard depth;
  Call gate;
  gate.resource_class = kernel ? kernel->resource_class : uint32_t(abi::kResourceUnknown);
  const bool may_cut = kernel && kernel->has_variant && cut::allowed(launch, *kernel);
  describe(link, launch, kernel, may_cut);
  if (may_cut && cut::wanted(launch, timing)) {
    if (CUresult result; cut::launch(launch, *kernel, timing, gate, &result)) return result;
  }
  if (!may_cut && is_wide(launch, kernel)) count_uncut();
  const uint64_t estimate = lane_of(launch.stream)->blind.load(kRelaxed) ? 0 : expected;
  gate.blocks = blocks;
  gate.may_narrow = may_cut && blocks > 1;
  if (estimate != 0 && estimate <= kShortNs && !t.shared) gate.credit_slot = t.slot;
  Admission admission = admit(gate, launch.stream, estimate);
  if (admission == Admission::kReplan) {  // the lease became a packed one while this waited
    gate.credit_slot = nullptr;
    if (CUresult result; cut::launch(launch, *kernel, timing, gate, &result)) return result;
    gate.may_narrow = false;
    admission = admit(gate, launch.stream, estimate);
  }
  if (admission == Admission::kForward) return issue(launch);
  const bool timed = admission == Admission::kReserved &&
                     (due == Due::kYes || (due == Due::kIfLoaded && load_code(launch.function, kernel)));
  if (timed) note_shape(timing, launch, kernel);
  Sample* sample = timed ? sample_begin(timing, launch.stream, key) : nullptr;
  const CUresult result = issue(launch);
  sample_end(sample, launch.stream, blocks, sample ? width_of(launch, kernel).wave_blocks : 0, result);
  settle(gate, launch.stream, result);
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

#define TS_KERNEL(symbol, family)                                                                     \
  extern "C" CUresult hook_##symbol(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
                                    unsigned by, unsigned bz, unsigned shared, CUstream stream,       \
                                    void** params, void** extra) noexcept {                           \
    using namespace tessera;                                                                          \
    const Role role = gate::g_state.role.load(std::memory_order_relaxed);                             \
    const auto forward = [&] {                                                                        \
      return driver_api::real().symbol(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra);     \
    };                                                                                                \
    if (role == Role::kForward) return forward();                                                     \
    const driver_api::StreamArg s{stream, driver_api::Flavour::family};                               \
    if (role == Role::kProtected) [[likely]]                                                          \
      return gate::protected_launch(s, reinterpret_cast<uint64_t>(f), forward);                       \
    return gate::best_effort_kernel(                                                                  \
        LaunchCall{f, {gx, gy, gz}, {bx, by, bz}, shared, s, params, extra, nullptr});                \
  }
TS_KERNEL(cuLaunchKernel, kLegacy)
TS_KERNEL(cuLaunchKernel_ptsz, kPerThread)
#undef TS_KERNEL

#define TS_KERNEL_EX(symbol, family)                                                       \
  extern "C" CUresult hook_##symbol(const CUlaunchConfig* c, CUfunction f, void** params,  \
                                    void** extra) noexcept {                               \
    using namespace tessera;                                                               \
    const Role role = gate::g_state.role.load(std::memory_order_relaxed);                  \
    const auto forward = [&] { return driver_api::real().symbol(c, f, params, extra); };   \
    if (role == Role::kForward || !c) return forward();                                    \
    const driver_api::StreamArg s{c->hStream, driver_api::Flavour::family};                \
    if (role == Role::kProtected) [[likely]]                                               \
      return gate::protected_launch(s, reinterpret_cast<uint64_t>(f), forward);            \
    return gate::best_effort_kernel(LaunchCall{f,                                          \
                                               {c->gridDimX, c->gridDimY, c->gridDimZ},    \
                                               {c->blockDimX, c->blockDimY, c->blockDimZ}, \
                                               c->sharedMemBytes,                          \
                                               s,                                          \
                                               params,                                     \
                                               extra,                                      \
                                               c});                                        \
  }
TS_KERNEL_EX(cuLaunchKernelEx, kLegacy)
TS_KERNEL_EX(cuLaunchKernelEx_ptsz, kPerThread)
#undef TS_KERNEL_EX

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
