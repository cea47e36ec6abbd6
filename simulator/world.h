// The state behind simulate(): private to simulation.cc (programs, events), gate.cc (best-effort launches)
// and daemon.cc (observations, leases).
#pragma once

#include <deque>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "admission/boundary.h"
#include "admission/burst_roles.h"
#include "admission/plan.h"
#include "admission/rule.h"
#include "scheduler_daemon/policy/burst_watch.h"
#include "scheduler_daemon/policy/overlap.h"
#include "simulator/gangs.h"
#include "simulator/memory.h"
#include "simulator/simulation.h"
#include "simulator/token_server.h"

namespace tessera::simulator {

enum class EventKind : uint8_t {
  kArrival,
  kStart,
  kStop,
  kHost,
  kStepDone,
  kMarker,
  kDecide,
  kRetreat,
  kGateLimit
};

struct Event {
  uint64_t at_ns = 0, seq = 0;
  EventKind kind = EventKind::kHost;
  uint32_t client = 0;
  uint64_t token = 0;  // stale if it is not the client's
  bool operator>(const Event& o) const { return at_ns != o.at_ns ? at_ns > o.at_ns : seq > o.seq; }
};

enum class Boundary : uint8_t {
  kNone,
  kGate,
  kDuringBursts
};  // before a launch: none; one of the kinds of admission::Quantum

// The program of a client: its jobs and its host thread. Written by simulation.cc.
struct ProgramState {
  std::deque<uint64_t> waiting_jobs;  // arrival times
  bool in_job = false;
  uint64_t job_arrival_ns = 0, job_start_ns = 0, first_step_ns = 0, latest_step_ns = 0;
  double job_length = 1;      // which of its workload's lengths
  uint64_t host_free_ns = 0;  // its host thread is not before
  std::vector<Launch> job;
  size_t next_launch = 0;             // of the job
  uint64_t step_last_op = 0;          // whose completion ends the step; 0 = not launched yet
  std::deque<uint64_t> steps_behind;  // last launches of steps in flight: Workload::steps_ahead
  uint64_t next_op = 1, completed_op = 0;
  uint64_t host_token = 1;  // of the pending kHost event
};

// The pulse of a protected client. Written by simulation.cc; the daemon's part sets `packed` and opens gates.
struct PulseState {
  bool busy = false;
  uint64_t busy_since_ns = 0, idle_since_ns = 0;
  uint64_t signature = 0;     // of the burst
  bool packed = false;        // a packed lease was out during this burst
  bool closes_gates = false;  // those of all best-effort clients
  policy::ResourceClass resource_class = policy::ResourceClass::kUnknown;
  policy::BurstWatch bursts;
  admission::BurstRoles roles;
};

// The gate of a best-effort client, in its thread. Written by gate.cc.
struct GateState {
  uint32_t blocks_left = 0;  // of the kernel being cut; 0 = take the next launch whole
  bool notified = false;
  uint64_t notified_word = 0;
  admission::Waited waited;  // in this call
  uint64_t stretch_start_ns = 0, waiting_since_ns = 0, completed_at_stretch = 0;
  admission::Reason waiting_for = admission::Reason::kNone;
  uint64_t wakes_ns = 0;  // while it waits: its pending kHost event
  uint64_t in_flight_ns = 0, queued_ns = 0, used_ns = 0;
  uint64_t in_flight_since_ns = 0, in_flight_end_ns = 0;  // as SignalLine
  uint64_t oldest_since_ns = 0;  // since when nothing is before the oldest work in flight
  uint64_t spin_until_ns = 0;    // of the stretch it waits in: it watches, then sleeps
  uint64_t drained_word = 0;
  uint64_t uncut_launches = 0;  // wide ones that may not be cut
  struct Sent {
    uint64_t op = 0, estimate_ns = 0;
    bool marked = false;  // a marker follows it
  };
  std::deque<Sent> sent;     // not seen complete
  uint64_t unmarked_ns = 0;  // sent since the last marker
  uint32_t unmarked_calls = 0, markers_out = 0;
  uint64_t yielding_op = 0;  // the host waits for it; 0 = none
  bool throttled = false;    // far enough ahead of the GPU

