#include <pthread.h>

#include "admission/burst_start.h"
#include "admission/wait.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "base/machine.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/trace.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kSpinNs = 20'000, kMinSleepNs = 50'000, kMaxSleepNs = 500'000;

bool anyone_first(const admission::BurstStart& own, uint64_t now) {
  const uint32_t n = g_state.n_watched.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n && i < kWatched; i++) {
    const Watch& watch = g_state.watch[i];
    if (admission::goes_first(pulse_of(watch), watch.slo_ns.load(kRelaxed), own, now)) return true;
  }
  return false;
}

// Still the same attachment, still protected, nobody of us began, not switched off.
bool may_wait(const DaemonLink* link) {
  const admission::LeaseView lease = lease_of(link);
  return g_state.link.load(std::memory_order_acquire) == link &&
         g_state.role.load(kRelaxed) == Role::kProtected && g_state.captures.load(kRelaxed) == 0 &&
         ipc::load(link->pulse->busy, kRelaxed) == 0 && !lease.passthrough && lease.defers;
}

}  // namespace

void defer(const DaemonLink* link) {
  const uint64_t arrived = clock_ns();
  const admission::LeaseView lease = lease_of(link);
  const admission::BurstStart own{lease.priority, lease.slo_ns, arrived};
  if (!may_wait(link) || !anyone_first(own, arrived)) return;
  const base::ErrnoGuard keep_errno;  // the futex may set it
  int cancel_state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  abi::UsageLine& usage = *link->usage;
  std::atomic_ref(usage.holds).fetch_add(1, kRelaxed);
  std::atomic_ref(usage.waiting).fetch_add(1, kRelaxed);
  const uint64_t limit = admission::most_defer_ns(lease.max_hold_ns, lease.slo_ns);
  uint64_t now = arrived, sleep_ns = kMinSleepNs;
  bool told = false;
  while (now - arrived < limit && may_wait(link) && anyone_first(own, now)) {
    if (now - arrived < kSpinNs) {
      for (int i = 0; i < 16; i++) base::cpu_relax();
    } else {
      const uint64_t left = limit - (now - arrived);
      base::futex_wait(&link->lease->word, ipc::load(link->lease->word, std::memory_order_acquire),
                       sleep_ns < left ? sleep_ns : left);
      if (sleep_ns < kMaxSleepNs) sleep_ns += sleep_ns / 4;
    }
    now = clock_ns();
    if (!told && now - arrived >= admission::kTellAfterNs) {
      told = true;
      g_slow.notify_daemon();
    }
  }
  if (now - arrived >= limit) std::atomic_ref(usage.hold_expired).fetch_add(1, kRelaxed);
  std::atomic_ref(usage.held_ns).fetch_add(now - arrived, kRelaxed);
  trace({.kind = abi::kTraceHold, .detail = abi::kTraceHeldByBurst, .start_ns = arrived, .end_ns = now});
  std::atomic_ref(usage.waiting).fetch_sub(1, kRelaxed);
  pthread_setcancelstate(cancel_state, nullptr);
}

}  // namespace tessera::gate
