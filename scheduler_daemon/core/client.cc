#include "scheduler_daemon/core/client.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "admission/boundary.h"
#include "base/printable.h"
#include "ipc/channel/atomic.h"
#include "ipc/channel/pulse.h"
#include "profiles/operation_profile.h"

namespace tessera::core {

uint64_t Client::slept_bytes(const ipc::abi::MemoryDevice& row) const {
  const uint64_t before = before_sleep[number_of(row)];
  return before -
         std::min(before, std::min(ipc::load(row.used_bytes, std::memory_order_relaxed), kMostBytes));
}

namespace {

// A client may claim more; nothing depends on it but its own lease.
constexpr uint32_t kMaxWaveBlocks = 1u << 20;
constexpr uint64_t kMaxSliceOverheadNs = 10'000'000;
constexpr auto relaxed = std::memory_order_relaxed;  // single words of statistics, nothing is ordered by them

double wide(const uint64_t (&counter)[2]) {
  return double(ipc::load(counter[1], relaxed)) * 0x1p64 + double(ipc::load(counter[0], relaxed));
}

constexpr const char* kClasses[] = {"unknown", "compute", "memory", "latency"};  // by abi::ResourceClass

// Rows of what the client counted; a slot that says garbage is a row with garbage in it, but printable.
std::vector<stats::OperationRow> operations_of(const ipc::abi::OperationTable& table_untrusted) {
  std::vector<stats::OperationRow> rows;
  for (const ipc::abi::OperationCounts& c : table_untrusted.counts) {
    if (ipc::load(c.ready, std::memory_order_acquire) != 1) continue;  // pairs with the client's release
    char name[ipc::abi::kOperationNameBytes];
    memcpy(name, c.name, sizeof name);
    const std::string type = profiles::element_type_name(ipc::load(c.type, relaxed));
    const std::string_view function(name, strnlen(name, sizeof name));
    // Threads have slots of their own.
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const auto& r) { return r.name == function && r.type == type; });
    if (row == rows.end()) row = rows.insert(row, {.name = std::string(function), .type = type});
    if (const uint32_t k = ipc::load(c.resource_class, relaxed) & 3u; k != 0 || row->resource_class.empty())
      row->resource_class = kClasses[k];
    row->calls += ipc::load(c.calls, relaxed);
    row->gpu_ns += ipc::load(c.gpu_ns, relaxed);
    row->launches += ipc::load(c.launches, relaxed);
    row->flop += wide(c.flop);
    row->bytes += wide(c.bytes);
  }
  return rows;
}

// As above: a client that writes garbage has garbage in its own rows.
std::vector<stats::RequestRow> requests_of(const ipc::abi::RequestTable& table_untrusted) {
  std::vector<stats::RequestRow> rows;
  for (const ipc::abi::RequestKind& kind : table_untrusted.kinds) {
    if (ipc::load(kind.ready, std::memory_order_acquire) != 1) continue;  // pairs with the client's release
    char name[ipc::abi::kRequestNameBytes];
    memcpy(name, kind.name, sizeof name);
    stats::RequestRow& row = rows.emplace_back();
    row.kind.assign(name, strnlen(name, sizeof name));
    row.sum_ns = ipc::load(kind.sum_ns, relaxed);
    row.slo_ns = ipc::load(kind.slo_ns, relaxed);
    row.within_slo = ipc::load(kind.within_slo, relaxed);
    for (const uint64_t& count : kind.counts) row.counts.push_back(ipc::load(count, relaxed));
  }
  return rows;
}

std::vector<stats::OutcomeRow> outcomes_of(const ipc::abi::CuttingLines& cutting_untrusted) {
#define TS_ROW(id, name) name,
  static constexpr const char* kNames[] = {TS_LAUNCH_OUTCOMES(TS_ROW)};
#undef TS_ROW
  std::vector<stats::OutcomeRow> rows;
  for (uint32_t k = 0; k < ipc::abi::kLaunchOutcomes; k++) {
    const ipc::abi::OutcomeCounts& counts = cutting_untrusted.outcomes[k];
    const uint64_t launches = ipc::load(counts.launches, relaxed);
    if (launches != 0) rows.push_back({kNames[k], launches, ipc::load(counts.gpu_ns, relaxed)});
  }
  return rows;
}

