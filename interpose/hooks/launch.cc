// Hooks of the classes launch and launch_whole. The order of tests is the order of cost: role, the same launch once more,
// then what the role needs.
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
using driver_api::StreamArg;
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
  t.slot->credit.in_gate.store(base::stack_pointer(), kRelaxed);
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
  const uintptr_t inside = t.slot->credit.in_gate.load(kRelaxed), outermost = std::max(t.inside, inside);
  if (inside & state::kOutOfCredit) {
    if (CUresult result; renewed(launch, &result)) return result;
  } else if (outermost != 0) {
    // A signal handler, or the driver calling back. `launch` stands in the frame in which its mark would.
    if (!state::is_left(outermost, reinterpret_cast<uintptr_t>(&launch))) return issue(launch);
    abandon_call();
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

[[gnu::noinline]] CUresult protected_kernel(const LaunchCall& launch) {
  return protected_launch(launch.stream, id(launch.function), [&] { return issue(launch); });
}

// A protected launch on the stream that its thread used last, beside a pulse that says busy: begin_work (gate/pulse.h) as far
// as that. False: nothing has happened.
[[gnu::always_inline]] inline bool begin_again(Thread& t, uint64_t key) {
  if (t.key != key || t.shared || g_state.symmetric.load(kRelaxed) || !mark_launch(t, *t.count)) return false;
  if (begin_while_busy(*t.count, false)) [[likely]]
    return true;
  add_own(t.count->begun, uint64_t(0) - 1);  // a signal handler may come between, and launch
  return false;
}

// The launch that the thread remembers. True: it may go on the thread's credit, which has paid, and leave_on_credit() must
// follow. False: the thread is where it was, or inside with too little credit.
[[gnu::always_inline]] inline bool enter_again(Thread& t) {
  ThreadSlot& slot = *t.slot;
  Credit& c = slot.credit;
  if (c.in_gate.load(kRelaxed) != 0) return false;  // a signal handler, or the driver calling back
  const uint64_t mark = base::stack_pointer();
  c.in_gate.store(mark, kRelaxed);
  asymmetric_fence();  // then look; pairs with reclaim_credits, as in enter_on_credit()
  if (!still_granted(c, t.memo.epoch) || stirred(c.peers[0]) || stirred(c.peers[1])) {
    c.in_gate.store(0, std::memory_order_release);
    return false;
  }
  if (!pay(c, t.memo.expected_ns)) {
    c.in_gate.store(mark | state::kOutOfCredit, kRelaxed);
    return false;
  }
  add_own(slot.launches, 1);
  add_own(slot.blocks, t.memo.blocks);
  t.memo.repeats++;
  return true;
}
static_assert(kPeersOfARepeat == 2);

// `forward()` passes the hook's arguments to the driver, `call()` makes them a LaunchCall. What most launches need is
// inlined here and moves no argument; the rest is a call.
template <class Forward, class Call>
[[gnu::always_inline]] inline CUresult protect(StreamArg stream, CUfunction function, Forward forward,
                                               Call call) {
  Thread& t = t_thread;
  if (!begin_again(t, state::stream_key(stream))) return protected_kernel(call());
  StreamCount* const count = t.count;  // the driver may call back
  add_own(t.slot->launches, 1);
  t.slot->last_function.store(id(function), kRelaxed);
  const CUresult result = forward();
  end_work({count, false});
  return result;
}

// `repeats(memo)`: the arguments are those of the launch that the thread remembers.
template <class Repeats, class Forward, class Call>
[[gnu::always_inline]] inline CUresult gate_launch(Repeats repeats, Forward forward, Call call) {
  Thread& t = t_thread;
  if (!repeats(t.memo) || !enter_again(t)) return best_effort_kernel(call());
  return leave_on_credit(forward(), t.memo.expected_ns);
}

}  // namespace

// Each hook is a function with its signature for each role. A table leads to it: where GCC sees a branch, it moves the
// arguments out of the way and back.
#define TS_BY_ROLE(symbol, params, args)                                                          \
  static constexpr decltype(&symbol) kRolesOf_##symbol[] = {forward_##symbol, protected_##symbol, \
                                                            best_effort_##symbol};                \
  extern "C" CUresult hook_##symbol params noexcept {                                             \
    /* relaxed: a launch that sees the old role is one that came earlier */                       \
    return kRolesOf_##symbol[size_t(g_state.role.load(kRelaxed))] args;                           \
  }
static_assert(size_t(Role::kForward) == 0 && size_t(Role::kProtected) == 1 && size_t(Role::kBestEffort) == 2);

#define TS_KERNEL_PARAMS                                                                       \
  (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
   unsigned shared, CUstream stream, void** params, void** extra)
