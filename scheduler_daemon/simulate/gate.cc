// Best-effort client: what interpose/gate/admit.cc does, in virtual time.
#include <algorithm>

#include "ipc/abi/width.h"
#include "scheduler_daemon/simulate/world.h"

namespace tessera::simulate {
namespace {

constexpr uint64_t kWindowSpin_ns = 20'000, kWindowSleep_ns = 50'000, kHoldSleep_ns = 1'000'000;
constexpr uint64_t kDrainSleep_ns = 100'000;
constexpr uint64_t kNear_ns = 100'000, kTimedSpin_ns = 150'000;  // RunSpec::timed_waits
constexpr uint64_t kMaxAhead = 64;
constexpr uint64_t kPoll_ns = 20'000;  // RunSpec::polls: coarse enough for the event count

}  // namespace

uint64_t World::estimate_ns(const Kernel& kernel, uint32_t blocks) const {
  return std::max<uint64_t>(
      1, uint64_t(double(kernel.solo_ns(input_.gpu.sm_count, blocks)) * input_.perturbation.estimate_factor));
}

// Whole waves, because a partial one costs as much as a full one, what is little more than a slice as one;
// but blocks that last long get less than a wave.
uint32_t World::blocks_to_send(const SimClient& c, const Kernel& kernel, uint32_t left) const {
  if (!kernel.can_cut || c.lease.yield) return left;
  if (c.lease.width_blocks != 0) return std::min(left, c.lease.width_blocks);
  const uint64_t wave = kernel.wave_blocks(input_.gpu.sm_count), block_ns = estimate_ns(kernel, 1);
  if (c.lease.long_block_ns != 0 && block_ns > c.lease.long_block_ns) {
    const uint64_t width =
        ipc::abi::long_width_blocks(wave, c.lease.long_width_percent, c.lease.long_block_ns, block_ns);
    return uint32_t(ipc::abi::even_part(left, std::max<uint64_t>(1, width), true));
  }
  if (estimate_ns(kernel, left) <= c.lease.slice_ns) return left;
  const uint64_t most = std::max<uint64_t>(1, c.lease.slice_ns / block_ns) * wave;
  return left <= most * 5 / 4 ? left : uint32_t(most);
}

bool World::pulse_in_the_way(const SimClient& own) const {
  for (const SimClient& c : clients_) {
    if (!c.watched || c.spec->priority <= own.spec->priority) continue;
    if (c.busy || now_ns_ - c.idle_since_ns < guard_ns_) return true;
  }
  return false;
}

// A packed lease with a width is for the kind of launch that the daemon saw when it decided.
bool World::packed_for(const SimClient& c) const {
  if (!c.lease.packed || c.lease.width_blocks == 0) return c.lease.packed;
  return c.job[c.next_launch].kernel.resource_class == c.seen_class;
}

Obstacle World::look(const SimClient& c, uint64_t estimate) const {
  if (c.lease.grant == policy::Grant::kFree) return Obstacle::kFree;
  if (c.lease.grant != policy::Grant::kGranted || now_ns_ >= c.expires_ns) return Obstacle::kLease;
  if (!packed_for(c) && pulse_in_the_way(c)) return Obstacle::kPulse;
  if (c.in_flight_ns != 0 && c.in_flight_ns + estimate > c.lease.window_ns) return Obstacle::kWindow;
  return Obstacle::kNone;
}

void World::host(uint32_t index) {
  SimClient& c = clients_[index];
  if (c.yielding_op != 0) {
    if (c.completed_op < c.yielding_op) return;
    cover(c, c.yielding_op);
    c.yielding_op = 0;
    if (c.step_last_op != 0) return;  // the synchronise of this step follows
  }
  const Launch& launch = launch_of(c);
  if (!launch.kernel.can_cut && c.blocks_left == 0 && !c.waiting()) ++c.uncut_launches;
  const uint32_t left = c.blocks_left != 0 ? c.blocks_left : launch.kernel.n_blocks;
  const bool free = c.lease.grant == policy::Grant::kFree;
  if (free && c.next_op - c.completed_op > kMaxAhead) {
    c.throttled = true;
    return;
  }
  uint32_t blocks = free || c.expired ? left : blocks_to_send(c, launch.kernel, left);
  const uint64_t estimate = estimate_ns(launch.kernel, blocks);
  if (!c.expired) {
    Obstacle why = look(c, estimate);
    if (why != Obstacle::kNone && why != Obstacle::kFree) {
      if (count_wait(c)) return wait(index, why, estimate);
      c.expired = true;  // the whole remainder goes out now
      ++c.result.hold_expired;
      blocks = left;
    }
  }
  if (!free && !c.expired) {
    if (!packed_for(c) && pulse_in_the_way(c)) ++audit_.starts_under_pulse;
    if (c.lease.grant != policy::Grant::kGranted) ++audit_.starts_without_lease;
  }
  stop_waiting(c);
  if (input_.run.hold_per_piece) c.held_ns = c.stuck_ns = 0;
  const bool yields = !free && !c.expired && c.lease.yield && launch.kernel.can_cut;
  submit(index, launch.kernel, blocks, now_ns_ + input_.host.launch_ns, yields);
  const uint64_t op = c.next_op - 1;
  if (!free) {
    const uint64_t sent_ns = estimate_ns(launch.kernel, blocks);
    if (c.sent.empty()) c.oldest_since_ns = now_ns_;
    c.in_flight_ns += sent_ns;
    c.unmarked_ns += sent_ns;
    c.sent.push_back({op, sent_ns, false});
    if (c.unmarked_ns >= c.lease.marker_spacing_ns) mark(index);
  }
  if (yields) {
    c.yielding_op = op;  // one at a time: see completed()
    return;
  }
  c.blocks_left = left - blocks;
  if (c.blocks_left == 0) {
    end_call(c);
    if (launch.last_of_step) {
      c.step_last_op = op;  // next_launch advances in step_done()
      return;
    }
    ++c.next_launch;
  }
  push(now_ns_ + input_.host.launch_ns, EventKind::kHost, index, ++c.host_token);
}

// Adds the stretch that just ended. False: the hold limit is reached.
bool World::count_wait(SimClient& c) {
  if (!c.waiting()) return true;
  const uint64_t waited = now_ns_ - c.stretch_start_ns;
  const uint64_t limit = input_.run.parameters.max_hold_ns;
  if (c.waiting_for == Obstacle::kWindow) {
    c.stuck_ns = c.used_ns != c.completed_at_stretch ? 0 : c.stuck_ns + waited;
    return c.stuck_ns < limit;
  }
  c.held_ns += waited;
  c.result.longest_hold_ns = std::max(c.result.longest_hold_ns, c.held_ns);
  return c.held_ns < limit;
}

void World::end_call(SimClient& c) {
  c.held_ns = c.stuck_ns = 0;
  c.expired = c.notified = false;
}

void World::stop_waiting(SimClient& c) {
  c.waiting_for = Obstacle::kNone;
  c.queued_ns = 0;
}

void World::wait(uint32_t index, Obstacle why, uint64_t estimate) {
  SimClient& c = clients_[index];
  if (!c.waiting()) c.waiting_since_ns = now_ns_;
  c.waiting_for = why;
  c.queued_ns = estimate;
  c.stretch_start_ns = now_ns_;
  c.completed_at_stretch = c.used_ns;
  mark(index);
  if (why == Obstacle::kLease && (!c.notified || c.notified_word != c.lease_word)) {
    c.notified = true;
    c.notified_word = c.lease_word;
    notify_daemon();
  }
  acknowledge_drain(index);
  const uint64_t limit = input_.run.parameters.max_hold_ns;
  const uint64_t used = why == Obstacle::kWindow ? c.stuck_ns : c.held_ns;
  uint64_t sleep_ns = kHoldSleep_ns;
  uint64_t spin_ns = c.lease.spin_ns != 0 ? c.lease.spin_ns : input_.host.spin_ns;
  if (why == Obstacle::kWindow) sleep_ns = kWindowSleep_ns, spin_ns = kWindowSpin_ns;
  if (why == Obstacle::kWindow && input_.run.timed_waits && !c.sent.empty()) {
    const uint64_t passed = now_ns_ - c.oldest_since_ns, expected = c.sent.front().estimate_ns;
    const uint64_t left = expected - std::min(expected, passed);
    spin_ns = left <= kNear_ns ? kTimedSpin_ns : 0;
    sleep_ns = left <= kNear_ns ? kWindowSleep_ns : left / 2;
  }
  if (why == Obstacle::kPulse) sleep_ns = 50'000 + c.held_ns / 8;
  if (c.in_flight_ns != 0) sleep_ns = std::min(sleep_ns, kDrainSleep_ns);
  sleep_ns = std::min(sleep_ns, kHoldSleep_ns);
  if (input_.run.polls) spin_ns = kPoll_ns, sleep_ns = 0;
  const uint64_t stretch = std::min(spin_ns + sleep_ns, limit - std::min(limit, used));
  const uint64_t wake_ns = input_.run.polls ? 0 : input_.host.wake_ns;
  c.wakes_ns = now_ns_ + stretch + wake_ns;
  c.spin_until_ns = now_ns_ + spin_ns;
  push(c.wakes_ns, EventKind::kHost, index, ++c.host_token);
}

// Futex wake, or what a spinning thread sees at once.
void World::wake(uint32_t index, uint64_t at_ns) {
  SimClient& c = clients_[index];
  if (!c.waiting() || at_ns >= c.wakes_ns) return;  // its own timer is first
  c.wakes_ns = at_ns;
  push(at_ns, EventKind::kHost, index, ++c.host_token);
}

// A pulse fell idle: whoever spins sees it when the guard is over, the others sleep on.
void World::wake_watchers() {
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const uint64_t at_ns = now_ns_ + guard_ns_;
    if (clients_[i].waiting_for == Obstacle::kPulse && at_ns <= clients_[i].spin_until_ns) wake(i, at_ns);
  }
}

