#include "interpose/gate/device_gate.h"

#include <algorithm>

#include "admission/boundary.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "base/length_class.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/pulse.h"
#include "interpose/state/clock.h"
#include "ipc/channel/gate.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

// The helper looks this often while something is behind the gate. The hold limit is forty times that, and each look costs a
// wake-up.
constexpr uint64_t kLookNs = 5'000'000;

// The state of the gate as the helper saw it.
struct Seen {
  uint64_t looked_ns = 0, completed_ns = 0;
  uint64_t closed_ns = 0;          // without progress, while something waited
  uint64_t blocked_closed_ns = 0;  // while a call of the program waited
  uint64_t told_ns = 0;            // what usage.queued_ns carries for us
  bool open_for_blocked = false, open_for_limit = false;
  bool outstanding = false, had_turn = false;
  struct {
    const abi::PulsePage* page = nullptr;
    uint32_t client_id = 0;  // the page of the next peer lies at the same address
    uint64_t burst = 0;
  } peers[kWatched];
};
constinit Seen g_seen = {};
constinit std::atomic<uint32_t> g_waits{0};
constinit std::atomic<uint32_t> g_behind{0};  // a boundary was enqueued since nothing was in flight

CUresult enqueue_wait(driver_api::StreamArg s, CUdeviceptr word, uint32_t length_class) {
  return driver_api::real().cuStreamWaitValue64_v2(driver_api::on(s), word, abi::gate_value(length_class),
                                                   CU_STREAM_WAIT_VALUE_GEQ);
}

void store_quantum(StreamAccount& account, const admission::Quantum& quantum) {
  // relaxed: two threads of one stream may take a little more
  account.quantum_left_ns.store(quantum.left_ns, kRelaxed);
  account.quantum_length_ns.store(quantum.length_ns, kRelaxed);
  account.quantum_begun_ns.store(quantum.begun_ns, kRelaxed);
  account.quantum_during_bursts.store(quantum.during_bursts, kRelaxed);
}

// Before a quantum of that length. Work on SMs of its own begins whenever any may. False: nothing was enqueued.
bool enqueue_boundary(driver_api::StreamArg stream, bool during_bursts, uint64_t length_ns, uint64_t now_ns) {
  abi::GatePage* page = g_device_gate.page.load(kAcquire);
  const CUdeviceptr word = g_device_gate.word.load(kAcquire);
  if (!page || word == 0 || !enter_driver())
    return false;  // a boundary in somebody's capture would be captured
  constexpr CUdeviceptr kDuringBursts = offsetof(abi::GatePage, burst_word) - offsetof(abi::GatePage, word);
  const CUresult result = during_bursts ? enqueue_wait(stream, word + kDuringBursts, 0)
                                        : enqueue_wait(stream, word, base::length_class(length_ns));
  leave_driver();
  if (result != CUDA_SUCCESS) {
    g_device_gate.refused.store(1, kRelaxed);
    return false;
  }
  count_call(*account_of(stream));
  g_behind.store(1, std::memory_order_seq_cst);
  std::atomic_ref(page->boundaries).fetch_add(1, kRelaxed);
  std::atomic_ref(page->boundary_ns).fetch_add(clock_ns() - now_ns, kRelaxed);
  return true;
}

// A launch raises what is in flight, then enqueues its boundary: whoever clears looks again (seq_cst on both sides).
bool something_is_behind(const DaemonLink* link) {
  constexpr auto kSeqCst = std::memory_order_seq_cst;
  if (g_behind.load(kSeqCst) == 0) return false;
  if (in_flight(link).load(kSeqCst) != 0) return true;
  g_behind.store(0, kSeqCst);
  if (in_flight(link).load(kSeqCst) == 0) return false;
  g_behind.store(1, kSeqCst);
  return true;
}

