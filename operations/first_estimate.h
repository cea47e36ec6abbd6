// How long a launch takes that was never measured, from the call that it belongs to: the roofline of the call, of as much of
// the GPU as the launch can fill, times how much longer than that other launches of its kind took. Pure; any thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tessera::operations {

// A block runs on one SM: fewer blocks than the GPU has SMs leave the others, and their share of its speed, unused.
// `sms` 0: not known.
constexpr double reachable_ns(double at_least_ns, uint64_t blocks, uint32_t sms) {
  return blocks != 0 && blocks < sms ? at_least_ns * sms / double(blocks) : at_least_ns;
}

// Measured over expected times, of launches of one kind: their mean as logarithms, so that one that took a tenth and one
// that took ten times as long cancel out. All-zero: nothing was measured. Eight bytes, so that an atomic can hold it.
struct Ratio {
  int32_t log2;  // in 1/65536, see log2_of()
  uint32_t samples;
  bool operator==(const Ratio&) const = default;
};

// Logarithm to base 2 in 1/65536, of a number above 0: straight between powers of two, 0.09 off at most. power_of() undoes
// it exactly.
constexpr int64_t log2_of(double x) {
  return int64_t(std::bit_cast<uint64_t>(x) >> 36) - (int64_t{1023} << 16);
}
constexpr double power_of(int64_t log2) {
  return std::bit_cast<double>(uint64_t(log2 + (int64_t{1023} << 16)) << 36);
}

// The latest eight count for most: a program's next shapes are more like its last ones than like its first.
inline constexpr uint32_t kRatioSamples = 8;

constexpr Ratio add_sample(Ratio r, double expected_ns, double measured_ns) {
  if (expected_ns <= 0 || measured_ns <= 0) return r;
  const int64_t n = std::min(r.samples, kRatioSamples - 1) + 1;
  const int64_t log2 = r.log2 + (log2_of(measured_ns / expected_ns) - r.log2) / n;
  return {int32_t(log2), r.samples + (r.samples < kRatioSamples)};
}

constexpr double times(const Ratio& r, double expected_ns) {
  return expected_ns * power_of(r.log2);
}

}  // namespace tessera::operations
