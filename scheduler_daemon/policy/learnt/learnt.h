// All that `tessera` remembers of one GPU between decisions. Plain data: the parts (parts/) read it, and write
// what is theirs in their state steps. Pure; one per policy object.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "scheduler_daemon/policy/learnt/protected_client.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/slots.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

struct Share {                  // of the GPU, of a best-effort client; written by parts/fairness.cc
  double virtual_ns = 0;        // used time * 100 / weight
  uint64_t last_demand_ns = 0;  // 0: none yet
  uint64_t last_used_ns = 0;    // its used_ns at the last look
  bool known = false;           // last_used_ns is
  bool had_demand = false;      // at the last look: it wants its share now
  bool ahead = false;           // of the others, with hysteresis
  bool urgent = false;          // waits for too long to be held for being ahead
};

struct Progress {             // of a best-effort client, where leases overlap; written by parts/progress.cc
  uint64_t last_used_ns = 0;  // its used_ns at the last look
  uint64_t moved_ns = 0;      // when something of it was last seen to start or to end
  uint64_t unused_ns =
      0;  // GPU time that it wanted, had to itself and left idle, less what its use makes up for
  bool in_flight = false;              // at the last look
  bool offered = false;                // by the last decision it may start,
  bool offered_during_bursts = false;  // whatever protected clients do
  bool stalled = false;                // it cannot run: nobody is held for it
};

struct ClientState {
  std::unique_ptr<ProtectedClientState> learnt;  // protected clients only
  Share share;                                   // best-effort clients only, like all below
  Progress progress;
  bool runs = false;             // among those that fill the GPU now; parts/crowd.cc
  uint32_t widest_sms = 0;       // of its launches within tuning.recent_ns; 0 = not known
  uint64_t widest_ns = 0;        // when that launch was seen
  uint64_t longest_ns = 0;       // of its launches or slices that waited lately, the longest
  uint64_t longest_seen_ns = 0;  // when that was
  uint64_t spoils_until_ns = 0;  // short gaps are not for it until then; parts/gaps.cc
  double burst_width = 0;        // that it could have during bursts since the last look; parts/packing.cc
  size_t burst_class = 0;        // of that work
  uint64_t forestalled_ns = 0;   // when its hold was last kept from expiring; parts/holds.cc

  // Facts of this decision.
  bool in_turn = false;      // the turn is its own, and no level above that nobody watches holds it
  bool held_back = false;    // ahead of its share
  bool crowded_out = false;  // others fill the GPU
  bool may_run() const { return in_turn && !held_back && !crowded_out; }
};

struct PolicyState {
  explicit PolicyState(const Tuning& t) : all_gaps(t) {}

  // The observation, once per decision, before any part.
  void observe(const Observation& o, const Parameters& p, const Tuning& t);

  Slots<ClientState> clients;             // as in the observation
  std::vector<size_t> protected_clients;  // places of them in it
  double allowance_ns = 0;                // by which bursts may become longer; of this decision, as
  uint64_t max_in_flight_ns = 0;          // what may be in flight when a burst begins
  // Gaps of the GPU: from when all protected clients are idle until one is busy.
  GapModel all_gaps;
  uint64_t all_gap_wait_ns = 0;
  BlockScale block_scale;  // by the bursts of all
  double turn_ns = 0;      // virtual time by which one best-effort client may be ahead; parts/fairness.cc
  uint64_t progress_look_ns = 0;                        // the last one; parts/progress.cc
  uint64_t share_window_ns = 0, used_at_window_ns = 0;  // minimum share; parts/minimum.cc
  std::vector<std::pair<double, size_t>> line;          // parts/crowd.cc, reused

  const ProtectedClientState& of(size_t protected_client) const { return *clients[protected_client].learnt; }

 private:
  GapSweep all_idle_;
  std::vector<Span> bursts_;  // of all, of one observation; reused
  uint64_t last_look_ns_ = 0;
};

}  // namespace tessera::policy