// How often a burst of a watched peer has closed the gate since the last look. Peers' pages are untrusted: no burst is
// shorter than a microsecond.
uint64_t bursts_since_look(const DaemonLink* link, uint64_t passed_ns) {
  const uint32_t n = std::min(g_state.n_watched.load(kRelaxed), kWatched),
                 own = ipc::load(link->lease->rights, kRelaxed).priority;
  uint64_t bursts = 0;
  for (uint32_t i = 0; i < n; i++) {
    const abi::PulsePage* page = g_state.watch[i].page.load(kAcquire);
    const uint64_t burst = ipc::load(page->burst, kRelaxed);
    const uint32_t client_id = ipc::load(page->client_id, kRelaxed);
    auto& seen = g_seen.peers[i];
    if (seen.page == page && seen.client_id == client_id && burst > seen.burst &&
        g_state.watch[i].priority.load(kRelaxed) > own)
      bursts += burst - seen.burst;
    seen = {page, client_id, burst};
  }
  return std::min(bursts, passed_ns / 1'000);
}

// As a thread counts when it is held (Asking::hold), of work behind the gate: the times that a burst in its turn, or the end
// of the turn, closed it.
void count_preemptions(const DaemonLink* link, abi::GatePage& page, bool outstanding, uint64_t passed_ns) {
  const uint64_t bursts = bursts_since_look(link, passed_ns);
  const bool has_turn = ipc::gate_byte(page, abi::kGateTurnByte).load(kRelaxed) != 0;
  const bool overridden = ipc::gate_byte(page, abi::kGateOverrideByte).load(kRelaxed) != 0;
  const uint64_t times = (g_seen.had_turn || has_turn ? bursts : 0) + (g_seen.had_turn && !has_turn);
  if (g_seen.outstanding && outstanding && !overridden && times != 0)
    std::atomic_ref(link->usage->preemptions).fetch_add(times, kRelaxed);
  g_seen.outstanding = outstanding;
  g_seen.had_turn = has_turn;
}

// Says of work behind the gate what a launch that waits in its thread says of itself (Wait::begin).
void tell_waiting(const DaemonLink* link, bool waits, uint64_t now_ns) {
  if ((g_waits.load(kRelaxed) != 0) == waits) return;
  g_waits.store(waits, kRelaxed);
  abi::UsageLine& usage = *link->usage;
  if (waits) {
    g_seen.told_ns = in_flight(link).load(kRelaxed);
    std::atomic_ref(usage.queued_ns).fetch_add(g_seen.told_ns, kRelaxed);
    uint64_t nobody = 0;
    std::atomic_ref(usage.waiting_since_ns).compare_exchange_strong(nobody, now_ns, kRelaxed);
    std::atomic_ref(usage.waiting).fetch_add(1, kRelease);  // who sees it sees what is queued
    g_slow.notify_daemon();
    return;
  }
  if (std::atomic_ref(usage.waiting).fetch_sub(1, kRelease) == 1)
    ipc::store(usage.waiting_since_ns, uint64_t(0), kRelaxed);
  std::atomic_ref(usage.queued_ns).fetch_sub(g_seen.told_ns, kRelaxed);
}

}  // namespace

constinit DeviceGate g_device_gate = {};

bool waits_on_device(const admission::Ask& ask, const admission::LeaseView& lease,
                     const StreamAccount& account, const driver_api::StreamArg& stream) {
  if (lease.quantum_ns == 0 || ask.in_thread || g_device_gate.word.load(kAcquire) == 0 ||
      g_device_gate.refused.load(kRelaxed) != 0 || &account == &g_accounts[kAccounts - 1] ||
      account.blind.load(kRelaxed) != 0)
    return false;
  return is_in_context(stream, g_device_gate.context);
}

