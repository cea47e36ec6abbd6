// The stretch: how many times slower than its description the software GPU runs. A CPU that cannot execute
// kernels ahead of their modelled times gets modelled time that passes more slowly; all ratios stay. This is
// the only place that converts. The arbiter holds the factor (TESSERA_SOFTGPU_STRETCH) and tells its clients.
// Pure; any thread.
#pragma once

#include <cmath>
#include <cstdint>

namespace tessera::softgpu::timing {

// Below 1 the device would be faster than its description; above the largest one nobody waits for an end.
inline constexpr double kLeastStretch = 1, kMostStretch = 1000;

// CLOCK_MONOTONIC to the model's clock, which begins at `epoch_ns` and passes `stretch` times more slowly,
// and back. Differences up to 2^53 ns (104 days) are exact where `stretch` is 1.
class StretchedClock {
 public:
  StretchedClock(uint64_t epoch_ns, double stretch) : epoch_ns_(epoch_ns), stretch_(stretch) {}
  uint64_t modelled_ns(uint64_t real_ns) const {
    return real_ns <= epoch_ns_ ? epoch_ns_ : epoch_ns_ + uint64_t(double(real_ns - epoch_ns_) / stretch_);
  }
  // Rounded up: a timer set to it does not ring before the modelled time has come.
  uint64_t real_ns(uint64_t modelled_ns) const {
    if (modelled_ns == UINT64_MAX) return UINT64_MAX;  // never
    return modelled_ns <= epoch_ns_
               ? epoch_ns_
               : epoch_ns_ + uint64_t(std::ceil(double(modelled_ns - epoch_ns_) * stretch_));
  }
  double stretch() const { return stretch_; }

 private:
  uint64_t epoch_ns_;
  double stretch_;
};

}  // namespace tessera::softgpu::timing
