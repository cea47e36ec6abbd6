// May this piece of best-effort work start now?
//
//   verdict = judge(ask, lease, pulses, ...)
//   kForward   nobody else is on the GPU, or Tessera is switched off: start, count nothing
//   kGo        start; it counts as in flight
//   kWait      for `reason`; then waited = after_wait(waited, ...) and ask again
//   kLetGo     nothing of the call started for the hold limit: its rest goes out whole, and counts
#pragma once

#include <span>

#include "admission/lease.h"
#include "admission/pulse.h"

namespace tessera::admission {

struct Ask {  // what wants to start: a launch, one slice of it, a graph, a copy
  uint64_t estimate_ns = 0;
  uint32_t resource_class = 0;  // abi::ResourceClass
  bool may_confine = false;     // it can be kept off the reserved SMs of the lease
  bool in_thread = false;       // the caller watches how long it takes: it does not wait on the device
};

enum class Action : uint8_t { kForward, kGo, kWait, kLetGo };
// The obstacles of an ask, in the order in which they are looked for.
enum class Reason : uint8_t { kNone, kUnmanaged, kLease, kPulse, kWindow };

struct Verdict {
  Action action;
  Reason reason = Reason::kNone;
  bool operator==(const Verdict&) const = default;
};

// The waits of an API call so far. The hold limit bounds the time without progress, so it begins anew with
// every slice that starts (served). Waiting for the window is pacing: it counts only while nothing completes.
struct Waited {
  uint64_t held_ns = 0;    // for lease or pulse, since the latest slice
  uint64_t stuck_ns = 0;   // for the window, while nothing completed
  uint64_t served_ns = 0;  // for lease or pulse, before the slices that started
  uint64_t paced_ns = 0;   // for the window, in all
  bool let_go = false;     // the hold limit was reached: everything else of the call goes

  constexpr uint64_t total_ns() const { return held_ns + served_ns + paced_ns; }
  constexpr uint64_t towards_limit_ns(Reason reason) const {
    return reason == Reason::kWindow ? stuck_ns : held_ns;
  }
};

// Work that keeps to SMs of its own disturbs nobody on the others, also when the lease has changed.
constexpr bool runs_during_bursts(const Ask& ask, const LeaseView& lease) {
  return lease.confine_all && ask.may_confine && lease.names_class(ask.resource_class);
}
// A packed lease allows anything: a minimum share.
constexpr bool may_begin_during_bursts(const Ask& ask, const LeaseView& lease) {
  return lease.packed || runs_during_bursts(ask, lease);
}

// `in_flight_ns`: of this client, without the ask. Work longer than the window runs alone: it may start when
// nothing else is in flight.
constexpr Reason obstacle(const Ask& ask, const LeaseView& lease, std::span<const PulseView> pulses,
                          uint64_t guard_ns, uint64_t in_flight_ns, uint64_t now_ns) {
  if (lease.unmanaged()) return Reason::kUnmanaged;
  if (grant_at(lease, now_ns) != Grant::kGranted) return Reason::kLease;
  if (!may_begin_during_bursts(ask, lease))
    for (const PulseView& pulse : pulses)
      if (in_the_way(pulse, lease.priority, guard_ns, now_ns)) return Reason::kPulse;
  if (in_flight_ns != 0 && in_flight_ns + ask.estimate_ns > lease.window_ns) return Reason::kWindow;
  if (!may_begin_during_bursts(ask, lease) && !ends_in_time(lease, now_ns + in_flight_ns + ask.estimate_ns))
    return Reason::kLease;
  return Reason::kNone;
}

constexpr Verdict judge(const Ask& ask, const LeaseView& lease, std::span<const PulseView> pulses,
                        uint64_t guard_ns, uint64_t in_flight_ns, const Waited& waited, uint64_t now_ns) {
  if (waited.let_go && !lease.unmanaged()) return {Action::kLetGo};
  const Reason reason = obstacle(ask, lease, pulses, guard_ns, in_flight_ns, now_ns);
  if (reason == Reason::kNone) return {Action::kGo};
  if (reason == Reason::kUnmanaged) return {Action::kForward, reason};
  if (waited.towards_limit_ns(reason) >= lease.max_hold_ns) return {Action::kLetGo, reason};
  return {Action::kWait, reason};
}

// A stretch of waiting for `reason` is over; `progress`: something of this client completed meanwhile.
constexpr void after_wait(Waited& waited, Reason reason, uint64_t stretch_ns, bool progress) {
  if (reason != Reason::kWindow) {
    waited.held_ns += stretch_ns;
    return;
  }
  waited.stuck_ns = progress ? 0 : waited.stuck_ns + stretch_ns;
  waited.paced_ns += stretch_ns;
}

// A piece of the call started.
constexpr void after_start(Waited& waited) {
  waited.served_ns += waited.held_ns;
  waited.held_ns = waited.stuck_ns = 0;
}

}  // namespace tessera::admission
