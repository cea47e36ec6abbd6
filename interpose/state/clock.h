// CLOCK_MONOTONIC nanoseconds for the launch path: the time stamp counter scaled by a calibration that the
// helper thread renews, about half the price of clock_gettime. Without an invariant counter it is
// clock_gettime. Any thread; never goes more than a few microseconds wrong between two renewals (1 s).
#pragma once

#include <x86intrin.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace tessera::state {

struct Calibration {  // ns = base_ns + (tsc - base_tsc) * scale / 2^32; a set is constant once published
  uint64_t base_tsc, base_ns, scale;
};
extern constinit std::atomic<const Calibration*> g_calibration;  // null: not calibrated

inline uint64_t clock_ns() {
  // acquire: pairs with the release in calibrate_clock()
  const Calibration* c = g_calibration.load(std::memory_order_acquire);
  if (!c) [[unlikely]]
    return base::now_ns();
  // A thread that moved here from a core whose counter lags may be a little before the base: never wrap.
  const int64_t ticks = int64_t(__rdtsc() - c->base_tsc);
  if (ticks < 0) [[unlikely]]
    return c->base_ns;
  return c->base_ns + uint64_t((static_cast<unsigned __int128>(uint64_t(ticks)) * c->scale) >> 32);
}

// Helper thread only. The first call remembers a point, later ones (>= 5 ms apart) publish a calibration.
void calibrate_clock();

}  // namespace tessera::state
