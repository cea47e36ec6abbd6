// The daemon in virtual time: observations as core::Client::view makes them, leases as core::apply
// does.
#include <algorithm>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "scheduler_daemon/policy/gang.h"
#include "simulator/world.h"

namespace tessera::simulator {

using policy::Grant;

void World::notify_daemon() {
  const uint64_t at_ns = now_ns_ + input_.host.daemon_ns + input_.perturbation.observe_delay_ns;
  if (at_ns >= decide_at_ns_) return;
  decide_at_ns_ = at_ns;
  push(at_ns, EventKind::kDecide, 0);
}

// As core::Client::drained.
bool World::drained(const SimClient& c) const {
  if (c.gate.drained_word == c.lease_word || c.gate.in_flight_ns == 0) return true;
  return !c.device_gate.open && c.lease.quantum_ns != 0 && c.lease.grant == Grant::kHold &&
         now_ns_ - c.device_gate.closed_since_ns >= admission::drained_after_ns(c.lease.quantum_ns);
}

policy::ClientView World::view(SimClient& c) {
  policy::ClientView v;
  v.id = uint64_t(&c - clients_.data()) + 1 + c.incarnation * 100'000;
  v.priority = c.spec->priority;
  v.weight = c.spec->weight;
  v.slo_ns = c.spec->slo_ns;
  v.blocks_launched = gpu_.blocks_started(uint32_t(&c - clients_.data()));
  if (c.is_protected()) {
    v.busy = c.pulse.busy;
    v.watched = c.watched;
    v.busy_since_ns = c.pulse.busy_since_ns;
    v.idle_since_ns = c.pulse.idle_since_ns;
    v.resource_class = c.pulse.resource_class;
    v.kinds = c.pulse.bursts.kinds();
    v.slowdown = c.pulse.bursts.take_slowdown();
    v.own_slowdown = c.pulse.bursts.own_slowdown();
    v.bursts = c.pulse.bursts.compared();
    v.burst_ns = c.pulse.bursts.baseline_ns();
    v.change_ns = c.pulse.bursts.change_ns();
    v.knows_change = c.pulse.bursts.knows_change();
    v.next_burst_ns = c.pulse.bursts.next_ns();
    v.ended = c.pulse.bursts.take_ended();
    return v;
  }
  const bool held_on_device = !c.device_gate.open && c.gate.in_flight_ns != 0;
  v.waiting = c.gate.waiting() || held_on_device;
  v.waiting_since_ns = held_on_device     ? c.device_gate.closed_since_ns
                       : c.gate.waiting() ? c.gate.waiting_since_ns
                                          : 0;
  v.in_flight_ns = c.gate.in_flight_ns;
  v.queued_ns = held_on_device ? c.device_gate.longest_ns : c.gate.queued_ns;
  v.used_ns = c.gate.used_ns;
  v.uncut_launches = c.gate.uncut_launches;
  v.drained = drained(c);
  if (c.program.in_job && c.program.next_launch < c.program.job.size()) {
    const Kernel& k = c.program.job[c.program.next_launch].kernel;
    v.resource_class = k.resource_class;
    v.launch_sms = uint32_t(std::min(double(input_.gpu.sm_count), k.n_blocks * k.sms_per_block));
    v.wave_blocks = k.wave_blocks(input_.gpu.sm_count);
  }
  v.slice_overhead_ns = input_.gpu.kernel_gap_ns;
  v.gate_on_device = can_gate_on_device(c);
  v.can_confine = input_.run.confine != Confine::kNone;
  return v;
}

void World::decide() {
  decide_at_ns_ = UINT64_MAX;
  uint64_t next_look_ns = 0;
  // Twice at most: a revocation that had drained already, then the grant that it makes possible.
  for (int round = 0; round < 2; ++round) {
    policy::Observation& o = observation_;
    std::vector<uint32_t>& indices = observed_;
    o.clients.clear();
    indices.clear();
    o.now_ns = now_ns_;
    o.mps = !exclusive();
    o.sm_count = input_.gpu.sm_count;
    for (uint32_t i = 0; i < clients_.size(); ++i) {
      if (!clients_[i].attached) continue;
      indices.push_back(i);
      o.clients.push_back(view(clients_[i]));
    }
    policy::Decision d = policy_->decide(o);
    tell_busy_ = d.tell_busy;
    ++n_decisions_;
    next_look_ns = d.next_look_ns;
    bool revoked = false, all_drained = true;
    uint32_t n_granted = 0;
    for (size_t i = 0; i < indices.size() && i < d.leases.size(); ++i) {
      SimClient& c = clients_[indices[i]];
      const bool was_granted = c.lease.grant == Grant::kGranted;
      apply(indices[i], is_paced_with_gang(c) ? c.gang->share(*this, d.leases[i], now_ns_) : d.leases[i]);
      if (d.leases[i].grant == Grant::kFree && c.lease.grant == Grant::kGranted)
        next_look_ns = base::earlier_due(next_look_ns, now_ns_ + policy::kRenewGangNs);
      if (d.leases[i].opens_gates) opens_gates(c);
      if (c.lease.grant == Grant::kGranted) ++n_granted;
      if (c.lease.grant == Grant::kHold && was_granted) {
        revoked = true;
        all_drained &= drained(c);
      }
    }
    if (exclusive() && n_granted > 1) ++audit_.overlaps;
    if (!revoked || !all_drained) break;
  }
  if (next_look_ns == 0) return;
  decide_at_ns_ = std::max(next_look_ns, now_ns_ + 1);
  push(decide_at_ns_, EventKind::kDecide, 0);
}

void World::apply(uint32_t index, const policy::Lease& lease) {
  SimClient& c = clients_[index];
  auto terms = [](const policy::Lease& l) {
    return std::tuple(l.grant, l.window_ns, l.slice_ns, l.marker_spacing_ns, l.packed, l.long_block_ns,
                      l.long_width_percent, l.spin_ns, l.sm_limit, l.confine_all, l.burst_classes,
                      l.quantum_ns, l.keeps_closed, l.ends_by_ns, l.length_class);
  };
  const bool changed = c.lease_word == 0 || terms(lease) != terms(c.lease);
  if (lease.grant == Grant::kGranted) c.expires_ns = now_ns_ + lease.duration_ns;
  if (c.lease_word == 0 && !c.is_protected() && input_.run.first_part == 0) {
    const bool at_attach = input_.run.confine == Confine::kAttach && lease.sm_limit != 0;
    c.sm_limit = at_attach ? lease.sm_limit : input_.run.sm_limit;
  }
  const bool told = changed || lease.nudge;
  c.lease = lease;
  if (input_.run.gate_quantum_ns != 0 && lease.quantum_ns != 0)
    c.lease.quantum_ns = input_.run.gate_quantum_ns;
  if (told) {
    ++c.lease_word;
    wake(index, now_ns_ + input_.host.wake_ns);
    acknowledge_drain(index);
  }
  update_gate(index);
  if ((lease.packed || lease.confine_all) && lease.grant == Grant::kGranted)
    for (SimClient& p : clients_)
      if (p.is_protected() && p.pulse.busy) p.pulse.packed = true;
}

}  // namespace tessera::simulator
