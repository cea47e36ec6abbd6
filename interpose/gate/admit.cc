#include "interpose/gate/admit.h"

#include <pthread.h>

#include "base/errno_guard.h"
#include "base/futex.h"
#include "interpose/gate/clock.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "ipc/channel/pulse.h"

namespace tessera::gate {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Window full: asleep while the next marker is far, by half of what is left, because timers are late by tens
// of microseconds; awake when it is near. Estimates are off: what is overdue is watched for a while, then
// less and less often.
constexpr int64_t kNearNs = 100'000, kOverdueNs = 150'000;
constexpr uint64_t kWindowSpinNs = 20'000, kWindowSleepNs = 50'000;
constexpr uint64_t kHoldSleepNs = 1'000'000;  // upper bound: pulses wake nobody
constexpr uint64_t kDrainSleepNs = 100'000;
constexpr uint64_t kTellAfterNs = 2'000'000;  // a pulse in the way for so long may be of a client that dies
constexpr uint64_t kDefaultHoldNs = 200'000'000;
constexpr uint64_t kQueryEveryNs = 200'000;
constexpr uint64_t kCreditShare = 8;  // of the window, per thread
constexpr uint64_t kMaxCreditNs = 250'000;

enum class Obstacle { kNone, kFree, kLease, kPulse, kWindow };

// Is a protected peer of a higher level at work, or only just idle? Its page is untrusted; words are read
// once.
bool pulse_in_the_way(const Watch& watch, uint32_t own_priority, uint64_t guard_ns, uint64_t now) {
  const abi::PulsePage& page =
      *watch.page.load(std::memory_order_acquire);  // pairs with the helper's release
  if (watch.priority.load(kRelaxed) <= own_priority) return false;
  if (ipc::load(page.busy, std::memory_order_acquire) != 0) [[unlikely]]
    return ipc::pulse_is_busy(page, now);
  const uint64_t idle_since_untrusted = ipc::load(page.idle_since_ns, kRelaxed);
  return now - idle_since_untrusted <
         guard_ns;  // a time in the future wraps to a large number: not in the way
}

// Changes whenever a watched client started a burst, also one that is over by now.
uint64_t bursts_seen() {
  uint64_t sum = 0;
  const uint32_t n = g_state.n_watched.load(kRelaxed);
  for (uint32_t i = 0; i < n && i < kWatched; i++)
    sum += ipc::load(g_state.watch[i].page.load(std::memory_order_acquire)->burst, kRelaxed);
  return sum;
}

bool pulses_in_the_way(const Link* link, uint64_t now) {
  const uint32_t n = g_state.n_watched.load(kRelaxed), own = ipc::load(link->lease->priority, kRelaxed);
  for (uint32_t i = 0; i < n && i < kWatched; i++)
    if (pulse_in_the_way(g_state.watch[i], own, link->guard_ns, now)) return true;
  return false;
}

// May it run beside a busy pulse? A packed lease without width is a minimum share: anything may. One with
// width is for kernels of its classes that are no wider: what cannot be cut waits.
bool packed_for(const Call& call, const abi::LeaseLine& lease) {
  const uint32_t flags = ipc::load(lease.flags, kRelaxed);
  if ((flags & abi::kLeasePacked) == 0) return false;
  const uint32_t width = ipc::load(lease.width_blocks, kRelaxed);
  if (width == 0) return true;
  const uint32_t classes = (flags & abi::kLeaseClassMask) >> abi::kLeaseClassShift;
  return call.blocks != 0 && call.blocks <= width && (classes == 0 || (classes >> call.resource_class & 1u));
}

// Too wide for the lease as it stands, but the caller can cut it, and its kind is what the lease is for.
bool should_narrow(const Call& call, const abi::LeaseLine& lease) {
  const uint32_t width = ipc::load(lease.width_blocks, kRelaxed);
  if (!call.may_narrow || width == 0 || call.blocks <= width) return false;
  const uint32_t flags = ipc::load(lease.flags, kRelaxed);
  const uint32_t classes = (flags & abi::kLeaseClassMask) >> abi::kLeaseClassShift;
  return (flags & abi::kLeasePacked) != 0 && (classes == 0 || (classes >> call.resource_class & 1u));
}

// A piece of the call may go: its hold limit begins anew, because that limit bounds the time without
// progress. (Were it the whole call's, a long kernel's rest would go out whole although it is being served.)
void served(Call& call) {
  call.served_ns += call.held_ns;
  call.held_ns = call.stuck_ns = 0;
}

Obstacle look(const Call& call, const Link* link, uint32_t word, uint64_t before, uint64_t estimate,
              uint64_t now) {
  const abi::LeaseLine& lease = *link->lease;
  const uint32_t state = word & abi::kLeaseStateMask;
  if (state == abi::kLeaseFree) return Obstacle::kFree;
  if (state != abi::kLeaseGranted || now >= ipc::load(lease.expires_ns, kRelaxed)) return Obstacle::kLease;
  if (!packed_for(call, lease) && pulses_in_the_way(link, now)) return Obstacle::kPulse;
  // Work longer than the window runs alone: it may start when nothing else is in flight.
  if (before != 0 && before + estimate > ipc::load(lease.window_ns, kRelaxed)) return Obstacle::kWindow;
  return Obstacle::kNone;
}

void start_waiting(Call& call, const Link* link, uint64_t estimate, uint64_t now) {
  if (!call.waited) {
    call.waited = true;
    g_state.waiters.fetch_add(1, kRelaxed);
    // A cancelled thread would leave the launch half done; deferred cancellation acts at the program's next
    // point.
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call.cancel_state);
  }
  if (call.waiting_on == link) return;
  call.waiting_on = link;
  call.queued_ns = estimate;
  abi::UsageLine& usage = *link->usage;
  std::atomic_ref(usage.queued_ns).fetch_add(estimate, kRelaxed);
  std::atomic_ref(usage.holds).fetch_add(1, kRelaxed);
  uint64_t nobody = 0;
  std::atomic_ref(usage.waiting_since_ns).compare_exchange_strong(nobody, now, kRelaxed);
  // release: the daemon that sees waiting > 0 sees what is queued
  std::atomic_ref(usage.waiting).fetch_add(1, std::memory_order_release);
}

