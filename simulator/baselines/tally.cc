#include "simulator/baselines/tally.h"

#include "base/units.h"

namespace tessera::simulator::baselines {
namespace {

constexpr uint64_t kTurnaroundNs = 31'600;   // the bound used in all its published runs
constexpr uint64_t kOneKernelNs = 1;         // a window that only one launch fits into
constexpr uint64_t kLookNs = base::us(500);  // several best-effort clients: who has demand changes unseen

}  // namespace

Decision TallyPolicy::decide(const Observation& o) {
  Decision d;
  const ClientView* holder = nullptr;
  size_t n_best_effort = 0;
  for (const ClientView& c : o.clients) {
    if (is_protected(c)) continue;
    ++n_best_effort;
    if (holder == nullptr || (has_demand(c) == has_demand(*holder) ? c.id > holder->id : has_demand(c)))
      holder = &c;
  }
  for (const ClientView& c : o.clients) {
    d.leases.push_back({.client_id = c.id, .grant = is_protected(c) ? Grant::kFree : Grant::kHold});
    if (&c != holder) continue;
    Lease& lease = d.leases.back();
    lease = granted(c, parameters_);
    lease.window_ns = kOneKernelNs;
    lease.slice_ns = kTurnaroundNs;
    lease.marker_spacing_ns = 1;
    look_at(o.now_ns + parameters_.lease_ns / 2, &d);
  }
  if (n_best_effort > 1) look_at(o.now_ns + kLookNs, &d);
  return d;
}

}  // namespace tessera::simulator::baselines
