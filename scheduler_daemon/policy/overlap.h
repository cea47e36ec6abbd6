// For how much of a protected burst best-effort work may have been on the GPU. What was in flight when the burst
// began drains while it runs, so the end of a client's work says how long. Pure; the daemon and the simulator ask
// it for each best-effort client when a burst has ended.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::policy {

struct InFlight {         // of one best-effort client, as its gate counts it
  bool measured = true;   // false: nobody counts it (a client that runs freely)
  bool any = false;       // something is in flight now
  uint64_t since_ns = 0;  // when the count last left zero; 0 = not known
  uint64_t end_ns = 0;    // when it last became zero; 0 = never
};

// Some of it ran after that.
inline bool ran_since(uint64_t since_ns, const InFlight& work) {
  return !work.measured || work.any || work.end_ns > since_ns;
}

struct ClosedGate {  // the client's work waits on the device, behind a gate that was closed for the burst
  uint64_t quantum_ns = 0;  // that may have passed it; 0: there was no such gate
  uint64_t longest_ns = 0;  // of the client's launches of late
};

// The most of the burst that can have met such work; all of it where that is not known.
inline uint64_t overlap_ns(uint64_t burst_began_ns, uint64_t burst_ended_ns, const InFlight& work) {
  const uint64_t length_ns = burst_ended_ns - std::min(burst_ended_ns, burst_began_ns);
  if (!work.measured) return length_ns;
  // Work in flight now says nothing about the burst if it started after it. A start that is older than the end was
  // read while the client changed the two.
  if (work.any && (work.since_ns <= work.end_ns || work.since_ns < burst_ended_ns)) return length_ns;
  return std::clamp(work.end_ns, burst_began_ns, burst_began_ns + length_ns) - burst_began_ns;
}

// Work behind a closed gate is in flight for the client, and in nobody's way.
inline uint64_t overlap_ns(uint64_t burst_began_ns, uint64_t burst_ended_ns, const InFlight& work,
                           const ClosedGate& gate) {
  const uint64_t ns = overlap_ns(burst_began_ns, burst_ended_ns, work);
  return gate.quantum_ns == 0 ? ns : std::min(ns, std::max(gate.quantum_ns, gate.longest_ns));
}

}  // namespace tessera::policy
