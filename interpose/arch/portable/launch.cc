// The hooks of kernel launches in C++: what x86_64/launch.S does, by the same rules, on other processors. A test runs both
// on x86-64 (tests/unit/interpose/repeat_test.cc).
#include "interpose/gate/credit.h"
#include "interpose/hooks/hooks.h"

namespace tessera::hooks {
namespace {

using namespace gate;
using namespace state;
using driver_api::Flavour;
using driver_api::real;
constexpr auto kRelaxed = std::memory_order_relaxed;

// True: it may go on the thread's credit, which has paid, and leave_on_credit() must follow.
inline bool enter_again(Thread& t) {
  ThreadSlot& slot = *t.slot;
  Credit& c = slot.credit;
  if (c.in_gate.load(kRelaxed) != 0) return false;  // a signal handler, or the driver calling back
  c.in_gate.store(state::kInGate, kRelaxed);
  asymmetric_fence();  // then look; pairs with reclaim_credits, as in enter_on_credit()
  if (!still_granted(c, t.memo.epoch) || stirred(c.peers[0]) || stirred(c.peers[1])) {
    c.in_gate.store(0, std::memory_order_release);
    return false;
  }
  if (!pay(c, t.memo.expected_ns)) {
    c.in_gate.store(state::kOutOfCredit, kRelaxed);
    return false;
  }
  add_own(slot.launches, 1);
  add_own(slot.blocks, t.memo.blocks);
  t.memo.repeats++;
  return true;
}
static_assert(kPeersOfARepeat == 2);

// `remembers`: is the launch what this memo says? `protect` and `best_effort` are protected_cuX and best_effort_cuX
// (interpose/hooks/launch.cc).
template <class Remembers, class Forward, class Protect, class BestEffort>
inline CUresult launch(Remembers remembers, Forward forward, Protect protect, BestEffort best_effort) {
  // relaxed: a launch that sees the old role is one that came earlier
  const Role role = g_state.role.load(kRelaxed);
  if (role == Role::kForward) return forward();
  if (role == Role::kProtected) return protect();
  Thread& t = t_thread;
  if (!remembers(t.memo) || !enter_again(t)) return best_effort();
  return leave_on_credit(forward(), t.memo.expected_ns);
}

}  // namespace
}  // namespace tessera::hooks

#define TS_KERNEL_PARAMS                                                                       \
  (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
   unsigned shared, CUstream stream, void** params, void** extra)
#define TS_KERNEL_ARGS (f, gx, gy, gz, bx, by, bz, shared, stream, params, extra)

#define TS_KERNEL(symbol, flavour)                                                                       \
  extern "C" CUresult protected_##symbol TS_KERNEL_PARAMS noexcept;                                      \
  extern "C" CUresult best_effort_##symbol TS_KERNEL_PARAMS noexcept;                                    \
  extern "C" CUresult hook_##symbol TS_KERNEL_PARAMS noexcept {                                          \
    using namespace tessera::hooks;                                                                      \
    return launch(                                                                                       \
        [&](const LaunchMemo& m) {                                                                       \
          return m.function == f && m.grid[0] == gx && m.grid[1] == gy && m.grid[2] == gz &&             \
                 m.block[0] == bx && m.block[1] == by && m.block[2] == bz && m.shared_bytes == shared && \
                 m.stream == stream && m.family == Flavour::flavour;                                     \
        },                                                                                               \
        [&] { return real().symbol TS_KERNEL_ARGS; }, [&] { return protected_##symbol TS_KERNEL_ARGS; }, \
        [&] { return best_effort_##symbol TS_KERNEL_ARGS; });                                            \
  }
TS_KERNEL(cuLaunchKernel, kLegacy)
TS_KERNEL(cuLaunchKernel_ptsz, kPerThread)

// One with attributes is never remembered.
#define TS_KERNEL_EX(symbol, flavour)                                                                   \
  extern "C" CUresult protected_##symbol(const CUlaunchConfig*, CUfunction, void**, void**) noexcept;   \
  extern "C" CUresult best_effort_##symbol(const CUlaunchConfig*, CUfunction, void**, void**) noexcept; \
  extern "C" CUresult hook_##symbol(const CUlaunchConfig* c, CUfunction f, void** params,               \
                                    void** extra) noexcept {                                            \
    using namespace tessera::hooks;                                                                     \
    return launch(                                                                                      \
        [&](const LaunchMemo& m) {                                                                      \
          return c && c->numAttrs == 0 && m.function == f && m.grid[0] == c->gridDimX &&                \
                 m.grid[1] == c->gridDimY && m.grid[2] == c->gridDimZ && m.block[0] == c->blockDimX &&  \
                 m.block[1] == c->blockDimY && m.block[2] == c->blockDimZ &&                            \
                 m.shared_bytes == c->sharedMemBytes && m.stream == c->hStream &&                       \
                 m.family == Flavour::flavour;                                                          \
        },                                                                                              \
        [&] { return real().symbol(c, f, params, extra); },                                             \
        [&] { return protected_##symbol(c, f, params, extra); },                                        \
        [&] { return best_effort_##symbol(c, f, params, extra); });                                     \
  }
TS_KERNEL_EX(cuLaunchKernelEx, kLegacy)
TS_KERNEL_EX(cuLaunchKernelEx_ptsz, kPerThread)
