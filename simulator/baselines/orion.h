// `orion`: the policy of Orion (Strati et al., EuroSys'24), re-implemented from its description; not the
// authors' system, and with what we observe in place of its offline profiles. Best-effort kernels are never
// cut. While the protected client works, a best-effort launch may join if its class differs from the
// protected one's (or either is unknown) and it needs fewer than all SMs (the published limit, 80, is all that the
// authors' V100 has); outstanding best-effort time is bounded by 2.5 % of the protected burst. Between bursts
// it starts at once: no guard. Decided per look, not per kernel: classes are those of the next launch. Pure.
#pragma once

#include "base/units.h"
#include "simulator/baselines/common.h"

namespace tessera::simulator::baselines {

class OrionPolicy final : public Policy {
 public:
  explicit OrionPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "orion"; }
  uint64_t gate_guard_ns(const Parameters&) const override { return 0; }
  Decision decide(const Observation& o) override {
    Decision d;
    const ClientView* hp = busiest(o);
    for (const ClientView& c : o.clients)
      if (is_protected(c) && c.burst_ns != 0) burst_ns_ = c.burst_ns;
    for (const ClientView& c : o.clients) {
      Lease lease{.client_id = c.id, .grant = Grant::kFree};
      if (!is_protected(c)) {
        lease = granted(c, parameters_);
        lease.slice_ns = kNeverCutNs;
        lease.window_ns = burst_ns_ == 0 ? kFirstBudgetNs : burst_ns_ / 40;
        lease.packed = hp != nullptr && may_join(o, *hp, c);
      }
      d.leases.push_back(lease);
    }
    look_at(o.now_ns + kLookNs, &d);  // classes change with every kernel
    return d;
  }

 private:
  static constexpr uint64_t kNeverCutNs = base::kNsPerS, kFirstBudgetNs = base::us(100),
                            kLookNs = base::us(100);
  static bool may_join(const Observation& o, const ClientView& hp, const ClientView& c) {
    const bool unknown =
        hp.resource_class == ResourceClass::kUnknown || c.resource_class == ResourceClass::kUnknown;
    const bool fits = c.launch_sms != 0 && c.launch_sms < o.sm_count;
    return fits && (unknown || hp.resource_class != c.resource_class);
  }
  Parameters parameters_;
  uint64_t burst_ns_ = 0;
};

}  // namespace tessera::simulator::baselines
