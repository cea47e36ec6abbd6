// How much of the window a thread reserves ahead for its short launches, so that most of them need neither a
// locked operation nor the clock.
#pragma once

#include <cstdint>

namespace tessera::admission {

// Launches up to this may use credit; to longer ones a clock read is nothing.
inline constexpr uint64_t kShortLaunchNs = 20'000;
// A thread never has more than what a protected burst may find in its way unseen.
inline constexpr uint64_t kMostCreditNs = 250'000;
// Less than a few launches' worth is not worth the reservation.
inline constexpr uint64_t kLeastLaunches = 4;

// The part of one of `n_threads` with credit: parts are equal, and one is left for the next thread.
constexpr uint64_t credit_share_ns(uint64_t window_ns, uint32_t n_threads) {
  const uint64_t share = window_ns / (uint64_t(n_threads) + 1);
  return share < kMostCreditNs ? share : kMostCreditNs;
}

// `free_ns` of the window, without this launch; `left_ns` of the last credit. 0 = none is wanted now.
constexpr uint64_t credit_wanted_ns(uint64_t free_ns, uint64_t share_ns, uint64_t left_ns,
                                    uint64_t estimate_ns) {
  const uint64_t credit = free_ns + left_ns < share_ns ? free_ns + left_ns : share_ns;
  return estimate_ns * kLeastLaunches > credit || left_ns >= estimate_ns ? 0 : credit - left_ns;
}

}  // namespace tessera::admission
