// The lease words (abi::LeaseLine): what the daemon publishes and how a client reads them. Inline, no
// allocation.
//
// Reading needs no retry loop: a lease that changes between the loads yields a mix of two leases, each value
// of which the daemon meant; the state is decided by `word` alone and is read first.
//
// Contract of the hot path (it makes the drain provable): a launch first raises UsageLine::in_flight_ns
// (seq_cst), *then* looks at `word`; if it may not run it lowers in_flight_ns again. The daemon stores a hold
// (seq_cst) and then reads in_flight_ns: zero means that nothing of the old lease is running or about to
// start.
#pragma once

#include "base/futex.h"
#include "ipc/abi/region.h"
#include "ipc/channel/atomic.h"

namespace tessera::ipc {

struct LeaseTerms {                  // the plain-data form of a LeaseLine, without its sequence
  uint32_t state = abi::kLeaseHold;  // abi::LeaseState
  bool packed = false;
  bool confine_all = false;  // launches keep off the reserved SMs
  bool tell_busy = false, defers = false;
  uint32_t burst_classes = 0;  // with confine_all; bit c: those of class c may start during bursts
  uint32_t reserved_sms = 0;   // that launches which cannot be cut keep off; whole steps of abi::kReserveStep
  uint64_t expires_ns = 0;
  uint64_t window_ns = 0, slice_ns = 0;
  uint32_t marker_spacing_ns = 0;
  uint32_t max_hold_ms = 0;
  uint32_t priority = 0;
  uint32_t watch_spin_us = 0;
  bool passthrough = false;
  uint32_t long_width_percent = 100;
  uint32_t long_block_us = 0;  // 0: as slice_ns
  uint32_t quantum_us = 0;     // of the gate on the device; 0: the thread asks
  bool keeps_closed = false;   // protected: gates on the device
  uint32_t slo_us = 0;
  uint32_t ends_by_us = 0;
  bool operator==(const LeaseTerms&) const = default;
};

// Client. One copy of the words, each read once; what they mean is admission::decode's business. `order`: of
// the word, which is read first and decides the state; at least acquire, which pairs with lease_publish.
inline abi::LeaseLine lease_copy(const abi::LeaseLine& line,
                                 std::memory_order order = std::memory_order_acquire) {
  constexpr auto relaxed = std::memory_order_relaxed;  // ordered by the acquire of word
  abi::LeaseLine copy;
  copy.word = load(line.word, order);
  copy.max_hold_ms = load(line.max_hold_ms, relaxed);
  copy.expires_ns = load(line.expires_ns, relaxed);
  copy.window_ns = load(line.window_ns, relaxed);
  copy.slice_ns = load(line.slice_ns, relaxed);
  copy.rights = load(line.rights, relaxed);
  copy.marker_spacing_ns = load(line.marker_spacing_ns, relaxed);
  copy.watch_spin_us = load(line.watch_spin_us, relaxed);
  copy.ends_by_us = load(line.ends_by_us, relaxed);
  copy.slo_us = load(line.slo_us, relaxed);
  copy.long_block_us = load(line.long_block_us, relaxed);
  copy.long_width_percent = load(line.long_width_percent, relaxed);
  copy.quantum_us = load(line.quantum_us, relaxed);
  copy.reserved_sms = load(line.reserved_sms, relaxed);
  return copy;
}

// Daemon. Writes the terms, steps the sequence, wakes. `word` is the daemon's own copy (the line is in memory
// that the client can scribble on, so it is never read back) and is advanced. Returns how many slept.
inline long lease_publish(abi::LeaseLine& line, uint32_t& word, const LeaseTerms& terms) {
  constexpr auto relaxed = std::memory_order_relaxed;  // published by the store of word below
  uint32_t sequence = (word & ~abi::kLeaseStateMask) + abi::kLeaseStep;
  // A hold is stored before its terms change, so that it is seen as early as can be, and a grant after. On aarch64 new terms may
  // pass the hold; a reader that takes them under the old word has a mix, as above.
  word = sequence | (terms.state & abi::kLeaseStateMask);
  if (terms.state == abi::kLeaseHold) store(line.word, word, std::memory_order_seq_cst);
  const auto in_16_bits = [](uint32_t value) { return uint16_t(value < UINT16_MAX ? value : UINT16_MAX); };
  store(line.max_hold_ms, in_16_bits(terms.max_hold_ms), relaxed);
  store(line.expires_ns, terms.expires_ns, relaxed);
  store(line.window_ns, terms.window_ns, relaxed);
  store(line.slice_ns, terms.slice_ns, relaxed);
  const abi::LeaseRights rights{.priority = uint8_t(terms.priority),
                                .passthrough = terms.passthrough,
                                .packed = terms.packed,
                                .tell_busy = terms.tell_busy,
                                .defers = terms.defers,
                                .keeps_closed = terms.keeps_closed,
                                .confine_all = terms.confine_all,
                                .burst_classes = uint8_t(terms.confine_all ? terms.burst_classes : 0)};
  store(line.rights, rights, relaxed);
  store(line.marker_spacing_ns, terms.marker_spacing_ns, relaxed);
  store(line.watch_spin_us, in_16_bits(terms.watch_spin_us), relaxed);
  store(line.ends_by_us, terms.ends_by_us, relaxed);
  store(line.slo_us, terms.slo_us, relaxed);
  store(line.long_block_us, in_16_bits(terms.long_block_us), relaxed);
  store(line.long_width_percent, in_16_bits(terms.long_width_percent), relaxed);
  store(line.quantum_us, in_16_bits(terms.quantum_us), relaxed);
  store(line.reserved_sms, in_16_bits(terms.reserved_sms), relaxed);
  // Release (within seq_cst): pairs with the acquire in lease_copy. seq_cst: the drain contract above.
  store(line.word, word, std::memory_order_seq_cst);
  return base::futex_wake_all(&line.word);
}

// Daemon. Prolongs a granted lease: one word, nobody is woken.
inline void lease_renew(abi::LeaseLine& line, uint64_t expires_ns) {
  store(line.expires_ns, expires_ns, std::memory_order_relaxed);  // alone: nothing else is published by it
}

}  // namespace tessera::ipc
