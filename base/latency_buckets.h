// Durations counted in fixed buckets, whose ends are the same everywhere: in the client that counts, the daemon, the
// tools and the tests. Eight buckets of equal width for each doubling, so that one is at most an eighth wider than its
// beginning. Pure.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace tessera::base {

inline constexpr uint32_t kLatencyFirstBit = 14, kLatencyLastBit = 36;  // from 16 us to 69 s
inline constexpr uint32_t kLatencySteps = 8;                            // buckets of a doubling
// The first one holds what is shorter, the last one what is longer.
inline constexpr uint32_t kLatencyBuckets = (kLatencyLastBit - kLatencyFirstBit) * kLatencySteps + 2;

constexpr uint32_t latency_bucket(uint64_t ns) {
  if (ns >> kLatencyFirstBit == 0) return 0;
  if (ns >> kLatencyLastBit != 0) return kLatencyBuckets - 1;
  const uint32_t bit = uint32_t(std::bit_width(ns)) - 1;
  const uint32_t step = uint32_t(ns >> (bit - 3)) & (kLatencySteps - 1);
  return (bit - kLatencyFirstBit) * kLatencySteps + step + 1;
}

// The first duration that is too long for this bucket; UINT64_MAX of the last one.
constexpr uint64_t latency_bucket_end_ns(uint32_t bucket) {
  if (bucket + 1 >= kLatencyBuckets) return UINT64_MAX;
  const uint64_t octave = bucket / kLatencySteps, step = bucket % kLatencySteps;
  return (kLatencySteps + step) << (kLatencyFirstBit - 3 + octave);
}

// The bucket below whose end `share` (0 to 1) of what was counted lies; 0 if nothing was.
constexpr uint32_t latency_quantile(std::span<const uint64_t> counts, double share) {
  uint64_t all = 0, seen = 0;
  for (const uint64_t n : counts) all += n;
  for (uint32_t i = 0; i < counts.size(); i++) {
    seen += counts[i];
    if (seen != 0 && double(seen) >= share * double(all)) return i;
  }
  return 0;
}

}  // namespace tessera::base
