// Protected client: announcing work and finding out, without asking the GPU, that it has ended.
//
//   launch:  begin_work(key)  ->  driver call  ->  end_work()            any thread of the program
//   sync:    Cover c; cover_stream(c, key)  ->  driver call  ->  covered(c, waited)
//   helper:  poll_idle() while busy (interpose/lifecycle/helper.cc)
//
// Why idle is never announced over running work:
//   launch   begun++ ; fence ; load busy == 0 ? announce         (count, then look)
//   idle     busy = 0 (CAS) ; membarrier ; every count complete ? else busy again      (clear, then look)
//            No membarrier while one thread alone has ever launched.
// and a synchronise call completes only what `ended` said before it began, i.e. calls that had returned.
// No allocation, no lock, no system call but: the wake of our parked helper on idle -> busy (counted), and on
// busy -> idle one membarrier, and where the daemon wants to hear of it (AnswerLine::quiet) one eventfd write.
#pragma once

#include "base/machine.h"
#include "interpose/gate/cover.h"
#include "interpose/gate/requests.h"
#include "interpose/state/state.h"

namespace tessera::gate {

// Slow half of begin_work: the first launch after idle. `function` is its handle; of a copy, what tells it
// from others.
void become_busy(uint32_t resource_class, uint64_t function);

// Start of a burst where the lease defers: waits for watched pulses that go first (a higher level; the same level
// with the earlier deadline), at most the hold limit and the client's own SLO. Returns at once if another
// thread of this process began the burst. System calls only while it waits.
void defer(const state::DaemonLink* link);

// The thread used another stream last, or a request begins: the first half of begin_work.
inline state::StreamCount* other_stream(state::Thread& thread, uint64_t key) {
  before_first_call();
  return state::switch_stream(thread, key);
}

// Helper thread, about to sleep on g_helper_word: the next burst wakes it. False: one runs, so that nobody would.
bool park(const state::DaemonLink& link);

// Helper thread, while busy: what the program launched since the last call, as votes for the burst's class;
// the page gets the latest one's. Two or three per burst suffice.
void sample_class();

struct Work {  // one call between begin and end
  state::StreamCount* count;
  bool shared;
};

// Counts a call as begun, then looks. False: the pulse says idle.
inline bool begin_while_busy(state::StreamCount& count, bool shared) {
  state::add(count.begun, 1, shared);
  state::asymmetric_fence();
  // relaxed: the fence above orders it after the count. acquire of link is not needed twice: same line, same
  // store.
  const state::DaemonLink* link = state::g_state.link.load(std::memory_order_acquire);
  return ipc::load(link->pulse->busy, std::memory_order_relaxed) != 0;
}

// Before a call is counted. The mark of one under way on that stream stays, whether this one is inside it or a signal handler
// jumped out of it.
[[gnu::always_inline]] inline bool mark_launch(state::Thread& t, const state::StreamCount& count) {
  if (count.begun.load(std::memory_order_relaxed) != count.ended.load(std::memory_order_relaxed)) [[unlikely]]
    return false;
  t.launching = base::stack_pointer();
  return true;
}

[[gnu::always_inline]] inline Work begin_work(uint64_t key, uint32_t resource_class, uint64_t function) {
  state::Thread& t = state::t_thread;
  state::StreamCount* count = t.key == key ? t.count : other_stream(t, key);
  const bool shared = t.shared != 0;
  (void)mark_launch(t, *count);
  if (!begin_while_busy(*count, shared)) [[unlikely]]
    become_busy(resource_class, function);
  return {count, shared};
}
// release: pairs with the acquire in cover_*: a sampled count stands for calls that have returned.
inline void end_work(Work work) {
  if (work.shared) [[unlikely]]
    work.count->ended.fetch_add(1, std::memory_order_release);
  else
    state::add_own_release(work.count->ended, 1);
}

inline void count_launch(uint64_t function) {  // kernels and graphs; after begin_work or claim_slot
  state::Thread& t = state::t_thread;
  state::add(t.slot->launches, 1, t.shared != 0);
  t.slot->last_function.store(function, std::memory_order_relaxed);  // statistics only
}

// The call returned success: advance, and go idle if nothing is left. `waited`: it was no query. If work is left then, a
// step of the burst may end: a server that begins its next step before it waits for this one is never idle.
void covered(const Cover& cover, bool waited);

// True if nothing is outstanding in any thread.
bool all_complete();
// Busy -> idle if nothing is outstanding. True if it went idle by this call (the daemon is then told).
bool try_idle();
// Everything that was ever begun counts as complete: context destroyed, sticky error.
void forgive_all();
void forgive_stream(uint64_t key);  // stream destroyed

inline void advance(state::StreamCount& count, uint64_t to) {
  uint64_t seen = count.completed.load(std::memory_order_relaxed);
  // release: pairs with switch_stream and all_complete
  while (seen < to && !count.completed.compare_exchange_weak(seen, to, std::memory_order_release,
                                                             std::memory_order_relaxed)) {
  }
}

struct PulseStats {                 // relaxed counters, for tests and logs
  std::atomic<uint64_t> announced;  // idle -> busy
  std::atomic<uint64_t> idled_by_sync, idled_by_helper;
  std::atomic<uint64_t> retracted;  // idle taken back because a launch raced it
  std::atomic<uint64_t> helper_wakes;
};
extern constinit PulseStats g_pulse_stats;

// Slow code that the pulse calls. interpose/lifecycle sets it before the first attach; until then it does nothing.
struct SlowPath {
  void (*notify_daemon)() noexcept;  // eventfd write after identity checks
  void (*heavy_fence)() noexcept;    // membarrier(2), or a plain fence while State::symmetric
};
extern constinit SlowPath g_slow;

extern constinit std::atomic<uint32_t> g_helper_word;    // futex: 1 = helper parked
extern constinit std::atomic<uint32_t> g_burst_counter;  // number of the current burst, also the busy word

bool push_record(const ipc::abi::Record& record);  // any thread; drops and counts when full or contended
uint64_t total_launches();

}  // namespace tessera::gate
