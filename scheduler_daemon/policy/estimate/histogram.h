// Quantiles of a positive quantity that drifts: counts in buckets of a fixed ratio, old ones fading. Bounded
// memory, no allocation, any order of magnitude; the error of a quantile is half a bucket (about 4.5 %). Pure
// value; one owner, no lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tessera::policy {

class Histogram {
 public:
  static constexpr uint32_t kPerOctave = 8, kOctaves = 32, kBuckets = kPerOctave * kOctaves;

  // `memory`: about that number of the latest values counts; at twice as many all counts are halved.
  explicit Histogram(uint32_t memory = 512) : memory_(std::max(8u, memory)) {}

  void add(uint64_t value) {
    ++counts_[bucket(value)];
    if (++total_ >= 2 * memory_) fade();
  }
  uint32_t total() const { return total_; }  // that still count

  // A quantile of the values; 0 if there are none. It is the middle of a bucket, so perhaps a value that never came.
  uint64_t quantile(double q) const {
    if (total_ == 0) return 0;
    const double wanted = std::clamp(q, 0.0, 1.0) * total_;
    double seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (counts_[i] != 0 && seen >= wanted) return (lower(i) + lower(i + 1)) / 2;
    }
    return lower(kBuckets);
  }

  uint32_t count(size_t i) const { return counts_[i]; }
  // Bucket i holds values from lower(i) up to lower(i + 1), not included. Values below 8 have their own.
  static uint64_t lower(size_t i) {
    const uint64_t octave = i / kPerOctave, part = i % kPerOctave;
    return octave == 0 ? part : (kPerOctave + part) << (octave - 1);
  }
  static size_t bucket(uint64_t value) {
    if (value < kPerOctave) return size_t(value);
    const uint32_t octave = uint32_t(std::bit_width(value)) - 3;  // 8..15 are octave 1
    const size_t i = size_t(octave) * kPerOctave + size_t((value >> (octave - 1)) - kPerOctave);
    return std::min(i, size_t(kBuckets) - 1);
  }

 private:
  void fade() {
    total_ = 0;
    for (uint16_t& n : counts_) total_ += n /= 2;
  }
  uint32_t memory_, total_ = 0;
  std::array<uint16_t, kBuckets> counts_{};
};

}  // namespace tessera::policy
