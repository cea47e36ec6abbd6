// Follows the bursts of one protected client: slowdown against a solo baseline, and their times. Pure: plain data in, plain
// data out. core::Client in the daemon and the simulator's World own one each, so a policy sees the same in both. One
// thread; bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "scheduler_daemon/policy/burst_baseline.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

struct Burst {  // or one step of a burst that goes on
  uint64_t signature = 0;
  uint64_t length_ns = 0, end_ns = 0;
  bool solo = false;    // no lower lease had work in flight while it lasted
  bool packed = false;  // a packed lease was out while it lasted
  bool minimum_share =
      false;  // best-effort work might start whatever protected clients do: its minimum share, or a slice
              // before its hold expired
  uint64_t overlap_ns = 0;  // the most of it during which best-effort work was on the GPU
  bool after_work =
      false;  // best-effort work was on the GPU since the burst before, and processes take turns there
  uint32_t kind = 0;    // of the requests that it is one of; 0: not known
  uint64_t slo_ns = 0;  // of that kind; 0: none
};

class BurstWatch {
 public:
  void add(const Burst& burst);

  // Bursts that could be compared with a baseline so far.
  uint64_t compared() const { return compared_; }
  uint64_t solo() const { return solo_; }
  // Solo length of the latest burst; 0 = no baseline for it.
  uint64_t baseline_ns() const { return baseline_ns_; }
  // The expected length of the next burst, or of the one that runs now; 0 = not known.
  uint64_t next_ns() const {
    if (const uint64_t solo_ns = solo_baseline_.next_ns()) return solo_ns;
    const uint64_t unpacked_ns = unpacked_baseline_.next_ns();
    return unpacked_ns != 0 ? unpacked_ns : baseline_ns_;
  }
  // A burst loses this to best-effort work that ran before it, beyond what was in flight when it began, where
  // processes take turns on the GPU. 0 = nothing, or not known yet.
  uint64_t change_ns() const { return uint64_t(std::max(0.0, change_ns_)); }
  bool knows_change() const { return knows_change_; }
  // Mean over the bursts compared since the last call, 1 = none; if there were none, the value before. 0 =
  // unknown.
  double take_slowdown();
  std::vector<KindSlowdown> kinds() const;  // likewise of each kind, call it before that
  // The least part of the value of take_slowdown() that is the client's own, call it after that.
  double own_slowdown() const { return own_slowdown_; }
  double slowdown() const { return slowdown_; }  // the value of the last call
  // The price of the minimum share: mean slowdown of the latest bursts beside which it was taken, and of the others.
  struct Mean {
    uint64_t n = 0;
    double value = 0;  // 0 = none yet
  };
  const Mean& during_minimum_share() const { return during_minimum_share_; }
  const Mean& without_minimum_share() const { return without_minimum_share_; }
  uint64_t last_end_ns() const { return last_end_ns_; }  // 0: none has ended
  // The bursts since the last call; of very many the latest.
  std::vector<Span> take_ended() { return std::exchange(ended_, {}); }

 private:
  void learn_change(const Burst& burst);

  static constexpr size_t kMostEnded = 2048;
  static constexpr uint64_t kMeanOver = 64;    // bursts
  static constexpr uint64_t kMostChanges = 2;  // a dear change costs this many times the usual one

  // Solo bursts are the true baseline. Where best-effort work fills every gap there may be none: then bursts
  // without a packed lease stand in, whose length includes what was in flight when they began.
  BurstBaseline solo_baseline_, unpacked_baseline_;
  BurstBaseline after_work_, after_none_;  // without what was in flight
  double change_ns_ = 0;
  bool knows_change_ = false;
  uint64_t compared_ = 0, solo_ = 0, baseline_ns_ = 0, last_end_ns_ = 0;
  double slowdown_ = 0, own_slowdown_ = 0;
  struct Sum {
    uint64_t n = 0;
    KindSlowdown of;  // sums
  };
  std::vector<Sum> sums_;  // since the last take_slowdown(), by kind
  Mean during_minimum_share_, without_minimum_share_;
  std::vector<Span> ended_;
};

}  // namespace tessera::policy
