#include "scheduler_daemon/policy/tessera.h"

#include <algorithm>

#include "base/units.h"
#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {
namespace {

// Slices.
constexpr uint64_t kSlicePerOverhead = 33;  // 3 % of slicing overhead
constexpr uint64_t kLeastSlice_ns = base::us(100);
constexpr uint64_t kSlicesInFlight = 3;  // one runs, one is ready, one is on its way
// Gaps.
constexpr uint64_t kLongestGap_ns = base::us(1500);  // longer gaps are worth using
// Packing.
constexpr double kFirstShare = 0.02, kShareStep = 0.01, kMostShare = 0.5, kLeastShare = 0.005;
constexpr uint64_t kJudgedBursts = 4;
constexpr double kMostSlowdown = 2;                        // an outlier counts as this
constexpr double kBusyMemory_ns = 100e6, kMostBusy = 0.8;  // busier than this: no packing
constexpr uint64_t kSoloEvery = 50;                        // 2 % of the bursts refresh the baseline
constexpr uint64_t kFirstBlock = 8;  // bursts without packing after one that was too slow
constexpr uint64_t kMostDoublings = 8;
constexpr uint64_t kPackLook_ns = base::us(500);  // a busy pulse tells nobody
// Fairness, in virtual time: held above the first, released below the second.
constexpr double kAhead_ns = 10e6, kCaughtUp_ns = 4e6;
constexpr uint64_t kFairLook_ns = base::ms(1);
// Minimum share.
constexpr uint64_t kShareWindow_ns = base::ms(100);
constexpr uint64_t kShareLook_ns = base::ms(1);

Lease* lease_of(Decision* d, uint64_t id) {
  for (Lease& lease : d->leases)
    if (lease.client_id == id) return &lease;
  return nullptr;
}

bool both_kinds(const Observation& o) {
  auto n = std::count_if(o.clients.begin(), o.clients.end(), is_protected);
  return n > 0 && size_t(n) < o.clients.size();
}

}  // namespace

double TesseraPolicy::width_share(uint64_t protected_id, ResourceClass best_effort) const {
  auto it = watched_.find(protected_id);
  return it == watched_.end() ? 0 : it->second.widths[size_t(best_effort)].share;
}

Decision TesseraPolicy::decide(const Observation& o) {
  Decision d = temporal_.decide(o);
  learn(o);
  if (both_kinds(o)) {
    size_slices(o, &d);
    wait_out_gaps(o, &d);
  }
  if (o.mps) share_fairly(o, &d);
  if (o.mps && both_kinds(o)) pack(o, &d);
  if (parameters_.min_share > 0) keep_minimum(o, &d);
  last_look_ns_ = o.now_ns;
  return d;
}

void TesseraPolicy::learn(const Observation& o) {
  std::erase_if(watched_, [&](const auto& row) {
    return std::none_of(o.clients.begin(), o.clients.end(),
                        [&](const ClientView& c) { return c.id == row.first && is_protected(c); });
  });
  for (const ClientView& c : o.clients) {
    if (!is_protected(c)) continue;
    Watched& w = watched_[c.id];
    const double passed = last_look_ns_ == 0 ? 0 : double(o.now_ns - last_look_ns_);
    w.busy_share += (double(c.busy) - w.busy_share) * std::min(1.0, passed / kBusyMemory_ns);
    if (c.bursts == w.bursts) continue;
    w.bursts = c.bursts;
    if (!w.packed) continue;
    w.packed = false;
    Width& width = w.widths[size_t(w.packed_class)];
    if (c.slowdown <= 0) continue;
    // Single bursts vary for other reasons (what was in flight when they began): judged by their mean.
    width.slowdown_sum += std::min(c.slowdown, kMostSlowdown);
    if (++width.n_slowdowns < kJudgedBursts) continue;
    const double mean = width.slowdown_sum / double(width.n_slowdowns);
    width.slowdown_sum = 0;
    width.n_slowdowns = 0;
    if (mean > 1 + parameters_.slowdown_target * (1 - w.busy_share)) {
      width.share /= 2;
      if (width.share < kLeastShare)
        width.blocked_bursts = c.bursts + (kFirstBlock << std::min(width.punished, kMostDoublings));
      ++width.punished;
    } else {
      width.share = std::min(kMostShare, width.share + kShareStep);
      width.punished -= width.punished > 0;
    }
  }
}

void TesseraPolicy::size_slices(const Observation& o, Decision* d) const {
  for (size_t i = 0; i < o.clients.size(); ++i) {
    Lease& lease = d->leases[i];
    const uint64_t overhead_ns = o.clients[i].slice_overhead_ns;
    if (lease.grant != Grant::kGranted || overhead_ns == 0) continue;
    lease.slice_ns =
        std::clamp(overhead_ns * kSlicePerOverhead, std::min(kLeastSlice_ns, lease.slice_ns), lease.slice_ns);
    lease.window_ns = std::min(lease.window_ns, lease.slice_ns * kSlicesInFlight);
    lease.marker_spacing_ns = uint32_t(std::min<uint64_t>(lease.marker_spacing_ns, lease.slice_ns));
  }
}

void TesseraPolicy::wait_out_gaps(const Observation& o, Decision* d) {
  uint64_t until_ns = 0;
  for (const ClientView& c : o.clients) {
    if (!is_protected(c) || c.busy || c.short_gap_ns == 0) continue;
    const uint64_t wait_ns = c.short_gap_ns + c.short_gap_ns / 4;
    if (wait_ns <= parameters_.guard_ns || wait_ns > kLongestGap_ns) continue;
    until_ns = std::max(until_ns, c.idle_since_ns + wait_ns);
  }
  if (until_ns <= o.now_ns) return;
  for (Lease& lease : d->leases)
    if (lease.grant == Grant::kGranted) lease.grant = Grant::kHold;
  look_at(until_ns, d);
}