void stop_waiting(Call& call) {
  if (!call.waiting_on) return;
  abi::UsageLine& usage = *call.waiting_on->usage;
  if (std::atomic_ref(usage.waiting).fetch_sub(1, std::memory_order_release) == 1)
    ipc::store(usage.waiting_since_ns, uint64_t(0), kRelaxed);
  std::atomic_ref(usage.queued_ns).fetch_sub(call.queued_ns, kRelaxed);
  call.waiting_on = nullptr;
}

uint64_t hold_limit(const Link* link) {
  if (link->max_hold_ns) return link->max_hold_ns;
  const uint64_t ms = ipc::load(link->lease->max_hold_ms, kRelaxed);
  return ms == 0 ? kDefaultHoldNs : (ms > 10'000 ? 10'000 : ms) * 1'000'000;
}

uint64_t bounded_spin_ns(uint64_t us) {
  return (us > 1000 ? 1000 : us) * 1000;
}

bool complete_what_is_done(uint64_t now, uint64_t& next_query) {
  bool any = poll_lanes();
  if (any || now < next_query) return any;  // asking costs an interrupt on every CPU that runs us
  next_query = now + kQueryEveryNs;
  reclaim_credits();
  any = query_lanes() || any;
  harvest_samples();
  return any;
}

void note_preemption(Obstacle why, const Link* link) {
  if (why == Obstacle::kWindow || g_state.holding.exchange(1, kRelaxed) == 1) return;
  std::atomic_ref(link->usage->preemptions).fetch_add(1, kRelaxed);
}

struct Stretch {
  uint64_t spin_ns, sleep_ns;
};

Stretch stretch_for(const Call& call, const Link* link, Obstacle why, uint64_t now) {
  if (why == Obstacle::kWindow) {
    const int64_t left = next_marker_in_ns(now);
    if (left == kNoMarker) return {kWindowSpinNs, kWindowSleepNs};
    if (left > kNearNs) return {0, uint64_t(left) / 2};
    if (left > -kOverdueNs) return {uint64_t(left + kOverdueNs), 0};
    return {kWindowSpinNs, kWindowSleepNs + uint64_t(-left) / 8};
  }
  Stretch s{bounded_spin_ns(ipc::load(link->lease->watch_spin_us, kRelaxed)), kHoldSleepNs};
  // A pulse that falls idle wakes nobody; the longer the burst lasts, the less it hurts to notice late.
  if (why == Obstacle::kPulse) s.sleep_ns = 50'000 + call.held_ns / 8;
  // Nobody else sees the drain. (Whoever waits for the window is woken by a hold.)
  if (in_flight(link).load(kRelaxed) != 0 && s.sleep_ns > kDrainSleepNs) s.sleep_ns = kDrainSleepNs;
  return s;
}

