#include "interpose/state/state.h"

#include "interpose/state/note.h"

namespace tessera::state {
namespace {

constinit abi::LeaseLine g_free_lease = {.word = abi::kLeaseFree};
constinit abi::LeaseLine g_hold_lease = {.word = abi::kLeaseHold, .max_hold_ms = 200};
constinit abi::UsageLine g_no_usage = {};
constinit abi::PulsePage g_own_dummy = {};

}  // namespace

constinit abi::SignalLine g_no_signals = {};
constinit const abi::AnswerLine g_no_answers = {};
constinit const abi::PulsePage g_idle_pulse = {};
constinit DaemonLink g_unmanaged = {&g_free_lease, &g_no_usage, nullptr, 0, &g_own_dummy, 0, 0};
constinit DaemonLink g_daemonless_hold = {&g_hold_lease, &g_no_usage, nullptr, 0, &g_own_dummy, 0, 0};
constinit State g_state = {.link = &g_unmanaged,
                           .symmetric = 1,  // until membarrier is registered
                           .epoch = 1};
constinit ThreadSlot g_slots[kSlots] = {};
constinit std::atomic<uint32_t> g_slots_used{0};
constinit thread_local Thread t_thread = {};
constinit thread_local operations::Note* t_note = nullptr;
constinit std::atomic<const operations::Listener*> g_listener{nullptr};

namespace {

constinit StreamPage g_stream_pages[kStreamPages] = {};
constinit std::atomic<uint32_t> g_stream_pages_used{0};

// Its first stream, or null if there is none left.
StreamCount* add_page(ThreadSlot& slot) {
  if (g_stream_pages_used.load(std::memory_order_relaxed) >= kStreamPages) return nullptr;
  const uint32_t i = g_stream_pages_used.fetch_add(1, std::memory_order_relaxed);
  if (i >= kStreamPages) return nullptr;
  std::atomic<StreamPage*>* end = &slot.more;
  // Its owner alone adds pages, but a signal handler of it may, too. release: pairs with find_stream
  for (StreamPage* taken = nullptr;
       !end->compare_exchange_strong(taken, &g_stream_pages[i], std::memory_order_acq_rel); taken = nullptr)
    end = &taken->next;
  return g_stream_pages[i].streams;
}

}  // namespace

static_assert(std::is_trivially_destructible_v<Thread> && std::is_trivially_destructible_v<State>);

StreamCount* switch_stream(Thread& thread, uint64_t key) {
  if (!thread.slot) claim_slot(thread);
  constexpr auto relaxed = std::memory_order_relaxed;  // keys are changed by the owner only
  StreamCount* const spill = &thread.slot->streams[kStreamsPerThread];
  StreamCount* found = nullptr;
  if (!thread.shared) {  // else a place would be that of several threads' streams
    found = find_stream(*thread.slot, [&](StreamCount& c) { return c.key.load(relaxed) == key; });
    // acquire: pairs with the release in advance(); whoever completed it is done with its counts. Counters
    // go on from where they are, so that a late advance() for the old stream stays below them.
    if (!found)
      found = find_stream(*thread.slot, [&](StreamCount& c) {
        return &c != spill && c.begun.load(relaxed) == c.completed.load(std::memory_order_acquire);
      });
    if (!found) found = add_page(*thread.slot);
    if (found) found->key.store(key, relaxed);
  }
  thread.count = found ? found : spill;
  thread.key = key;
  return thread.count;
}

}  // namespace tessera::state
