// What it costs to hand an exclusive GPU from one client to the next, learnt from turns: the time of a turn
// in which the GPU did neither its holder's work nor protected work (drain, context switch, wake-up, start).
// Pure value. The median of recent turns: a holder that had little to do, or a client that hung, does not
// move it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::policy {

class SwitchCost {
 public:
  static constexpr size_t kKept = 15, kNeeded = 5;

  // `turn_ns` from the revocation of the one before to that of this one, without protected work; `used_ns`:
  // of the GPU, by this turn's holder.
  void add(uint64_t turn_ns, uint64_t used_ns) { kept_[n_++ % kKept] = turn_ns - std::min(turn_ns, used_ns); }
  uint64_t ns() const {  // 0 = not known (yet)
    if (n_ < kNeeded) return 0;
    auto sorted = kept_;
    const size_t n = std::min(n_, kKept);
    std::nth_element(sorted.begin(), sorted.begin() + long(n / 2), sorted.begin() + long(n));
    return sorted[n / 2];
  }
  // Shortest turn of which `share` at most is lost to switching; 0 = not known.
  uint64_t turn_ns(double share) const { return uint64_t(double(ns()) / std::max(1e-6, share)); }

 private:
  std::array<uint64_t, kKept> kept_{};
  size_t n_ = 0;
};

}  // namespace tessera::policy
