// Knowledge of one protected client from its pulse and its measured bursts. Pure value.
#pragma once

#include <map>

#include "scheduler_daemon/policy/estimate/busy_period.h"
#include "scheduler_daemon/policy/estimate/every.h"
#include "scheduler_daemon/policy/estimate/gap_sweep.h"
#include "scheduler_daemon/policy/estimate/histogram.h"
#include "scheduler_daemon/policy/estimate/latest_quantile.h"
#include "scheduler_daemon/policy/estimate/next_burst.h"
#include "scheduler_daemon/policy/learnt/block_scale.h"
#include "scheduler_daemon/policy/learnt/neighbour_cost.h"
#include "scheduler_daemon/policy/learnt/reserve_share.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

inline constexpr size_t kClasses = 4;  // of ResourceClass
// Kinds of work during bursts: one class on SMs of its own, or any class anywhere (parts/together.cc).
inline constexpr size_t kAnywhere = kClasses, kKinds = kClasses + 1;

struct Neighbours {       // the best-effort clients of the GPU
  bool crowd = false;     // more than tuning.few
  bool confined = false;  // one whose launches can be confined to some SMs
};

struct ProtectedClientState {
  explicit ProtectedClientState(const Tuning& t)
      : next_burst(t),
        exposed(uint32_t(t.memory)),
        together_trial(t.trial_every / 2),
        together_retry(t.retry_every + t.trial_every / 2) {
    for (NeighbourCost& of_kind : cost) of_kind.know_spread(t.least_spread);
    together_share = t.first_together;
  }

  // Its pulse and its latest measured bursts, once per look. `last_look_ns`: the one before. True: a burst was measured;
  // `*slow`: one was above the target.
  bool observe(const ClientView& c, uint64_t last_look_ns, uint64_t now_ns, const Collision& collision,
               double target, const Neighbours& neighbours, const Tuning& t, bool* slow);
  bool asleep(const ClientView& c, uint64_t now_ns) const;
  // Its bursts, of whatever kind, vary by themselves: p99 of them is above the target.
  bool varies(double target) const;
  // Since the last look work of the class could run beside its bursts, so wide.
  void note_during_bursts(const ClientView& c, uint64_t last_look_ns, uint64_t now_ns, size_t resource_class,
                          double width);

  double busy_share = 0;  // of the time, over about tuning.asleep_ns
  NextBurst next_burst;
  Hold gap_hold;                    // when best-effort work had better not run in one
  uint64_t surely_idle_ns = 0;      // hardly any gap is shorter; 0 = not known
  uint64_t asleep_ns = UINT64_MAX;  // idle for longer: not at work
  Histogram exposed;                // lengths of what best-effort work in flight makes late: BusyPeriod
  uint64_t exposed_ns = 0;          // most of them are longer; 0 = not known
  BlockScale block_scale;
  ReserveShare reserve;
  NeighbourCost cost[kKinds];  // of best-effort work beside its bursts
  uint64_t together_trials = 0;
  double together_share =
      0;  // of a burst, the next that work of any kind runs beside for a trial; parts/together.cc
  Every solo, trial, retry;  // bursts with nothing beside them, and with work that is tried; parts/packing.cc
  Every unused_gap{8};       // a gap that nothing runs in; parts/gaps.cc
  Every together_trial, together_retry;  // likewise, not at the same bursts; parts/together.cc
  // Facts of this decision; parts/packing.cc writes them.
  double packed_excess = 0;       // of the target, what packed work may cost now
  bool spending[kKinds] = {};     // such work is beside its bursts because that is worth it
  bool confined_between = false;  // work keeps to some SMs between its bursts, too

 private:
  struct OwnTail {  // of the bursts of one kind
    explicit OwnTail(const Tuning& t) : latest(size_t(t.memory), 0.99) {}
    LatestQuantile latest;  // what they are slower by themselves
    double p99 = 0;         // 0 = of too few bursts
  };
  // Slower than its kind's own slow bursts by more than the target, because of what it met.
  bool slower_than_alone(const KindSlowdown& burst, double target, const Tuning& t) const;
  bool too_slow(const KindSlowdown& burst, double target, const Tuning& t) const;
  bool observe_bursts(const ClientView& c, double target, const Neighbours& neighbours, const Tuning& t,
                      bool* slow);
  bool observe_burst(const KindSlowdown& burst, double target, const Neighbours& neighbours, const Tuning& t,
                     bool* slow);
  void observe_gap(uint64_t gap_ns, uint64_t since_began_ns, const Collision& collision, const Tuning& t);
  void note_plain(double excess, const Tuning& t);
  bool was_packed(const KindSlowdown& burst, double target, bool slow, const Tuning& t);

  struct DuringBurst {    // the latest burst
    double width_ns = 0;  // width x time
    double widest = 0;
  };
  DuringBurst during_burst_[kKinds];
  std::map<uint32_t, OwnTail> own_tails_;         // by kind
  double plain_excess_ = 0, plain_variance_ = 0;  // of bursts with nothing beside them
  uint64_t n_plain_ = 0;
  uint64_t bursts_ = 0;  // measured ones that were seen
  GapSweep idle_;
  BusyPeriod period_;
  double watched_ns_ = 0;  // at most tuning.asleep_ns
};

}  // namespace tessera::policy
