// `tessera`: strict protection as `temporal` gives it (which decides exclusive turns here too), and on top of
// it, from measured signals. `slowdown_target` says how much longer the slow bursts of a protected client may
// become; all of what follows serves it:
//
// - turnaround: what may be in flight when a burst begins is a share of the length of the client's bursts, so
//   that long requests cost best-effort work little and short ones are protected. Two slices of half of it,
//   longer only where slicing would cost too much;
// - room: slices that cannot be short (blocks that last longer than a slice) leave SMs free, the more the
//   longer they are; how many follows each burst, so that one in a hundred is too slow;
// - gaps: how long to wait in a gap before starting work is learnt per protected client
// (estimate/gap_model.h):
//   at once where bursts come at random, until the habitual gap is over where a request has gaps inside;
// - waking: a held client is woken shortly before the burst is expected to end, and watches;
// - packing (MPS): while a protected burst runs, one best-effort client whose next launch needs another
//   resource may run beside it, as wide as an additive increase, multiplicative decrease on the measured
//   slowdown has found harmless, within what the tail has left of the target. No solo baseline, no packing.
//   One burst in kSoloEvery stays solo to refresh it;
// - fairness (MPS, overlapping leases): who is ahead in virtual time (used time over weight) is held until
// the
//   others have caught up; hysteresis keeps it from flapping; a client whose SLO is at stake is not held;
// - many clients (MPS): what is in flight is bounded for each of them, so where more than two want the GPU
// beside
//   a service, only as many run at once as fill it, each until it is ahead of the next in line;
// - holds that would expire: one slice before that, instead of the whole rest of the kernel;
// - minimum share: if the operator asks for it, best-effort work gets it against any protected load.
//
// Protected clients are free-running (design D5): nothing could hold them, so earliest deadline first orders
// only who is protected against packing first, and best-effort clients with an SLO. docs/policy.md. Pure; one
// object per GPU.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "scheduler_daemon/policy/estimate/gap_model.h"
#include "scheduler_daemon/policy/estimate/histogram.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/slots.h"
#include "scheduler_daemon/policy/temporal.h"

namespace tessera::policy {

class TesseraPolicy final : public Policy {
 public:
  explicit TesseraPolicy(const Parameters& parameters);
  const char* name() const override { return "tessera"; }
  uint64_t gate_guard_ns(const Parameters& parameters) const override;
  Decision decide(const Observation& observation) override;

  // Share of the GPU that a packed client may take beside this protected client; for tests.
  double width_share(uint64_t protected_id, ResourceClass best_effort) const;
  double reach(uint64_t protected_id) const;  // of long blocks; for tests

 private:
  struct Width {                  // beside one protected client, for one class of best-effort work
    double share = 0;             // of a wave
    uint64_t blocked_bursts = 0;  // no packing until so many bursts were measured
    uint64_t punished = 0;        // decreases in a row: how long the next block lasts
    double slowdown_sum = 0;      // of the bursts since the last change of the share
    uint64_t n_slowdowns = 0;
  };
  // Room: how long blocks may be, and how wide long ones, over what is the first guess.
  struct Reach {
    struct Judged {  // bursts, old ones fading
      uint32_t n = 0, n_slow = 0;
      void add(bool slow);
      double slow_share() const { return n == 0 ? 0 : double(n_slow) / n; }
    };
    double value = 1;
    bool was_slow = false;   // the latest burst
    Judged wide, narrow;     // bursts while the value was above its least, and at the least
    uint64_t bursts = 0;     // judged so far
    uint64_t fixed_for = 0;  // bursts for which the value stays as it is
    uint64_t pause = 0;      // for how many, the last time
    void judge(bool slow);
  };
  struct Learnt {           // of one protected client
    double busy_share = 0;  // of the time, over about kBusyMemory_ns
    uint64_t bursts = 0;
    uint64_t burst_began_ns = 0, went_idle_ns = 0;  // the latest that was seen
    GapModel gaps;
    uint64_t wait_ns = 0;             // in its gaps
    uint64_t surely_idle_ns = 0;      // hardly any gap is shorter
    uint64_t asleep_ns = UINT64_MAX;  // idle for longer: not at work
    bool exposed = true;              // the latest burst came after a gap that was used
    Histogram exposed_bursts{64};     // solo length of such bursts
    uint64_t exposed_ns = 0;          // most of them are longer; 0 = not known
    Histogram unpacked{256};          // its bursts without packing: slowdown less 1, in 1/10000
    double tail = 0;                  // 99th percentile of it
    Reach reach;
    Width widths[4];
    ResourceClass packed_class = ResourceClass::kUnknown;  // of whom we packed beside its latest burst
    bool packed = false;
  };
  struct Client {
    std::unique_ptr<Learnt> learnt;                 // protected clients only
    uint64_t last_demand_ns = 0, last_used_ns = 0;  // best-effort clients, until the end
    double virtual_ns = 0;
    bool known = false, had_demand = false, ahead = false;
    bool urgent = false;  // waits for too long to be held for being ahead
    bool runs = false;    // among those that fill the GPU now
    // In this decision: the turn is its own and no level above holds it; nor is anybody else before it. What
    // may still hold it then is a gap that is not used.
    bool in_turn = false, may_run = false;
    uint64_t forestalled_ns = 0;  // when its hold was last kept from expiring
  };

  void learn(const Observation& o);
  void learn_silence(Learnt* l) const;
  void learn_burst(const ClientView& c, Learnt* l);
  uint64_t turnaround_ns(const Observation& o) const;
  uint64_t undisturbed_until_ns(const Observation& o) const;
  void size_slices(const Observation& o, Decision* d) const;
  void wait_out_gaps(const Observation& o, Decision* d);
  void wake_in_time(const Observation& o, Decision* d) const;
  bool wants_gpu(const Client& c, uint64_t now_ns) const;
  void keep_back(size_t client, Decision* d);
  void share_fairly(const Observation& o, Decision* d);
  void thin_out(const Observation& o, Decision* d);
  void pack(const Observation& o, Decision* d);
  void forestall_expiry(const Observation& o, Decision* d);
  void keep_minimum(const Observation& o, Decision* d);

  Parameters parameters_;
  TemporalPolicy temporal_;
  Slots<Client> clients_;
  std::vector<size_t> protected_;                // of this observation
  std::vector<std::pair<double, size_t>> line_;  // best-effort clients that want the GPU; reused
  // Gaps of the GPU: from when all protected clients are idle until one is busy.
  GapModel all_gaps_;
  uint64_t all_wait_ns_ = 0, all_idle_since_ns_ = 0;
  Reach reach_;                 // by the bursts of all
  uint64_t turnaround_ns_ = 0;  // of this decision
  uint64_t last_look_ns_ = 0;
  uint64_t share_window_ns_ = 0, used_at_window_ns_ = 0;  // minimum share
};

}  // namespace tessera::policy
