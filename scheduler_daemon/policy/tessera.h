// `tessera`: the turns and levels of `temporal`, and on top of them ten parts that decide from measured
// signals (parts/parts.h; docs/policy.md). `slowdown_target` says how much longer the slow bursts of a
// protected client may become; all parts serve it.
//
// Protected clients are free-running (design D5): nothing could hold them. Pure; one object per GPU; called by
// the daemon's core, the simulator and tests.
#pragma once

#include "scheduler_daemon/policy/learnt/learnt.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/temporal.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class TesseraPolicy final : public Policy {
 public:
  explicit TesseraPolicy(const Parameters& parameters, const Tuning& tuning = {});
  const char* name() const override { return "tessera"; }
  uint64_t gate_guard_ns(const Parameters& parameters) const override;
  Decision decide(const Observation& observation) override;

  double block_scale(uint64_t protected_id) const;  // for tests

 private:
  void update(const Observation& o, const Decision& turns);

  Parameters parameters_;
  Tuning tuning_;
  TemporalPolicy temporal_;
  PolicyState learnt_;
};

}  // namespace tessera::policy