bool pass_boundary(StreamAccount& account, driver_api::StreamArg stream, uint64_t estimate_ns,
                   bool during_bursts, uint64_t lease_quantum_ns, uint64_t now_ns) {
  const admission::Quantum quantum{
      account.quantum_left_ns.load(kRelaxed), account.quantum_length_ns.load(kRelaxed),
      account.quantum_begun_ns.load(kRelaxed), account.quantum_during_bursts.load(kRelaxed) != 0};
  const bool behind_event = account.behind_event.load(kRelaxed) != 0;  // its boundary is before the event
  if (behind_event) account.behind_event.store(0, kRelaxed);
  if (!behind_event &&
      !admission::boundary_due(quantum, estimate_ns, during_bursts, lease_quantum_ns, now_ns)) {
    account.quantum_left_ns.store(admission::continue_quantum(quantum, estimate_ns).left_ns, kRelaxed);
    return true;
  }
  const uint64_t quantum_ns = admission::part_of_quantum_ns(lease_quantum_ns, accounts_at_work(account));
  if (!behind_event && !enqueue_boundary(stream, during_bursts,
                                         admission::longest_of_quantum_ns(estimate_ns, quantum_ns), now_ns))
    return false;
  if (abi::GatePage* page = g_device_gate.page.load(kAcquire))
    ipc::store(page->longest_ns,
               admission::longest_of_late_ns(ipc::load(page->longest_ns, kRelaxed), estimate_ns), kRelaxed);
  store_quantum(account,
                admission::begin_quantum(estimate_ns, during_bursts && !behind_event, quantum_ns, now_ns));
  return true;
}

bool nothing_behind_gate() {
  return !something_is_behind(g_state.link.load(kAcquire));
}

bool let_queue_end() {
  static constinit std::atomic<uint64_t> wished_ns{0};
  if (nothing_behind_gate()) return true;
  const uint64_t now = clock_ns();
  uint64_t since = wished_ns.load(kRelaxed);
  if (since == 0) wished_ns.store(now, kRelaxed);
  if (since == 0 || now - since < kQueuePatienceNs ||
      !wished_ns.compare_exchange_strong(since, now, kRelaxed))
    return false;
  const base::ErrnoGuard keep_errno;
  const uint32_t& word = g_state.link.load(kAcquire)->lease->word;
  while (clock_ns() - now < 2 * admission::kRunAheadNs) {
    if (!poll_accounts()) query_accounts();
    if (nothing_behind_gate()) return true;
    base::futex_wait(&word, ipc::load(word, kRelaxed), admission::kFarAhead.sleep_ns);
  }
  return false;
}

void tell_first_behind(uint64_t in_flight_before_ns, const admission::LeaseView& lease) {
  if (in_flight_before_ns == 0 && lease.grant != admission::Grant::kGranted) g_slow.notify_daemon();
}

void count_thread_ask() {
  if (abi::GatePage* page = g_device_gate.page.load(kAcquire))
    std::atomic_ref(page->thread_asks).fetch_add(1, kRelaxed);
}

void count_run_ahead_wait() {
  if (abi::GatePage* page = g_device_gate.page.load(kAcquire))
    std::atomic_ref(page->run_ahead_waits).fetch_add(1, kRelaxed);
}

void end_quantum(driver_api::StreamArg stream) {
  if (g_device_gate.word.load(kRelaxed) == 0) return;
  StreamAccount* account = account_of(stream);
  count_call(*account);
  account->quantum_left_ns.store(0, kRelaxed);
  account->behind_event.store(0, kRelaxed);
}

void begin_quantum_before_event(driver_api::StreamArg stream) {
  if (g_device_gate.word.load(kRelaxed) == 0 || is_nested()) return;
  const DaemonLink* link = g_state.link.load(kAcquire);
  const admission::LeaseView lease = lease_of(link);
  StreamAccount* account = account_of(stream);
  if (lease.unmanaged() || (g_state.captures.load(kRelaxed) && capturing(stream)) ||
      !waits_on_device({}, lease, *account, stream) || account->behind_event.load(kRelaxed) != 0)
    return count_call(*account);
  // It counts as work: where nothing else is in flight a program that waits for the event waits for it.
  constexpr uint64_t kNs = admission::kLeastEstimateNs;
  const uint64_t before = in_flight(link).fetch_add(kNs, std::memory_order_seq_cst);
  if (!enqueue_boundary(stream, false, lease.quantum_ns, clock_ns())) {
    count_call(*account);
    return release_reserved(link, kNs);
  }
  account->behind_event.store(1, kRelaxed);
  account_launched(account, stream, kNs, lease.marker_spacing_ns);  // counts the event's call
  tell_first_behind(before, lease);
}

