#include "interpose/state/state.h"

#include "interpose/state/note.h"

namespace tessera::state {
namespace {

constinit abi::LeaseLine g_free_lease = {.word = abi::kLeaseFree};
constinit abi::LeaseLine g_hold_lease = {.word = abi::kLeaseHold, .max_hold_ms = 200};
constinit abi::UsageLine g_no_usage = {};
constinit abi::RecordRing g_no_ring = {};
constinit abi::PulsePage g_own_dummy = {};

}  // namespace

constinit abi::SignalLine g_no_signals = {};
constinit const abi::PulsePage g_idle_pulse = {};
constinit DaemonLink g_unmanaged = {&g_free_lease, &g_no_usage, &g_no_ring, 0, &g_own_dummy, 0, 0};
constinit DaemonLink g_daemonless_hold = {&g_hold_lease, &g_no_usage, &g_no_ring, 0, &g_own_dummy, 0, 0};
constinit State g_state = {.link = &g_unmanaged,
                           .symmetric = 1,  // until membarrier is registered
                           .epoch = 1,
                           .watch = {{&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0},
                                     {&g_idle_pulse, 0}}};
constinit ThreadSlot g_slots[kSlots] = {};
constinit std::atomic<uint32_t> g_slots_used{0};
constinit thread_local Thread t_thread = {};
constinit thread_local operations::Note* t_note = nullptr;
constinit std::atomic<const operations::Listener*> g_listener{nullptr};

static_assert(std::is_trivially_destructible_v<Thread> && std::is_trivially_destructible_v<State>);

StreamCount* switch_stream(Thread& thread, uint64_t key) {
  if (!thread.slot) claim_slot(thread);
  constexpr auto relaxed = std::memory_order_relaxed;  // keys are changed by the owner only
  StreamCount* const streams = thread.slot->streams;
  StreamCount* found = &streams[kStreamsPerThread];  // spill, if nothing better turns up
  const bool mixed =
      thread.shared && key == 2;  // per-thread streams of several threads: one key, many streams
  for (uint32_t i = 0; i < kStreamsPerThread && !mixed; i++) {
    if (streams[i].key.load(relaxed) == key) {
      found = &streams[i];
      break;
    }
  }
  if (found == &streams[kStreamsPerThread] && !thread.shared) {
    for (uint32_t i = 0; i < kStreamsPerThread; i++) {
      StreamCount& c = streams[i];
      // acquire: pairs with the release in advance(); whoever completed it is done with its counts. Counters
      // go on from where they are, so that a late advance() for the old stream stays below them.
      if (c.begun.load(relaxed) != c.completed.load(std::memory_order_acquire)) continue;
      c.key.store(key, relaxed);
      found = &c;
      break;
    }
  }
  thread.count = found;
  thread.key = key;
  return found;
}

}  // namespace tessera::state