// One stretch of waiting, at most until `end`: returns when it is worth looking again.
void wait_a_stretch(const Call& call, const Link* link, uint32_t word, Obstacle why, uint64_t now,
                    uint64_t end) {
  uint64_t next_query = 0;
  const bool any = complete_what_is_done(now, next_query);
  acknowledge_drain();
  if (any && why == Obstacle::kWindow) return;
  const abi::LeaseLine& lease = *link->lease;
  const Stretch stretch = stretch_for(call, link, why, now);
  for (uint64_t t = now; t - now < stretch.spin_ns && t < end; t = clock_ns()) {
    if (ipc::load(lease.word, std::memory_order_acquire) != word) return;
    if (why == Obstacle::kWindow && poll_lanes()) return;
    if (why == Obstacle::kPulse && !pulses_in_the_way(link, t)) return;
    for (int i = 0; i < 8; i++) base::cpu_relax();
    if (why == Obstacle::kWindow) base::yield_cpu();
  }
  const uint64_t after_spin = clock_ns();
  if (stretch.sleep_ns == 0 || after_spin >= end) return;
  uint64_t sleep_ns = stretch.sleep_ns < kHoldSleepNs ? stretch.sleep_ns : kHoldSleepNs;
  if (sleep_ns > end - after_spin) sleep_ns = end - after_spin;
  base::futex_wait(&lease.word, word, sleep_ns);
  complete_what_is_done(clock_ns(), next_query);
}

// False: the hold limit is reached. Waiting for the window is pacing, not a hold, as long as work completes.
bool hold(Call& call, const Link* link, uint32_t word, Obstacle why, driver_api::StreamArg stream,
          uint64_t estimate, uint64_t now) {
  const base::ErrnoGuard keep_errno;  // the futex may set it
  note_preemption(why, link);
  start_waiting(call, link, estimate, now);
  const uint64_t limit = hold_limit(link), used = why == Obstacle::kWindow ? call.stuck_ns : call.held_ns;
  if (used >= limit) return false;
  lane_mark(lane_of(stream), stream);  // what is not covered yet could otherwise never be seen to end
  const bool asks =
      why == Obstacle::kLease ||
      (why == Obstacle::kPulse && (call.held_ns >= kTellAfterNs ||
                                   (ipc::load(link->lease->flags, kRelaxed) & abi::kLeaseTellBusy) != 0));
  if (asks && (!call.notified || call.notified_word != word)) {
    call.notified = true;
    call.notified_word = word;
    g_slow.notify_daemon();
  }
  const uint64_t completed = std::atomic_ref(link->usage->completed_ns).load(kRelaxed);
  wait_a_stretch(call, link, word, why, now, now + limit - used);
  const uint64_t after = clock_ns(), waited = after > now ? after - now : 0;
  if (why != Obstacle::kWindow) {
    call.held_ns += waited;
    return true;
  }
  const bool progress = std::atomic_ref(link->usage->completed_ns).load(kRelaxed) != completed;
  call.stuck_ns = progress ? 0 : call.stuck_ns + waited;
  call.paced_ns += waited;
  return true;
}

// What to reserve beyond this launch, so that the thread's next short ones find credit. What is left of the
// last credit stays, as long as it is for the same stream and daemon.
uint64_t credit_wanted(ThreadSlot& slot, const Link* link, driver_api::StreamArg stream, uint64_t estimate) {
  Credit& c = slot.credit;
  if (c.link != link || c.lane_key != lane_key(stream)) settle_credit(slot);
  // Each thread completes its own work where it can: lanes and the window's word stay on its CPU then.
  poll_lane(*lane_of(stream));
  uint64_t credit = ipc::load(link->lease->window_ns, kRelaxed) / kCreditShare;
  if (credit > kMaxCreditNs) credit = kMaxCreditNs;
  const uint64_t left = c.left_ns.load(kRelaxed);
  return estimate * 4 > credit || left >= estimate ? 0 : credit - left;
}

// Credit that the window has no room for is given back, but first somebody has to look at the markers.
void keep_to_window(Call& call, const Link* link, uint64_t all) {
  const uint64_t window = ipc::load(link->lease->window_ns, kRelaxed);
  if (all <= window || (poll_lanes() && in_flight(link).load(kRelaxed) <= window)) return;
  release_reserved(link, call.credit_ns);
  call.credit_ns = 0;
}

