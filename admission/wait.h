// How a held launch waits: it watches for a while, then sleeps, then looks again.
#pragma once

#include "admission/rule.h"

namespace tessera::admission {

struct WaitPlan {
  uint64_t watch_ns;  // look again and again, without giving up the CPU for long
  uint64_t sleep_ns;  // then sleep, at most for this time; 0 = ask again at once
};

// No marker is waited for, or it is not known when one will be reached.
inline constexpr int64_t kNoMarker = INT64_MAX;

// Timers are late by tens of microseconds: while the next marker is farther than kNear the thread sleeps in between looks,
// then it watches. Estimates are off by factors, so no sleep is long; what is overdue is watched for a while, and then less
// and less often.
inline constexpr int64_t kNearNs = 100'000, kOverdueNs = 150'000;
inline constexpr uint64_t kWindowWatchNs = 20'000, kWindowSleepNs = 20'000;
// Pulses wake nobody, so that no sleep is longer; nobody else sees a drain.
inline constexpr uint64_t kMostSleepNs = 1'000'000, kDrainSleepNs = 100'000;
// A burst that just began may end at once; the longer it lasts, the less it hurts to notice its end late.
inline constexpr uint64_t kPulseSleepNs = 50'000, kPulseSleepPart = 8;
// A pulse in the way for this time may be of a client that dies: the daemon is told.
inline constexpr uint64_t kTellAfterNs = 2'000'000;

// `next_marker_ns`: until the next marker should be reached, by the estimates; negative = overdue.
constexpr WaitPlan plan_wait(Reason reason, const LeaseView& lease, const Waited& waited,
                             uint64_t in_flight_ns, int64_t next_marker_ns) {
  WaitPlan plan{lease.watch_spin_ns, kMostSleepNs};
  if (reason == Reason::kWindow) {
    if (next_marker_ns == kNoMarker)
      plan = {kWindowWatchNs, kWindowSleepNs};
    else if (next_marker_ns > kNearNs)
      plan = {0, kWindowSleepNs};
    else if (next_marker_ns > -kOverdueNs)
      plan = {uint64_t(next_marker_ns + kOverdueNs), 0};
    else
      plan = {kWindowWatchNs, kWindowSleepNs + uint64_t(-next_marker_ns) / 32};
  } else {
    if (reason == Reason::kPulse) plan.sleep_ns = kPulseSleepNs + waited.held_ns / kPulseSleepPart;
    if (in_flight_ns != 0 && plan.sleep_ns > kDrainSleepNs) plan.sleep_ns = kDrainSleepNs;
  }
  if (plan.sleep_ns > kMostSleepNs) plan.sleep_ns = kMostSleepNs;
  return plan;
}

// Does the daemon have something to do about this wait?
constexpr bool daemon_should_know(Reason reason, const LeaseView& lease, const Waited& waited) {
  if (reason == Reason::kPulse) return lease.tell_busy || waited.held_ns >= kTellAfterNs;
  return reason == Reason::kLease;
}

}  // namespace tessera::admission
