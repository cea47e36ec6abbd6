// CLOCK_MONOTONIC nanoseconds for the launch path: the processor's counter ("tsc" below) scaled by a calibration that the
// helper thread renews, about half the price of clock_gettime. Without an invariant counter it is
// clock_gettime. Any thread; never goes more than a few microseconds wrong between two renewals (1 s).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/machine.h"

namespace tessera::state {

struct Calibration {  // ns = base_ns + (tsc - base_tsc) * scale / 2^32; a set is constant once published
  uint64_t base_tsc, base_ns, scale;

  uint64_t at(uint64_t tsc) const {
    // A thread that moved here from a core whose counter lags may be a little before the base: never wrap.
    const int64_t ticks = int64_t(tsc - base_tsc);
    if (ticks < 0) [[unlikely]]
      return base_ns;
    return base_ns + uint64_t((static_cast<unsigned __int128>(uint64_t(ticks)) * scale) >> 32);
  }
};
extern constinit std::atomic<const Calibration*> g_calibration;  // null: not calibrated

inline uint64_t clock_ns() {
  // acquire: pairs with the release in calibrate_clock()
  const Calibration* c = g_calibration.load(std::memory_order_acquire);
  if (!c) [[unlikely]]
    return base::now_ns();
  return c->at(base::counter_ticks());
}

// Both clocks at one moment. A thread that is preempted between two reads has a pair that is off by as long, and the clock
// would jump by that: of some tries the one counts whose reads of the counter, around that of the time, are closest.
struct ClockPoint {
  uint64_t tsc, ns;
};
template <class ReadTsc, class ReadNs>
ClockPoint tightest_point(ReadTsc read_tsc, ReadNs read_ns) {
  ClockPoint best{};
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < 8; i++) {
    const uint64_t before = read_tsc(), ns = read_ns(), ticks = read_tsc() - before;
    if (ticks >= least) continue;
    least = ticks;
    best = {before + ticks / 2, ns};
  }
  return best;
}

// By the rate since `start`. The clock goes on where the calibration before has come to, and is right again after a second;
// it jumps only if it is wrong by 0.1 ms or more.
Calibration renewed(const Calibration* before, const ClockPoint& start, const ClockPoint& point);

// Helper thread only. The first call remembers a point, later ones (>= 5 ms apart) publish a calibration.
void calibrate_clock();

}  // namespace tessera::state
