// Best-effort client: the rule that interpose/gate ships (admission/), asked in virtual time.
#include <algorithm>

#include "admission/plan.h"
#include "admission/wait.h"
#include "simulator/world.h"

namespace tessera::simulator {
namespace {

using admission::Action;
using admission::LeaseView;
using admission::Reason;

constexpr uint64_t kPollNs = 20'000;  // RunSpec::polls: coarse enough for the event count

}  // namespace

uint32_t World::sms_of(const SimClient& c) const {
  return c.sm_limit == 0 ? input_.gpu.sm_count : std::min(c.sm_limit, input_.gpu.sm_count);
}

// Returns what a gate learns of the kernel's time per block, if it timed launches of `blocks` on `sms` SMs.
admission::History World::history_of(const Kernel& kernel, uint32_t sms, uint32_t blocks) const {
  const double factor = input_.perturbation.estimate_factor;
  const Kernel expected = believed(kernel);
  const double of_one = double(expected.solo_ns(sms, 1)) * factor;
  const double of_all = double(expected.solo_ns(sms, blocks)) * factor;
  return {.block_ps = std::max<uint64_t>(1, uint64_t(of_all * 1000 / blocks)),
          .launch_ns = uint64_t(of_all),
          .block_ns = uint64_t(of_one),
          .sample_blocks = blocks,
          .sample_ns = uint64_t(of_all)};
}

LeaseView World::view_of(const SimClient& c) const {
  const policy::Lease& l = c.lease;
  static constexpr admission::Grant kGrants[] = {admission::Grant::kHold, admission::Grant::kGranted,
                                                 admission::Grant::kFree};
  return {.grant = kGrants[size_t(l.grant)],
          .packed = l.packed,
          .tell_busy = tell_busy_,
          .expires_ns = c.expires_ns,
          .window_ns = l.window_ns,
          .slice_ns = l.slice_ns,
          .marker_spacing_ns = l.marker_spacing_ns,
          .max_hold_ns = input_.run.parameters.max_hold_ns,
          .priority = c.spec->priority,
          .watch_spin_ns = l.spin_ns != 0 ? l.spin_ns : input_.host.spin_ns,
          .long_width_percent = l.long_block_ns != 0 ? l.long_width_percent : 100,
          .long_block_ns = l.long_block_ns != 0 ? l.long_block_ns : l.slice_ns,
          .quantum_ns = l.quantum_ns,
          .ends_by_us = l.ends_by_ns == 0 ? 0 : admission::ends_by_us(l.ends_by_ns),
          .reserved_sms = input_.run.confine == Confine::kDynamic && l.sm_limit != 0
                              ? input_.gpu.sm_count - l.sm_limit
                              : 0,
          .confine_all = l.confine_all,
          .burst_classes = l.burst_classes};
}

void World::add_pulses(std::vector<admission::PulseView>* pulses) const {
  for (const SimClient& c : clients_)
    if (c.watched)
      pulses->push_back(
          {c.spec->priority, c.pulse.busy, c.pulse.busy_since_ns, now_ns_, c.pulse.idle_since_ns});
}

// Returns the pulses that the client's gate watches.
std::span<const admission::PulseView> World::pulses(const SimClient& c) {
  pulses_.clear();
  add_pulses(&pulses_);
  if (is_paced_with_gang(c)) c.gang->add_pulses(*this, &pulses_);
  return pulses_;
}

// The facts of a launch as a gate knows them.
admission::PlannedLaunch World::planned(const SimClient& c, const Kernel& kernel) const {
  const uint32_t sms = sms_of(c), wave = kernel.wave_blocks(sms);
  const admission::History whole = history_of(kernel, sms, kernel.n_blocks);
  return {.grid = {kernel.n_blocks, 1, 1},
          .blocks = kernel.n_blocks,
          .sm_count = sms,
          .wave_blocks = wave,
          .expected_ns = admission::expected_ns(whole.block_ps, kernel.n_blocks),
          .block_ps = whole.block_ps,
          .may_cut = kernel.can_cut && !yields_,
          .may_confine = true,
          .slice_occupancy = {wave, wave},
          .sliced = history_of(kernel, sms, wave)};
}

// Policy `tally`: nobody protected was busy for so long that kernels need not stop for them.
bool World::runs_originals() const {
  if (input_.run.original_after_ns == 0) return false;
  for (const SimClient& c : clients_)
    if (c.attached && c.is_protected() &&
        (c.pulse.busy || now_ns_ - c.pulse.idle_since_ns < input_.run.original_after_ns))
      return false;
  return true;
}

// Policy `tally`: blocks of a transformed kernel that run at once, each through many of the original's. Half of
// one's length is what a burst waits for on average.
uint32_t World::workers(const SimClient& c, const Kernel& kernel) const {
  constexpr double kLeastWorkers = 24;  // published
  const double most = std::max(1.0, kernel.wave_blocks(sms_of(c)) * input_.run.worker_slots);
  const double half_ns = double(kernel.usual().block_ns) / 2, bound_ns = double(input_.run.turnaround_ns);
  if (bound_ns == 0 || half_ns <= bound_ns) return uint32_t(most);
  const double one_per_sm = bound_ns / half_ns * input_.gpu.sm_count;
  return uint32_t(std::clamp(one_per_sm, std::min(kLeastWorkers, most), most));
}

void World::host(uint32_t index) {
  SimClient& c = clients_[index];
  if (c.gate.yielding_op != 0) {
    if (c.program.completed_op < c.gate.yielding_op) return;
    cover(c, c.gate.yielding_op);
    c.gate.yielding_op = 0;
    if (c.program.step_last_op != 0) return;  // the synchronise of this step follows
  }
  const Launch& launch = launch_of(c);
  if (!launch.kernel.can_cut && c.gate.blocks_left == 0 && !c.gate.waiting()) ++c.gate.uncut_launches;
  const uint32_t left = c.gate.blocks_left != 0 ? c.gate.blocks_left : launch.kernel.n_blocks;
  LeaseView lease = view_of(c);
  // The first rank of a gang obeys its lease. The others follow at once, because it waits for them.
  const bool follows = !is_paced_with_gang(c) || c.collectives < c.gang->begun();
  if (launch.kernel.collective && follows) lease.grant = admission::Grant::kFree;
  const bool free = lease.unmanaged();
  if (free && c.program.next_op - c.program.completed_op > input_.host.queue_launches) {
    c.gate.throttled = true;
    return;
  }
  end_wait(c);
  const admission::PlannedLaunch planned_launch = planned(c, launch.kernel);
  admission::Progress progress{.done = launch.kernel.n_blocks - left, .let_go = c.gate.waited.let_go};
  admission::Plan piece = admission::plan(planned_launch, progress, lease);
  const admission::Ask ask{.estimate_ns = piece.estimate_ns,
                           .resource_class = uint32_t(launch.kernel.resource_class),
                           .may_confine = piece.sms != 0 || sms_of(c) < input_.gpu.sm_count};
  const bool on_device = lease.quantum_ns != 0 && !free;
  const bool crowded = input_.run.most_in_flight != 0 && c.gate.sent.size() >= input_.run.most_in_flight;
  const uint64_t in_flight_ns =
      crowded ? std::max(c.gate.in_flight_ns, lease.window_ns) : c.gate.in_flight_ns;
  const admission::Verdict verdict =
      on_device
          ? admission::judge_run_ahead(ask, lease, c.gate.in_flight_ns, c.gate.markers_out, c.gate.waited)
          : admission::judge(ask, lease, pulses(c), guard_ns_, in_flight_ns, c.gate.waited, now_ns_);
  if (verdict.action == Action::kWait) return wait(index, verdict.reason, lease, piece.estimate_ns);
  if (verdict.action == Action::kLetGo && !c.gate.waited.let_go) {
    c.gate.waited.let_go = true;  // the whole remainder goes out now
    ++c.result.hold_expired;
    progress.let_go = true;
    piece = admission::plan(planned_launch, progress, lease);
  }
  const uint32_t n_blocks = uint32_t(piece.box.blocks());
  // Its boundary is no obstacle while the client has the turn; later turns are not modelled.
  const bool during_bursts =
      admission::runs_during_bursts(ask, lease) && lease.grant == admission::Grant::kGranted;
  const bool begins = on_device && verdict.action == Action::kGo &&
                      begins_quantum(c, piece.estimate_ns, during_bursts, lease.quantum_ns);
  if (verdict.action == Action::kGo && !on_device) audit_start(c);
  stop_waiting(c);
  admission::after_start(c.gate.waited);
  const bool yields = verdict.action == Action::kGo && yields_ && launch.kernel.can_cut && !runs_originals();
  const uint64_t call_ns =
      (launch.in_call ? 0 : input_.host.launch_ns) + (begins ? input_.host.boundary_call_ns : 0);
  const Boundary boundary = !begins         ? Boundary::kNone
                            : during_bursts ? Boundary::kDuringBursts
                                            : Boundary::kGate;
  submit(index, launch.kernel,
         {.n_blocks = n_blocks,
          .at_ns = now_ns_ + call_ns,
          .workers = yields ? workers(c, launch.kernel) : 0,
          .sm_limit = piece.sms != 0 ? piece.sms : c.sm_limit,
          .boundary = boundary,
          .length_class =
              base::length_class(admission::longest_of_quantum_ns(piece.estimate_ns, lease.quantum_ns))});
  if (launch.kernel.collective && c.gang != nullptr) c.gang->begin(++c.collectives);
  const uint64_t op = c.program.next_op - 1;
  if (boundary == Boundary::kGate) note_quantum(index, op);
  if (!free) {
    if (c.gate.sent.empty()) c.gate.oldest_since_ns = now_ns_;
    if (c.gate.in_flight_ns == 0) c.gate.in_flight_since_ns = now_ns_;
    if (c.gate.in_flight_ns == 0 && on_device && lease.grant != admission::Grant::kGranted) notify_daemon();
    c.gate.in_flight_ns += piece.estimate_ns;
    c.gate.unmarked_ns += piece.estimate_ns;
    c.gate.sent.push_back({op, piece.estimate_ns, false});
    const bool many = on_device && ++c.gate.unmarked_calls >= admission::kCallsPerMarker;
    if (many || c.gate.unmarked_ns >= c.lease.marker_spacing_ns) mark(index);
  }
  if (yields) {
    c.gate.yielding_op = op;  // one at a time: see completed()
    return;
  }
  c.gate.blocks_left = left - n_blocks;
  const uint64_t over_ns = now_ns_ + call_ns + (free ? 0 : input_.host.gate_ns);
  if (c.gate.blocks_left != 0) {
    push(over_ns, EventKind::kHost, index, ++c.program.host_token);
    return;
  }
  end_call(c);
  if (launch.last_of_step) return end_step(index, op);  // next_launch advances in step_done()
  ++c.program.next_launch;
  run_host(index, over_ns);
}

// The step whose last launch is `op`: the program waits for it, or for one before.
void World::end_step(uint32_t index, uint64_t op) {
  SimClient& c = clients_[index];
  c.program.steps_behind.push_back(op);
  while (!c.program.steps_behind.empty() && c.program.steps_behind.front() <= c.program.completed_op)
    c.program.steps_behind.pop_front();
  if (c.program.steps_behind.size() <= c.spec->workload->steps_ahead) {
    push(now_ns_ + input_.host.launch_ns, EventKind::kStepDone, index, c.incarnation);
    return;
  }
  c.program.step_last_op = c.program.steps_behind.front();
  c.program.steps_behind.pop_front();
}

// Checks what must never happen, whatever the rule says.
void World::audit_start(const SimClient& c) {
  if (c.lease.grant != policy::Grant::kGranted) ++audit_.starts_without_lease;
  if (c.lease.packed || c.lease.confine_all) return;
  const auto seen = pulses(c);
  audit_.starts_under_pulse += std::any_of(seen.begin(), seen.end(), [&](const admission::PulseView& pulse) {
    return pulse.busy && pulse.priority > c.spec->priority;
  });
}

// Adds the stretch that just ended.
void World::end_wait(SimClient& c) {
  if (!c.gate.waiting()) return;
  const bool progress = c.gate.used_ns != c.gate.completed_at_stretch;
  admission::after_wait(c.gate.waited, c.gate.waiting_for, now_ns_ - c.gate.stretch_start_ns, progress);
  c.result.longest_hold_ns = std::max(c.result.longest_hold_ns, c.gate.waited.held_ns);
}

void World::end_call(SimClient& c) {
  c.gate.waited = {};
  c.gate.notified = false;
}

void World::stop_waiting(SimClient& c) {
  c.gate.waiting_for = Reason::kNone;
  c.gate.queued_ns = 0;
}

void World::wait(uint32_t index, Reason reason, const LeaseView& lease, uint64_t estimate) {
  SimClient& c = clients_[index];
  if (!c.gate.waiting()) c.gate.waiting_since_ns = now_ns_;
  c.gate.waiting_for = reason;
  c.gate.queued_ns = estimate;
  c.gate.stretch_start_ns = now_ns_;
  c.gate.completed_at_stretch = c.gate.used_ns;
  mark(index);
  if (admission::daemon_should_know(reason, lease, c.gate.waited) &&
      (!c.gate.notified || c.gate.notified_word != c.lease_word)) {
    c.gate.notified = true;
    c.gate.notified_word = c.lease_word;
    notify_daemon();
  }
  acknowledge_drain(index);
  int64_t marker_ns = admission::kNoMarker;
  if (input_.run.timed_waits && !c.gate.sent.empty())
    marker_ns = int64_t(c.gate.sent.front().estimate_ns) - int64_t(now_ns_ - c.gate.oldest_since_ns);
  admission::WaitPlan plan =
      admission::plan_wait(reason, lease, c.gate.waited, c.gate.in_flight_ns, marker_ns);
  if (lease.quantum_ns != 0) plan = admission::kFarAhead;
  if (input_.run.polls) plan = {kPollNs, 0};
  const uint64_t left_ns = lease.max_hold_ns - c.gate.waited.towards_limit_ns(reason);
  const uint64_t stretch = std::min(plan.watch_ns + plan.sleep_ns, left_ns);
  const uint64_t wake_ns = plan.sleep_ns == 0 ? 0 : input_.host.wake_ns;
  c.gate.wakes_ns = now_ns_ + stretch + wake_ns;
  c.gate.spin_until_ns = now_ns_ + plan.watch_ns;
  push(c.gate.wakes_ns, EventKind::kHost, index, ++c.program.host_token);
}

// Futex wake, or what a spinning thread sees at once.
void World::wake(uint32_t index, uint64_t at_ns) {
  SimClient& c = clients_[index];
  if (!c.gate.waiting() || at_ns >= c.gate.wakes_ns) return;  // its own timer is first
  c.gate.wakes_ns = at_ns;
  push(at_ns, EventKind::kHost, index, ++c.program.host_token);
}

// A pulse fell idle: whoever spins sees it when the guard is over, the others sleep on.
void World::wake_watchers() {
  for (uint32_t i = 0; i < clients_.size(); ++i) wake_watcher(i);
}

void World::wake_watcher(uint32_t index) {
  const GateState& gate = clients_[index].gate;
  const uint64_t at_ns = now_ns_ + guard_ns_;
  if (gate.waiting_for == Reason::kPulse && at_ns <= gate.spin_until_ns) wake(index, at_ns);
}

void World::mark(uint32_t index) {
  SimClient& c = clients_[index];
  c.gate.unmarked_ns = 0;
  c.gate.unmarked_calls = 0;
  if (c.gate.sent.empty() || c.gate.sent.back().marked) return;
  c.gate.sent.back().marked = true;
  ++c.gate.markers_out;
  if (c.gate.sent.back().op <= c.program.completed_op)
    push(now_ns_ + input_.host.marker_ns, EventKind::kMarker, index, c.gate.sent.back().op);
}

void World::marker_seen(uint32_t index, uint64_t op) {
  SimClient& c = clients_[index];
  cover(c, op);
  acknowledge_drain(index);
  if (c.gate.waiting_for == Reason::kWindow && now_ns_ <= c.gate.spin_until_ns) wake(index, now_ns_);
}

void World::cover(SimClient& c, uint64_t op) {
  while (!c.gate.sent.empty() && c.gate.sent.front().op <= op) {
    c.gate.in_flight_ns -= c.gate.sent.front().estimate_ns;
    c.gate.markers_out -= c.gate.sent.front().marked;
    c.gate.used_ns += c.gate.sent.front().estimate_ns;
    if (c.gate.in_flight_ns == 0) c.gate.in_flight_end_ns = now_ns_;
    c.gate.oldest_since_ns = now_ns_;
    c.gate.sent.pop_front();
  }
}

void World::acknowledge_drain(uint32_t index) {
  SimClient& c = clients_[index];
  if (c.lease.grant != policy::Grant::kHold || c.gate.in_flight_ns != 0 ||
      c.gate.drained_word == c.lease_word)
    return;
  c.gate.drained_word = c.lease_word;
  notify_daemon();
}

}  // namespace tessera::simulator
