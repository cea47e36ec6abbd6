// What packed work did to one protected client: how much its slow bursts have left of the target without any,
// and how wide work of each class may run beside it. Pure value; one per protected client.
#pragma once

#include "scheduler_daemon/policy/estimate/histogram.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class PackingHistory {
 public:
  explicit PackingHistory(const Tuning& t) : unpacked_(uint32_t(t.unpacked_memory)) {}

  // A burst with packed work beside it (note_packed() since the last one), or without.
  void add_burst(double slowdown, uint64_t n_bursts, double busy_share, double target, const Tuning& t);
  void note_packed(ResourceClass best_effort, const Tuning& t);
  void forget_packed() { packed_ = false; }  // of a burst that was not measured
  bool was_packed() const { return packed_; }

  bool blocked(ResourceClass best_effort, uint64_t n_bursts) const {
    return n_bursts < widths_[size_t(best_effort)].blocked_bursts;
  }
  double share(ResourceClass best_effort) const { return widths_[size_t(best_effort)].share; }  // of a wave
  double share_to_try(ResourceClass best_effort, const Tuning& t) const {
    return share(best_effort) < t.least_share ? t.first_share : share(best_effort);
  }
  uint64_t n_unpacked() const { return unpacked_.total(); }
  double tail() const { return tail_; }  // 99th percentile of the excess without packing

 private:
  struct Width {  // for one class of best-effort work
    double share = 0;
    uint64_t blocked_bursts = 0;  // no packing until so many bursts were measured
    uint64_t punished = 0;        // decreases in a row: how long the next block lasts
    double slowdown_sum = 0;      // of the bursts since the last change of the share
    uint64_t n_slowdowns = 0;
    void judge(double slowdown, double allowed, uint64_t n_bursts, const Tuning& t);
  };
  Histogram unpacked_;  // bursts without packing: slowdown less 1, in 1/10000
  double tail_ = 0;
  Width widths_[4];
  ResourceClass packed_class_ = ResourceClass::kUnknown;  // of whom ran beside the latest burst
  bool packed_ = false;
};

}  // namespace tessera::policy