  bool waiting() const { return waiting_for != admission::Reason::kNone; }
};

// The gate of a best-effort client, on the device: the work in its stream. Written by device_gate.cc.
struct DeviceGateState {
  admission::Quantum quantum;   // that is being launched
  uint64_t longest_ns = 0;      // admission::longest_of_late_ns
  std::deque<uint64_t> quanta;  // RunSpec::opened_quanta: first launches of those that did not end
  size_t n_opened = 0;          // of them
  bool counts_quanta = false;   // it opens for single ones
  bool open = true;
  uint32_t longest_class = base::kLongestClass;  // that may begin, if it is open
  uint64_t closed_since_ns = 0, closings = 0;
};

struct SimClient {
  const ClientSpec* spec = nullptr;
  Random random;
  std::unique_ptr<ArrivalProcess> arrivals;
  std::unique_ptr<TokenServer> server;  // of a workload with Serving: then jobs are its steps
  bool attached = false;
  bool watched = false;      // protected: best-effort clients see its pulse themselves
  uint64_t incarnation = 1;  // changes when it leaves
  Gang* gang = nullptr;      // that it is a rank of
  uint64_t collectives = 0;  // that it has launched
  ClientResult result;
  double work_at_warmup_ns = 0;
  // The grant, written by daemon.cc.
  policy::Lease lease;
  uint64_t expires_ns = 0, lease_word = 0;
  uint32_t sm_limit = 0;  // of all its launches; 0 = all SMs

  ProgramState program;
  PulseState pulse;
  GateState gate;
  DeviceGateState device_gate;

  bool is_protected() const { return spec->priority > 0; }
};

class World {
 public:
  explicit World(const RunInput& input);
  RunResult run();

  // For one GPU among several (gangs.cc), whose events are handled in the order of their times.
  uint64_t next_ns();             // of the next event; UINT64_MAX = none
  void warm_up(uint64_t now_ns);  // what happened until now may count no more
  void come_to(uint64_t now_ns);  // at most next_ns(): time passes
  void step(uint64_t now_ns);     // at next_ns(): what happens then
  RunResult take_result();
  void join(uint32_t client, Gang* gang) { clients_[client].gang = gang; }
  bool attached(uint32_t client) const { return clients_[client].attached; }
  const policy::Lease& lease(uint32_t client) const { return clients_[client].lease; }
  void take_lease(uint32_t client, const policy::Lease& lease) { apply(client, lease); }
  void add_pulses(std::vector<admission::PulseView>* pulses) const;
  void wake_watcher(uint32_t client);
  bool waits_for_peers(uint32_t client) const { return gpu_.waits_for_peers(client); }
  void meet(uint32_t client, uint64_t now_ns);

 private:
  // simulation.cc
  void push(uint64_t at_ns, EventKind kind, uint32_t client, uint64_t token = 0);
  void handle(const Event& e);
  void attach(uint32_t c);
  void detach(uint32_t c);
  void arrived(uint32_t c);
  void start_job(uint32_t c, uint64_t host_free_ns);
  void load_model(uint32_t c);  // then its job runs, now or when there is room
  void end_job(uint32_t c);
  void answer(uint32_t c);  // requests that ended with the server's step
  void run_host(uint32_t c, uint64_t from_ns);
  void run_step(uint32_t c);  // protected or free-running: launches everything up to the synchronise
  void step_done(uint32_t c);
  void completed(const Completion& done);
  void set_busy(uint32_t c);
  void set_idle(uint32_t c);
  policy::Burst burst_of(const SimClient& c) const;
  Launch& launch_of(SimClient& c) { return c.program.job[c.program.next_launch]; }
  struct Submitted {  // of a kernel
    uint32_t n_blocks;
    uint64_t at_ns;
    uint32_t workers = 0;   // not 0: the transformed kernel, which yields
    uint32_t sm_limit = 0;  // SMs that it may use; 0 = all
    Boundary boundary = Boundary::kNone;
    uint32_t length_class = 0;  // of its quantum
  };
  void submit(uint32_t c, const Kernel& kernel, const Submitted& part);

