// The pulse of a protected client (abi::PulsePage): owner's side, and what a watcher may conclude. Inline, no
// syscall, no allocation: the gate's hot path uses it. The page of a peer is untrusted: each word is read once.
//
//   owner, launching thread      if (load(page.busy, relaxed) == 0) pulse_set_busy(page, word, class, burst, now)
//   owner, synchronise, helper   pulse_try_idle(page, word, now): a compare-and-swap from exactly the word it saw,
//                                which fails if somebody stored another busy word since
//   watcher                      pulse_is_busy(page, now): busy and not stale
//
// `busy` is 0 when idle and any other value when busy, so the owner may keep a generation in it. Whether a launch
// that skipped the store happened since, the owner finds out by its own Dekker protocol.
#pragma once

#include "ipc/abi/region.h"
#include "ipc/channel/atomic.h"

namespace tessera::ipc {

inline void pulse_set_busy(abi::PulsePage& page, uint32_t busy_word, uint32_t resource_class, uint64_t burst,
                           uint64_t now_ns) {
  store(page.resource_class, resource_class & 3u, std::memory_order_relaxed);
  store(page.burst, burst, std::memory_order_relaxed);
  store(page.busy_since_ns, now_ns, std::memory_order_relaxed);
  // Release: pairs with the acquire in pulse_is_busy, so that a watcher that sees busy sees a fresh
  // busy_since_ns.
  store(page.busy, busy_word == 0 ? 1u : busy_word, std::memory_order_release);
}

// Helper thread, at 10 Hz while busy.
inline void pulse_beat(abi::PulsePage& page, uint64_t now_ns) {
  store(page.heartbeat_ns, now_ns, std::memory_order_relaxed);  // alone: nothing else is published by it
}

// True if the page went idle by this call. Then write the wake eventfd (ipc::notify).
inline bool pulse_try_idle(abi::PulsePage& page, uint32_t seen_busy_word, uint64_t now_ns) {
  if (seen_busy_word == 0) return false;
  store(page.idle_since_ns, now_ns, std::memory_order_relaxed);
  // seq_cst: the owner's Dekker with its launching threads needs a total order with their launch counters.
  return std::atomic_ref<uint32_t>(page.busy).compare_exchange_strong(
      seen_busy_word, 0u, std::memory_order_seq_cst, std::memory_order_relaxed);
}

inline bool pulse_is_busy(const abi::PulsePage& page, uint64_t now_ns) {
  if (load(page.busy, std::memory_order_acquire) == 0) return false;  // pairs with pulse_set_busy
  return !abi::pulse_is_stale(load(page.heartbeat_ns, std::memory_order_relaxed),
                              load(page.busy_since_ns, std::memory_order_relaxed), now_ns);
}

}  // namespace tessera::ipc