void TesseraPolicy::share_fairly(const Observation& o, Decision* d) {
  std::erase_if(accounts_, [&](const auto& row) {
    return std::none_of(o.clients.begin(), o.clients.end(),
                        [&](const ClientView& c) { return c.id == row.first && !is_protected(c); });
  });
  // Who is furthest behind among those that want the GPU; idling earns nothing.
  double floor_ns = -1;
  for (const ClientView& c : o.clients) {
    if (is_protected(c)) continue;
    auto [it, is_new] = accounts_.try_emplace(c.id);
    Account& a = it->second;
    if (is_new) a.last_used_ns = c.used_ns;
    const uint64_t used_ns = c.used_ns - std::min(c.used_ns, a.last_used_ns);
    a.last_used_ns = c.used_ns;
    a.virtual_ns += double(used_ns) * 100 / std::max(1u, c.weight);
    if (has_demand(c) && a.had_demand && (floor_ns < 0 || a.virtual_ns < floor_ns)) floor_ns = a.virtual_ns;
  }
  size_t n_demanding = 0;
  for (const ClientView& c : o.clients) {
    if (is_protected(c)) continue;
    Account& a = accounts_[c.id];
    const bool demand = has_demand(c);
    if (demand && !a.had_demand) a.virtual_ns = std::max(a.virtual_ns, floor_ns);
    a.had_demand = demand;
    n_demanding += demand;
  }
  if (n_demanding < 2) {
    for (auto& [id, a] : accounts_) a.ahead = false;
    return;
  }
  for (const ClientView& c : o.clients) {
    if (is_protected(c)) continue;
    Account& a = accounts_[c.id];
    const double lead_ns = floor_ns < 0 ? 0 : a.virtual_ns - floor_ns;
    a.ahead = lead_ns > (a.ahead ? kCaughtUp_ns : kAhead_ns);
    Lease* lease = lease_of(d, c.id);
    if (a.ahead && lease->grant == Grant::kGranted) lease->grant = Grant::kHold;
  }
  look_at(o.now_ns + kFairLook_ns, d);
}

void TesseraPolicy::pack(const Observation& o, Decision* d) {
  if (parameters_.slowdown_target <= 0) return;
  const ClientView* hp = busiest(o);
  bool possible = false;
  for (const ClientView& c : o.clients) possible |= is_protected(c) && c.burst_ns != 0;
  if (!possible) return;
  look_at(o.now_ns + kPackLook_ns, d);
  if (hp == nullptr || hp->burst_ns == 0 || hp->bursts % kSoloEvery == 0) return;
  // Two protected bursts at once: no baseline says what that costs.
  for (const ClientView& c : o.clients)
    if (is_protected(c) && c.busy && c.id != hp->id) return;
  Watched& w = watched_[hp->id];
  if (w.busy_share > kMostBusy) return;
  const ClientView* chosen = nullptr;
  for (const ClientView& c : o.clients) {
    if (is_protected(c) || !has_demand(c) || c.wave_blocks == 0 || c.uncut_launches != 0) continue;
    if (c.resource_class == ResourceClass::kUnknown || hp->resource_class == ResourceClass::kUnknown ||
        c.resource_class == hp->resource_class)
      continue;
    const Width& width = w.widths[size_t(c.resource_class)];
    if (hp->bursts < width.blocked_bursts) continue;
    const Lease* lease = lease_of(d, c.id);
    if (lease == nullptr || lease->grant != Grant::kGranted) continue;
    if (chosen == nullptr || accounts_[c.id].virtual_ns < accounts_[chosen->id].virtual_ns) chosen = &c;
  }
  if (chosen == nullptr) return;
  Width& width = w.widths[size_t(chosen->resource_class)];
  if (width.share < kLeastShare) width.share = width.punished == 0 ? kFirstShare : kLeastShare;
  Lease* lease = lease_of(d, chosen->id);
  lease->packed = true;
  lease->width_blocks = std::max(1u, uint32_t(width.share * chosen->wave_blocks));
  w.packed = true;
  w.packed_class = chosen->resource_class;
}

void TesseraPolicy::keep_minimum(const Observation& o, Decision* d) {
  uint64_t used_ns = 0;
  const ClientView* longest = nullptr;
  for (const ClientView& c : o.clients) {
    if (is_protected(c)) continue;
    used_ns += c.used_ns;
    if (c.waiting && (longest == nullptr || c.waiting_since_ns < longest->waiting_since_ns)) longest = &c;
  }
  if (share_window_ns_ == 0 || o.now_ns - share_window_ns_ >= kShareWindow_ns ||
      used_ns < used_at_window_ns_) {
    share_window_ns_ = o.now_ns;
    used_at_window_ns_ = used_ns;
  }
  // What is owed by the end of this window, granted as soon as the time that is left is needed for it.
  const double owed_ns =
      parameters_.min_share * double(kShareWindow_ns) - double(used_ns - used_at_window_ns_);
  const double left_ns = double(share_window_ns_ + kShareWindow_ns - o.now_ns);
  look_at(o.now_ns + kShareLook_ns, d);
  if (longest == nullptr || owed_ns <= 0 || left_ns > owed_ns * 2) return;
  Lease* lease = lease_of(d, longest->id);
  if (lease->grant != Grant::kGranted) return;  // exclusive turns decide who; fairness too
  lease->packed = true;
  lease->width_blocks = 0;
}

}  // namespace tessera::policy