// The client says its figures by device; nobody checks them.
std::vector<stats::MemoryRow> memory_of(const Client& client, uint64_t now_ns) {
  std::vector<stats::MemoryRow> rows;
  for (uint32_t i = 0; i < ipc::abi::kMemoryDevices; ++i) {
    const ipc::abi::MemoryDevice& device = client.memory_row(i);
    if (ipc::load(device.ready, std::memory_order_acquire) != 1) continue;  // pairs with the client's release
    uint8_t uuid[16];
    memcpy(uuid, device.uuid, sizeof uuid);
    stats::MemoryRow& row = rows.emplace_back();
    row.gpu = uuid_text(uuid);
#define TS_ROW(field, name, meaning) row.field = ipc::load(device.field, relaxed);
    TS_MEMORY_FIGURES(TS_ROW)
#undef TS_ROW
    row.waits_bytes = ipc::load(device.waits_bytes, relaxed);
    const uint64_t since_ns = ipc::load(client.memory_untrusted().totals.waits_since_ns, relaxed);
    row.waits_for_ns = row.waits_bytes == 0 ? 0 : now_ns - std::min(since_ns, now_ns);
  }
  return rows;
}

}  // namespace

bool Client::busy(uint64_t now_ns) const {
  return memory.pulse.valid() && pulse_sealed &&
         ipc::pulse_is_busy(*memory.pulse.as<const ipc::abi::PulsePage>(), now_ns);
}

uint64_t Client::busy_since_ns() const {
  const uint64_t burst_untrusted =
      ipc::load(memory.pulse.as<const ipc::abi::PulsePage>()->busy_since_ns, relaxed);
  return std::max(burst_untrusted, last_burst_end_ns());
}

bool Client::set_quiet(bool to, const policy::ClientView& seen) {
  if (to == quiet || !is_protected()) return true;
  quiet = to;
  // seq_cst: the client clears its pulse, then looks here.
  ipc::store(answers().quiet, uint32_t(quiet), std::memory_order_seq_cst);
  if (quiet) return true;
  const auto& page = *memory.pulse.as<const ipc::abi::PulsePage>();
  const bool idle = ipc::load(page.busy, std::memory_order_seq_cst) == 0;
  return !idle || (!seen.busy && ipc::load(page.idle_since_ns, relaxed) == seen.idle_since_ns);
}

void Client::answer() const {
  const uint64_t question_untrusted = ipc::load(signals_untrusted().question, relaxed);
  ipc::store(answers().answered, question_untrusted, relaxed);  // alone: nothing else is published by it
}

bool Client::drained(uint64_t now_ns) const {
  if (on_device && now_ns - held_since_ns >= admission::drained_after_ns(terms.quantum_us * base::kNsPerUs))
    return true;
  const ipc::abi::UsageLine& u = usage_untrusted();
  // seq_cst: after the store of the hold (lease_publish); pairs with "raise in_flight, then look" of the
  // client.
  return ipc::load(u.drained_word, std::memory_order_acquire) == lease_word ||
         ipc::load(u.in_flight_ns, std::memory_order_seq_cst) == 0;
}

bool Client::waiting() const {
  const ipc::abi::UsageLine& u = usage_untrusted();
  // Its helper thread speaks of a queue behind the gate at its next look only.
  return ipc::load(u.waiting, relaxed) != 0 || (on_device && terms.state == ipc::abi::kLeaseHold &&
                                                ipc::load(u.in_flight_ns, std::memory_order_seq_cst) != 0);
}

policy::InFlight Client::in_flight() const {
  const ipc::abi::UsageLine& u = usage_untrusted();
  const ipc::abi::SignalLine& s = signals_untrusted();
  policy::InFlight f;
  f.any = ipc::load(u.in_flight_ns, std::memory_order_seq_cst) != 0;
  f.since_ns = ipc::load(s.in_flight_since_ns, relaxed);
  f.end_ns = ipc::load(s.in_flight_end_ns, relaxed);
  f.measured = !passthrough && terms.state != ipc::abi::kLeaseFree;
  return f;
}

