// `tessera`: strict protection as `temporal` gives it (which decides exclusive turns here too), and on top of
// it, where the signals for it exist:
//
// - gaps: after the last protected burst best-effort work waits out the gaps that its owner habitually makes
//   inside one request, instead of starting a slice that the next burst runs into;
// - slice sizing: as short as 3 % of slicing overhead allows, because what is in flight delays the next
// burst;
// - packing (MPS): while a protected burst runs, one best-effort client whose next launch needs another
// resource
//   may run beside it, as wide as an additive increase, multiplicative decrease on the measured slowdown of
//   the bursts has found harmless. No solo baseline, no packing. One burst in kSoloEvery stays solo to
//   refresh it;
// - fairness (MPS, overlapping leases): who is ahead in virtual time (used time over weight) is held until
// the
//   others have caught up; hysteresis keeps it from flapping;
// - minimum share: if the operator asks for it, best-effort work gets it against any protected load.
//
// Not done: earliest deadline first among protected clients: they are free-running (design D5), nothing could
// hold them. Pure; one object per GPU.
#pragma once

#include <unordered_map>

#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/temporal.h"

namespace tessera::policy {

class TesseraPolicy final : public Policy {
 public:
  explicit TesseraPolicy(const Parameters& parameters) : parameters_(parameters), temporal_(parameters) {}
  const char* name() const override { return "tessera"; }
  Decision decide(const Observation& observation) override;

  // Share of the GPU that a packed client may take beside this protected client; for tests.
  double width_share(uint64_t protected_id, ResourceClass best_effort) const;

 private:
  struct Width {                  // beside one protected client, for one class of best-effort work
    double share = 0;             // of a wave
    uint64_t blocked_bursts = 0;  // no packing until so many bursts were measured
    uint64_t punished = 0;        // decreases in a row: how long the next block lasts
    double slowdown_sum = 0;      // of the bursts since the last change of the share
    uint64_t n_slowdowns = 0;
  };
  struct Watched {          // one protected client
    double busy_share = 0;  // of the time, over about kBusyMemory_ns
    uint64_t bursts = 0;
    Width widths[4];
    ResourceClass packed_class = ResourceClass::kUnknown;  // of whom we packed beside its latest burst
    bool packed = false;
  };
  struct Account {  // one best-effort client
    uint64_t last_used_ns = 0;
    double virtual_ns = 0;
    bool had_demand = false, ahead = false;
    uint64_t last_grant_ns = 0;
  };

  void learn(const Observation& o);
  void size_slices(const Observation& o, Decision* d) const;
  void wait_out_gaps(const Observation& o, Decision* d);
  void share_fairly(const Observation& o, Decision* d);
  void pack(const Observation& o, Decision* d);
  void keep_minimum(const Observation& o, Decision* d);

  Parameters parameters_;
  TemporalPolicy temporal_;
  std::unordered_map<uint64_t, Watched> watched_;
  std::unordered_map<uint64_t, Account> accounts_;
  uint64_t last_look_ns_ = 0;
  uint64_t share_window_ns_ = 0, used_at_window_ns_ = 0;  // minimum share
};

}  // namespace tessera::policy
