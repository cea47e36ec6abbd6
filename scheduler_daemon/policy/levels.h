// Small questions that several policies ask an observation. Pure.
#pragma once

#include <algorithm>

#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

inline bool is_protected(const ClientView& c) {
  return c.priority > 0;
}

inline bool any_protected_busy(const Observation& o) {
  return std::any_of(o.clients.begin(), o.clients.end(),
                     [](const ClientView& c) { return is_protected(c) && c.busy; });
}

// The bursts of a protected client since the last observation, in order; one that still runs ends now.
template <class F>  // void(const Span&)
void for_each_burst(const ClientView& c, uint64_t now_ns, F&& f) {
  for (const Span& burst : c.ended) f(burst);
  if (c.busy) f(Span{c.busy_since_ns, now_ns});
}

// Time in [from, now] in which the protected client was busy, as far as its bursts since the last observation tell.
inline uint64_t busy_since(const ClientView& c, uint64_t from_ns, uint64_t now_ns) {
  uint64_t sum_ns = 0;
  for_each_burst(c, now_ns, [&](const Span& burst) {
    const uint64_t ended_ns = std::min(burst.ended_ns, now_ns);
    if (ended_ns > from_ns) sum_ns += ended_ns - std::clamp(burst.began_ns, from_ns, ended_ns);
  });
  return sum_ns;
}

// The longest such time of a protected client.
inline uint64_t busy_since(const Observation& o, uint64_t from_ns) {
  uint64_t longest_ns = 0;
  for (const ClientView& c : o.clients)
    if (is_protected(c)) longest_ns = std::max(longest_ns, busy_since(c, from_ns, o.now_ns));
  return longest_ns;
}

inline bool has_demand(const ClientView& best_effort) {
  return best_effort.waiting || best_effort.in_flight_ns > 0;
}

// The busy protected client of the highest level, the longest busy first; null if none is busy.
inline const ClientView* busiest(const Observation& o) {
  const ClientView* found = nullptr;
  for (const ClientView& c : o.clients) {
    if (!is_protected(c) || !c.busy) continue;
    if (found == nullptr || c.priority > found->priority ||
        (c.priority == found->priority && c.busy_since_ns < found->busy_since_ns))
      found = &c;
  }
  return found;
}

inline Lease granted(const ClientView& c, const Parameters& p) {
  return {.client_id = c.id,
          .grant = Grant::kGranted,
          .duration_ns = p.lease_ns,
          .window_ns = p.window_ns,
          .slice_ns = p.slice_ns,
          .marker_spacing_ns = uint32_t(p.marker_spacing_ns),
          .quantum_ns = c.gate_on_device ? p.slice_ns : 0};
}

inline void look_at(uint64_t at_ns, Decision* d) {
  if (d->next_look_ns == 0 || at_ns < d->next_look_ns) d->next_look_ns = at_ns;
}

}  // namespace tessera::policy
