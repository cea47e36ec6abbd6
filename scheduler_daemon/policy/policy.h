// The policy: what each client may do now. PURE: functions over plain data with units in the names; no clock,
// no I/O, no allocation beyond the returned vectors, no state but what is passed in. The same object code
// runs in the daemon, in the simulator (virtual time) and in tests. May include std, base/units.h and base/length_class.h only.
// Design sections 3 (D6, D8) and 7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/length_class.h"
#include "base/units.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

enum class ResourceClass : uint8_t { kUnknown = 0, kCompute = 1, kMemory = 2, kLatency = 3 };

struct Span {
  uint64_t began_ns = 0, ended_ns = 0;
};

struct KindSlowdown {     // mean of bursts of one kind of requests
  uint32_t kind = 0;      // as the client numbers them; 0: not known
  uint64_t slo_ns = 0;    // what they shall take at most, 0 = none
  uint64_t burst_ns = 0;  // as ClientView
  double slowdown = 0, own_slowdown = 0;
};

struct ClientView {       // one client on the GPU in question, as observed by the daemon
  uint64_t id = 0;        // stable while the client lives
  uint32_t priority = 0;  // 0 best-effort, 1..7 protected
  uint32_t weight = 100;  // share within its level
  uint64_t slo_ns = 0;    // 0 = none
  bool busy = false;      // protected: its pulse, stale pulses already read as idle
  uint64_t busy_since_ns = 0, idle_since_ns = 0;
  std::vector<Span> ended;  // protected: bursts that ended since the last observation, in order
  ResourceClass resource_class = ResourceClass::kUnknown;
  bool watched = true;   // protected: best-effort clients watch its pulse themselves; else they are revoked
  bool waiting = false;  // best-effort: a launch waits for a lease
  uint64_t waiting_since_ns = 0;
  uint64_t in_flight_ns = 0;  // estimated GPU time started and not seen complete
  uint64_t queued_ns = 0;     // estimated GPU time of waiting launches; behind a gate: of the longest of late
  bool drained = true;        // nothing in flight since its last hold
  uint64_t used_ns = 0;       // GPU time completed since it attached
  uint32_t overdue_drains = 0;  // that were given up lately, its own or its predecessors' of the same user
  double slowdown = 0;          // protected: measured burst slowdown, 1 = none, 0 = unknown

  // Optional fields of an observer; 0 = not measured. Policies that need them do without packing then.
  uint64_t bursts = 0;      // protected: bursts that were compared with a solo baseline so far
  double own_slowdown = 0;  // protected: the least of `slowdown` that is its own, not its neighbours'
  uint64_t burst_ns = 0;    // protected: solo length of its latest burst
  uint64_t change_ns =
      0;  // protected: what a burst loses to work that ran before it, beyond what was in flight
  bool knows_change = false;
  // Protected: of its bursts since the last observation, those that were compared; none: `slowdown` is of one kind.
  std::vector<KindSlowdown> kinds;
  uint64_t next_burst_ns =
      0;  // protected: likewise of the one that runs, or comes next, by what followed before
  uint64_t blocks_launched = 0;    // thread blocks started since it attached
  uint64_t uncut_launches = 0;     // best-effort: launches seen so far that could not be cut
  uint32_t launch_sms = 0;         // best-effort: SMs that its next launch would fill if it were not cut
  uint32_t wave_blocks = 0;        // best-effort: blocks of its next launch that fill the GPU once
  uint64_t slice_overhead_ns = 0;  // best-effort: learnt cost of one slice more
  bool can_confine = false;        // its launches can be confined to some SMs: Lease::sm_limit is kept
  // Best-effort, of a gang: it may not start because of another GPU, whatever this one's lease says; and it is the next, so
  // that its turns on several GPUs meet.
  bool withheld = false, goes_first = false;
  bool gate_on_device = false;  // best-effort: its streams wait on the device; the lease needs a quantum_ns
};

struct Observation {
  uint64_t now_ns = 0;
  bool mps = false;  // leases may overlap in space
  uint32_t sm_count = 0;
  std::vector<ClientView> clients;
};

