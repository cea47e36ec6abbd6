// Random numbers of the simulator: the same on every machine and library, unlike std's distributions. A
// value; one per independent source of randomness, so that one client's draws do not depend on another's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/hash.h"

namespace tessera::simulator {

class Random {
 public:
  explicit Random(uint64_t seed = 1, uint64_t stream = 0)
      : state_(seed * base::kGoldenRatio ^ (stream + 1) * 0xBF58476D1CE4E5B9u) {
    next();
  }
  uint64_t next() { return base::mix64(state_ += base::kGoldenRatio); }  // SplitMix64
  double uniform() { return double(next() >> 11) * 0x1p-53; }            // [0, 1)
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  double normal() { return std::sqrt(-2 * std::log1p(-uniform())) * std::cos(6.283185307179586 * uniform()); }
  // Mean 1 and the given coefficient of variation.
  double lognormal(double cv) {
    if (cv <= 0) return 1;
    double s2 = std::log1p(cv * cv);
    return std::exp(std::sqrt(s2) * normal() - s2 / 2);
  }
  // Mean 1 and the given coefficient of variation (Marsaglia and Tsang, 2000).
  double gamma(double cv) {
    if (cv <= 0) return 1;
    const double shape = 1 / (cv * cv), d = shape + (shape < 1 ? 1 : 0) - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d), lower = shape < 1 ? std::pow(1 - uniform(), 1 / shape) : 1;
    for (;;) {
      const double x = normal(), v = std::pow(std::max(0.0, 1 + c * x), 3);
      if (v > 0 && std::log1p(-uniform()) < x * x / 2 + d - d * v + d * std::log(v))
        return lower * d * v / shape;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace tessera::simulator
