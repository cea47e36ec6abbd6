#include "interpose/state/clock.h"

namespace tessera::state {
namespace {

ClockPoint now() {
  return tightest_point(base::counter_ticks, base::now_ns);
}

// Helper thread only. Four sets in turn: a reader holds a set for nanoseconds, a set is rewritten after
// seconds.
constinit Calibration g_sets[4] = {};
constinit uint32_t g_next_set = 0;
constinit ClockPoint g_start = {};

}  // namespace

constinit std::atomic<const Calibration*> g_calibration{nullptr};

Calibration renewed(const Calibration* before, const ClockPoint& start, const ClockPoint& point) {
  constexpr int64_t kSecondNs = 1'000'000'000, kJumpNs = 100'000;
  const auto rate = static_cast<unsigned __int128>(point.ns - start.ns) << 32;
  Calibration c{point.tsc, point.ns, uint64_t(rate / (point.tsc - start.tsc))};
  const int64_t late_ns = before ? int64_t(point.ns - before->at(point.tsc)) : kJumpNs;
  if (late_ns >= kJumpNs || late_ns <= -kJumpNs) return c;
  c.base_ns -= uint64_t(late_ns);
  c.scale = uint64_t(static_cast<unsigned __int128>(c.scale) * uint64_t(kSecondNs + late_ns) / kSecondNs);
  return c;
}

void calibrate_clock() {
  if (g_start.ns == 0) {
    if (base::counter_is_steady()) g_start = now();
    return;
  }
  const ClockPoint point = now();
  if (point.ns - g_start.ns < 5'000'000 || point.tsc <= g_start.tsc) return;
  Calibration& set = g_sets[g_next_set++ % 4];
  set = renewed(g_calibration.load(std::memory_order_relaxed), g_start, point);
  g_calibration.store(&set, std::memory_order_release);  // pairs with the acquire in clock_ns()
}

}  // namespace tessera::state
