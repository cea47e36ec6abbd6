// Bounds and defaults that several parts must agree on: one place for each.
#pragma once

#include <cstdint>

namespace tessera::admission {

// Hold limit: nothing of an API call started for this time, then it goes out whole. A lease that names none has
// the default; the most is what a user or an operator may ask for (TESSERA_MAX_HOLD_MS, [policy]
// max_hold_ms).
inline constexpr uint64_t kDefaultHoldNs = 200'000'000;
inline constexpr uint64_t kMostHoldMs = 60'000;
inline constexpr uint64_t kMostMemoryWaitMs = 3'600'000;

// A held launch watches the lease before it sleeps. More than this burns a core of the host for nothing: the
// sleep's wake-up costs about 50 us.
inline constexpr uint64_t kMostSpinUs = 1'000;

inline constexpr uint32_t kMostWeight = 10'000;

// Latency objective, in whole milliseconds (TESSERA_SLO_MS, --slo); 0 = none. A lease carries it in microseconds.
inline constexpr uint64_t kMostSloMs = 3'600'000;
constexpr bool is_slo(uint64_t slo_ns) {
  return slo_ns % 1'000'000 == 0 && slo_ns / 1'000'000 <= kMostSloMs;
}

// A kernel that was never measured counts as this time, so that a few of them fill a window of 2 ms.
inline constexpr uint64_t kUnknownKernelNs = 250'000;
// No launch counts as less: what the GPU needs between two kernels.
inline constexpr uint64_t kLeastEstimateNs = 2'000;

}  // namespace tessera::admission
