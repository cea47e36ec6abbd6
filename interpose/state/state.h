// The words that every hook reads first: role of this process, attachment to the daemon, per-thread slots.
// Written on slow paths (lifecycle, helper thread); read by every thread of the program on every launch.
// Static storage, valid before main and after exit; an attachment that was published once is never freed,
// because a launch may still hold its pointer. Nothing here allocates, locks or enters the kernel.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/machine.h"
#include "driver_api/real_table.h"
#include "ipc/abi/cutting.h"
#include "ipc/abi/operations.h"
#include "ipc/abi/region.h"
#include "ipc/abi/requests.h"
#include "ipc/channel/atomic.h"

namespace tessera::gate {
struct StreamAccount;  // of a stream (interpose/gate/window.h); a slot only remembers which one was used last
struct Timing;         // of a shape of launches (interpose/gate/timing.h); a memo only remembers which
struct Sample;         // of a launch (interpose/gate/timing.h)
}  // namespace tessera::gate

namespace tessera::state {

namespace abi = ipc::abi;

// kForward is also what a process is before it attached, without a daemon, after exit and in a forked child.
enum class Role : uint32_t { kForward = 0, kProtected = 1, kBestEffort = 2 };

extern constinit abi::SignalLine g_no_signals;
extern constinit const abi::AnswerLine g_no_answers;

struct DaemonLink {       // one attachment, as the launches see it; constant after it was published
  abi::LeaseLine* lease;  // daemon writes
  abi::UsageLine* usage;  // this process writes
  abi::RecordRing* ring;  // this process writes records
  uint32_t ring_slots;    // 0: not attached, and no ring
  abi::PulsePage* pulse;  // own page; a private dummy for best-effort clients
  uint64_t guard_ns;      // a watched pulse must be idle this long before work starts
  uint64_t max_hold_ns;   // 0: as the lease says; else the user's own limit (TESSERA_MAX_HOLD_MS)
  abi::SignalLine* signals = &g_no_signals;  // this process writes
  // This process writes; null: not attached.
  abi::OperationTotals* operations = nullptr;
  abi::OperationCounts* operation_counts = nullptr;
  uint32_t operation_slots = 0;
  abi::CuttingLines* cutting = nullptr;
  const abi::AnswerLine* answers = &g_no_answers;  // daemon writes
  abi::RequestTable* requests = nullptr;           // this process writes; null: not attached
};

inline constexpr uint32_t kWatched = abi::kMaxWatchedPulses;

extern const abi::PulsePage g_idle_pulse;  // never busy

struct Watch {  // a protected peer's page, read-only; or an idle dummy
  std::atomic<const abi::PulsePage*> page = &g_idle_pulse;  // helper thread writes; release / acquire
  std::atomic<uint32_t> priority;                           // of the peer
  std::atomic<uint64_t> slo_ns;                             // of the peer, 0 = none
};

struct alignas(64) State {
  std::atomic<const DaemonLink*> link;  // never null; helper thread stores (release), launches load (acquire)
  std::atomic<Role> role;               // relaxed: a launch that sees the old role is one that came earlier
  std::atomic<uint32_t> captures;       // open captures and exclusive sections; seq_cst, pairs with `inside`
  std::atomic<uint32_t> n_watched;      // entries of watch[] in use
  std::atomic<uint32_t> symmetric;      // 1: no membarrier(2), launches fence themselves
  std::atomic<uint32_t> n_contexts;     // contexts seen alive; > 1 makes special streams ambiguous
  std::atomic<uint32_t> holding;        // 1 while launches are held back (to count transitions)
  std::atomic<uint32_t> waiters;        // launches inside the hold loop
  std::atomic<uint32_t> epoch;     // what threads keep of another epoch is void; seq_cst, see Credit::in_gate
  std::atomic<uint32_t> poisoned;  // 1 after a sticky error: permanent pass-through
  std::atomic<uint32_t> credits;   // threads that have credit, and share the window
  std::atomic<uint32_t> reclaimers;  // threads inside reclaim_credits; seq_cst: credit kept meanwhile is void
  alignas(64) std::atomic<uint32_t> inside;  // slow-path threads in the driver on our behalf; seq_cst
  alignas(64) Watch watch[kWatched];
};
extern constinit State g_state;
extern constinit DaemonLink g_unmanaged;        // lease is free, usage and pulse go nowhere
extern constinit DaemonLink g_daemonless_hold;  // on_daemon_loss = "hold": the lease is a hold

// Work of one thread on one stream. The owner counts calls before and after the driver's; whoever saw the
// stream empty advances `completed`. Invariant: completed <= ended <= begun; equal = nothing outstanding.
struct StreamCount {
  std::atomic<uint64_t> key;  // stream_key(), 0 = unused
  std::atomic<uint64_t> begun, ended, completed;
};
inline constexpr uint32_t kStreamsPerThread = 7;
// A thread that has work on more streams at once takes pages, for as long as the process lives.
inline constexpr uint32_t kStreamsPerPage = 31, kStreamPages = 256;
struct alignas(64) StreamPage {
  StreamCount streams[kStreamsPerPage];
  std::atomic<StreamPage*> next;  // of the same slot; its owner stores (release), everybody loads (acquire)
};
inline constexpr uint32_t kOwnedSlots = 248, kSharedSlots = 8, kSlots = kOwnedSlots + kSharedSlots;

// Window that a best-effort thread reserved ahead for short launches of one stream, so that most of them need
// neither a locked operation nor the clock (interpose/gate/credit.h). Owner: plain loads and stores while
// in_gate is not 0. Anyone else (reclaim_credits) takes it with exchanges, after State::epoch was raised, while
// in_gate is 0, and while State::reclaimers keeps the owner from beginning anew.
inline constexpr uint64_t kOutOfCredit = 1;
struct alignas(64) Credit {
  // Not 0: the owner is between looking at the lease and the launch's return. A mark, as Thread::inside; with kOutOfCredit it goes
  // on to best_effort_kernel, to renew its credit.
  std::atomic<uint64_t> in_gate;
  uint32_t epoch;                  // owner only: it is valid in this epoch, under this word of
  std::atomic<uint64_t> left_ns;   // reserved, not used yet
  std::atomic<uint64_t> spent_ns;  // of the launch under way and those before, not yet counted in the account
  const uint32_t* lease_word;      // this lease,
  uint32_t word;
  uint32_t n_peers;  // and while none of these watched pages of higher levels begins a burst;
  struct Peer {
    const abi::PulsePage* page;
    uint64_t burst;
  } peers[kWatched];                          // a repeat looks at the first two: beyond n_peers the idle page
  uint64_t account_key;                       // for this stream
  std::atomic<gate::StreamAccount*> account;  // whose account counts what was spent;
  uint64_t expires_ns, window_ns;             // as that lease said
  std::atomic<uint32_t> counted;              // 1: among those that share the window (State::credits)
};

struct OutcomeCount {  // best-effort launches of one outcome (ipc/abi/cutting.h); owner adds, helper sums
  std::atomic<uint64_t> launches, gpu_ns;
};

struct alignas(64) ThreadSlot {
  std::atomic<uint64_t> launches;       // kernels and graphs asked for; owner adds, helper sums
  std::atomic<uint64_t> last_function;  // of the latest launch, for burst signatures
  std::atomic<uint32_t> taken;          // 1: a living thread owns it
  uint32_t padding;
  std::atomic<uint64_t> blocks, uncut;  // best-effort: thread blocks started; launches that may not be cut
  std::atomic<StreamPage*> more;        // as StreamPage::next
  StreamCount streams[kStreamsPerThread + 1];  // the last one is `spill`: streams that found no place
  Credit credit;
  OutcomeCount outcomes[abi::kLaunchOutcomes];
};
extern constinit ThreadSlot g_slots[kSlots];
extern constinit std::atomic<uint32_t> g_slots_used;  // high-water mark

// The first one that `is_it`, or null. Any thread.
template <class F>
inline StreamCount* find_stream(ThreadSlot& slot, F&& is_it) {
  for (StreamCount& c : slot.streams)
    if (is_it(c)) return &c;
  for (StreamPage* page = slot.more.load(std::memory_order_acquire); page != nullptr;
       page = page->next.load(std::memory_order_acquire))
    for (StreamCount& c : page->streams)
      if (is_it(c)) return &c;
  return nullptr;
}
template <class F>
inline void for_each_stream(ThreadSlot& slot, F&& f) {
  find_stream(slot, [&](StreamCount& c) { return f(c), false; });
}

// The latest launch of a thread that may use credit, and needs nothing but its arguments to be known again:
// then its kernel need not be looked up. In `epoch` the thread's credit is for its stream.
struct LaunchMemo {
  uint32_t grid[3], block[3], shared_bytes;  // from here to `stream` as in CUlaunchConfig
  uint32_t epoch;                            // 0: void
  CUstream stream;
  CUfunction function;
  driver_api::Flavour family;  // kNone, as in a new thread, is that of no launch
  uint64_t expected_ns, blocks;
  uint64_t repeats;  // of it that were not counted in ThreadSlot::outcomes yet; its hook adds
  gate::Timing* timing;
  abi::LaunchOutcome outcome;
};

// Sums that the call under way has raised. Whoever finds that call gone lowers them (gate::abandon_call).
struct UnderWay {
  uint64_t reserved_ns;         // in flight, and in no account yet
  const DaemonLink* waits_on;   // its usage line says that we wait
  uint64_t queued_ns;           // what its queued_ns carries for us
  gate::Sample* sample;         // that times it
  gate::StreamAccount* locked;  // whose lock it has
  uint32_t entered;             // 1: counted in State::inside
  uint32_t held;                // 1: State::waiters, and the thread cannot be cancelled
  int cancel_state;             // before that
};

struct Thread {        // thread-local, trivially destructible
  ThreadSlot* slot;    // null until the first gated call
  StreamCount* count;  // of `key`, the stream used last
  uint64_t key;
  gate::StreamAccount* account;  // best-effort: of `account_key`
  uint64_t account_key;
  uint64_t draws;  // random numbers drawn for timing, see should_time
  uint64_t
      timed_at;  // count of launches from which on a short launch of a known shape is timed; 0: not drawn
  // A mark: a place in the frame of the outermost hook that is inside the driver. 0: none is; nested calls are forwarded.
  uintptr_t inside;
  uintptr_t blocked;    // likewise, of a call that waits for the program's work (gate::Blocked)
  uintptr_t launching;  // protected: a mark of the latest call
  uint32_t shared;      // 1: slot is shared with other threads, count with locked adds
  LaunchMemo memo;
  const void* cutting;  // function whose slices this thread launches now, for traces; else null
  uint32_t yielding;    // ranges that it is in, and in which its work begins no burst
  UnderWay call;
};
inline constexpr uintptr_t kAlwaysInside = UINTPTR_MAX;  // a thread of ours
// constinit: no wrapper asks before every access whether it was constructed.
extern constinit thread_local Thread t_thread __attribute__((tls_model("initial-exec")));

// Has the frame of that mark ended without its call's return, because a signal handler jumped out of it? `here`: a place in the
// frame of a hook that asks. Frames of calls inside the marked one lie below it, but those on a signal handler's own stack.
bool is_left(uintptr_t mark, uintptr_t here);
inline bool is_within(uintptr_t mark, uintptr_t here) {
  return mark != 0 && !is_left(mark, here);
}
[[gnu::always_inline]] inline bool is_nested(
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0))) {
  return is_within(t_thread.inside, here);
}