bool Client::nothing_passed(uint64_t by_ns) const {
  return on_device && !packed() && gate_shut_since_ns != 0 &&
         gate_shut_since_ns + admission::drained_after_ns(terms.quantum_us * base::kNsPerUs) <= by_ns;
}

bool Client::active_since(uint64_t since_ns, uint64_t now_ns) const {
  if (!memory.pulse.valid()) return false;
  return busy(now_ns) ||
         ipc::load(memory.pulse.as<const ipc::abi::PulsePage>()->idle_since_ns, relaxed) > since_ns;
}

uint64_t Client::busy_ns(uint64_t now_ns) const {
  if (!is_protected() || !busy(now_ns)) return counters.busy_ns;
  return counters.busy_ns + now_ns - std::clamp(busy_since_ns(), attached_ns, now_ns);
}

policy::ClientView Client::view(OnGpu& on, uint64_t now_ns) {
  policy::ClientView v;
  v.id = id;
  v.priority = priority;
  v.weight = weight;
  v.slo_ns = slo_ns;
  v.watched = on.watched;
  v.overdue_drains = overdue.count(now_ns);
  if (is_protected()) {
    const auto& page = *memory.pulse.as<const ipc::abi::PulsePage>();
    v.busy = busy(now_ns);
    v.busy_since_ns = std::min(busy_since_ns(), now_ns);
    // Between two steps of a burst there is a gap of no length.
    v.idle_since_ns = std::min(std::max(ipc::load(page.idle_since_ns, relaxed), last_burst_end_ns()), now_ns);
    v.resource_class = policy::ResourceClass(ipc::load(page.resource_class, relaxed) & 3u);
    v.kinds = on.bursts.kinds();
    v.slowdown = on.bursts.take_slowdown();
    v.own_slowdown = on.bursts.own_slowdown();
    v.bursts = on.bursts.compared();
    v.burst_ns = on.bursts.baseline_ns();
    v.change_ns = on.bursts.change_ns();
    v.knows_change = on.bursts.knows_change();
    v.next_burst_ns = on.bursts.next_ns();
    v.ended = on.bursts.take_ended();
  } else {
    const ipc::abi::UsageLine& u = usage_untrusted();
    v.waiting = waiting();
    const uint64_t told_ns = ipc::load(u.waiting_since_ns, relaxed);
    v.waiting_since_ns = std::min(told_ns != 0 ? told_ns : held_since_ns, now_ns);
    v.in_flight_ns = ipc::load(u.in_flight_ns, std::memory_order_seq_cst);  // as in drained()
    v.queued_ns = ipc::load(on_device ? gate_page()->longest_ns : u.queued_ns, relaxed);
    used_ns = std::max(used_ns, ipc::load(u.completed_ns, relaxed));
    v.used_ns = used_ns;
    const ipc::abi::SignalLine& s = signals_untrusted();
    v.resource_class = policy::ResourceClass(ipc::load(s.resource_class, relaxed) & 3u);
    v.wave_blocks = std::min(ipc::load(s.wave_blocks, relaxed), kMaxWaveBlocks);
    v.launch_sms = std::min(ipc::load(s.launch_sms, relaxed), kMaxSms);
    v.slice_overhead_ns = std::min(uint64_t(ipc::load(s.slice_overhead_ns, relaxed)), kMaxSliceOverheadNs);
    uncut_launches = std::max(uncut_launches, ipc::load(s.uncut_launches, relaxed));
    blocks_launched = std::max(blocks_launched, ipc::load(s.blocks_launched, relaxed));
    v.uncut_launches = uncut_launches;
    v.can_confine = confines;
    v.gate_on_device = on_device;
    v.blocks_launched = blocks_launched;
    v.drained = drained(now_ns);
  }
  return v;
}

