// Hooks of the classes launch and launch_whole. The order of tests is the order of cost: role, then what it
// needs.
#include "interpose/gate/collectives.h"
#include "interpose/gate/credit.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/operation_counts.h"
#include "interpose/gate/signals.h"
#include "interpose/hooks/hooks.h"
#include "interpose/hooks/units.h"
#include "interpose/slice/cut.h"
#include "interpose/slice/send.h"
#include "interpose/track/graph_notes.h"

namespace tessera::hooks {

using namespace gate;
using namespace state;

namespace {

using driver_api::Flavour;
constexpr auto kRelaxed = std::memory_order_relaxed;

// The note of a library call stays with the node (interpose/track/graph_notes.h).
CUresult captured(const LaunchCall& launch) {
  const CUresult result = issue(launch);
  if (operations::Note* note = state::t_note; note && result == CUDA_SUCCESS)
    track::note_captured(launch, *note);
  return result;
}

void remember(LaunchMemo& memo, const LaunchCall& l, uint64_t expected_ns, Timing* timing,
              abi::LaunchOutcome outcome) {
  memo = {.grid = {l.grid[0], l.grid[1], l.grid[2]},
          .block = {l.block[0], l.block[1], l.block[2]},
          .shared_bytes = l.shared_bytes,
          .epoch = 0,
          .stream = l.stream.stream,
          .function = l.function,
          .family = l.stream.flavour,
          .expected_ns = expected_ns,
          .blocks = l.blocks(),
          .repeats = 0,
          .timing = timing,
          .outcome = outcome};
}

// The launch that the thread remembers, inside the gate, with too little credit left.
bool renewed(const LaunchCall& launch, CUresult* result) {
  Thread& t = t_thread;
  t.slot->credit.in_gate.store(state::kInGate, kRelaxed);
  if (!renew_credit(t)) {
    t.slot->credit.in_gate.store(0, std::memory_order_release);
    return false;
  }
  count_launch(id(launch.function));
  count_blocks(t.memo.blocks);
  t.memo.repeats++;
  count_repeats();
  *result = leave_on_credit(issue(launch), t.memo.expected_ns);
  return true;
}

[[gnu::noinline]] CUresult best_effort_kernel(const LaunchCall& launch) {
  Thread& t = t_thread;
  if (!t.slot) claim_slot(t);
  const uint32_t inside = t.slot->credit.in_gate.load(kRelaxed);
  if (inside == state::kOutOfCredit) {
    if (CUresult result; renewed(launch, &result)) return result;
  } else if (t.depth || inside) {  // a signal handler, or the driver calling back
    return issue(launch);
  }
  count_launch(id(launch.function));
  count_blocks(launch.blocks());
  count_repeats();
  if (g_state.captures.load(kRelaxed) && capturing(launch.stream)) return captured(launch);
  if (starts_collective(launch.function)) return issue(launch);
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  // Free: nobody else on this GPU. acquire: pairs with lease_publish.
  if ((ipc::load(link->lease->word, std::memory_order_acquire) & abi::kLeaseStateMask) == abi::kLeaseFree) {
    charge_operation(0);
    return issue(launch);
  }
  KernelRecord* kernel = find_kernel(launch.function);
  if (kernel && kernel->loaded.never_hold) {
    charge_operation(0);
    leave_device_gate();
    return issue(launch);  // a held collective stops its peers on other GPUs
  }
  Timing* timing = timing_of_kernel(launch, kernel);
  const uint64_t expected_ns = estimate_kernel(timing, launch.blocks(), kernel_id(launch, kernel));
  charge_operation(expected_ns);
  const TimeIt time_it = should_time(timing);
  const bool on_credit = expected_ns <= admission::kShortLaunchNs && !t.shared && time_it == TimeIt::kNo;
  const bool again = on_credit && (!launch.config || launch.config->numAttrs == 0);
  // Short ones need not be cut; they count as what their kernel is.
  const abi::LaunchOutcome outcome =
      kernel ? kernel->variant.whole_outcome.load(kRelaxed) : abi::kOutcomeOther;
  if (again) remember(t.memo, launch, expected_ns, timing, outcome);
  const uint64_t account = account_key(launch.stream);
  CUresult result;
  if (on_credit && enter_on_credit(t, account, expected_ns)) {
    count_outcome(outcome, 1, expected_ns);
    result = leave_on_credit(issue(launch), expected_ns);
  } else {
    const DepthGuard depth;
    const bool may_cut = kernel && kernel->loaded.has_variant && cut::allowed(launch, *kernel);
    const uint32_t resource_class = class_of(kernel);
    const Width width = width_of(launch, kernel);
    describe(link, resource_class, width, may_cut);
    result = cut::send({launch, kernel, timing, time_it, expected_ns, resource_class, width, may_cut});
  }
  if (again) may_repeat(t, account);
  return result;
}

}  // namespace
}  // namespace tessera::hooks

