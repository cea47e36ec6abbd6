// The constraint that one part of `tessera` sets for one client in one decision, and its effect on the lease. Pure.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

struct Constraint {  // by default: nothing is asked
  enum class Start : uint8_t {
    kAsGranted,
    kHeld,          // nothing starts
    kConfined,      // starts on SMs of its own whatever protected clients do; with sm_limit
    kDuringBursts,  // starts anywhere whatever protected clients do
    kTogether,      // because that was measured to be harmless
  };
  static constexpr uint64_t kNoLimit = UINT64_MAX;

  Start start = Start::kAsGranted;
  uint64_t window_ns = kNoLimit, slice_ns = kNoLimit;  // at most
  uint64_t marker_spacing_ns = kNoLimit;               // at most
  uint64_t quantum_ns = kNoLimit;                      // at most
  uint64_t ends_by_ns = 0;                             // 0 = whenever
  uint32_t length_class = base::kLongestClass;         // at most, but for quanta
  uint64_t long_block_ns = 0;                          // 0 = as it is
  uint32_t long_width_percent = 100;                   // with long_block_ns
  uint32_t spin_ns = 0;                                // 0 = as it is
  uint32_t sm_limit = 0;                               // 0 = as it is
  uint32_t burst_classes = 0;                          // with kConfined
  HeldBy held_by = HeldBy::kNothing;                   // with kHeld
};

// Wider than it was, too; completion is seen before it is empty.
inline void set_window(uint64_t window_ns, Lease* lease) {
  lease->window_ns = window_ns;
  lease->marker_spacing_ns = uint32_t(window_ns / 4);
}

// Free-running clients have no lease that could be changed.
inline void apply(const Constraint& c, Lease* lease) {
  if (lease->grant == Grant::kFree) return;
  lease->window_ns = std::min(lease->window_ns, c.window_ns);
  lease->slice_ns = std::min(lease->slice_ns, c.slice_ns);
  lease->quantum_ns = std::min(lease->quantum_ns, c.quantum_ns);
  lease->marker_spacing_ns = uint32_t(std::min<uint64_t>(lease->marker_spacing_ns, c.marker_spacing_ns));
  if (c.length_class != base::kLongestClass)  // a quantum begins whenever anything may
    lease->length_class = std::max(c.length_class, base::length_class(lease->quantum_ns));
  if (c.ends_by_ns != 0) lease->ends_by_ns = c.ends_by_ns;
  if (c.long_block_ns != 0) {
    lease->long_block_ns = c.long_block_ns;
    lease->long_width_percent = c.long_width_percent;
  }
  if (c.spin_ns != 0 && lease->grant == Grant::kGranted) lease->spin_ns = c.spin_ns;
  if (c.sm_limit != 0) lease->sm_limit = c.sm_limit;
  switch (c.start) {
    case Constraint::Start::kAsGranted:
      return;
    case Constraint::Start::kHeld:
      lease->grant = Grant::kHold;
      lease->held_by = c.held_by;
      lease->nudge = false;
      return;
    case Constraint::Start::kConfined:
      lease->grant = Grant::kGranted;
      lease->held_by = HeldBy::kNothing;
      lease->confine_all = true;
      set_window(c.window_ns, lease);
      lease->slice_ns = c.slice_ns;
      lease->long_block_ns = 0;
      lease->burst_classes = c.burst_classes;
      return;
    case Constraint::Start::kDuringBursts:
      lease->grant = Grant::kGranted;
      lease->held_by = HeldBy::kNothing;
      lease->packed = true;
      return;
    case Constraint::Start::kTogether:
      lease->grant = Grant::kGranted;
      lease->held_by = HeldBy::kNothing;
      lease->packed = lease->together = true;
      if (c.window_ns != Constraint::kNoLimit) set_window(c.window_ns, lease);
      return;
  }
}

}  // namespace tessera::policy
