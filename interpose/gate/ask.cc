#include "interpose/gate/ask.h"

#include <pthread.h>

#include <algorithm>

#include "admission/boundary.h"
#include "admission/plan.h"
#include "admission/wait.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "base/machine.h"
#include "interpose/gate/credit.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/operation_counts.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "interpose/gate/trace.h"
#include "ipc/channel/lease.h"

namespace tessera::gate {
namespace {

using namespace state;
using admission::Action;
using admission::LeaseView;
using admission::Reason;
using driver_api::StreamArg;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kQueryEveryNs = 200'000;  // asking the driver costs an interrupt on every CPU that runs us

bool complete_what_is_done(uint64_t now, uint64_t& next_query) {
  const bool any = poll_accounts();
  if (any || now < next_query) return any;
  next_query = now + kQueryEveryNs;
  const bool reclaimed = reclaim_kept_credits();
  const bool asked = query_accounts();
  harvest_samples();
  return asked || reclaimed;
}

bool anyone_in_the_way(const DaemonLink* link, const LeaseView& lease, uint64_t now) {
  const Pulses pulses = current_pulses();
  for (uint32_t i = 0; i < pulses.n; i++)
    if (admission::in_the_way(pulses.views[i], lease.priority, link->guard_ns, now)) return true;
  return false;
}

void tell_end(UnderWay& call) {  // that the launch does not wait any more
  abi::UsageLine& usage = *call.waits_on->usage;
  if (std::atomic_ref(usage.waiting).fetch_sub(1, std::memory_order_release) == 1)
    ipc::store(usage.waiting_since_ns, uint64_t(0), kRelaxed);
  std::atomic_ref(usage.queued_ns).fetch_sub(call.queued_ns, kRelaxed);
  call.waits_on = nullptr;
}
void go_on(UnderWay& call) {
  g_state.waiters.fetch_sub(1, kRelaxed);
  call.held = 0;
  pthread_setcancelstate(call.cancel_state, nullptr);
}

bool give_back_own_credit() {
  ThreadSlot* slot = t_thread.slot;
  return slot && settle_credit(*slot) != 0;
}

}  // namespace

// One question: what is asked, of which stream, and what it waited so far.
class Asking {
 public:
  Asking(const admission::Ask& ask, StreamArg stream, Wait& wait, Reservation& reservation,
         const AskTerms& terms)
      : ask_(ask),
        stream_(stream),
        wait_(wait),
        reservation_(reservation),
        slot_(terms.credit_slot),
        planned_(terms.planned) {}
  Action answer();

 private:
  bool unmanaged() const;
  uint64_t reserve();
  void keep(const LeaseView& lease, uint64_t in_flight_ns);
  void keep_credit_within(uint64_t window_ns, uint64_t in_flight_ns);
  void hold(const LeaseView& lease, Reason reason, uint64_t now);
  void sleep(const LeaseView& lease, Reason reason, uint64_t now, uint64_t end);

