// The one clock that crosses processes: CLOCK_MONOTONIC in nanoseconds (vDSO, no syscall). Any thread.
#pragma once

#include <cstdint>
#include <ctime>

namespace tessera::base {

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1'000'000'000u + uint64_t(t.tv_nsec);
}

// Times at which something is due; 0 = never.
constexpr bool is_due(uint64_t at_ns, uint64_t now_ns) {
  return at_ns != 0 && now_ns >= at_ns;
}
constexpr uint64_t earlier_due(uint64_t a_ns, uint64_t b_ns) {
  return a_ns == 0 || b_ns == 0 ? a_ns | b_ns : (a_ns < b_ns ? a_ns : b_ns);
}

}  // namespace tessera::base