void World::mark(uint32_t index) {
  SimClient& c = clients_[index];
  c.unmarked_ns = 0;
  if (c.sent.empty() || c.sent.back().marked) return;
  c.sent.back().marked = true;
  if (c.sent.back().op <= c.completed_op)
    push(now_ns_ + input_.host.marker_ns, EventKind::kMarker, index, c.sent.back().op);
}

void World::marker_seen(uint32_t index, uint64_t op) {
  SimClient& c = clients_[index];
  cover(c, op);
  acknowledge_drain(index);
  if (c.waiting_for == Obstacle::kWindow && now_ns_ <= c.spin_until_ns) wake(index, now_ns_);
}

void World::cover(SimClient& c, uint64_t op) {
  while (!c.sent.empty() && c.sent.front().op <= op) {
    c.in_flight_ns -= c.sent.front().estimate_ns;
    c.used_ns += c.sent.front().estimate_ns;
    c.oldest_since_ns = now_ns_;
    c.sent.pop_front();
  }
}

void World::acknowledge_drain(uint32_t index) {
  SimClient& c = clients_[index];
  if (c.lease.grant != policy::Grant::kHold || c.in_flight_ns != 0 || c.drained_word == c.lease_word) return;
  c.drained_word = c.lease_word;
  notify_daemon();
}

}  // namespace tessera::simulate