void claim_slot(Thread& thread);                           // slow, once per thread (threads.cc)
StreamCount* switch_stream(Thread& thread, uint64_t key);  // the thread used another stream last time
// Once, before any slot is claimed. `ends`: what a thread that ends leaves in its slot is settled by it.
using ThreadEnds = void (*)(ThreadSlot& slot);
// The slot's owner is inside no call any more, and those that never returned have not said that they ended.
void end_calls(ThreadSlot& slot);
void prepare_threads(ThreadEnds ends);

// Streams as keys: handles are pointers, the special ones small numbers (1 legacy, 2 per-thread, as in
// cuda.h).
inline uint64_t stream_key(driver_api::StreamArg s) {
  if (s.stream) return reinterpret_cast<uint64_t>(s.stream);
  return s.flavour == driver_api::Flavour::kPerThread ? 2 : 1;
}

// For counters that the calling thread alone writes.
inline void add_own(std::atomic<uint64_t>& counter, uint64_t n) {
  static_assert(sizeof counter == sizeof n);
  base::add_own(reinterpret_cast<uint64_t&>(counter), n);
}
inline void add_own_release(std::atomic<uint64_t>& counter, uint64_t n) {
  base::add_own_release(reinterpret_cast<uint64_t&>(counter), n);
}

inline void add(std::atomic<uint64_t>& counter, uint64_t n, bool shared) {
  // relaxed: ordered against the idle check by asymmetric_fence() (launch) and membarrier (idle side).
  if (shared) [[unlikely]]
    counter.fetch_add(n, std::memory_order_relaxed);
  else
    add_own(counter, n);
}