// The launch that it was reserved with has reached the driver.
void keep_credit(const Call& call, ThreadSlot& slot, driver_api::StreamArg stream) {
  Credit& c = slot.credit;
  c.link = call.link;
  c.word = call.word;
  c.epoch = call.credit_epoch;
  c.bursts = bursts_seen();
  c.lane.store(lane_of(stream), kRelaxed);
  c.lane_key = t_thread.lane_key;
  // Added, because a reclaimer may just have taken what was left; release: pairs with settle_credit's
  // exchange
  c.left_ns.fetch_add(call.credit_ns, std::memory_order_release);
}

void reserved(Call& call, const Link* link, uint32_t word, uint64_t estimate) {
  call.link = link;
  call.word = word;
  call.reserved_ns = estimate;
  call.spacing_ns = ipc::load(link->lease->marker_spacing_ns, kRelaxed);
}

}  // namespace

Call::~Call() {
  if (!waited) return;
  const Link* current = g_state.link.load(std::memory_order_acquire);
  std::atomic_ref(current->usage->held_ns).fetch_add(held_ns + served_ns + paced_ns, kRelaxed);
  stop_waiting(*this);
  g_state.waiters.fetch_sub(1, kRelaxed);
  pthread_setcancelstate(cancel_state, nullptr);
}

Admission admit(Call& call, driver_api::StreamArg stream, uint64_t estimate) {
  call.reserved_ns = call.credit_ns = 0;
  call.link = nullptr;
  for (;;) {
    if (g_state.role.load(kRelaxed) != Role::kBestEffort) return Admission::kForward;
    const Link* link = g_state.link.load(std::memory_order_acquire);
    if (call.waiting_on && call.waiting_on != link) stop_waiting(call);  // the daemon went, another one came
    const abi::LeaseLine& lease = *link->lease;
    // acquire: pairs with lease_publish
    if ((ipc::load(lease.word, std::memory_order_acquire) & abi::kLeaseStateMask) == abi::kLeaseFree ||
        ipc::load(lease.passthrough, kRelaxed) != 0)
      return Admission::kForward;
    if (call.credit_slot && !call.expired) {
      call.credit_ns = credit_wanted(*call.credit_slot, link, stream, estimate);
      call.credit_epoch = g_state.credit_epoch.load(std::memory_order_seq_cst);
    }
    const uint64_t before = in_flight(link).fetch_add(estimate + call.credit_ns, std::memory_order_seq_cst);
    if (call.expired) [[unlikely]] {
      reserved(call, link, 0, estimate);
      return Admission::kExpired;
    }
    // seq_cst: raise in-flight, then look; the daemon stores a hold, then reads in-flight
    // (ipc/channel/lease.h)
    const uint32_t word = ipc::load(lease.word, std::memory_order_seq_cst);
    const uint64_t now = clock_ns();
    const Obstacle why = look(call, link, word, before, estimate, now);
    if (why == Obstacle::kNone) [[likely]] {
      if (call.credit_ns) keep_to_window(call, link, before + estimate + call.credit_ns);
      reserved(call, link, word, estimate);
      if (g_state.holding.load(kRelaxed)) [[unlikely]]
        g_state.holding.store(0, kRelaxed);
      if (call.waiting_on) [[unlikely]]
        stop_waiting(call);
      served(call);
      return Admission::kReserved;
    }
    release_reserved(link, estimate + call.credit_ns);
    call.credit_ns = 0;
    if (why == Obstacle::kFree) return Admission::kForward;
    if (why == Obstacle::kPulse && should_narrow(call, lease)) return Admission::kReplan;
    if (why == Obstacle::kWindow && poll_lanes()) continue;  // nobody had looked at the markers
    if (!hold(call, link, word, why, stream, estimate, now)) {
      call.expired = true;
      std::atomic_ref(link->usage->hold_expired).fetch_add(1, kRelaxed);
      continue;  // it goes out now, and what is in flight stays true
    }
  }
}

