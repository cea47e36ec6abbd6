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

}  // namespace tessera::base