stats::ClientRow Client::row(uint64_t now_ns) const {
  stats::ClientRow r;
  r.id = id;
  r.pid = identity.pid;
  r.uid = identity.uid;
  r.name = name;
  r.priority = priority;
  r.claimed_priority = claimed_priority;
  r.weight = weight;
  r.slo_ns = slo_ns;
  r.passthrough = passthrough;
  for (const OnGpu& on : gpus) {
    if (&on == &gpus.front())
      r.gpu = uuid_text(on.uuid);
    else
      r.further_gpus.push_back(uuid_text(on.uuid));
  }
  static constexpr const char* kLeaseNames[] = {"held", "granted", "free"};
  r.state = dying            ? "dying"
            : packed()       ? "packed"
            : measured_alone ? "free"
            : is_protected() ? (busy(now_ns) ? "busy" : "idle")
                             : kLeaseNames[terms.state % 3];
  r.mps = mps;
  r.attached_ns = now_ns - std::min(attached_ns, now_ns);
  r.counters = counters;
  r.counters.busy_ns = busy_ns(now_ns);
  const ipc::abi::UsageLine& u = usage_untrusted();
  r.counters.launches = ipc::load(u.launches, relaxed);
  r.counters.slices = ipc::load(u.slices, relaxed);
  r.counters.holds = ipc::load(u.holds, relaxed);
  r.counters.hold_expired = ipc::load(u.hold_expired, relaxed);
  r.counters.held_ns = ipc::load(u.held_ns, relaxed);
  r.counters.in_flight_ns = ipc::load(u.in_flight_ns, relaxed);
  r.counters.completed_ns = ipc::load(u.completed_ns, relaxed);
  r.counters.preemptions = ipc::load(u.preemptions, relaxed);
  r.counters.waiting = ipc::load(u.waiting, relaxed);
  r.counters.records_dropped = ipc::load(u.records_dropped, relaxed);
  r.counters.refused_kernels = ipc::load(u.refused_kernels, relaxed);
  r.counters.cut_kernels = ipc::load(u.cut_kernels, relaxed);
  r.counters.forwarded_unknown = ipc::load(u.forwarded_unknown, relaxed);
  const ipc::abi::SignalLine& s = signals_untrusted();
  r.counters.uncut_launches = ipc::load(s.uncut_launches, relaxed);
  r.counters.confined_launches = ipc::load(s.confined_launches, relaxed);
  r.counters.reserved_sms = terms.reserved_sms;
  r.counters.unknown_estimates = ipc::load(s.unknown_estimates, relaxed);
  r.counters.learnt_estimates = ipc::load(s.learnt_estimates, relaxed);
  r.counters.daemon_losses = ipc::load(s.daemon_losses, relaxed);
  r.counters.bypassed = ipc::load(s.bypassed, relaxed);
  r.counters.whole_releases = ipc::load(s.whole_releases, relaxed);
  r.counters.cutting_off = ipc::load(s.cutting_off, relaxed);
  r.counters.watchdog_releases = ipc::load(s.watchdog_releases, relaxed);
  r.counters.refused_waiting = ipc::load(s.refused_waiting, relaxed);
  r.counters.refused_order = ipc::load(s.refused_order, relaxed);
  r.counters.refused_unclear = ipc::load(s.refused_unclear, relaxed);
  r.counters.refused_bits = ipc::load(s.refused_bits, relaxed);
  r.counters.refused_state = ipc::load(s.refused_state, relaxed);
  r.counters.refused_other = ipc::load(s.refused_other, relaxed);
  r.counters.blocks_launched = ipc::load(s.blocks_launched, relaxed);
  r.counters.wave_blocks = ipc::load(s.wave_blocks, relaxed);
  r.counters.slice_overhead_ns = ipc::load(s.slice_overhead_ns, relaxed);
  r.counters.gate_quantum_ns = terms.quantum_us * uint64_t(1000);
  if (const ipc::abi::GatePage* page = gate_page()) {
    r.counters.gate_boundaries = ipc::load(page->boundaries, relaxed);
    r.counters.gate_boundary_ns = ipc::load(page->boundary_ns, relaxed);
    r.counters.gate_run_ahead_waits = ipc::load(page->run_ahead_waits, relaxed);
    r.counters.gate_openings = ipc::load(page->limit_openings, relaxed);
    r.counters.gate_thread_asks = ipc::load(page->thread_asks, relaxed);
  }
  r.counters.memory_pinned_bytes = ipc::load(memory_untrusted().totals.pinned_bytes, relaxed);
  r.memory = memory_of(*this, now_ns);
  for (const stats::MemoryRow& row : r.memory) {
    if (row.gpu != r.gpu) continue;
    r.counters.memory_used_bytes = row.used_bytes;
    r.counters.memory_peak_bytes = row.peak_bytes;
    r.counters.memory_managed_bytes = row.managed_bytes;
    r.counters.memory_imported_bytes = row.imported_bytes;
    r.counters.memory_shared_bytes = row.shared_bytes;
    r.counters.memory_refusals = row.refusals;
  }
  r.counters.memory_untracked = ipc::load(memory_untrusted().totals.untracked, relaxed);
  const ipc::abi::OperationTotals& totals = operations_untrusted().totals;
  r.operations = operations_of(operations_untrusted());
  r.requests = requests_of(requests_untrusted());
  r.counters.missed_requests = ipc::load(requests_untrusted().totals.missed, relaxed);
  r.outcomes = outcomes_of(cutting_untrusted());
  r.counters.further_operations = ipc::load(totals.further_calls, relaxed);
  r.counters.split_calls = ipc::load(totals.split_calls, relaxed);
  r.counters.split_pieces = ipc::load(totals.split_pieces, relaxed);
  r.counters.split_proven = ipc::load(totals.split_proven, relaxed);
  r.counters.split_unequal = ipc::load(totals.split_unequal, relaxed);
  r.counters.kept_unproven = ipc::load(totals.kept_unproven, relaxed);
  r.counters.kept_unequal = ipc::load(totals.kept_unequal, relaxed);
  r.counters.narrowed_calls = ipc::load(totals.narrowed_calls, relaxed);
  r.counters.kept_form = ipc::load(totals.kept_form, relaxed);
  r.counters.kept_short = ipc::load(totals.kept_short, relaxed);
  r.counters.kept_free = ipc::load(totals.kept_free, relaxed);
  r.counters.splitting = ipc::load(totals.splitting, relaxed);
  uint64_t* const during[] = {&r.counters.during_bursts_unknown, &r.counters.during_bursts_compute,
                              &r.counters.during_bursts_memory, &r.counters.during_bursts_latency};
  for (size_t k = 0; k < std::size(kClasses); ++k) {
    *during[k] = ipc::load(totals.during_bursts[k], relaxed);
    if (packed() && (terms.packed || (terms.burst_classes >> k & 1u) != 0))
      r.during_bursts.emplace_back(kClasses[k]);
  }
  const uint32_t resource_class =
      is_protected() && memory.pulse.valid()
          ? ipc::load(memory.pulse.as<ipc::abi::PulsePage>()->resource_class, relaxed)
          : ipc::load(s.resource_class, relaxed);
  r.counters.resource_class = resource_class & 3u;
  static const policy::BurstWatch kNoBursts;
  const policy::BurstWatch& bursts =
      gpus.empty() ? kNoBursts : gpus.front().bursts;  // all of them saw the same
  r.counters.bursts_compared = bursts.compared();
  r.counters.bursts_solo = bursts.solo();
  r.counters.burst_solo_ns = bursts.baseline_ns();
  const auto permille = [](double slowdown) { return uint64_t(std::min(slowdown, 1e6) * 1000); };
  r.counters.slowdown_permille = permille(bursts.slowdown());
  r.counters.minimum_share_bursts = bursts.during_minimum_share().n;
  r.counters.minimum_share_slowdown_permille = permille(bursts.during_minimum_share().value);
  r.counters.other_slowdown_permille = permille(bursts.without_minimum_share().value);
  return r;
}

std::string uuid_text(const uint8_t (&u)[16]) {
  char text[48];
  std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
                u[15]);
  return text;
}

std::string uuid_text(const Uuid& uuid) {
  uint8_t bytes[16];
  std::memcpy(bytes, uuid.data(), sizeof bytes);
  return uuid_text(bytes);
}

std::string who(const ipc::PeerIdentity& identity) {
  return "pid " + std::to_string(identity.pid) + " (uid " + std::to_string(identity.uid) + ")";
}

std::string quoted(const std::string& text_untrusted) {
  return "'" + base::printable(text_untrusted) + "'";
}

std::string name_of(const Client& client) {
  return "client " + std::to_string(client.id) + " " + quoted(client.name) + " (pid " +
         std::to_string(client.identity.pid) + ")";
}

}  // namespace tessera::core
