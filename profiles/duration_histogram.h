// Durations condensed to counts in buckets of at most 3 % width, so that profiles of many runs add up exactly
// and stay small. Used by kernel_profile.h and whoever records durations; plain data, no lock. Quantiles are
// right to half a bucket; count, total, minimum and maximum are exact.
#pragma once

#include <cstdint>
#include <map>

namespace tessera::profiles {

inline constexpr uint32_t kMaxDurationBucket = 59 * 32 + 31;  // of UINT64_MAX

// Bit length and the five bits below the first: linear within an octave, exact below 64 ns.
uint32_t duration_bucket(uint64_t ns);
uint64_t duration_bucket_begin_ns(uint32_t bucket);  // smallest duration in it

// More than a GPU launches in its life. What would exceed it is not added: counts stay consistent whatever a
// file says.
inline constexpr uint64_t kMaxSamples = uint64_t(1) << 53;

struct DurationHistogram {
  uint64_t samples = 0;
  double total_ns = 0;
  uint64_t min_ns = 0, max_ns = 0;       // 0 while there is no sample
  std::map<uint32_t, uint64_t> buckets;  // counts; they sum up to samples

  void add(uint64_t ns, uint64_t n = 1);
  void merge(const DurationHistogram& other);
  uint64_t quantile_ns(double q) const;  // nearest rank, q in 0..1; 0 without samples
};

}  // namespace tessera::profiles