  const admission::Ask& ask_;
  const StreamArg stream_;
  Wait& wait_;
  Reservation& reservation_;
  ThreadSlot* const slot_;
  const LeaseView* const planned_;
  const DaemonLink* link_ = nullptr;
  bool on_device_ = false;  // it waits there, and this thread goes on
  bool refused_ = false;    // no boundary can be enqueued now: this thread waits
};

Action Asking::answer() {
  for (;;) {
    if (g_state.role.load(kRelaxed) != Role::kBestEffort) return Action::kForward;
    link_ = g_state.link.load(std::memory_order_acquire);
    wait_.follow(link_);
    if (unmanaged()) return Action::kForward;
    const uint64_t before = reserve();
    // seq_cst: raise in-flight, then look; the daemon stores a hold, then reads in-flight
    // (ipc/channel/lease.h).
    const LeaseView lease = lease_of(link_, std::memory_order_seq_cst);
    if (planned_ && !admission::same_plans(*planned_, lease)) [[unlikely]] {
      reservation_.release();
      return Action::kWait;
    }
    const uint64_t now = clock_ns();
    // For whoever asks whether a burst met our work; as in release_reserved().
    if (before == 0) ipc::store(link_->signals->in_flight_since_ns, now, kRelaxed);
    StreamAccount& account = *account_of(stream_);
    const bool beside = admission::may_begin_during_bursts(ask_, lease);
    on_device_ = !refused_ && waits_on_device(ask_, lease, account, stream_);
    const admission::Verdict verdict =
        on_device_
            ? admission::judge_run_ahead(ask_, lease, before, g_markers_out.load(kRelaxed), wait_.waited_)
            : admission::judge(ask_, lease, current_pulses(), link_->guard_ns, before, wait_.waited_, now);
    switch (verdict.action) {
      case Action::kGo:
        if (on_device_ && !pass_boundary(account, stream_, ask_.estimate_ns,
                                         admission::runs_during_bursts(ask_, lease), lease.quantum_ns, now)) {
          reservation_.release();
          refused_ = true;
          continue;
        }
        if (!on_device_ && lease.quantum_ns != 0) count_thread_ask();
        if (on_device_) tell_first_behind(before, lease);
        reservation_.behind_ = on_device_;
        keep(lease, before + ask_.estimate_ns + reservation_.credit_ns_);
        if (beside && anyone_in_the_way(link_, lease, now)) reservation_.burst_class_ = ask_.resource_class;
        return Action::kGo;
      case Action::kLetGo:
        if (!wait_.waited_.let_go) std::atomic_ref(link_->usage->hold_expired).fetch_add(1, kRelaxed);
        wait_.waited_.let_go = true;  // what is in flight stays true
        reservation_.spacing_ns_ = lease.marker_spacing_ns;
        return Action::kLetGo;
      case Action::kForward:
        reservation_.release();
        return verdict.action;
      case Action::kWait:
        reservation_.release();
        // Nobody had looked at the markers, or the thread's own credit is what the window lacks.
        if (verdict.reason == Reason::kWindow && (poll_accounts() || give_back_own_credit())) continue;
        hold(lease, verdict.reason, now);
    }
  }
}

bool Asking::unmanaged() const {
  const abi::LeaseLine& lease = *link_->lease;
  // acquire: pairs with lease_publish
  return admission::grant_of(ipc::load(lease.word, std::memory_order_acquire)) == admission::Grant::kFree ||
         ipc::load(lease.rights, kRelaxed).passthrough != 0;
}

// Raises in-flight; what it was before.
uint64_t Asking::reserve() {
  Reservation& r = reservation_;
  r.release();
  r.link_ = link_;
  r.ns_ = ask_.estimate_ns;
  r.slot_ = slot_;
  // Between two boundaries nothing is asked, so that there is nothing to reserve ahead.
  const bool asks_often = ipc::load(link_->lease->quantum_us, kRelaxed) == 0;
  if (slot_ && asks_often && !wait_.waited_.let_go) {
    r.credit_ns_ = wanted_credit_ns(*slot_, link_, stream_, ask_.estimate_ns);
    r.epoch_ = g_state.epoch.load(std::memory_order_seq_cst);
  }
  wait_.call_.reserved_ns = r.ns_ + r.credit_ns_;
  return in_flight(link_).fetch_add(r.ns_ + r.credit_ns_, std::memory_order_seq_cst);
}

void Asking::keep(const LeaseView& lease, uint64_t in_flight_ns) {
  reservation_.word_ = lease.word;
  reservation_.spacing_ns_ = lease.marker_spacing_ns;
  if (reservation_.credit_ns_) keep_credit_within(lease.window_ns, in_flight_ns);
  if (g_state.holding.load(kRelaxed)) [[unlikely]]
    g_state.holding.store(0, kRelaxed);
  if (wait_.call_.held) [[unlikely]]
    wait_.end();
  admission::after_start(wait_.waited_);
}

// Credit that the window has no room for is given back, but first somebody has to look at the markers.
void Asking::keep_credit_within(uint64_t window_ns, uint64_t in_flight_ns) {
  if (in_flight_ns <= window_ns || (poll_accounts() && in_flight(link_).load(kRelaxed) <= window_ns)) return;
  release_reserved(link_, reservation_.credit_ns_);
  wait_.call_.reserved_ns -= reservation_.credit_ns_;
  reservation_.credit_ns_ = 0;
}

void Asking::hold(const LeaseView& lease, Reason reason, uint64_t now) {
  const base::ErrnoGuard keep_errno;  // the futex may set it
  if (on_device_) count_run_ahead_wait();
  admission::Waited& waited = wait_.waited_;
  if (reason != Reason::kWindow && g_state.holding.exchange(1, kRelaxed) == 0)
    std::atomic_ref(link_->usage->preemptions).fetch_add(1, kRelaxed);
  wait_.begin(link_, ask_.estimate_ns, now);
  account_mark(account_of(stream_), stream_);  // what is not covered yet could otherwise never be seen to end
  if (admission::daemon_should_know(reason, lease, waited)) wait_.tell_daemon(lease.word);
  const uint64_t completed = std::atomic_ref(link_->usage->completed_ns).load(kRelaxed);
  sleep(lease, reason, now, now + lease.max_hold_ns - waited.towards_limit_ns(reason));
  const uint64_t after = clock_ns();
  if (tracing()) [[unlikely]]
    wait_.note_held(reason, account_key(stream_), now, after);
  const bool progress = std::atomic_ref(link_->usage->completed_ns).load(kRelaxed) != completed;
  admission::after_wait(waited, reason, after > now ? after - now : 0, progress);
}

// One stretch of waiting, at most until `end`: returns when it is worth asking again.
void Asking::sleep(const LeaseView& lease, Reason reason, uint64_t now, uint64_t end) {
  uint64_t next_query = 0;
  const bool any = complete_what_is_done(now, next_query);
  acknowledge_drain();
  if (any && reason == Reason::kWindow) return;
  const int64_t marker =
      reason == Reason::kWindow && !on_device_ ? next_marker_in_ns(now) : admission::kNoMarker;
  const admission::WaitPlan plan = on_device_ ? admission::kFarAhead
                                              : admission::plan_wait(reason, lease, wait_.waited_,
                                                                     in_flight(link_).load(kRelaxed), marker);
  const uint32_t& word = link_->lease->word;
  for (uint64_t t = now; t - now < plan.watch_ns && t < end; t = clock_ns()) {
    if (ipc::load(word, std::memory_order_acquire) != lease.word) return;
    if (reason == Reason::kWindow && poll_accounts()) return;
    if (reason == Reason::kPulse && !anyone_in_the_way(link_, lease, t)) return;
    for (int i = 0; i < 8; i++) base::cpu_relax();
    if (reason == Reason::kWindow) base::yield_cpu();
  }
  const uint64_t after_watch = clock_ns();
  if (plan.sleep_ns == 0 || after_watch >= end) return;
  base::futex_wait(&word, lease.word, plan.sleep_ns < end - after_watch ? plan.sleep_ns : end - after_watch);
  complete_what_is_done(clock_ns(), next_query);
}

Action ask(const admission::Ask& what, StreamArg stream, Wait& wait, Reservation& reservation,
           const AskTerms& terms) {
  return Asking(what, stream, wait, reservation, terms).answer();
}

LeaseView lease_of(const DaemonLink* link, std::memory_order order) {
  LeaseView lease = admission::decode(ipc::lease_copy(*link->lease, order));
  if (link->max_hold_ns) lease.max_hold_ns = link->max_hold_ns;
  return lease;
}

admission::PulseView pulse_of(const Watch& watch) {
  const abi::PulsePage& page =
      *watch.page.load(std::memory_order_acquire);                         // pairs with the helper's release
  const bool busy = ipc::load(page.busy, std::memory_order_acquire) != 0;  // pairs with pulse_set_busy
  return {watch.priority.load(kRelaxed), busy, ipc::load(page.busy_since_ns, kRelaxed),
          ipc::load(page.heartbeat_ns, kRelaxed), ipc::load(page.idle_since_ns, kRelaxed)};
}

Pulses current_pulses() {
  Pulses pulses;
  const uint32_t n = g_state.n_watched.load(kRelaxed);
  for (uint32_t i = 0; i < n && i < kWatched; i++) pulses.views[pulses.n++] = pulse_of(g_state.watch[i]);
  return pulses;
}

void Reservation::settle(StreamArg stream, CUresult result) {
  if (!link_) return;
  if (result != CUDA_SUCCESS) [[unlikely]]
    return refused(stream, result);
  if (ns_ != 0) {  // 0: behind something that the stream may wait for for ever, so not counted
    StreamAccount* account = account_of(stream);
    t_thread.call.reserved_ns = credit_ns_;  // the account has the rest
    account_launched(account, stream, ns_ + (slot_ ? take_spent(*slot_, account) : 0), spacing_ns_);
  }
  if (credit_ns_) keep_credit(*slot_, link_, word_, epoch_, credit_ns_, stream);
  if (burst_class_ != kNone) [[unlikely]]
    count_during_burst(burst_class_);
  clear();
}

void Reservation::settle_blocking(StreamArg stream, CUresult result) {
  if (!link_) return;
  if (result != CUDA_SUCCESS) [[unlikely]]
    return refused(stream, result);
  std::atomic_ref(link_->usage->completed_ns).fetch_add(ns_, kRelaxed);
  release();
}

// Its boundary stands in the stream all the same. It counts as one before an event does: whoever waits for the stream waits for it.
void Reservation::refused(StreamArg stream, CUresult result) {
  const uint64_t left_ns = behind_ ? std::min(ns_, admission::kLeastEstimateNs) : 0;
  ns_ -= left_ns;
  t_thread.call.reserved_ns = ns_ + credit_ns_;
  if (left_ns != 0) account_launched(account_of(stream), stream, left_ns, spacing_ns_);
  release();
  if (is_sticky(result)) poison();
}

void Reservation::release() {
  if (link_) release_reserved(link_, ns_ + credit_ns_);
  clear();
}

void Reservation::clear() {
  if (link_) t_thread.call.reserved_ns = 0;
  link_ = nullptr;
  ns_ = credit_ns_ = 0;
  behind_ = false;
  burst_class_ = kNone;
}

void Wait::follow(const DaemonLink* link) {
  if (call_.waits_on && call_.waits_on != link) end();
}

void Wait::begin(const DaemonLink* link, uint64_t estimate_ns, uint64_t now) {
  if (!call_.held) {
    call_.held = 1;
    g_state.waiters.fetch_add(1, kRelaxed);
    // A cancelled thread would leave the launch half done; deferred cancellation acts at the program's next
    // point.
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &call_.cancel_state);
  }
  if (call_.waits_on == link) return;
  call_.waits_on = link;
  call_.queued_ns = estimate_ns;
  abi::UsageLine& usage = *link->usage;
  std::atomic_ref(usage.queued_ns).fetch_add(estimate_ns, kRelaxed);
  std::atomic_ref(usage.holds).fetch_add(1, kRelaxed);
  uint64_t nobody = 0;
  std::atomic_ref(usage.waiting_since_ns).compare_exchange_strong(nobody, now, kRelaxed);
  // release: the daemon that sees waiting > 0 sees what is queued
  std::atomic_ref(usage.waiting).fetch_add(1, std::memory_order_release);
}

