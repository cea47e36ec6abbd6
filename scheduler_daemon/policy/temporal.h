// `temporal`: strict levels in time. Pure; one object per GPU; called by the daemon's core, the simulator and
// tests.
//
// - Protected clients (priority > 0) are free-running: their launches are never held (design D5). Between
//   protected levels the hardware's stream priorities are all there is.
// - One client alone on its GPU is free-running.
// - Best-effort clients keep their lease while protected ones are busy: they watch the pulses themselves
//   before each launch (design D6), which takes microseconds instead of a round trip. What this policy adds
//   is the way back: a guard time after the last protected client became idle it nudges whoever waits. A busy
//   client whose pulse nobody watches (more than 32 of them) is obeyed by revocation.
// - Several best-effort clients: with MPS their leases overlap, without it they take turns (turns.h).
#pragma once

#include <vector>

#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/turns.h"

namespace tessera::policy {

class TemporalPolicy final : public Policy {
 public:
  explicit TemporalPolicy(const Parameters& parameters, const Tuning& tuning = {})
      : parameters_(parameters), tuning_(tuning), turns_(parameters, tuning) {}
  const char* name() const override { return "temporal"; }
  Decision decide(const Observation& observation) override;

 private:
  void nudge_after_guard(const Observation& o, Decision* d);

  Parameters parameters_;
  Tuning tuning_;
  Turns turns_;
  std::vector<size_t> best_effort_;  // of this observation
  uint64_t nudged_idle_ns_ = 0;      // idle_since_ns whose guard time has been answered by a nudge
};

}  // namespace tessera::policy
