// `none`: everyone is free-running, the hardware decides. What sharing costs without Tessera; a baseline.
// Pure.
#pragma once

#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class NonePolicy final : public Policy {
 public:
  NonePolicy(const Parameters&, const Tuning&) {}
  const char* name() const override { return "none"; }
  Decision decide(const Observation& observation) override {
    Decision d;
    for (const ClientView& c : observation.clients)
      d.leases.push_back({.client_id = c.id, .grant = Grant::kFree});
    return d;
  }
};

}  // namespace tessera::policy
