// Best-effort client whose launches go to the driver's queue at once: what passes the gate in its stream, and when.
//
// Launches form quanta by their estimates. The first of a quantum waits on the device until no protected client
// is busy and the lease grants; the others follow it. So of a stream one quantum at most is in a burst's way.
#include <algorithm>

#include "simulator/world.h"

namespace tessera::simulator {

bool World::gated_on_device(const SimClient& c) const {
  return input_.run.gate == GateKind::kDevice && !c.is_protected() && c.lease.grant != policy::Grant::kFree;
}

// The thread waits: of the driver's queue, or of what the gate allows.
bool World::far_ahead(const SimClient& c) const {
  const uint64_t launches = c.next_op - 1 - c.completed_op;
  if (!gated_on_device(c)) return launches + 1 >= input_.host.queue_launches / 4 * 3;
  return launches >= input_.host.ahead_launches || c.ahead_ns >= input_.host.ahead_ns;
}

void World::queue_launch(uint32_t index) {
  SimClient& c = clients_[index];
  if (far_ahead(c)) {
    c.throttled = true;
    return;
  }
  const Launch& launch = launch_of(c);
  const uint64_t estimate_ns =
      std::max<uint64_t>(1, uint64_t(double(believed(launch.kernel).solo_ns(input_.gpu.sm_count)) *
                                     input_.perturbation.estimate_factor));
  const bool begins = estimate_ns > c.quantum_left_ns;
  if (begins) c.quantum_left_ns = std::max(estimate_ns, input_.run.gate_quantum_ns);
  c.quantum_left_ns -= estimate_ns;
  const uint64_t over_ns =
      now_ns_ + input_.host.launch_ns + input_.host.gate_ns + (begins ? input_.host.boundary_call_ns : 0);
  submit(index, launch.kernel, launch.kernel.n_blocks, over_ns, 0, begins);
  const uint64_t op = c.next_op - 1;
  if (begins) c.quanta.push_back(op);
  drop_ended_quanta(c);
  const bool begun = !begins && c.passed == c.quanta.back();
  c.sent.push_back({op, estimate_ns, false, begun});
  c.ahead_ns += estimate_ns;
  if (begun) c.in_flight_ns += estimate_ns;
  if (begins) open_quanta(index);
  end_call(c);
  if (launch.last_of_step) return end_step(index, op);
  ++c.next_launch;
  run_host(index, over_ns);
}

// The first launch of a quantum began: the rest of it is in flight, too.
void World::quanta_began() {
  if (input_.run.gate != GateKind::kDevice) return;
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    SimClient& c = clients_[i];
    if (c.passed == gpu_.passed(i)) continue;
    c.passed = gpu_.passed(i);
    const auto next = std::upper_bound(c.quanta.begin(), c.quanta.end(), c.passed);
    const uint64_t end = next == c.quanta.end() ? UINT64_MAX : *next;
    if (c.in_flight_ns == 0) c.in_flight_since_ns = now_ns_;
    for (SimClient::Sent& sent : c.sent) {
      if (sent.op >= end) break;
      if (sent.begun) continue;
      sent.begun = true;
      c.in_flight_ns += sent.estimate_ns;
    }
  }
}

void World::work_ended(uint32_t index) {
  SimClient& c = clients_[index];
  cover(c, c.completed_op);
  drop_ended_quanta(c);
  open_quanta(index);
  acknowledge_drain(index);
}

// That one ended is known when the next one is there.
void World::drop_ended_quanta(SimClient& c) {
  while (c.quanta.size() > 1 && c.quanta[1] <= c.completed_op + 1) {
    c.quanta.pop_front();
    c.n_opened -= std::min<size_t>(c.n_opened, 1);
  }
}

bool World::may_pass(const SimClient& c) const {
  if (c.lease.grant == policy::Grant::kFree) return true;
  if (c.lease.grant != policy::Grant::kGranted || now_ns_ >= c.expires_ns) return false;
  if (c.lease.packed) return true;
  return std::none_of(clients_.begin(), clients_.end(), [&](const SimClient& p) {
    return p.watched && p.busy && p.spec->priority > c.spec->priority;
  });
}

void World::update_gate(uint32_t index) {
  SimClient& c = clients_[index];
  if (input_.run.gate != GateKind::kDevice || c.is_protected() || !c.attached) return;
  const bool was_open = c.gate_open;
  c.gate_open = may_pass(c);
  if (was_open && !c.gate_open) c.closed_since_ns = now_ns_;
  if (input_.run.opened_quanta != 0) return count_quanta(index);
  if (c.gate_open && !was_open) gpu_.open_gate(index, now_ns_ + input_.host.open_ns);
  if (was_open && !c.gate_open) gpu_.close_gate(index);
}

void World::update_gates() {
  for (uint32_t i = 0; i < clients_.size(); ++i) update_gate(i);
}

// RunSpec::opened_quanta: the gate is open for single quanta, unless the lease is free.
void World::count_quanta(uint32_t index) {
  SimClient& c = clients_[index];
  const bool counts = c.lease.grant != policy::Grant::kFree;
  if (counts != c.quanta_count) {
    c.quanta_count = counts;
    c.n_opened = 0;
    counts ? gpu_.close_gate(index) : gpu_.open_gate(index, now_ns_);
  }
  open_quanta(index);
}

// The thread that opens sees that it may, and that the quantum before ended.
void World::open_quanta(uint32_t index) {
  SimClient& c = clients_[index];
  if (!c.quanta_count || !c.gate_open) return;
  while (c.n_opened < std::min<size_t>(c.quanta.size(), input_.run.opened_quanta)) {
    ++c.n_opened;
    gpu_.add_pass(index, now_ns_ + input_.host.open_ns);
  }
}

}  // namespace tessera::simulator
