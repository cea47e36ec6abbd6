#include "interpose/lifecycle/lifecycle.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "base/raw_log.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/peer_gates.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/hooks.h"
#include "interpose/lifecycle/connection.h"
#include "interpose/lifecycle/park.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/track.h"

namespace tessera::lifecycle {

namespace {

using state::g_state;
constexpr auto kSeqCst = std::memory_order_seq_cst;
using CallCount = uint64_t (*)(driver_api::Entry);
constinit CallCount g_call_count = nullptr;   // written before there is a helper thread, which reads it
constinit std::atomic<bool> g_called{false};  // any driver call came through us; a fact of its own

// Forked child of a process whose CUDA was initialised: it cannot use the parent's contexts, and must not use
// the parent's seat at the daemon. Only stores and close(2): no free, no unlock, no log.
void at_fork_child() {
  state::t_thread = {};
  if (!helper_started()) return;  // nothing of ours exists yet: the child may become a client of its own
  state::g_phase.store(state::Phase::kDead, std::memory_order_relaxed);
  g_state.role.store(state::Role::kForward, std::memory_order_relaxed);
  state::set_link(&state::g_unmanaged);
  gate::forget_in_child();
  g_state.n_watched.store(0, std::memory_order_relaxed);
  for (state::Watch& w : g_state.watch) w.page.store(&state::g_idle_pulse, std::memory_order_relaxed);
  close_sockets_in_child();
  forget_parking_in_child();
}

// The last timings are of use only if the daemon knows their kernels. The helper tells it within 50 ms; a
// program that ends sooner gives it a moment.
void last_words() {
  const ipc::Attachment* daemon = attached();
  if (!daemon || !daemon->keeps_profiles) return;
  const uint64_t end = base::now_ns() + 5'000'000;
  while (!gate::all_told() && base::now_ns() < end) {
    base::futex_wake_all(&daemon->lease()->word);  // again and again: it tells a few at a time, then sleeps
    sched_yield();
  }
}

__attribute__((destructor)) void at_exit() {
  if (!g_called.load(std::memory_order_relaxed) || bypassed()) tell_bypass();
  if (state::g_phase.load(std::memory_order_relaxed) != state::Phase::kLive) return;
  if (g_state.role.load(std::memory_order_relaxed) == state::Role::kBestEffort) last_words();
  gate::override_device_gate(true);
  state::g_phase.store(state::Phase::kDraining, std::memory_order_relaxed);
  g_state.role.store(state::Role::kForward, std::memory_order_relaxed);
  g_state.captures.fetch_add(1,
                             kSeqCst);  // for ever: the helper stays out of a driver that is being torn down
  const uint64_t end = base::now_ns() + 5'000'000;
  while (g_state.inside.load(kSeqCst) != 0 && base::now_ns() < end) sched_yield();
  state::g_phase.store(state::Phase::kDead, std::memory_order_relaxed);
}

void heavy_fence() noexcept {
  if (!g_state.symmetric.load(std::memory_order_relaxed)) {
    const base::ErrnoGuard keep_errno;
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
    // Programs may refuse themselves system calls at any time. Launches fence themselves from now on; what one that is under
    // way has stored is seen within a microsecond without any fence.
    g_state.symmetric.store(1, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(kSeqCst);
}

}  // namespace

void first_call(bool driver_found, bool disabled, bool driver_was_open) {
  const base::ErrnoGuard keep_errno;
  g_called.store(true, std::memory_order_relaxed);
  if (disabled || !driver_found) return;
  state::load_config();
  if (state::config().disabled) return;
  gate::g_slow.notify_daemon = notify_daemon;
  gate::g_slow.heavy_fence = heavy_fence;
  state::prepare_threads([](state::ThreadSlot& slot) {
    gate::abandon_call();
    gate::Blocked::unblock();
    gate::settle_credit(slot);
    track::capture_ends_with_thread();
  });
  pthread_atfork(nullptr, nullptr, at_fork_child);
  state::g_phase.store(state::Phase::kLive, std::memory_order_release);
  if (!driver_was_open) return;
  note_bypass();
  tell_bypass();
}

uint64_t launch_calls() {
  if (!g_call_count) return 0;
  uint64_t sum = 0;
#define TS_HOOK_launch(symbol, ...) sum += g_call_count(driver_api::Entry::symbol);
#define TS_HOOK_launch_whole TS_HOOK_launch
#define TS_HOOK_launch_graph TS_HOOK_launch
#include "driver_api/hooks.def"
  return sum;
}

void register_membarrier() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
    g_state.symmetric.store(0, std::memory_order_relaxed);  // before the first attach: nobody goes idle yet
}

}  // namespace tessera::lifecycle

extern "C" void tessera_on_first_call(const tessera::hooks::FirstCall* first) noexcept {
  tessera::lifecycle::g_call_count = first->call_count;
  tessera::lifecycle::set_exchange_slots(first->exchange_slots);
  tessera::lifecycle::first_call(first->driver_found, first->disabled, first->driver_was_open);
}

extern "C" CUresult hook_cuInit(unsigned int flags) noexcept {
  const CUresult result = tessera::driver_api::real().cuInit(flags);
  if (result == CUDA_SUCCESS) tessera::lifecycle::driver_initialised();
  return result;
}
