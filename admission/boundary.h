// The gate on the device: between which launches a stream gets a boundary, which is a wait of the stream itself for the
// gate's word. Nothing is asked between two boundaries. What lies between them is a quantum: what a burst of a protected
// client may find in its way at most, per stream. Pure; the gate and the simulator call it.
//
//   boundary_due(quantum, estimate, during_bursts, longest, now)?  enqueue the wait; quantum = begin_quantum(... length ...)
//   else                                                   quantum = continue_quantum(...)
#pragma once

#include <cstdint>

#include "admission/history.h"
#include "admission/rule.h"
#include "admission/wait.h"

namespace tessera::admission {

// How far a program may run ahead of a gate, in work and in calls of any kind. A driver blocks inside a launch once 1,021
// of them wait in one hardware queue (an H200, driver 580); several streams share a queue. A step of an eager trainer is
// some 700 launches.
inline constexpr uint64_t kRunAheadNs = 32'000'000;
inline constexpr uint32_t kRunAheadCalls = 800;
// A program so far ahead sleeps: even kernels of 2 us last for three such sleeps.
inline constexpr WaitPlan kFarAhead{.watch_ns = 0, .sleep_ns = 500'000};
// Calls are counted by markers, one for this number of calls.
inline constexpr uint32_t kCallsPerMarker = 25;
inline constexpr uint32_t kRunAheadMarkers = kRunAheadCalls / kCallsPerMarker;

// A client that launches less than a quantum in this many times its length leaves the GPU idle between launches. The gate
// may have closed since the boundary was passed.
inline constexpr uint64_t kStaleQuanta = 4;

struct Quantum {               // of one stream
  uint64_t left_ns = 0;        // of its length; 0: the next launch gets a boundary
  uint64_t length_ns = 0;      // its length when it began
  uint64_t begun_ns = 0;       // CLOCK_MONOTONIC, when its boundary was enqueued
  bool during_bursts = false;  // its boundary lets begin what may run during bursts, and nothing else
};

// `longest_ns`: what the lease allows now.
constexpr bool boundary_due(const Quantum& q, uint64_t estimate_ns, bool during_bursts, uint64_t longest_ns,
                            uint64_t now_ns) {
  return q.during_bursts != during_bursts || q.left_ns < estimate_ns || q.left_ns > longest_ns ||
         now_ns - q.begun_ns >= kStaleQuanta * q.length_ns;
}

// A boundary costs 2.3 us of the device (H200): with less than 20 us between two of them more than a tenth is lost.
inline constexpr uint64_t kLeastQuantumNs = 20'000;
// Streams of one client are released together: each has its part of the quantum.
constexpr uint64_t part_of_quantum_ns(uint64_t quantum_ns, uint32_t streams_at_work) {
  const uint64_t part_ns = streams_at_work < 2 ? quantum_ns : quantum_ns / streams_at_work;
  return at_least(part_ns, quantum_ns < kLeastQuantumNs ? quantum_ns : kLeastQuantumNs);
}

// Work longer than a quantum is one by itself.
constexpr Quantum begin_quantum(uint64_t estimate_ns, bool during_bursts, uint64_t length_ns,
                                uint64_t now_ns) {
  return {estimate_ns < length_ns ? length_ns - estimate_ns : 0, length_ns, now_ns, during_bursts};
}

// Its longest work: what its boundary names the class of.
constexpr uint64_t longest_of_quantum_ns(uint64_t estimate_ns, uint64_t length_ns) {
  return at_least(length_ns, estimate_ns);
}

constexpr Quantum continue_quantum(const Quantum& q, uint64_t estimate_ns) {
  return {q.left_ns - estimate_ns, q.length_ns, q.begun_ns, q.during_bursts};
}

// Nothing marks the end of what passed a gate that has closed since: two quanta after that it is taken for ended. A single
// kernel that is longer may then still run beside another process's work, which costs no more than time.
constexpr uint64_t drained_after_ns(uint64_t length_ns) {
  constexpr uint64_t kDeviceSeesNs = 100'000;
  return 2 * length_ns + kDeviceSeesNs;
}

// A burst may find the longest launch, or slice, of late in its way. Each boundary asks this anew, so that a long one is
// forgotten in some hundred boundaries.
constexpr uint64_t longest_of_late_ns(uint64_t longest_ns, uint64_t estimate_ns) {
  return at_least(longest_ns - longest_ns / 256, estimate_ns);
}

// May this work go to the driver, to wait there? `in_flight_ns` and `markers`: of this client, not yet seen to be complete.
constexpr Verdict judge_run_ahead(const Ask& ask, const LeaseView& lease, uint64_t in_flight_ns,
                                  uint32_t markers, const Waited& waited) {
  if (lease.unmanaged()) return {Action::kForward, Reason::kUnmanaged};
  if (waited.let_go) return {Action::kLetGo};
  if (in_flight_ns == 0 || (in_flight_ns + ask.estimate_ns <= kRunAheadNs && markers < kRunAheadMarkers))
    return {Action::kGo};
  // At the hold limit the gate itself lets a quantum pass, so that this is for a gate that nobody watches any more.
  return {waited.stuck_ns >= 2 * lease.max_hold_ns ? Action::kLetGo : Action::kWait, Reason::kWindow};
}

}  // namespace tessera::admission
