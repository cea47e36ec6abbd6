// Makes a policy's decision the client's lease, and with it its gate and its trace.
#include <algorithm>
#include <utility>

#include "admission/lease.h"
#include "admission/limits.h"
#include "base/units.h"
#include "ipc/channel/gate.h"
#include "ipc/channel/lease.h"
#include "scheduler_daemon/core/gpu.h"
#include "scheduler_daemon/core/traces.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;

// Whole steps, more rather than less.
uint32_t reserved_sms(const Client& client, const policy::Lease& lease) {
  if (client.gpus.empty() || client.dying) return 0;
  const uint32_t sm_count = client.gpus.front().sm_count;
  if (lease.sm_limit == 0 || lease.sm_limit >= sm_count) return 0;
  return (sm_count - lease.sm_limit + abi::kReserveStep - 1) / abi::kReserveStep * abi::kReserveStep;
}

}  // namespace

void apply(Common& common, Client& client, const policy::Lease& lease, uint64_t now_ns, bool tell_busy) {
  static constexpr uint32_t kStates[] = {abi::kLeaseHold, abi::kLeaseGranted, abi::kLeaseFree};
  ipc::LeaseTerms terms;
  terms.state = kStates[size_t(lease.grant)];
  terms.packed = lease.packed;
  client.together = lease.together;
  terms.confine_all = lease.confine_all;
  terms.burst_classes = lease.burst_classes;
  terms.window_ns = lease.window_ns;
  terms.slice_ns = lease.slice_ns;
  terms.marker_spacing_ns = lease.marker_spacing_ns;
  terms.max_hold_ms = uint32_t(common.settings.parameters.max_hold_ns / base::kNsPerMs);
  terms.priority = client.priority;
  terms.defers = client.is_protected() && !client.watching.empty();
  terms.tell_busy = tell_busy && !client.is_protected();
  terms.slo_us = uint32_t(std::min<uint64_t>(client.slo_ns / 1000, UINT32_MAX));
  terms.watch_spin_us = lease.spin_ns == 0 ? common.settings.watch_spin_us : lease.spin_ns / 1000;
  // If every kernel fills waves, there is nothing to say about long blocks.
  if (lease.long_block_ns != 0) {
    terms.long_width_percent = std::clamp(lease.long_width_percent, 1u, 100u);
    terms.long_block_us = uint32_t(std::clamp<uint64_t>(lease.long_block_ns / base::kNsPerUs, 1, UINT16_MAX));
  }
  terms.reserved_sms = reserved_sms(client, lease);
  terms.quantum_us = uint32_t(std::min<uint64_t>(lease.quantum_ns / base::kNsPerUs, UINT16_MAX));
  terms.ends_by_us = lease.ends_by_ns == 0 ? 0 : admission::ends_by_us(lease.ends_by_ns);
  terms.keeps_closed = lease.keeps_closed;
  terms.passthrough = client.passthrough;
  terms.expires_ns = client.terms.expires_ns;  // not part of the comparison
  bool granted = terms.state == abi::kLeaseGranted;
  bool first = client.lease_word == 0;
  // A grant tells what may be started. Each new window before it would wake threads that wait, and they would ask again.
  if (!first && terms.state == abi::kLeaseHold && client.terms.state == abi::kLeaseHold) {
    terms.window_ns = client.terms.window_ns;
    terms.slice_ns = client.terms.slice_ns;
    terms.marker_spacing_ns = client.terms.marker_spacing_ns;
  }
  bool changed = first || !(terms == client.terms);
  if (granted) terms.expires_ns = now_ns + lease.duration_ns;
  bool was_granted = !first && client.terms.state == abi::kLeaseGranted;
  bool was_packed = client.packed();
  bool is_held = terms.state == abi::kLeaseHold;
  if (is_held && (first || client.terms.state != abi::kLeaseHold)) client.held_since_ns = now_ns;
  client.terms = terms;
  const bool other_class = std::exchange(client.length_class, lease.length_class) != lease.length_class;
  if (changed || lease.nudge) {
    if (lease.nudge && !changed) ++common.counters.nudges;
    if (granted && !was_granted) ++common.counters.grants, ++client.counters.grants;
    if (client.packed() && !was_packed) ++client.counters.packed_grants;
    if (is_held && was_granted) ++common.counters.revocations, ++client.counters.revocations;
    ipc::lease_publish(client.lease_line(), client.lease_word, terms);
    set_gate(client);
    if (client.trace.memory.valid()) trace_lease(client, now_ns);
    return;
  }
  if (granted) ipc::lease_renew(client.lease_line(), terms.expires_ns);
  if (other_class) set_gate(client);
}

void set_gate(Client& client) {
  if (client.gate_page() == nullptr) return;
  const bool granted = client.terms.state == abi::kLeaseGranted;
  const bool open = client.terms.state == abi::kLeaseFree || client.terms.packed || client.terms.passthrough;
  if (granted || open) client.gate_shut_since_ns = 0;
  ipc::set_gate_turn(*client.gate_page(), granted ? abi::gate_class(client.length_class) : 0);
  ipc::override_gate(*client.gate_page(), abi::kGateDaemonOpens, open);
}

}  // namespace tessera::core
