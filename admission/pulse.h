// One copy of the words of a watched pulse (abi::PulsePage) of a protected client.
#pragma once

#include "ipc/abi/region.h"

namespace tessera::admission {

namespace abi = ipc::abi;

struct PulseView {  // times: CLOCK_MONOTONIC ns; untrusted, so any value must do
  uint32_t priority = 0;
  bool busy = false;  // as its page says; only a beat that is not stale makes it true
  uint64_t busy_since_ns = 0, heartbeat_ns = 0, idle_since_ns = 0;
};

constexpr bool is_busy(const PulseView& pulse, uint64_t now_ns) {
  return pulse.busy && !abi::pulse_is_stale(pulse.heartbeat_ns, pulse.busy_since_ns, now_ns);
}

// Is a client of a higher level at work, or only just idle? Bursts follow each other: what starts within the
// guard would be in the way of the next one. (An idle time in the future wraps to a large number: not in the
// way.)
constexpr bool in_the_way(const PulseView& pulse, uint32_t own_priority, uint64_t guard_ns, uint64_t now_ns) {
  if (pulse.priority <= own_priority) return false;
  if (pulse.busy) return is_busy(pulse, now_ns);
  return now_ns - pulse.idle_since_ns < guard_ns;
}

}  // namespace tessera::admission
