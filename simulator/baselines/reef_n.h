// `reef_n`: what REEF (Han et al., OSDI'22) can do on NVIDIA GPUs, re-implemented from its description; not
// the authors' system. Best-effort kernels are never cut; while the protected client works none is launched;
// how far the host may be ahead of the GPU is bounded (the window), and that is all. Between bursts they start at
// once: no guard. Pure.
#pragma once

#include "base/units.h"
#include "simulator/baselines/common.h"

namespace tessera::simulator::baselines {

class ReefNPolicy final : public Policy {
 public:
  explicit ReefNPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "reef_n"; }
  uint64_t gate_guard_ns(const Parameters&) const override { return 0; }
  Decision decide(const Observation& o) override {
    Decision d;
    for (const ClientView& c : o.clients) {
      Lease lease{.client_id = c.id, .grant = Grant::kFree};
      if (!is_protected(c)) {
        lease = granted(c, parameters_);
        lease.slice_ns = kNeverCutNs;
      }
      d.leases.push_back(lease);
    }
    look_at(o.now_ns + parameters_.lease_ns / 2, &d);
    return d;
  }

 private:
  static constexpr uint64_t kNeverCutNs = base::kNsPerS;
  Parameters parameters_;
};

}  // namespace tessera::simulator::baselines
