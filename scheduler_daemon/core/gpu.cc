#include "scheduler_daemon/core/gpu.h"

#include <algorithm>

#include "base/units.h"
#include "ipc/channel/atomic.h"
#include "scheduler_daemon/core/gangs.h"

namespace tessera::core {
namespace {

namespace abi = ipc::abi;

constexpr size_t kMaxOffendingUsers = 1024;
constexpr uint64_t kSettleLookNs = base::us(500);
// While somebody looks, a client that is alone gets a lease that measures and limits nothing. Each lease of it is good for twice the
// time between two decisions.
constexpr uint64_t kMeasuringLookNs = base::ms(1000);
constexpr policy::Lease kMeasuringLease{.grant = policy::Grant::kGranted,
                                        .duration_ns = 2 * kMeasuringLookNs,
                                        .window_ns = 3600 * base::kNsPerS,  // never full
                                        .slice_ns = 0,                      // nothing is cut
                                        .marker_spacing_ns = uint32_t(base::ms(2))};

}  // namespace

Gpu::Gpu(Common& common, Gpus& all, const Uuid& uuid, uint32_t sm_count)
    : common_(common),
      all_(all),
      uuid_(uuid),
      sm_count_(sm_count),
      policy_(policy::make_policy(common.settings.policy_name, common.settings.parameters)) {}

// The old object's memory goes, also whose turn it is: everyone drains before the new one grants.
void Gpu::replace_policy(uint64_t now_ns) {
  policy_ = policy::make_policy(common_.settings.policy_name, common_.settings.parameters);
  settle_since_ns_ = now_ns;
}

void Gpu::run(Gangs& gangs, uint64_t now_ns) {
  const bool decides = dirty_ || base::is_due(next_look_ns_, now_ns);
  // Twice at most: a revocation that had drained already, then the grant that it makes possible.
  if (decides && decide(gangs, now_ns)) decide(gangs, now_ns);
  plan_death_look(now_ns);
}

bool Gpu::overlapping() const {
  // Leases overlap only if every best-effort client shares in space: one that does not would be time-sliced
  // against the rest anyway.
  return std::all_of(clients_.begin(), clients_.end(),
                     [](const Client* c) { return c->is_protected() || c->mps || c->passthrough; });
}

bool Gpu::takes_turns() const {
  return !overlapping() && std::count_if(clients_.begin(), clients_.end(), [](const Client* c) {
                             return !c->is_protected() && !c->passthrough;
                           }) > 1;
}

// The first that came, as many as every best-effort client has places for: a policy asks only whether all of them watch.
void Gpu::assign_places() {
  uint32_t places = abi::kMaxWatchedPulses;
  for (Client* owner : clients_) {
    OnGpu& on = owner->on(uuid_);
    on.watched = owner->pulse_sealed && !owner->passthrough && places != 0;
    places -= on.watched;
  }
  assign_gates();
}

// Everything in its place is lost to others, so it is named. Programs of one user could take its place in
// turns; therefore the user's next ones inherit it.
void Gpu::note_overdue_drain(Client& client, uint64_t now_ns) {
  ++client.counters.overdue_drains;
  client.overdue.add(now_ns);
  std::erase_if(common_.overdue_of_users, [&](const auto& row) { return row.second.count(now_ns) == 0; });
  if (common_.overdue_of_users.size() < kMaxOffendingUsers ||
      common_.overdue_of_users.contains(client.identity.uid))
    common_.overdue_of_users[client.identity.uid] = client.overdue;
  common_.peers.log(Severity::kWarning,
                    name_of(client) +
                        ": its turn is over, what it had in flight does not end or is not "
                        "reported; others go on beside it, and the time is charged to it");
}

// A client whose holds expire again and again stops cutting its kernels: whoever runs the machine should
// know.
void Gpu::report_cutting(Client& client, uint64_t now_ns) const {
  const bool off = ipc::load(client.signals_untrusted().cutting_off, std::memory_order_relaxed) != 0;
  if (off && !client.cutting_off) {
    const auto offender = std::find_if(clients_.begin(), clients_.end(), [&](const Client* c) {
      return c != &client && c->overdue.count(now_ns) != 0;
    });
    common_.peers.log(
        Severity::kWarning,
        name_of(client) +
            ": its launches reach the hold limit again and again, its kernels are not cut for now; " +
            (offender != clients_.end() ? "that is due to " + name_of(**offender) + ", which does not drain"
                                        : "a minimum share (policy.min_share_percent) avoids that"));
  }
  client.cutting_off = off;
}

void Gpu::note_packing(uint64_t now_ns) {
  for (const Client* client : clients_) {
    if (!client->packed()) continue;
    packed_until_ns_ = now_ns;
    if (client->terms.packed && !client->together) minimum_share_until_ns_ = now_ns;
  }
}

bool Gpu::settling(uint64_t now_ns) {
  if (settle_since_ns_ == 0) return false;
  const uint64_t end_ns = settle_since_ns_ + common_.settings.parameters.drain_timeout_ns;
  auto is_best_effort = [](const Client* c) { return !c->is_protected() && !c->passthrough; };
  if (overlapping() || now_ns >= end_ns ||
      std::count_if(clients_.begin(), clients_.end(), is_best_effort) < 2) {
    settle_since_ns_ = 0;
    return false;
  }
  bool drained = true;
  for (Client* client : clients_) {
    if (!is_best_effort(client)) continue;
    if (client->terms.state != abi::kLeaseHold)
      apply(common_, *client, {.grant = policy::Grant::kHold}, now_ns);
    drained = drained && client->drained(now_ns);
  }
  if (drained) settle_since_ns_ = 0;
  dirty_ = false;
  next_look_ns_ = std::min(now_ns + kSettleLookNs, end_ns);
  return !drained;
}

bool Gpu::decide(Gangs& gangs, uint64_t now_ns) {
  if (settling(now_ns)) return false;
  policy::Observation o;
  o.now_ns = now_ns;
  o.mps = overlapping();
  o.sm_count = sm_count_;
  std::vector<Client*> managed;
  for (Client* client : clients_) {
    if (client->passthrough) {
      apply(common_, *client, {.grant = policy::Grant::kFree}, now_ns);
      continue;
    }
    report_cutting(*client, now_ns);
    client->measured_alone = false;
    managed.push_back(client);
    client->on_device = no_device_gate(*client) == nullptr;
    o.clients.push_back(client->view(client->on(uuid_), now_ns));
    gangs.add_wishes(*this, *client, &o.clients.back());
  }
  note_packing(now_ns);
  policy::Decision d = policy_->decide(o);
  ++common_.counters.decisions;
  dirty_ = false;
  next_look_ns_ = d.next_look_ns;
  gangs.share_leases(*this, managed, &d.leases);
  if (managed.size() == 1 && clients_.size() == 1 && d.leases.size() == 1)
    measure_alone(*managed[0], d.leases[0], now_ns);
  uint64_t revocations = common_.counters.revocations;
  bool drained = true;
  uint64_t services_busy_ns = 0;
  for (const Client* client : clients_)
    if (client->is_protected()) services_busy_ns += client->busy_ns(now_ns);
  for (size_t i = 0; i < managed.size() && i < d.leases.size(); ++i) {
    uint64_t before = common_.counters.revocations;
    apply(common_, *managed[i], d.leases[i], now_ns, d.tell_busy);
    if (d.leases[i].opens_gates) open_gates(*managed[i], now_ns);
    if (!managed[i]->set_quiet(d.leases[i].quiet, o.clients[i]))
      for (Gpu* each : all_.of(*managed[i])) each->look_by(now_ns);
    if (d.leases[i].overdue) note_overdue_drain(*managed[i], now_ns);
    if (common_.counters.revocations != before) drained &= managed[i]->drained(now_ns);
    watch_starvation(managed[i]->on(uuid_), o.clients[i], d.leases[i], services_busy_ns, now_ns);
  }
  note_gates(now_ns);
  note_packing(now_ns);
  return common_.counters.revocations != revocations && drained;
}

// A client that runs free is not measured, so it costs nothing. While somebody looks, its use is known.
void Gpu::measure_alone(Client& client, policy::Lease& lease, uint64_t now_ns) {
  client.measured_alone =
      lease.grant == policy::Grant::kFree && !client.is_protected() && now_ns < common_.measure_until_ns;
  if (!client.measured_alone) return;
  const uint64_t id = lease.client_id;
  lease = kMeasuringLease;
  lease.client_id = id;
  next_look_ns_ =
      base::earlier_due(next_look_ns_, std::min(now_ns + kMeasuringLookNs, common_.measure_until_ns));
}

void Gpu::add_neighbours(const Client& client, uint64_t start_ns, uint64_t now_ns,
                         policy::Burst* burst) const {
  burst->packed |= packed_until_ns_ >= start_ns;
  burst->minimum_share |= minimum_share_until_ns_ >= start_ns;
  for (const Client* other : clients_) {
    if (other->priority >= client.priority) continue;
    burst->packed |= other->packed();
    if (other->is_protected()) {
      burst->solo = burst->solo && !other->active_since(start_ns, now_ns);
      continue;
    }
    burst->after_work |= !overlapping() && !other->nothing_passed(client.last_burst_end_ns()) &&
                         policy::ran_since(client.last_burst_end_ns(), other->in_flight());
    if (other->nothing_passed(start_ns)) continue;
    policy::ClosedGate closed;
    if (const abi::GatePage* gate = other->gate_page(); gate != nullptr && !burst->packed)
      closed = {other->terms.quantum_us * base::kNsPerUs,
                ipc::load(gate->longest_ns, std::memory_order_relaxed)};
    burst->overlap_ns =
        std::max(burst->overlap_ns, policy::overlap_ns(start_ns, burst->end_ns, other->in_flight(), closed));
  }
}

// ---- all of them

std::vector<Gpu*> Gpus::of(const Client& client) {
  std::vector<Gpu*> gpus;
  if (client.dying) return gpus;
  for (const OnGpu& on : client.gpus) gpus.push_back(&gpus_.at(on.uuid));
  return gpus;
}

void Gpus::join(Client& client, uint32_t sm_count) {
  OnGpu& on = client.gpus.back();
  Gpu& gpu = gpus_.try_emplace(on.uuid, common_, *this, on.uuid, std::min(sm_count, kMaxSms)).first->second;
  on.sm_count = gpu.sm_count();
  gpu.add(client);
}

std::vector<Gpu*> Gpus::leave(const Client& client) {
  std::vector<Gpu*> left = of(client);
  for (Gpu* gpu : left) gpu->remove(client);
  std::erase_if(
      left, [&](const Gpu* gpu) { return gpu->clients().empty() && gpus_.erase(Uuid(gpu->uuid())) != 0; });
  return left;
}

void Gpus::add_burst(Client& client, const abi::Record& record, uint64_t now_ns) {
  const std::vector<Gpu*> gpus = of(client);
  if (gpus.empty() || !client.is_protected() || record.end_ns > now_ns) return;
  const uint64_t start_ns = record.end_ns - std::min(record.end_ns, record.duration_ns);
  policy::Burst burst{.signature = record.key,
                      .length_ns = record.duration_ns,
                      .end_ns = record.end_ns,
                      .solo = true,
                      .kind = record.request_kind,
                      .slo_ns = ipc::load(client.requests_untrusted().kinds[record.request_kind].slo_ns,
                                          std::memory_order_relaxed)};
  for (const Gpu* gpu : gpus) gpu->add_neighbours(client, start_ns, now_ns, &burst);
  burst.solo = burst.solo && burst.overlap_ns == 0;
  for (OnGpu& on : client.gpus) on.bursts.add(burst);
}

}  // namespace tessera::core
