// A lease, decoded and bounded: this is the one reader of abi::LeaseLine. A client copies the line
// (ipc/channel/lease.h, lease_copy) and decodes the copy; the simulator fills a LeaseView itself.
#pragma once

#include "admission/limits.h"
#include "ipc/abi/region.h"

namespace tessera::admission {

namespace abi = ipc::abi;

enum class Grant : uint8_t {
  kHold = abi::kLeaseHold,
  kGranted = abi::kLeaseGranted,
  kFree = abi::kLeaseFree
};

struct LeaseView {
  uint32_t word = 0;  // as loaded: what a futex waits on, and what goes to UsageLine::drained_word
  Grant grant = Grant::kHold;
  bool passthrough = false;  // the operator's switch: forward everything
  bool packed = false;       // anything may start while protected work is busy
  bool tell_busy = false;    // the daemon wants to know when a busy pulse holds a launch
  bool defers = false;       // protected: bursts wait for those that go first
  uint64_t expires_ns = 0;   // CLOCK_MONOTONIC; a grant is void afterwards
  uint64_t window_ns = 0;    // GPU time that may be in flight at once
  uint64_t slice_ns = 0;     // longest launch; 0 = nothing is cut
  uint32_t marker_spacing_ns = 0;
  uint64_t max_hold_ns = kDefaultHoldNs;
  uint32_t priority = 0;
  uint64_t watch_spin_ns = 0;  // at most kMostSpinUs
  // Blocks that last longer than long_block_ns get slices of this much of a wave, 1..100; see slices.h.
  uint32_t long_width_percent = 100;
  uint64_t long_block_ns = 0;
  uint64_t quantum_ns = 0;     // of the gate on the device (boundary.h); 0 = the thread asks
  uint32_t ends_by_us = 0;     // what starts should end by then: low 32 bits of CLOCK_MONOTONIC, 0 = whenever
  bool keeps_closed = false;   // protected: gates on the device stay closed after its bursts
  uint64_t slo_ns = 0;         // of this client, 0 = none
  uint32_t reserved_sms = 0;   // that launches which cannot be cut keep off (confine.h)
  bool confine_all = false;    // all launches keep off them
  uint32_t burst_classes = 0;  // with confine_all; bit c: those of class c that do may start during bursts

  constexpr bool unmanaged() const { return grant == Grant::kFree || passthrough; }
  constexpr bool names_class(uint32_t resource_class) const {
    return (burst_classes >> resource_class & 1u) != 0;
  }
};

constexpr Grant grant_of(uint32_t word) {
  const uint32_t state = word & abi::kLeaseStateMask;
  return state == abi::kLeaseGranted ? Grant::kGranted
         : state == abi::kLeaseFree  ? Grant::kFree
                                     : Grant::kHold;
}

// The state at a time: a granted lease past its end is a hold.
constexpr Grant grant_at(const LeaseView& lease, uint64_t now_ns) {
  return lease.grant == Grant::kGranted && now_ns >= lease.expires_ns ? Grant::kHold : lease.grant;
}

constexpr uint32_t low_us(uint64_t ns) {
  return uint32_t(ns / 1'000);
}

// Never 0, which would mean "whenever".
constexpr uint32_t ends_by_us(uint64_t at_ns) {
  return low_us(at_ns) == 0 ? 1 : low_us(at_ns);
}

constexpr bool ends_in_time(const LeaseView& lease, uint64_t at_ns) {
  return lease.ends_by_us == 0 || int32_t(lease.ends_by_us - low_us(at_ns)) >= 0;
}

constexpr uint64_t hold_limit_ns(uint64_t max_hold_ms) {
  if (max_hold_ms == 0) return kDefaultHoldNs;
  return (max_hold_ms < kMostHoldMs ? max_hold_ms : kMostHoldMs) * 1'000'000;
}

constexpr LeaseView decode(const abi::LeaseLine& line) {
  const abi::LeaseRights& may = line.rights;
  const uint32_t percent = line.long_width_percent;
  return {.word = line.word,
          .grant = grant_of(line.word),
          .passthrough = may.passthrough != 0,
          .packed = may.packed != 0,
          .tell_busy = may.tell_busy != 0,
          .defers = may.defers != 0,
          .expires_ns = line.expires_ns,
          .window_ns = line.window_ns,
          .slice_ns = line.slice_ns,
          .marker_spacing_ns = line.marker_spacing_ns,
          .max_hold_ns = hold_limit_ns(line.max_hold_ms),
          .priority = may.priority,
          .watch_spin_ns = (line.watch_spin_us < kMostSpinUs ? line.watch_spin_us : kMostSpinUs) * 1'000,
          .long_width_percent = percent == 0 || percent > 100 ? 100 : percent,
          .long_block_ns = line.long_block_us != 0 ? line.long_block_us * uint64_t(1'000) : line.slice_ns,
          .quantum_ns = uint64_t(line.quantum_us) * 1'000,
          .ends_by_us = line.ends_by_us,
          .keeps_closed = may.keeps_closed != 0,
          .slo_ns = uint64_t(line.slo_us) * 1'000,
          .reserved_sms = line.reserved_sms,
          .confine_all = may.confine_all != 0,
          .burst_classes = may.burst_classes & 0xfu};  // there are four
}

}  // namespace tessera::admission
