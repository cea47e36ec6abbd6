// Best-effort client: how much GPU time is in flight, and how it is seen to end without blocking.
//
// in_flight_ns (UsageLine, shared) is raised before the lease is looked at and lowered when a marker, a
// returning synchronise call or a query shows completion. Per stream an account keeps cumulative sums:
//   enqueued >= covered by a marker >= done
//   in_flight_ns = sum over accounts of (enqueued - done), and the launches under way
// A marker is cuStreamWriteValue32 into host memory of ours, or an event where that is not available. Only
// the thread that launches into a stream enqueues one, in that stream, under the account's try-lock so that
// values arrive in order. No allocation; the lock is never waited for.
#pragma once

#include "interpose/state/state.h"

namespace tessera::gate {

inline constexpr uint32_t kAccounts = 64;
inline constexpr uint32_t kMarkersPerAccount = 32;  // power of two

struct alignas(64) StreamAccount {
  std::atomic<uint64_t> key;                     // account_key(); 0 = free
  std::atomic<CUstream> stream;                  // as the program passes it
  std::atomic<uint32_t> lock;                    // try-lock: marker enqueue and reading of `pending`
  std::atomic<uint64_t> enqueued, marked, done;  // ns, cumulative, never reset
  std::atomic<uint64_t> since_ns;  // when what is at `done` now became the oldest: completion seen, or launch
  std::atomic<uint32_t>
      blind;  // waits that may block the stream, none of them known to be over; see wait_value
  uint32_t head = 0, tail = 0;  // of pending; under lock
  struct Pending {
    uint32_t value;  // written by the GPU when reached
    uint64_t upto;   // account.enqueued that it covers
  } pending[kMarkersPerAccount] = {};
  uint32_t last_value = 0;  // under lock
  // Gate on the device (device_gate.h): what is left of the quantum, and since when; the latest boundary stands before an
  // event; calls without a marker. Whoever launches into the stream.
  std::atomic<uint64_t> quantum_left_ns, quantum_length_ns, quantum_begun_ns;
  std::atomic<uint32_t> quantum_during_bursts, behind_event, unmarked_calls;
};
extern constinit StreamAccount g_accounts[kAccounts];
extern constinit std::atomic<uint32_t> g_accounts_used;  // high-water mark, without the overflow account

// The memory of markers: one 64-byte line per account. interpose/track/contexts.cc registers it with the current context.
struct MarkerMemory {
  std::atomic<uint32_t*> host;  // kAccounts lines; null: no markers (then only sync calls and queries count)
  std::atomic<CUdeviceptr> device;   // the same memory as the GPU sees it
  std::atomic<uint32_t> use_events;  // 1: cuStreamWriteValue32 is not available; events below
  CUevent events[kAccounts][4];      // fallback, written before `use_events`
  std::atomic<CUcontext>
      context;  // all of it, and events of samples, belong to this one and end with it; null: none
};
extern constinit MarkerMemory g_markers;
// The context that the stream is of; null: the driver does not say.
CUcontext context_of(const driver_api::StreamArg& stream);
// Is it of `context`? Memory that was pinned in one, and its events, go with it: in a stream of another one work that names
// them could be under way then.
bool is_of(const driver_api::StreamArg& stream, const std::atomic<CUcontext>& context);  // asks the driver
inline bool is_in_context(const driver_api::StreamArg& stream, const std::atomic<CUcontext>& context) {
  if (state::g_state.n_contexts.load(std::memory_order_relaxed) <= 1) [[likely]]
    return true;
  return is_of(stream, context);
}

// Markers that were enqueued and not seen yet, of all accounts.
extern constinit std::atomic<uint32_t> g_markers_out;

uint64_t account_key(driver_api::StreamArg stream);
// Never null; a shared overflow account if the table is full.
StreamAccount* account_of(driver_api::StreamArg stream);

inline std::atomic_ref<uint64_t> in_flight(const state::DaemonLink* link) {
  return std::atomic_ref(link->usage->in_flight_ns);
}
void release_reserved(const state::DaemonLink* link, uint64_t ns);  // never below zero

// Calls into the stream since its latest marker (admission::kCallsPerMarker). Two threads of one stream may lose some.
inline void count_call(StreamAccount& account) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  account.unmarked_calls.store(account.unmarked_calls.load(kRelaxed) + 1, kRelaxed);
}
// Streams with work that is not seen to be complete, and `asking`.
uint32_t accounts_at_work(const StreamAccount& asking);

uint64_t account_enqueued(StreamAccount& account,
                          uint64_t ns);  // a launch of `ns`; returns what it was before
// After the driver accepted a launch of `ns`: account it, and enqueue a marker if `spacing_ns` is reached.
void account_launched(StreamAccount* account, driver_api::StreamArg stream, uint64_t ns, uint64_t spacing_ns);
// The same for `ns` of a thread's credit that were launched: marks them and looks at the markers. How much has ended;
// that stays reserved, for the thread to spend again.
uint64_t account_turn(StreamAccount& account, driver_api::StreamArg stream, uint64_t ns, uint64_t now_ns);
// Marker now, if anything is unmarked.
void account_mark(StreamAccount* account, driver_api::StreamArg stream);
void account_done(StreamAccount& account, uint64_t upto);  // everything up to `upto` is complete

// When the next marker should be reached, going by the estimates; below 0: overdue. admission::kNoMarker:
// none is waited for, or another thread looks at it right now.
int64_t next_marker_in_ns(uint64_t now_ns);
bool poll_accounts();  // looks at markers; true if anything completed. No driver call with memory markers.
void poll_account(StreamAccount& account);  // one of them
// Asks the driver about streams with unmarked work, only while no capture is open. What it cannot be asked about ends by
// the estimates.
bool query_accounts();
// Context destroyed, sticky error, new attachment: all counts as done, but for the accounts `kept`, a bit each. Without
// their markers they are seen to end by queries and estimates.
void forget_accounts(uint64_t kept = 0, bool markers_end = true);
// Those that may have work of streams that do not end with it, as the driver says or leaves open.
uint64_t accounts_of_others(CUcontext context);
// Around the end of a stream: what is in it has a marker, which is reached all the same, or counts as done.
void mark_before_end(CUstream stream);
void forget_account_of(uint64_t key);

struct AccountCover {  // synchronise call: sampled before, applied after success
  uint32_t n = 0;
  struct {
    StreamAccount* account;
    uint64_t upto;
    uint32_t blind;
  } items[kAccounts];
};
void cover_account_of(AccountCover& cover, driver_api::StreamArg stream);
void cover_all_accounts(AccountCover& cover);
void accounts_covered(const AccountCover& cover);

// gate/credit.h. A thread's credit back to the window (how much that was), what it spent into its account. Owner, or
// reclaim_credits().
uint64_t settle_credit(state::ThreadSlot& slot);
// Returns the credit that the thread spent in `account` and that nobody has counted; the caller counts it. Owner.
uint64_t take_spent(state::ThreadSlot& slot, const StreamAccount* account);
// Voids every credit and takes back those whose owner is not launching just now; the owners of the others do
// it themselves. One membarrier: when held, draining or short of window, not per launch. True: window was freed.
bool reclaim_credits();
// Calls reclaim_credits() where any thread has credit: work behind the gate on the device has none. The next call takes credit
// that a thread keeps meanwhile.
bool reclaim_kept_credits();

// Acknowledges a hold once nothing is in flight (UsageLine::drained_word) and wakes the daemon. Any thread.
void acknowledge_drain();

}  // namespace tessera::gate