#define TS_KERNEL_ARGS (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)
#define TS_KERNEL(symbol, which)                                                                           \
  static CUresult forward_##symbol TS_KERNEL_PARAMS {                                                      \
    return driver_api::real().symbol TS_KERNEL_ARGS;                                                       \
  }                                                                                                        \
  static LaunchCall call_of_##symbol TS_KERNEL_PARAMS {                                                    \
    return {f, {gx, gy, gz}, {bx, by, bz}, shared, {stream, Flavour::which}, params, extra, nullptr};      \
  }                                                                                                        \
  [[gnu::noinline]] static CUresult protected_##symbol TS_KERNEL_PARAMS {                                  \
    return protect(                                                                                        \
        {stream, Flavour::which}, f, [&] { return forward_##symbol TS_KERNEL_ARGS; },                      \
        [&] { return call_of_##symbol TS_KERNEL_ARGS; });                                                  \
  }                                                                                                        \
  [[gnu::noinline]] static CUresult best_effort_##symbol TS_KERNEL_PARAMS {                                \
    return gate_launch(                                                                                    \
        [&](const LaunchMemo& m) {                                                                         \
          return m.function == f && m.grid[0] == gx && m.grid[1] == gy && m.grid[2] == gz &&               \
                 m.block[0] == bx && m.block[1] == by && m.block[2] == bz && m.shared_bytes == shared &&   \
                 m.stream == stream && m.family == Flavour::which;                                         \
        },                                                                                                 \
        [&] { return forward_##symbol TS_KERNEL_ARGS; }, [&] { return call_of_##symbol TS_KERNEL_ARGS; }); \
  }                                                                                                        \
  TS_BY_ROLE(symbol, TS_KERNEL_PARAMS, TS_KERNEL_ARGS)
TS_KERNEL(cuLaunchKernel, kLegacy)
TS_KERNEL(cuLaunchKernel_ptsz, kPerThread)

#define TS_KERNEL_EX_PARAMS (const CUlaunchConfig* c, CUfunction f, void** params, void** extra)
#define TS_KERNEL_EX_ARGS (c, f, params, extra)
#define TS_KERNEL_EX(symbol, which)                                                                    \
  static CUresult forward_##symbol TS_KERNEL_EX_PARAMS {                                               \
    return driver_api::real().symbol TS_KERNEL_EX_ARGS;                                                \
  }                                                                                                    \
  static LaunchCall call_of_##symbol TS_KERNEL_EX_PARAMS {                                             \
    return {f,                                                                                         \
            {c->gridDimX, c->gridDimY, c->gridDimZ},                                                   \
            {c->blockDimX, c->blockDimY, c->blockDimZ},                                                \
            c->sharedMemBytes,                                                                         \
            {c->hStream, Flavour::which},                                                              \
            params,                                                                                    \
            extra,                                                                                     \
            c};                                                                                        \
  }                                                                                                    \
  [[gnu::noinline]] static CUresult protected_##symbol TS_KERNEL_EX_PARAMS {                           \
    if (!c) return forward_##symbol TS_KERNEL_EX_ARGS;                                                 \
    return protect(                                                                                    \
        {c->hStream, Flavour::which}, f, [&] { return forward_##symbol TS_KERNEL_EX_ARGS; },           \
        [&] { return call_of_##symbol TS_KERNEL_EX_ARGS; });                                           \
  }                                                                                                    \
  /* one with attributes is never remembered */                                                        \
  [[gnu::noinline]] static CUresult best_effort_##symbol TS_KERNEL_EX_PARAMS {                         \
    if (!c) return forward_##symbol TS_KERNEL_EX_ARGS;                                                 \
    return gate_launch(                                                                                \
        [&](const LaunchMemo& m) {                                                                     \
          return c->numAttrs == 0 && m.function == f && m.grid[0] == c->gridDimX &&                    \
                 m.grid[1] == c->gridDimY && m.grid[2] == c->gridDimZ && m.block[0] == c->blockDimX && \
                 m.block[1] == c->blockDimY && m.block[2] == c->blockDimZ &&                           \
                 m.shared_bytes == c->sharedMemBytes && m.stream == c->hStream &&                      \
                 m.family == Flavour::which;                                                           \
        },                                                                                             \
        [&] { return forward_##symbol TS_KERNEL_EX_ARGS; },                                            \
        [&] { return call_of_##symbol TS_KERNEL_EX_ARGS; });                                           \
  }                                                                                                    \
  TS_BY_ROLE(symbol, TS_KERNEL_EX_PARAMS, TS_KERNEL_EX_ARGS)
TS_KERNEL_EX(cuLaunchKernelEx, kLegacy)
TS_KERNEL_EX(cuLaunchKernelEx_ptsz, kPerThread)

}  // namespace tessera::hooks

#define TS_HOOK_launch_whole(symbol, base, since, stream, ret, params, args)                               \
  extern "C" ret hook_##symbol params noexcept {                                                           \
    return tessera::hooks::whole_launch(TS_STREAM_ARG(stream), tessera::hooks::first_of args, 0,           \
                                        [&]() -> ret { return tessera::driver_api::real().symbol args; }); \
  }
#include "driver_api/hooks.def"
