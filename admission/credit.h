// How much of the window a thread reserves ahead for its short launches, so that most of them need neither a
// locked operation nor the clock.
#pragma once

#include <cstdint>

namespace tessera::admission {

// Launches up to this may use credit; to longer ones a clock read is nothing.
inline constexpr uint64_t kShortLaunchNs = 20'000;
// Of all threads of a client together half of the window, of one thread an eighth, and never more than what a
// protected burst may find in its way unseen.
inline constexpr uint64_t kCreditShare = 8, kMostCreditNs = 250'000;
// Less than a few launches' worth is not worth the reservation.
inline constexpr uint64_t kLeastLaunches = 4;

// `left_ns`: of the last credit. 0 = none is wanted now.
constexpr uint64_t credit_wanted_ns(uint64_t window_ns, uint64_t left_ns, uint64_t estimate_ns) {
  uint64_t credit = window_ns / kCreditShare;
  if (credit > kMostCreditNs) credit = kMostCreditNs;
  return estimate_ns * kLeastLaunches > credit || left_ns >= estimate_ns || left_ns >= credit
             ? 0
             : credit - left_ns;
}

}  // namespace tessera::admission