bool spend(ThreadSlot& slot, driver_api::StreamArg stream, uint64_t estimate) {
  Credit& c = slot.credit;
  c.in_gate.store(1, kRelaxed);
  asymmetric_fence();  // then look; pairs with reclaim_credits: raise the epoch, fence, look at in_gate
  const Link* link = g_state.link.load(std::memory_order_acquire);
  bool valid =
      c.link == link && c.epoch == g_state.credit_epoch.load(kRelaxed) &&
      c.word == ipc::load(link->lease->word, std::memory_order_acquire) &&  // pairs with lease_publish
      c.lane_key == t_thread.lane_key && c.lane_key == lane_key(stream) &&
      ipc::load(link->lease->passthrough, kRelaxed) == 0;
  if (valid) {
    const uint32_t n = g_state.n_watched.load(kRelaxed), own = ipc::load(link->lease->priority, kRelaxed);
    uint64_t bursts = 0;
    for (uint32_t i = 0; i < n && i < kWatched; i++) {
      const abi::PulsePage& page = *g_state.watch[i].page.load(std::memory_order_acquire);
      bursts += ipc::load(page.burst, kRelaxed);
      if (ipc::load(page.busy, std::memory_order_acquire) != 0 &&
          g_state.watch[i].priority.load(kRelaxed) > own)
        valid = false;  // packed leases and stale pulses are the slow path's business
    }
    valid = valid && bursts == c.bursts;
  }
  if (!valid || c.left_ns.load(kRelaxed) < estimate) {
    c.in_gate.store(0, std::memory_order_release);
    if (!valid) settle_credit(slot);
    return false;
  }
  c.left_ns.store(c.left_ns.load(kRelaxed) - estimate, kRelaxed);
  return true;
}

void spent(ThreadSlot& slot, uint64_t estimate, CUresult result) {
  Credit& c = slot.credit;
  if (result == CUDA_SUCCESS) [[likely]]
    c.spent_ns.store(c.spent_ns.load(kRelaxed) + estimate, kRelaxed);
  else
    c.left_ns.store(c.left_ns.load(kRelaxed) + estimate, kRelaxed);
  c.in_gate.store(0, std::memory_order_release);  // pairs with reclaim_credits: the launch has returned
  if (is_sticky(result)) [[unlikely]]
    poison();
}

bool is_sticky(CUresult result) {
  if (result == CUDA_SUCCESS) [[likely]]
    return false;
  switch (int(result)) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_DEINITIALIZED:
      return true;
    default:  // an open set: newer drivers have more results, and those are not known to be sticky
      return false;
  }
}

void poison() {
  g_state.poisoned.store(1, kRelaxed);
  reclaim_credits();
  forget_lanes();
  forgive_all();
  g_state.role.store(Role::kForward, kRelaxed);
}

void roll_back(Call& call) {
  if (call.link) release_reserved(call.link, call.reserved_ns + call.credit_ns);
  call.reserved_ns = call.credit_ns = 0;
}

void settle(Call& call, driver_api::StreamArg stream, CUresult result) {
  if (call.reserved_ns == 0 || !call.link) return;
  if (result == CUDA_SUCCESS) [[likely]] {
    Lane* lane = lane_of(stream);
    uint64_t launched = call.reserved_ns;
    if (call.credit_slot) launched += take_spent(*call.credit_slot, lane);
    lane_launched(lane, stream, launched, call.spacing_ns);
    if (call.credit_ns) keep_credit(call, *call.credit_slot, stream);
    call.reserved_ns = call.credit_ns = 0;
    return;
  }
  roll_back(call);
  if (is_sticky(result)) poison();
}

void settle_blocking(Call& call, CUresult result) {
  if (call.reserved_ns == 0 || !call.link) return;
  release_reserved(call.link, call.reserved_ns);
  if (result == CUDA_SUCCESS)
    std::atomic_ref(call.link->usage->completed_ns).fetch_add(call.reserved_ns, kRelaxed);
  call.reserved_ns = 0;
  if (is_sticky(result)) poison();
}

Plan current_plan() {
  const Link* link = g_state.link.load(std::memory_order_acquire);
  const abi::LeaseLine& lease = *link->lease;
  const uint32_t word = ipc::load(lease.word, std::memory_order_acquire);
  const uint32_t long_percent = ipc::load(lease.long_width_percent, kRelaxed);
  const uint64_t long_us = ipc::load(lease.flags, kRelaxed) >> abi::kLeaseLongBlockShift;
  const uint64_t slice_ns = ipc::load(lease.slice_ns, kRelaxed);
  return {g_state.role.load(kRelaxed) == Role::kBestEffort &&
              (word & abi::kLeaseStateMask) != abi::kLeaseFree && ipc::load(lease.passthrough, kRelaxed) == 0,
          slice_ns,
          ipc::load(lease.window_ns, kRelaxed),
          ipc::load(lease.width_blocks, kRelaxed),
          long_percent == 0 || long_percent > 100 ? 100 : long_percent,
          long_us ? long_us * 1000 : slice_ns};
}

}  // namespace tessera::gate
