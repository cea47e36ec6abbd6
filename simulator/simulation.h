// One run in virtual time: programs (jobs on a modelled GPU), the shim's gate in each best-effort program,
// the pulses of the protected ones, and the daemon with a policy object, for tesserad's policies the same code
// as there. Deterministic: equal specs and seeds give equal results. Single thread; owns
// everything.
//
// The gate obeys leases as interpose/gate/ask.cc does: before every launch or slice it looks at the lease
// (state, expiry), at the pulses (busy, guard time) unless the lease is packed, and at the window; it spins,
// then sleeps for the same times; once nothing of a call started for the hold limit, the rest of the
// kernel goes out as one launch. Completion is seen through markers at the spacing of the lease.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "scheduler_daemon/policy/policy.h"
#include "simulator/gpu.h"
#include "simulator/memory.h"
#include "simulator/token_server.h"
#include "simulator/workload.h"

namespace tessera::simulator {

struct HostSpec {                // what software costs; ns
  uint64_t launch_ns = 4'000;    // one launch in the host thread
  uint64_t gate_ns = 0;          // what a launch takes longer there while its client has a lease that can end
  uint32_t queue_launches = 64;  // that the driver takes before the device has done them; then a launch waits
  uint64_t sync_ns = 8'000;      // completion until a synchronise returns
  uint64_t marker_ns = 5'000;    // completion until a marker is visible
  uint64_t wake_ns = 40'000;     // futex wake or end of a sleep until the thread runs
  uint64_t daemon_ns = 25'000;   // notification until the daemon decides
  uint64_t spin_ns = 20'000;     // watch_spin_us
  uint64_t setup_ns =
      1'000'000;                 // daemon knows the GPU of a newcomer until its first launch: modules, memory
  uint64_t confine_ns = 10'000;  // GPU time lost around a launch that keeps to some SMs: two waits for events
  MemoryLink link;               // to the GPU's memory
  uint64_t retreat_ns = 20'000;  // policy `tally` only: flag until the blocks see it
  // RunSpec::gate kDevice.
  uint64_t boundary_call_ns = 900;  // in the host thread, before the first launch of a quantum
  uint64_t boundary_ns = 2'300;     // on the device there, if the gate is open
  uint64_t open_ns = 6'400;         // what opens the gate until the device goes on
};

struct ClientSpec {
  std::string name;
  const Workload* workload = nullptr;
  uint32_t priority = 0, weight = 100;
  uint64_t slo_ns = 0;
  Arrivals arrivals;
  uint64_t start_ns = 0, stop_ns = UINT64_MAX;  // attaches and leaves
  uint32_t gpu = 0;                             // of RunInput::gpus
  std::string gang;  // best-effort clients of one name are ranks of one gang, one per GPU; empty: none
};

struct Perturbation {  // registered conditions that no policy was tuned for
  std::string name = "nominal";
  double estimate_factor = 1;     // what the gate believes about durations, over the truth
  uint64_t observe_delay_ns = 0;  // added to daemon_ns
  double kernel_cv = 0;           // best-effort kernels: heavier tails
  double clock_factor = 1;        // in the middle third of the run
  bool churn = false;             // a best-effort client leaves and another comes, four times
};

// How best-effort clients can be kept to some of the SMs (policy::Lease::sm_limit).
enum class Confine : uint8_t {
  kNone,
  kAttach,   // one share for the client's life, that of its first lease: MPS active-thread percentage
  kDynamic,  // from the next launch on: green contexts
};

enum class GateKind : uint8_t {
  kThread,  // a launch that may not start is held in the thread that makes it
  kDevice,  // it is queued on the device, where a gate lets quanta of work pass (simulator/device_gate.cc)
};

struct RunSpec {  // how the GPU is shared
  std::string name, policy = "none";
  Regime regime = Regime::kMpsPriority;
  double protected_overhead = 0;  // of the peer's interception on the protected client's kernels
  double regime_overhead = 0;     // of the regime, in front of that, and of the client alone in it, too
  // For kernels that the run transforms to stop at block boundaries (policy `tally`): how much longer they take in
  // all, the part of the block slots that their workers take at most, fewer where half of a block outlasts
  // `turnaround` (0 = never), and how long protected clients must be idle until the originals run (0 = never).
  double transform_overhead = 0;
  double worker_slots = 1;
  uint64_t turnaround_ns = 0, original_after_ns = 0;
  Confine confine = Confine::kNone;
  uint32_t sm_limit = 0;  // of best-effort clients where the policy sets none; 0 = all SMs
  // Static partitions: the first client of the cell keeps to this part of the SMs, the others to the rest. 0 = none.
  double first_part = 0;
  bool lends = false;               // GpuSpec::lends
  bool context_priorities = false;  // GpuSpec::context_priorities, with
  uint64_t switch_ns = 0;           // as long a change of context; 0 = as the GPU has it
  uint32_t most_in_flight =
      0;               // launches or pieces of a best-effort client; 0 = as many as the window has room for
  bool polls = false;  // held launches watch without sleeping, as a peer with a polling server does
  // A gate that sleeps for half of what its oldest work is expected to take on, and watches when that is
  // near; else it watches 20 us and sleeps 50 us in turn, whatever it waits for.
  bool timed_waits = true;
  GateKind gate = GateKind::kThread;
  uint64_t gate_quantum_ns = 0;  // kDevice: work that passes the gate at once; 0 = as the lease says
  // kDevice: a thread opens the gate for this number of quanta that have not ended, whatever the lease. 0 = bursts close it.
  uint32_t opened_quanta = 0;
  bool gangs = true;  // the ranks of a gang are paced together (docs/gangs.md); else each by itself
  policy::Parameters parameters;
  policy::Tuning tuning;  // of the daemon's policies
};

enum class Estimates : uint8_t {  // what the gate knows of a launch's length
  kLaunch,                        // exactly this launch's
  kShape,                         // the mean over launches of its kernel and grid, as a history gives
};

struct RunInput {
  GpuSpec gpu;
  HostSpec host;
  uint32_t gpus = 1;
  std::vector<ClientSpec> clients;
  RunSpec run;
  Perturbation perturbation;
  uint64_t duration_ns = 0, warmup_ns = 0, seed = 1;
  Estimates estimates = Estimates::kLaunch;
  bool latency_from_arrival = true;  // else from the start of service: queueing not counted
  bool record_bursts = false;
  bool record_steps = false;
  bool audit_idle = false;
};

struct ClientResult {
  std::vector<uint64_t> latencies_ns;        // after the warm-up, in order of completion
  std::vector<uint64_t> short_latencies_ns;  // of those of the least length, where jobs have several
  std::vector<uint64_t> first_ns;    // of the same jobs: until their first step was done (first token)
  std::vector<uint64_t> further_ns;  // and between the ends of their steps, if RunInput::record_steps
  std::vector<Answer> answers;       // of a language model's server, likewise
  uint64_t tokens = 0;               // that it gave after the warm-up
  double work_ns = 0;                // GPU work completed after the warm-up, in ns alone
  uint64_t jobs = 0, launches = 0, hold_expired = 0, longest_hold_ns = 0;
  std::vector<std::pair<uint64_t, uint64_t>> bursts_ns;  // protected, if RunInput::record_bursts: from, to
};

struct Audit {                      // what must never happen; see tests/unit/simulator
  uint64_t starts_under_pulse = 0;  // a gated launch while a protected pulse was busy, lease not packed
  uint64_t overlaps = 0;            // exclusive mode: two best-effort clients hold a lease at once
  uint64_t starts_without_lease = 0;
  // Longest time in which a best-effort client waited although no protected pulse was busy and the GPU did
  // nothing; only with RunInput::audit_idle.
  uint64_t longest_idle_wait_ns = 0;
};

// Says where the time between protected bursts went that the only best-effort client would have used; after the
// warm-up, not counted with several such clients. What it lost to sharing during bursts is not in here.
struct Losses {
  uint64_t pulse_ns = 0;   // GPU idle, it waited for a pulse: guard, and until it noticed
  uint64_t lease_ns = 0;   // GPU idle, it was held: gaps not used, wake-ups
  uint64_t window_ns = 0;  // GPU idle, it waited for a marker
  uint64_t launch_ns = 0;  // GPU idle, a launch was under way
  double free_sms_ns = 0;  // GPU at work, SMs left free: for a burst, or by partial waves
};

struct RunResult {
  std::vector<ClientResult> clients;  // as in the input
  Audit audit;
  Losses losses;
  uint64_t n_events = 0, n_decisions = 0;
  uint64_t model_loads = 0;  // warm-up included
};

RunResult simulate(const RunInput& input);

uint64_t percentile_ns(std::vector<uint64_t> values, double p);  // 0 if empty

}  // namespace tessera::simulator