void Wait::end() {
  if (!call_.waits_on) return;
  flush_held();
  tell_end(call_);
}

// One event for a stretch with one reason, however often it was asked meanwhile.
void Wait::note_held(Reason reason, uint64_t stream, uint64_t start_ns, uint64_t end_ns) {
  if (traced_reason_ != reason) flush_held();
  if (traced_reason_ == Reason::kNone) traced_since_ns_ = start_ns;
  traced_reason_ = reason;
  traced_stream_ = stream;
  traced_until_ns_ = end_ns;
}

void Wait::flush_held() {
  static constexpr abi::TraceReason kReasons[] = {abi::TraceReason(0), abi::TraceReason(0),
                                                  abi::kTraceHeldByLease, abi::kTraceHeldByPulse,
                                                  abi::kTraceHeldByWindow};
  if (traced_reason_ == Reason::kNone) return;
  trace({.kind = abi::kTraceHold,
         .detail = kReasons[size_t(traced_reason_)],
         .start_ns = traced_since_ns_,
         .end_ns = traced_until_ns_,
         .stream = traced_stream_});
  traced_reason_ = Reason::kNone;
}

void Wait::tell_daemon(uint32_t word) {
  if (told_ && told_word_ == word) return;
  told_ = true;
  told_word_ = word;
  g_slow.notify_daemon();
}