  // gate.cc
  bool runs_originals() const;
  uint32_t workers(const SimClient& c, const Kernel& kernel) const;
  void host(uint32_t c);  // the host thread of a best-effort client runs
  void end_step(uint32_t c, uint64_t op);
  admission::History history_of(const Kernel& kernel, uint32_t sms, uint32_t blocks) const;
  uint32_t sms_of(const SimClient& c) const;  // that its launches may occupy
  // The launch as the gate's history has it.
  Kernel believed(const Kernel& kernel) const {
    return input_.estimates == Estimates::kShape ? kernel.usual() : kernel;
  }
  admission::LeaseView view_of(const SimClient& c) const;
  std::span<const admission::PulseView> pulses(const SimClient& c);
  admission::PlannedLaunch planned(const SimClient& c, const Kernel& kernel) const;
  bool is_paced_with_gang(const SimClient& c) const {
    return c.gang != nullptr && input_.run.gangs && !exclusive();
  }
  void audit_start(const SimClient& c);
  void wait(uint32_t c, admission::Reason reason, const admission::LeaseView& lease, uint64_t estimate_ns);
  void end_wait(SimClient& c);
  void stop_waiting(SimClient& c);
  void end_call(SimClient& c);
  void wake(uint32_t c, uint64_t at_ns);
  void wake_watchers();
  void mark(uint32_t c);
  void marker_seen(uint32_t c, uint64_t op);
  void cover(SimClient& c, uint64_t op);
  void acknowledge_drain(uint32_t c);

  // device_gate.cc
  bool can_gate_on_device(const SimClient& c) const;
  bool begins_quantum(SimClient& c, uint64_t estimate_ns, bool during_bursts, uint64_t length_ns) const;
  void note_quantum(uint32_t c, uint64_t op);
  void opens_gates(SimClient& c);  // the daemon
  bool may_pass(const SimClient& c) const;
  void update_gate(uint32_t c);
  void update_gates();
  void reach_gate_limit(uint32_t index, uint64_t closing);
  void open_quanta(uint32_t c);

  // daemon.cc
  void notify_daemon();
  void decide();
  bool drained(const SimClient& c) const;
  policy::ClientView view(SimClient& c);
  void apply(uint32_t c, const policy::Lease& lease);
  void audit_idle();
  void count_losses(uint64_t until_ns);
  bool exclusive() const { return input_.run.regime == Regime::kTimesliced; }

  const RunInput& input_;
  // Running kernels stop at a block boundary when a pulse becomes busy: persistent-thread variants, which
  // only the simulator has.
  const bool yields_ = input_.run.policy == "tally";
  std::unique_ptr<policy::Policy> policy_;
  std::vector<SimClient> clients_;
  Gpu gpu_;
  ModelMemory memory_;
  std::deque<uint32_t> waiting_for_memory_;  // clients with a job
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t now_ns_ = 0, next_seq_ = 0;
  bool warm_ = false;
  uint64_t next_ns_ = 0;                // what next_ns() said
  bool moved_ = true;                   // since then
  uint64_t decide_at_ns_ = UINT64_MAX;  // earliest pending kDecide
  Audit audit_;
  Losses losses_;
  int only_best_effort_ = -1;  // -1: none or several
  uint64_t n_events_ = 0, n_decisions_ = 0;
  uint64_t idle_wait_since_ns_ = UINT64_MAX;  // see Audit
  uint64_t guard_ns_ = 0;                     // of the gates
  bool tell_busy_ = false;                    // policy::Decision::tell_busy
  std::vector<admission::PulseView> pulses_;  // reused
  std::vector<Completion> done_;              // reused
  policy::Observation observation_;           // reused
  std::vector<uint32_t> observed_;            // which client each row of it is
};

}  // namespace tessera::simulator
