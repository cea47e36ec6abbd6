#include <pthread.h>

#include "base/errno_guard.h"
#include "base/futex.h"
#include "interpose/gate/clock.h"
#include "interpose/gate/pulse.h"
#include "ipc/channel/pulse.h"

namespace tessera::gate {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kSpinNs = 20'000, kMinSleepNs = 50'000, kMaxSleepNs = 500'000;
constexpr uint64_t kDefaultHoldNs = 200'000'000, kMostHoldMs = 10'000;
constexpr uint64_t kTellAfterNs = 2'000'000;  // who goes first for so long may be dying: the daemon looks

// A page is untrusted: what it says moves our start by the bound of the wait at most.
bool goes_first(const Watch& watch, uint32_t own_priority, uint64_t own_slo_ns, uint64_t arrived_ns,
                uint64_t now) {
  const abi::PulsePage& page =
      *watch.page.load(std::memory_order_acquire);  // pairs with the helper's release
  if (!ipc::pulse_is_busy(page, now)) return false;
  const uint32_t priority = watch.priority.load(kRelaxed);
  if (priority != own_priority) return priority > own_priority;
  const uint64_t slo_ns = watch.slo_ns.load(kRelaxed);
  if (slo_ns == 0 || own_slo_ns == 0) return false;
  return ipc::load(page.busy_since_ns, kRelaxed) + slo_ns < arrived_ns + own_slo_ns;
}

bool anyone_first(const Link* link, uint64_t arrived_ns, uint64_t now) {
  const uint32_t n = g_state.n_watched.load(std::memory_order_acquire);
  const uint32_t own = ipc::load(link->lease->priority, kRelaxed);
  const uint64_t slo_ns = uint64_t(ipc::load(link->lease->slo_us, kRelaxed)) * 1'000;
  for (uint32_t i = 0; i < n && i < kWatched; i++)
    if (goes_first(g_state.watch[i], own, slo_ns, arrived_ns, now)) return true;
  return false;
}

uint64_t longest_wait(const Link* link) {
  uint64_t ns = link->max_hold_ns;
  if (ns == 0) {
    const uint64_t ms = ipc::load(link->lease->max_hold_ms, kRelaxed);
    ns = ms == 0 ? kDefaultHoldNs : (ms > kMostHoldMs ? kMostHoldMs : ms) * 1'000'000;
  }
  const uint64_t slo_ns = uint64_t(ipc::load(link->lease->slo_us, kRelaxed)) * 1'000;
  return slo_ns != 0 && slo_ns < ns ? slo_ns : ns;
}

// Still the same attachment, still protected, nobody of us began, not switched off.
bool may_wait(const Link* link) {
  return g_state.link.load(std::memory_order_acquire) == link &&
         g_state.role.load(kRelaxed) == Role::kProtected && g_state.captures.load(kRelaxed) == 0 &&
         ipc::load(link->pulse->busy, kRelaxed) == 0 && ipc::load(link->lease->passthrough, kRelaxed) == 0 &&
         (ipc::load(link->lease->flags, kRelaxed) & abi::kLeaseDefer) != 0;
}

}  // namespace

void defer(const Link* link) {
  const uint64_t arrived = clock_ns();
  if (!may_wait(link) || !anyone_first(link, arrived, arrived)) return;
  const base::ErrnoGuard keep_errno;  // the futex may set it
  int cancel_state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  abi::UsageLine& usage = *link->usage;
  std::atomic_ref(usage.holds).fetch_add(1, kRelaxed);
  std::atomic_ref(usage.waiting).fetch_add(1, kRelaxed);
  const uint64_t limit = longest_wait(link);
  uint64_t now = arrived, sleep_ns = kMinSleepNs;
  bool told = false;
  while (now - arrived < limit && may_wait(link) && anyone_first(link, arrived, now)) {
    if (now - arrived < kSpinNs) {
      for (int i = 0; i < 16; i++) base::cpu_relax();
    } else {
      const uint64_t left = limit - (now - arrived);
      base::futex_wait(&link->lease->word, ipc::load(link->lease->word, std::memory_order_acquire),
                       sleep_ns < left ? sleep_ns : left);
      if (sleep_ns < kMaxSleepNs) sleep_ns += sleep_ns / 4;
    }
    now = clock_ns();
    if (!told && now - arrived >= kTellAfterNs) {
      told = true;
      g_slow.notify_daemon();
    }
  }
  if (now - arrived >= limit) std::atomic_ref(usage.hold_expired).fetch_add(1, kRelaxed);
  std::atomic_ref(usage.held_ns).fetch_add(now - arrived, kRelaxed);
  std::atomic_ref(usage.waiting).fetch_sub(1, kRelaxed);
  pthread_setcancelstate(cancel_state, nullptr);
}

}  // namespace tessera::gate
