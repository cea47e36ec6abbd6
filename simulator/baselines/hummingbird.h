// `hummingbird`: the policy of Hummingbird (arXiv 2601.04071), re-implemented from its description; not the authors' system.
// Best-effort kernels are cut into pieces that start while no protected client has work; a run of it bounds how many are in
// flight (RunSpec::most_in_flight: the one that runs, and one that was sent ahead). Published: preemption in less than 140 us
// on average and mostly below 400 us. So a piece is 200 us, of which half is left on average, and in a bubble that has lasted
// for four such pieces, where the next burst is as far away on average, twice that. No guard, no learning. Pure.
#pragma once

#include <algorithm>

#include "base/units.h"
#include "simulator/baselines/common.h"

namespace tessera::simulator::baselines {

class HummingbirdPolicy final : public Policy {
 public:
  explicit HummingbirdPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "hummingbird"; }
  uint64_t gate_guard_ns(const Parameters&) const override { return 0; }
  Decision decide(const Observation& o) override {
    Decision d;
    uint64_t idle_since_ns = 0;
    for (const ClientView& c : o.clients)
      if (is_protected(c)) idle_since_ns = c.busy ? o.now_ns : std::max(idle_since_ns, c.idle_since_ns);
    const bool is_long = busiest(o) == nullptr && o.now_ns - idle_since_ns > kLongBubbleNs;
    for (const ClientView& c : o.clients) {
      Lease lease{.client_id = c.id, .grant = Grant::kFree};
      if (!is_protected(c)) {
        lease = granted(c, parameters_);
        lease.slice_ns = is_long ? 2 * kPieceNs : kPieceNs;
        lease.window_ns = 4 * kPieceNs;
        lease.marker_spacing_ns = 1;
      }
      d.leases.push_back(lease);
    }
    look_at(o.now_ns + kLookNs, &d);
    return d;
  }

 private:
  static constexpr uint64_t kPieceNs = base::us(200), kLongBubbleNs = 4 * kPieceNs, kLookNs = base::us(200);
  Parameters parameters_;
};

}  // namespace tessera::simulator::baselines
