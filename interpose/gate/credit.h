// Credit: window that a best-effort thread reserved ahead, so that most of its short launches need neither a
// locked operation nor the clock, and, because the thread remembers its latest launch, no look-up either.
//
//   owner:    in_gate = 1 ; fence ; look at epoch, lease, pulses ; launch ; in_gate = 0
//   reclaim:  raise epoch ; membarrier ; in_gate == 0 ? take the credit
//
// One of the two sees the other: a launch that went by the old epoch is over before its credit is taken.
#pragma once

#include "admission/credit.h"
#include "interpose/gate/launch.h"

namespace tessera::gate {

void remember(Thread& t, const LaunchCall& launch, uint64_t expected_ns);

// Is this the thread's latest launch once more, and nothing changed since? No capture may be open, and
// nothing may be under way in this thread: a signal handler, or the driver calling back.
inline bool remembers(const Thread& t, CUfunction function, const uint32_t (&grid)[3],
                      const uint32_t (&block)[3], uint32_t shared_bytes, driver_api::StreamArg stream) {
  const LaunchMemo& m = t.memo;
  return m.function == function && m.stream == stream.stream && m.family == stream.flavour &&
         m.grid[0] == grid[0] && m.grid[1] == grid[1] && m.grid[2] == grid[2] && m.block[0] == block[0] &&
         m.block[1] == block[1] && m.block[2] == block[2] && m.shared_bytes == shared_bytes &&
         m.epoch == g_state.epoch.load(std::memory_order_relaxed) && t.depth == 0 && t.until_timed > 1 &&
         g_state.captures.load(std::memory_order_relaxed) == 0;
}

// Is a watched client of a higher level busy now? `bursts` changes whenever one of them started a burst, also
// one that is over by now. Packed leases and stale pulses are the rule's business, not credit's.
inline bool anyone_busy(const Link* link, uint64_t* bursts) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const uint32_t n = g_state.n_watched.load(relaxed), own = ipc::load(link->lease->priority, relaxed);
  bool busy = false;
  *bursts = 0;
  for (uint32_t i = 0; i < n && i < kWatched; i++) {
    const abi::PulsePage& page = *g_state.watch[i].page.load(std::memory_order_acquire);
    *bursts += ipc::load(page.burst, relaxed);
    if (ipc::load(page.busy, std::memory_order_acquire) != 0 && g_state.watch[i].priority.load(relaxed) > own)
      busy = true;
  }
  return busy;
}

// Nothing changed since the rule allowed what the credit was reserved with.
[[gnu::always_inline]] inline bool still_allowed(const Thread& t, const Credit& c, uint64_t lane_key) {
  const Link* link = g_state.link.load(std::memory_order_acquire);
  if (c.link != link || c.epoch != g_state.epoch.load(std::memory_order_relaxed) || c.lane_key != lane_key ||
      t.lane_key != lane_key ||
      c.word != ipc::load(link->lease->word, std::memory_order_acquire) ||  // pairs with lease_publish
      ipc::load(link->lease->passthrough, std::memory_order_relaxed) != 0)
    return false;
  uint64_t bursts = 0;
  return !anyone_busy(link, &bursts) && bursts == c.bursts;
}

// True: the thread's credit pays for so much, the launch may go, and leave_on_credit() must follow it.
[[gnu::always_inline]] inline bool enter_on_credit(Thread& t, uint64_t lane_key, uint64_t expected_ns) {
  constexpr auto relaxed = std::memory_order_relaxed;
  Credit& c = t.slot->credit;
  c.in_gate.store(1, relaxed);
  asymmetric_fence();  // then look; pairs with reclaim_credits: raise the epoch, fence, look at in_gate
  const bool valid = still_allowed(t, c, lane_key);
  const uint64_t left_ns = c.left_ns.load(relaxed);
  if (valid && left_ns >= expected_ns) [[likely]] {
    c.left_ns.store(left_ns - expected_ns, relaxed);
    return true;
  }
  c.in_gate.store(0, std::memory_order_release);
  if (!valid) settle_credit(*t.slot);
  return false;
}

inline void leave_on_credit(Thread& t, uint64_t expected_ns, CUresult result) {
  constexpr auto relaxed = std::memory_order_relaxed;
  Credit& c = t.slot->credit;
  std::atomic<uint64_t>& back = result == CUDA_SUCCESS ? c.spent_ns : c.left_ns;
  back.store(back.load(relaxed) + expected_ns, relaxed);
  c.in_gate.store(0, std::memory_order_release);  // pairs with reclaim_credits: the launch has returned
  if (result != CUDA_SUCCESS && is_sticky(result)) [[unlikely]]
    poison();
}

// What to reserve beyond this launch, so that the thread's next short ones find credit.
uint64_t wanted_credit_ns(ThreadSlot& slot, const Link* link, driver_api::StreamArg stream,
                          uint64_t window_ns, uint64_t estimate_ns);
// The launch that it was reserved with has reached the driver.
void keep_credit(ThreadSlot& slot, const Link* link, uint32_t word, uint32_t epoch, uint64_t credit_ns,
                 driver_api::StreamArg stream);

}  // namespace tessera::gate