// Launch side of the Dekker pair "count, then look at busy" / "clear busy, then look at counts". The idle
// side pays with membarrier(2), which acts as a full fence in every running thread, so that the launch pays
// nothing.
inline void asymmetric_fence() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (g_state.symmetric.load(std::memory_order_relaxed)) [[unlikely]]
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Makes void what threads remember: credit, and which kernel and stream a handle stands for.
inline void begin_epoch() {
  if (g_state.epoch.fetch_add(1, std::memory_order_seq_cst) == UINT32_MAX) g_state.epoch.fetch_add(1);
}

// Helper thread. Role and peers are set apart.
inline void set_link(const DaemonLink* link) {
  g_state.link.store(link, std::memory_order_release);  // pairs with the acquire in every launch
  begin_epoch();
}

// Our own calls into the driver on slow paths, only while no capture is open in the process (D11).
inline bool enter_driver() {
  // seq_cst: pairs with enter_exclusive (process.h), one of the two sees the other
  g_state.inside.fetch_add(1, std::memory_order_seq_cst);
  t_thread.call.entered = 1;
  if (g_state.captures.load(std::memory_order_seq_cst) == 0) return true;
  t_thread.call.entered = 0;
  g_state.inside.fetch_sub(1, std::memory_order_seq_cst);
  return false;
}
inline void leave_driver() {
  t_thread.call.entered = 0;
  g_state.inside.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace tessera::state
