// How much of the window a thread reserves ahead for its short launches, so that most of them need neither a
// locked operation nor the clock.
#pragma once

#include <cstdint>

namespace tessera::admission {

// Launches up to this may use credit; to longer ones a clock read is nothing.
inline constexpr uint64_t kShortLaunchNs = 20'000;
// A thread takes half of what is free of the window, so that there is something for the next thread too, and never
// more than what a protected burst may find in its way unseen.
inline constexpr uint64_t kMostCreditNs = 250'000;
// Less than a few launches' worth is not worth the reservation.
inline constexpr uint64_t kLeastLaunches = 4;

// `free_ns` of the window, without this launch; `left_ns` of the last credit. 0 = none is wanted now.
constexpr uint64_t credit_wanted_ns(uint64_t free_ns, uint64_t left_ns, uint64_t estimate_ns) {
  uint64_t credit = (free_ns + left_ns) / 2;
  if (credit > kMostCreditNs) credit = kMostCreditNs;
  return estimate_ns * kLeastLaunches > credit || left_ns >= estimate_ns || left_ns >= credit
             ? 0
             : credit - left_ns;
}

}  // namespace tessera::admission