enum class Grant : uint8_t { kHold, kGranted, kFree };

enum class HeldBy : uint8_t {  // why a lease is a hold; for people
  kNothing,
  kTurn,   // another one's, or a level above that it does not watch itself
  kGap,    // too short a gap between bursts
  kShare,  // it is ahead of its share
  kCrowd,  // others fill the GPU
};
inline constexpr size_t kHeldBys = 5;

struct Lease {
  uint64_t client_id = 0;
  Grant grant = Grant::kHold;
  uint64_t duration_ns = 0;  // from now; 0 = until revoked (kFree)
  uint64_t window_ns = 0, slice_ns = 0;
  uint32_t marker_spacing_ns = 0;
  // A kernel whose single blocks last longer than long_block_ns cannot be cut short, so its slices leave room
  // for bursts instead: at most this much of a wave, and beyond twice that time the less the longer they are,
  // down to a sixteenth of a wave. 0 = every kernel fills waves.
  uint64_t long_block_ns = 0;
  uint32_t long_width_percent = 100;
  uint32_t spin_ns = 0;   // a held launch watches for this time before it sleeps; 0 = the daemon's setting
  uint32_t sm_limit = 0;  // SMs that launches which go out whole may occupy (admission/confine.h); 0 = all
  // All launches keep to sm_limit, and those of these classes (bit c: class c) may then start during bursts.
  bool confine_all = false;
  uint32_t burst_classes = 0;
  // Best-effort, with ClientView::gate_on_device: longest stretch of work between two boundaries. 0 = the thread asks.
  uint64_t quantum_ns = 0;
  // Best-effort: CLOCK_MONOTONIC at which a burst is expected. What begins should end by then; 0 = nothing is known.
  uint64_t ends_by_ns = 0;
  // With gate_on_device: the longest class that does (base/length_class.h).
  uint32_t length_class = base::kLongestClass;
  // Protected, gates on the device: they stay closed after its burst until a decision opens them; this one does.
  bool keeps_closed = false, opens_gates = false;
  bool timed =
      false;  // protected: a hold begins some time after the end of its burst, which the daemon must hear of
  bool quiet = false;     // protected: nobody need hear of the end of its next burst before next_look_ns
  bool packed = false;    // may start whatever protected clients do,
  bool together = false;  // because their bursts were measured to be hardly longer for it
  bool overdue = false;   // its drain is waited for no longer
  HeldBy held_by = HeldBy::kNothing;
  bool nudge = false;  // wake its waiting launches even if nothing in the lease changed
};

struct Decision {
  std::vector<Lease> leases;  // one per client of the observation, same order
  uint64_t next_look_ns = 0;  // absolute; decide again then at the latest, 0 = only on events
  bool tell_busy = false;     // decide again when a busy pulse holds a launch
};

struct Parameters {  // what an operator may set: parameters.def
#define TS_TIME(name, unit, initial, least, most, description) uint64_t name##_ns = base::unit(initial);
#define TS_PERCENT(name, initial, least, most, description) double name = initial / 100.0;
#define TS_SWITCH(name, initial, description) bool name = std::string_view(initial) == "on";
#include "scheduler_daemon/policy/parameters.def"

  bool operator==(const Parameters&) const = default;
};

class Policy {  // holds only what it must remember between decisions (virtual time, whose turn)
 public:
  virtual ~Policy() = default;
  virtual const char* name() const = 0;
  // How long a watched pulse must be idle before gates start work by themselves. A policy that is_known better
  // holds the lease for longer.
  virtual uint64_t gate_guard_ns(const Parameters& parameters) const { return parameters.guard_ns; }
  virtual Decision decide(const Observation& observation) = 0;
};

// Registry: one row per policy in policies.def. nullptr for an unknown name.
// `tuning`: only the simulator passes another one.
std::unique_ptr<Policy> make_policy(const std::string& name, const Parameters& parameters,
                                    const Tuning& tuning = {});
std::vector<std::string> policy_names();

}  // namespace tessera::policy