Wait::~Wait() {
  if (!call_.held) return;
  const DaemonLink* current = g_state.link.load(std::memory_order_acquire);
  std::atomic_ref(current->usage->held_ns).fetch_add(waited_.total_ns(), kRelaxed);
  end();
  go_on(call_);
}

void abandon_call() {
  Thread& t = t_thread;
  UnderWay& call = t.call;
  if (call.locked) call.locked->lock.store(0, std::memory_order_release);
  if (call.entered) g_state.inside.fetch_sub(1, std::memory_order_seq_cst);
  sample_end(call.sample, {}, 0, 0, CUDA_ERROR_NOT_READY);
  if (call.reserved_ns != 0) {
    if (t.account)
      account_enqueued(*t.account, call.reserved_ns);
    else
      release_reserved(g_state.link.load(std::memory_order_acquire), call.reserved_ns);
  }
  if (call.waits_on) tell_end(call);
  if (call.held) go_on(call);
  call = {};
  t.inside = 0;
  if (t.slot && !t.shared)
    t.slot->credit.in_gate.store(0, std::memory_order_release);  // pairs with reclaim_credits
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
  forget_accounts();
  forgive_all();
  override_device_gate(true);
  g_state.role.store(Role::kForward, kRelaxed);
}

}  // namespace tessera::gate
