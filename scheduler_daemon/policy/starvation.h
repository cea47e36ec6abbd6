// Finds best-effort clients that get next to nothing although they want the GPU, and the reason: what each decision held
// them for, over windows of some seconds. Pure value; the daemon has one per client and shows it to people. It changes no
// decision.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

enum class StarvedBy : uint8_t {
  kNothing,
  kServices,    // protected clients work nearly all of the time
  kGaps,        // the gaps that they leave are too short
  kTurns,       // other best-effort clients have the turns (no MPS)
  kShares,      // or are owed more, or fill the GPU (MPS)
  kLongBlocks,  // it may run, but its blocks outlast what a burst may wait, so they get little of the GPU
};

struct Starvation {  // over one window
  StarvedBy by = StarvedBy::kNothing;
  double share = 0;          // of the time, GPU work of the client
  double services_busy = 0;  // of the time, protected clients; the sum of them, at most 1
};

class StarvationWatch {
 public:
  struct Look {  // at one decision
    uint64_t now_ns = 0;
    bool wants = false;             // it has work waiting or in flight
    uint64_t used_ns = 0;           // GPU time since it attached
    uint64_t services_busy_ns = 0;  // busy time of protected clients, summed; may fall when one leaves
    HeldBy held_by = HeldBy::kNothing;
    bool confined = false;  // its long blocks get little of the GPU
  };
  void look(const Look& look);
  Starvation latest(uint64_t now_ns) const;  // of the last whole window, unless that is long ago

 private:
  static constexpr uint64_t kWindowNs = 5'000'000'000;
  static constexpr double kWants = 0.8;    // of the window: else it has little to do
  static constexpr double kLittle = 0.03;  // of the time: half of what the least useful minimum share gives

  void conclude();

  Look first_, last_;
  uint64_t wanted_ns_ = 0, services_busy_ns_ = 0, confined_ns_ = 0;
  std::array<uint64_t, kHeldBys> held_ns_{};
  Starvation found_;
};

}  // namespace tessera::policy