void override_device_gate(bool open) {
  if (abi::GatePage* page = g_device_gate.page.load(kAcquire))
    ipc::override_gate(*page, abi::kGateOwnerOpens, open);
}

void adopt_device_gate(abi::GatePage* page) {
  override_device_gate(true);
  g_device_gate.word.store(0, kRelease);
  g_device_gate.page.store(page, kRelease);
  g_seen = {};
  g_waits.store(0, kRelaxed);
  g_behind.store(0, kRelaxed);
}

bool pin_device_gate(CUcontext context) {
  const auto& real = driver_api::real();
  abi::GatePage* page = g_device_gate.page.load(kRelaxed);
  CUdeviceptr at = 0;
  if (!page || !real.cuStreamWaitValue64_v2) return false;
  const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  const CUresult registered = real.cuMemHostRegister_v2(page, abi::kGateBytes, flags);
  if (registered != CUDA_SUCCESS && registered != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) return false;
  if (real.cuMemHostGetDevicePointer_v2(&at, page, 0) != CUDA_SUCCESS) return false;
  g_device_gate.context.store(context, kRelaxed);
  g_device_gate.word.store(at + offsetof(abi::GatePage, word), kRelease);  // pairs with waits_on_device
  return true;
}

void unpin_device_gate(CUcontext context) {
  if (!context || g_device_gate.context.load(kRelaxed) == context) g_device_gate.word.store(0, kRelease);
}

uint64_t watch_device_gate(const DaemonLink* link, uint64_t now_ns) {
  abi::GatePage* page = g_device_gate.page.load(kAcquire);
  if (!page) return 0;  // one whose pin is gone may have work behind it that is seen to end later
  const uint64_t passed_ns = g_seen.looked_ns != 0 ? now_ns - g_seen.looked_ns : 0;
  g_seen.looked_ns = now_ns;
  const uint64_t completed_ns = std::atomic_ref(link->usage->completed_ns).load(kRelaxed);
  const bool progress = completed_ns != g_seen.completed_ns;
  g_seen.completed_ns = completed_ns;
  const bool outstanding = something_is_behind(link);
  count_preemptions(link, *page, outstanding, passed_ns);
  const bool blocked = g_device_gate.blocked.load(kRelaxed) != 0;
  const bool closed = outstanding && !ipc::gate_is_open(*page);
  g_seen.closed_ns = closed && !progress ? g_seen.closed_ns + passed_ns : 0;
  if (!blocked) g_seen.blocked_closed_ns = 0;
  if (blocked && closed) g_seen.blocked_closed_ns += passed_ns;
  // The limit of one call lets everything pass that was enqueued before it; that of a launch, a quantum.
  const admission::LeaseView lease = lease_of(link);
  const uint64_t limit_ns = lease.max_hold_ns;
  const bool for_blocked = blocked && (g_seen.open_for_blocked || g_seen.blocked_closed_ns >= limit_ns);
  const bool for_limit = !g_seen.open_for_limit && g_seen.closed_ns >= limit_ns;
  if ((for_blocked && !g_seen.open_for_blocked) || for_limit) {
    std::atomic_ref(page->limit_openings).fetch_add(1, kRelaxed);
    std::atomic_ref(link->usage->hold_expired).fetch_add(1, kRelaxed);
  }
  const bool was_open = g_seen.open_for_blocked || g_seen.open_for_limit;
  g_seen.open_for_blocked = for_blocked;
  g_seen.open_for_limit = for_limit;
  if (was_open != (for_blocked || for_limit)) ipc::override_gate(*page, abi::kGateOwnerOpens, !was_open);
  tell_waiting(link, closed && !for_blocked, now_ns);
  if (!outstanding) return 0;
  return for_limit && !for_blocked ? std::min(kLookNs, lease.quantum_ns) : kLookNs;  // one quantum, not more
}

void stop_device_gate(const DaemonLink* link) {
  override_device_gate(true);
  tell_waiting(link, false, 0);
  g_seen = {};
}

bool waits_behind_gate() {
  return g_waits.load(kRelaxed) != 0;
}

}  // namespace tessera::gate
