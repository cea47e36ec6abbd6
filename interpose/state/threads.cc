// Slots of the program's threads: taken at a thread's first gated call, given back when it ends (a pthread
// key's destructor, so that no thread-local object needs one). More threads than slots share the last few.
#include <pthread.h>
#include <signal.h>

#include "interpose/state/state.h"

namespace tessera::state {
namespace {

pthread_key_t g_key;
constinit std::atomic<uint32_t> g_key_ready{0};
constinit std::atomic<ThreadEnds> g_thread_ends{nullptr};  // relaxed: constant code

void give_back(void* of_thread) {
  auto& slot = *static_cast<ThreadSlot*>(of_thread);
  end_calls(slot);  // it may have been cancelled in one
  if (const ThreadEnds ends = g_thread_ends.load(std::memory_order_relaxed)) ends(slot);
  t_thread =
      {};  // what the thread still launches, in destructors of the program's keys, has a slot of its own
  // release: pairs with claim_slot; the counts stay, the next owner goes on from them
  slot.taken.store(0, std::memory_order_release);
}

}  // namespace

void end_calls(ThreadSlot& slot) {
  for_each_stream(slot, [](StreamCount& c) {
    c.ended.store(c.begun.load(std::memory_order_relaxed), std::memory_order_release);  // as end_work()
  });
}

void prepare_threads(ThreadEnds ends) {
  g_thread_ends.store(ends, std::memory_order_relaxed);
  if (pthread_key_create(&g_key, give_back) == 0) g_key_ready.store(1, std::memory_order_release);
}

bool is_left(uintptr_t mark, uintptr_t here) {
  stack_t own = {};
  return mark <= here && !(sigaltstack(nullptr, &own) == 0 && (own.ss_flags & SS_ONSTACK) != 0);
}

void claim_slot(Thread& thread) {
  for (uint32_t i = 0; i < kOwnedSlots; i++) {
    uint32_t free = 0;
    ThreadSlot& slot = g_slots[i];
    if (slot.taken.load(std::memory_order_relaxed) != 0 ||
        !slot.taken.compare_exchange_strong(free, 1, std::memory_order_acq_rel))
      continue;
    uint32_t used = g_slots_used.load(std::memory_order_relaxed);
    while (used < i + 1 && !g_slots_used.compare_exchange_weak(used, i + 1, std::memory_order_acq_rel)) {
    }
    // Pairs with is_only_thread(): a launch counts, then looks at `busy`, which that cleared before it looked at the slots.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    thread.slot = &slot;
    // Without the key (out of keys) the slot is never given back; after kOwnedSlots threads the rest share.
    if (g_key_ready.load(std::memory_order_acquire)) pthread_setspecific(g_key, &slot);
    return;
  }
  g_slots_used.store(kSlots, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as above
  thread.slot = &g_slots[kOwnedSlots + (reinterpret_cast<uintptr_t>(&thread) >> 12) % kSharedSlots];
  thread.shared = 1;
}

}  // namespace tessera::state
