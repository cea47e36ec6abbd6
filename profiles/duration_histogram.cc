#include "profiles/duration_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tessera::profiles {
namespace {

constexpr unsigned kSubBits = 5;
constexpr uint64_t kSub = 1u << kSubBits;

}  // namespace

uint32_t duration_bucket(uint64_t ns) {
  if (ns < 2 * kSub) return uint32_t(ns);
  const unsigned shift = unsigned(std::bit_width(ns)) - kSubBits - 1;
  return uint32_t(shift * kSub + (ns >> shift));
}

uint64_t duration_bucket_begin_ns(uint32_t bucket) {
  if (bucket < 2 * kSub) return bucket;
  const uint64_t shift = bucket / kSub - 1;
  return (bucket % kSub + kSub) << shift;
}

void DurationHistogram::add(uint64_t ns, uint64_t n) {
  if (n == 0 || n > kMaxSamples - samples) return;
  min_ns = samples ? std::min(min_ns, ns) : ns;
  max_ns = std::max(max_ns, ns);
  samples += n;
  total_ns += double(ns) * double(n);
  buckets[duration_bucket(ns)] += n;
}

void DurationHistogram::merge(const DurationHistogram& other) {
  if (other.samples == 0 || other.samples > kMaxSamples - samples) return;
  min_ns = samples ? std::min(min_ns, other.min_ns) : other.min_ns;
  max_ns = std::max(max_ns, other.max_ns);
  samples += other.samples;
  total_ns += other.total_ns;
  for (auto [bucket, n] : other.buckets) buckets[bucket] += n;
}

uint64_t DurationHistogram::quantile_ns(double q) const {
  if (samples == 0) return 0;
  const double rank = std::max(1.0, std::ceil(std::clamp(q, 0.0, 1.0) * double(samples)));
  double seen = 0;
  for (auto [bucket, n] : buckets) {
    seen += double(n);
    if (seen < rank) continue;
    const uint64_t begin = duration_bucket_begin_ns(bucket);
    const uint64_t width = bucket < 2 * kSub ? 1 : uint64_t(1) << (bucket / kSub - 1);
    return std::clamp(begin + width / 2, min_ns, max_ns);
  }
  return max_ns;
}

}  // namespace tessera::profiles
