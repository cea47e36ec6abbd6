// Best-effort client whose launches go to the driver's queue at once: what passes the gate in its stream, and when. When a
// boundary is due and how far a program may run ahead says admission/boundary.h, as in the preload library. One stream
// per client, so that one quantum at most is in a burst's way.
#include <algorithm>
#include <utility>

#include "simulator/world.h"

namespace tessera::simulator {
namespace {

constexpr long kMostPeers = 6;  // ipc::abi::kGatePeers

bool lets_all_pass(const DeviceGateState& gate) {
  return gate.open && gate.longest_class == base::kLongestClass;
}

}  // namespace

// As core::Gpu::no_device_gate.
bool World::can_gate_on_device(const SimClient& c) const {
  if (input_.run.gate != GateKind::kDevice || c.is_protected() || is_paced_with_gang(c)) return false;
  const auto n_protected = std::count_if(clients_.begin(), clients_.end(),
                                         [](const SimClient& p) { return p.attached && p.is_protected(); });
  return n_protected <= kMostPeers;
}

bool World::begins_quantum(SimClient& c, uint64_t estimate_ns, bool during_bursts, uint64_t length_ns) const {
  const bool due =
      admission::boundary_due(c.device_gate.quantum, estimate_ns, during_bursts, length_ns, now_ns_);
  c.device_gate.quantum = due ? admission::begin_quantum(estimate_ns, during_bursts, length_ns, now_ns_)
                              : admission::continue_quantum(c.device_gate.quantum, estimate_ns);
  if (due) c.device_gate.longest_ns = admission::longest_of_late_ns(c.device_gate.longest_ns, estimate_ns);
  return due;
}

void World::note_quantum(uint32_t index, uint64_t op) {
  if (!clients_[index].device_gate.counts_quanta) return;
  clients_[index].device_gate.quanta.push_back(op);
  open_quanta(index);
}

void World::opens_gates(SimClient& c) {
  if (c.pulse.busy || !c.pulse.closes_gates) return;
  c.pulse.closes_gates = false;
  update_gates();
}

// With RunSpec::opened_quanta nothing is asked but who is busy.
bool World::may_pass(const SimClient& c) const {
  const bool counted = input_.run.opened_quanta != 0;
  if (c.lease.grant == policy::Grant::kFree || c.lease.packed) return true;
  if (!counted && c.lease.grant != policy::Grant::kGranted) return false;
  return std::none_of(clients_.begin(), clients_.end(), [&](const SimClient& p) {
    return p.attached && p.is_protected() && (counted ? p.pulse.busy : p.pulse.closes_gates);
  });
}

void World::update_gate(uint32_t index) {
  SimClient& c = clients_[index];
  if (input_.run.gate != GateKind::kDevice || c.is_protected() || !c.attached) return;
  const bool was_open = c.device_gate.open, let_all_pass = lets_all_pass(c.device_gate);
  c.device_gate.open = may_pass(c);
  const bool same_class =
      std::exchange(c.device_gate.longest_class, c.lease.length_class) == c.lease.length_class;
  if (was_open && !c.device_gate.open) c.device_gate.closed_since_ns = now_ns_;
  if (let_all_pass && !lets_all_pass(c.device_gate))
    push(now_ns_ + input_.run.parameters.max_hold_ns, EventKind::kGateLimit, index, ++c.device_gate.closings);
  const bool counted = input_.run.opened_quanta != 0 && c.lease.quantum_ns != 0;
  const bool counts_now = std::exchange(c.device_gate.counts_quanta, counted) != counted;
  if (counted && counts_now) gpu_.close_gate(index);
  if (counted) return open_quanta(index);
  if (c.device_gate.open == was_open && same_class && !counts_now) return;
  if (c.device_gate.open)
    gpu_.open_gate(index, now_ns_ + (was_open ? 0 : input_.host.open_ns), c.lease.length_class);
  else
    gpu_.close_gate(index);
}

// A gate that was closed for the hold limit, or open for short work only, lets one quantum pass.
void World::reach_gate_limit(uint32_t index, uint64_t closing) {
  SimClient& c = clients_[index];
  if (lets_all_pass(c.device_gate) || closing != c.device_gate.closings) return;
  if (c.gate.in_flight_ns != 0) {
    ++c.result.hold_expired;
    if (c.device_gate.open)
      gpu_.open_gate(index, now_ns_,
                     c.device_gate.longest_class = base::kLongestClass);  // until the next lease
    else
      gpu_.add_pass(index, now_ns_);
  }
  push(now_ns_ + input_.run.parameters.max_hold_ns, EventKind::kGateLimit, index, closing);
}

void World::update_gates() {
  for (uint32_t i = 0; i < clients_.size(); ++i) update_gate(i);
}

// RunSpec::opened_quanta: a thread sees that it may, and that a quantum ended, which is known when the next one is there.
void World::open_quanta(uint32_t index) {
  SimClient& c = clients_[index];
  if (!c.device_gate.counts_quanta) return;
  while (c.device_gate.quanta.size() > 1 && c.device_gate.quanta[1] <= c.program.completed_op + 1) {
    c.device_gate.quanta.pop_front();
    c.device_gate.n_opened -= std::min<size_t>(c.device_gate.n_opened, 1);
  }
  while (c.device_gate.open &&
         c.device_gate.n_opened < std::min<size_t>(c.device_gate.quanta.size(), input_.run.opened_quanta)) {
    ++c.device_gate.n_opened;
    gpu_.add_pass(index, now_ns_ + input_.host.open_ns);
  }
}

}  // namespace tessera::simulator
