#include "interpose/state/clock.h"

#include <cpuid.h>

namespace tessera::state {
namespace {

bool invariant_tsc() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
}

// Helper thread only. Four sets in turn: a reader holds a set for nanoseconds, a set is rewritten after
// seconds.
constinit Calibration g_sets[4] = {};
constinit uint32_t g_next_set = 0;
constinit uint64_t g_start_tsc = 0, g_start_ns = 0;

}  // namespace

constinit std::atomic<const Calibration*> g_calibration{nullptr};

void calibrate_clock() {
  if (g_start_ns == 0) {
    if (!invariant_tsc()) return;
    g_start_ns = base::now_ns();
    g_start_tsc = __rdtsc();
    return;
  }
  const uint64_t ns = base::now_ns(), tsc = __rdtsc();
  if (ns - g_start_ns < 5'000'000 || tsc <= g_start_tsc) return;
  const uint64_t scale =
      uint64_t((static_cast<unsigned __int128>(ns - g_start_ns) << 32) / (tsc - g_start_tsc));
  Calibration& set = g_sets[g_next_set++ % 4];
  set = {tsc, ns, scale};
  g_calibration.store(&set, std::memory_order_release);  // pairs with the acquire in clock_ns()
}

}  // namespace tessera::state