using tessera::hooks::LaunchCall;
using tessera::hooks::Role;

// The hooks are in interpose/arch, and come here with what they do not know.
#define TS_KERNEL_PARAMS                                                                       \
  (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
   unsigned shared, CUstream stream, void** params, void** extra)
#define TS_KERNEL_ARGS (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)

#define TS_KERNEL(symbol, family)                                                                        \
  extern "C" CUresult protected_##symbol TS_KERNEL_PARAMS noexcept {                                     \
    return tessera::hooks::protected_launch(                                                             \
        {stream, tessera::driver_api::Flavour::family}, reinterpret_cast<uint64_t>(f),                   \
        [&] { return tessera::driver_api::real().symbol TS_KERNEL_ARGS; });                              \
  }                                                                                                      \
  extern "C" CUresult best_effort_##symbol TS_KERNEL_PARAMS noexcept {                                   \
    return tessera::hooks::best_effort_kernel(LaunchCall{f,                                              \
                                                         {gx, gy, gz},                                   \
                                                         {bx, by, bz},                                   \
                                                         shared,                                         \
                                                         {stream, tessera::driver_api::Flavour::family}, \
                                                         params,                                         \
                                                         extra,                                          \
                                                         nullptr});                                      \
  }
TS_KERNEL(cuLaunchKernel, kLegacy)
TS_KERNEL(cuLaunchKernel_ptsz, kPerThread)
#undef TS_KERNEL

#define TS_KERNEL_EX(symbol, family)                                                                 \
  extern "C" CUresult protected_##symbol(const CUlaunchConfig* c, CUfunction f, void** params,       \
                                         void** extra) noexcept {                                    \
    const auto forward = [&] { return tessera::driver_api::real().symbol(c, f, params, extra); };    \
    if (!c) return forward();                                                                        \
    return tessera::hooks::protected_launch({c->hStream, tessera::driver_api::Flavour::family},      \
                                            reinterpret_cast<uint64_t>(f), forward);                 \
  }                                                                                                  \
  extern "C" CUresult best_effort_##symbol(const CUlaunchConfig* c, CUfunction f, void** params,     \
                                           void** extra) noexcept {                                  \
    if (!c) return tessera::driver_api::real().symbol(c, f, params, extra);                          \
    const tessera::driver_api::StreamArg s{c->hStream, tessera::driver_api::Flavour::family};        \
    return tessera::hooks::best_effort_kernel(LaunchCall{f,                                          \
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
#undef TS_KERNEL_PARAMS
#undef TS_KERNEL_ARGS

#define TS_HOOK_launch_whole(symbol, base, since, stream, ret, params, args)                               \
  extern "C" ret hook_##symbol params noexcept {                                                           \
    return tessera::hooks::whole_launch(TS_STREAM_ARG(stream), tessera::hooks::first_of args, 0,           \
                                        [&]() -> ret { return tessera::driver_api::real().symbol args; }); \
  }
#include "driver_api/hooks.def"
