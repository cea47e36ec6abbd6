// Credit: window that a best-effort thread reserved ahead, so that most of its short launches need neither a
// locked operation nor the clock, and, because the thread remembers its latest launch, no look-up either.
//
//   owner:    in_gate = 1 ; fence ; look at epoch, lease, pulses ; launch ; in_gate = 0
//   reclaim:  reclaimers + 1 ; raise epoch ; membarrier ; in_gate == 0 ? take the credit ; reclaimers - 1
//
// One of the two sees the other: a launch that went by the old epoch is over before its credit is taken, and
// no credit of the new epoch is valid until that is done, however long it takes (keep_credit).
#pragma once

#include "admission/credit.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/launch.h"

namespace tessera::gate {

// Still what the rule said yes to? Its words are read one by one: a change that is seen late has come late.
inline bool still_granted(const state::Credit& c, uint32_t epoch) {
  return epoch == state::g_state.epoch.load(std::memory_order_relaxed) &&
         c.word == ipc::load(*c.lease_word, std::memory_order_acquire);  // pairs with lease_publish
}

// Has this peer begun a burst since (it may be over by now), or does it go on with an old one?
inline bool stirred(const state::Credit::Peer& peer) {
  return peer.burst != ipc::load(peer.page->burst, std::memory_order_relaxed) ||
         ipc::load(peer.page->busy, std::memory_order_acquire) != 0;  // pairs with pulse_set_busy
}

// True: the credit pays for it, and leave_on_credit() must follow the launch. To be called inside. Spent before the launch,
// because nothing follows one in which its thread ends.
inline bool pay(state::Credit& c, uint64_t expected_ns) {
  const uint64_t left_ns = c.left_ns.load(std::memory_order_relaxed);
  if (left_ns < expected_ns) [[unlikely]]
    return false;
  c.left_ns.store(left_ns - expected_ns, std::memory_order_relaxed);
  state::add_own(c.spent_ns, expected_ns);
  return true;
}

// The launch that `t` remembers may go again while nothing changes: its hook looks, at that many
// peers, by the same rule.
inline constexpr uint32_t kPeersOfARepeat = 2;
inline void may_repeat(state::Thread& t, uint64_t account_key) {
  const state::Credit& c = t.slot->credit;
  if (c.account_key == account_key && c.n_peers <= kPeersOfARepeat &&
      !state::g_state.symmetric.load(std::memory_order_relaxed))
    t.memo.epoch = c.epoch;
}

// True: the thread's credit pays for it, the launch may go, and leave_on_credit() must follow it.
bool enter_on_credit(state::Thread& t, uint64_t account_key, uint64_t expected_ns);

// Inside, when the credit of the launch that `t` remembers does not suffice and nothing else has changed. What of the
// thread's own work has ended pays for more, without asking: the window is as full as before. True: and for this
// launch.
bool renew_credit(state::Thread& t);

// The same of a launch that the driver refused.
CUresult leave_unspent(CUresult result, uint64_t expected_ns);

// The launch has returned.
inline CUresult leave_on_credit(CUresult result, uint64_t expected_ns) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    return leave_unspent(result, expected_ns);
  state::t_thread.slot->credit.in_gate.store(0, std::memory_order_release);  // pairs with reclaim_credits
  return result;
}

// Returns how much to reserve beyond this launch, so that the thread's next short ones find credit.
uint64_t wanted_credit_ns(state::ThreadSlot& slot, const state::DaemonLink* link,
                          driver_api::StreamArg stream, uint64_t estimate_ns);
// The launch that it was reserved with has reached the driver.
void keep_credit(state::ThreadSlot& slot, const state::DaemonLink* link, uint32_t word, uint32_t epoch,
                 uint64_t credit_ns, driver_api::StreamArg stream);

}  // namespace tessera::gate
