#include "scheduler_daemon/policy/tessera.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/units.h"
#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {
namespace {

// Turnaround and slices.
constexpr uint64_t kLeastTurnaround_ns = base::us(100), kUnknownTurnaround_ns = base::us(300);
constexpr double kTurnaroundPerTarget = 0.68;  // the rest is for cold caches and contention
constexpr uint32_t kNeededExposed = 5;
constexpr double kShortBursts = 0.2;        // so many are shorter than the length that counts
constexpr uint64_t kSlicePerOverhead = 33;  // 3 % of slicing overhead where the turnaround allows
constexpr uint64_t kLeastPerOverhead = 10;  // and never more than 10 %
constexpr uint64_t kMarkersPerWindow = 4;
constexpr uint64_t kLeastSlice_ns = base::us(50);
// Room. A whole wave of blocks that last a little longer than the turnaround is no harm; longer ones get part
// of a wave, which gates lessen as the blocks get longer. What counts as long is learnt: a burst slower than
// the target lessens it by kReachStep, every other one raises it by as much times kTooSlowShare, so that it
// settles where that share of the bursts is too slow.
constexpr double kLongPerTurnaround = 1.6;
constexpr uint32_t kLongWidth_percent = 75;
constexpr double kTooSlowShare = 0.01, kReachStep = 0.15, kLeastReach = 0.2, kMostReach = 1.5;
constexpr double kReachPerOctave = 8;  // leases change in steps
constexpr double kNearLeast = 1.1;
constexpr uint32_t kNeededJudged = 200, kMostJudged = 800;
// So many are slow at the least reach, and hardly fewer than before: it is not the blocks.
constexpr double kStillSlowShare = 0.03, kHelped = 0.7;
constexpr uint64_t kFirstPause = 2000, kMostPause = 50'000;  // bursts
// Gaps.
constexpr uint64_t kGateGuard_ns = base::us(5);      // gates start by themselves after it
constexpr uint64_t kLongestGap_ns = base::us(1500);  // longer gaps are worth using
constexpr double kSurely = 0.005;  // of the gaps are shorter than what counts as undisturbed
constexpr double kSurelyMargin = 0.9;
constexpr uint32_t kNeededSurely = 16;
constexpr uint64_t kAsleep_ns = base::ms(500), kAsleepGaps = 3;  // a client quiet for longer is not at work
constexpr uint64_t kUnknownGap_ns = base::us(500);               // until gaps are known: strict
constexpr uint64_t kWorthOfTurnaround = 3;  // idle time that is worth one burst without collision
// Waking.
constexpr uint64_t kWakeLead_ns = base::us(80), kWatch_ns = base::us(200);
// Holds.
constexpr double kForestallAt = 0.85;  // of the hold limit
constexpr uint64_t kForestallFor_ns = base::ms(2), kForestallLook_ns = base::us(200);
// Packing.
constexpr double kFirstShare = 0.01, kShareStep = 0.01, kMostShare = 0.5, kLeastShare = 0.008;
constexpr double kLeastAllowance = 0.005;  // of slowdown; less is noise
constexpr double kPerExcess = 10'000;      // unit of Learnt::unpacked
constexpr double kSpentOnPacking = 0.5;    // of what the tail has left of the target, on average
constexpr uint32_t kNeededUnpacked = 20;
constexpr double kWorthwhileShare = 0.1;  // less does not pay for what it costs
constexpr uint64_t kJudgedBursts = 4;
constexpr double kMostSlowdown = 2;                        // an outlier counts as this
constexpr double kBusyMemory_ns = 100e6, kMostBusy = 0.8;  // busier than this: no packing
constexpr uint64_t kSoloEvery = 50;                        // 2 % of the bursts refresh the baseline
constexpr uint64_t kFirstBlock = 64;  // bursts without packing after one that was too slow
constexpr uint64_t kMostDoublings = 8;
constexpr uint64_t kPackLook_ns = base::us(500);  // a busy pulse tells nobody
// Fairness, in virtual time: held above the first, released below the second.
constexpr double kAhead_ns = 4e6, kCaughtUp_ns = 1e6, kMostAhead_ns = 40e6, kUrgent_ns = 1e9;
constexpr size_t kFew = 2;  // so many run at once, whatever they fill
constexpr uint64_t kFairLook_ns = base::ms(1);
// Minimum share.
constexpr uint64_t kShareWindow_ns = base::ms(100);
constexpr uint64_t kShareLook_ns = base::ms(1);

void hold(Lease* lease) {
  lease->grant = Grant::kHold;
  lease->nudge = false;
}

void let_run(Lease* lease) {  // beside protected work
  lease->grant = Grant::kGranted;
  lease->packed = true;
  lease->width_blocks = 0;
}

Parameters with_gate_guard(Parameters p) {
  p.guard_ns = std::min(p.guard_ns, kGateGuard_ns);
  return p;
}

}  // namespace

TesseraPolicy::TesseraPolicy(const Parameters& parameters)
    : parameters_(parameters), temporal_(with_gate_guard(parameters)) {}

uint64_t TesseraPolicy::gate_guard_ns(const Parameters& parameters) const {
  return with_gate_guard(parameters).guard_ns;
}

double TesseraPolicy::width_share(uint64_t protected_id, ResourceClass best_effort) const {
  const Client* c = clients_.find(protected_id);
  return c == nullptr || !c->learnt ? 0 : c->learnt->widths[size_t(best_effort)].share;
}

double TesseraPolicy::reach(uint64_t protected_id) const {
  const Client* c = clients_.find(protected_id);
  return c == nullptr || !c->learnt ? 1 : c->learnt->reach.value;
}

Decision TesseraPolicy::decide(const Observation& o) {
  Decision d = temporal_.decide(o);
  clients_.follow(o.clients);
  protected_.clear();
  for (size_t i = 0; i < o.clients.size(); ++i) {
    clients_[i].in_turn = clients_[i].may_run = d.leases[i].grant == Grant::kGranted;
    if (is_protected(o.clients[i])) protected_.push_back(i);
  }
  learn(o);
  const bool both_kinds = !protected_.empty() && protected_.size() < o.clients.size();
  if (both_kinds) {
    size_slices(o, &d);
    wait_out_gaps(o, &d);
    wake_in_time(o, &d);
  }
  if (o.mps) share_fairly(o, &d);
  if (o.mps && both_kinds) thin_out(o, &d);
  if (o.mps && both_kinds) pack(o, &d);
  if (both_kinds) forestall_expiry(o, &d);
  if (parameters_.min_share > 0) keep_minimum(o, &d);
  last_look_ns_ = o.now_ns;
  return d;
}

// ---- what protected clients do

void TesseraPolicy::learn(const Observation& o) {
  const double passed = last_look_ns_ == 0 ? 0 : double(o.now_ns - last_look_ns_);
  for (size_t i : protected_)
    if (!clients_[i].learnt) clients_[i].learnt = std::make_unique<Learnt>();
  turnaround_ns_ = turnaround_ns(o);
  bool any_busy = false;
  uint64_t idle_since_ns = 0, began_ns = UINT64_MAX;
  for (size_t i : protected_) {
    const ClientView& c = o.clients[i];
    any_busy |= c.busy;
    idle_since_ns = std::max(idle_since_ns, c.idle_since_ns);
    if (c.busy) began_ns = std::min(began_ns, c.busy_since_ns);
  }
  if (any_busy && all_idle_since_ns_ != 0 && began_ns > all_idle_since_ns_) {
    all_gaps_.add(began_ns - all_idle_since_ns_);
    all_wait_ns_ =
        all_gaps_.wait_ns(kWorthOfTurnaround * turnaround_ns_ + temporal_.switch_cost_ns(), kLongestGap_ns);
  }
  all_idle_since_ns_ = any_busy ? 0 : idle_since_ns;
  for (size_t i : protected_) {
    const ClientView& c = o.clients[i];
    Learnt& l = *clients_[i].learnt;
    l.busy_share += (double(c.busy) - l.busy_share) * std::min(1.0, passed / kBusyMemory_ns);
    if (c.busy_since_ns != l.burst_began_ns) {
      const uint64_t idle_ns = c.busy ? c.idle_since_ns : l.went_idle_ns;
      l.burst_began_ns = c.busy_since_ns;
      if (idle_ns != 0 && c.busy_since_ns > idle_ns) {
        l.gaps.add(c.busy_since_ns - idle_ns);
        l.exposed = c.busy_since_ns - idle_ns > kLongestGap_ns;
        l.wait_ns =
            l.gaps.wait_ns(kWorthOfTurnaround * turnaround_ns_ + temporal_.switch_cost_ns(), kLongestGap_ns);
        learn_silence(&l);
      }
    }
    if (!c.busy) l.went_idle_ns = c.idle_since_ns;
    if (c.bursts != l.bursts) learn_burst(c, &l);
  }
}

// Few gaps say nothing about rare short ones: not before kNeededSurely. The middle of a bucket may be longer
// than what was seen, hence the margin.
void TesseraPolicy::learn_silence(Learnt* l) const {
  if (l->gaps.total() < kNeededSurely) return;
  l->surely_idle_ns = uint64_t(double(l->gaps.quantile_ns(kSurely)) * kSurelyMargin);
  l->asleep_ns = std::max(kAsleep_ns, kAsleepGaps * l->gaps.quantile_ns(1));
}

void TesseraPolicy::learn_burst(const ClientView& c, Learnt* l) {
  l->bursts = c.bursts;
  const bool packed = l->packed;
  l->packed = false;
  if (l->exposed && c.burst_ns != 0) {
    l->exposed_bursts.add(c.burst_ns);
    if (l->exposed_bursts.total() >= kNeededExposed) l->exposed_ns = l->exposed_bursts.quantile(kShortBursts);
  }
  if (c.slowdown <= 0) return;
  // Single bursts vary for other reasons (what was in flight when they began): outliers are clipped.
  const double slowdown = std::min(c.slowdown, kMostSlowdown);
  const bool slow = slowdown > 1 + parameters_.slowdown_target;
  l->reach.judge(slow);
  reach_.judge(slow);
  if (!packed) {
    l->unpacked.add(uint64_t(std::max(0.0, slowdown - 1) * kPerExcess));
    l->tail = double(l->unpacked.quantile(0.99)) / kPerExcess;
    return;
  }
  Width& width = l->widths[size_t(l->packed_class)];
  width.slowdown_sum += slowdown;
  if (++width.n_slowdowns < kJudgedBursts) return;
  const double mean = width.slowdown_sum / double(width.n_slowdowns);
  width.slowdown_sum = 0;
  width.n_slowdowns = 0;
  const double allowed = std::min(parameters_.slowdown_target * (1 - l->busy_share),
                                  kSpentOnPacking * (parameters_.slowdown_target - l->tail));
  const double affordable = mean > 1 ? width.share * allowed / (mean - 1) : kMostShare;
  if (mean > 1 + allowed || affordable < kWorthwhileShare) {
    width.share = affordable < kWorthwhileShare ? 0 : width.share / 2;
    if (width.share < kLeastShare)
      width.blocked_bursts = c.bursts + (kFirstBlock << std::min(width.punished, kMostDoublings));
    ++width.punished;
  } else {
    width.share = std::min(kMostShare, width.share + kShareStep);
    width.punished -= width.punished > 0;
  }
}

void TesseraPolicy::Reach::Judged::add(bool slow) {
  ++n;
  n_slow += slow;
  if (n >= kMostJudged) n /= 2, n_slow /= 2;
}

// One burst in a hundred may be too slow. A slow one after a slow one says nothing new: slower clocks, or the
// same long kernel. Bursts that are as slow at the least reach as before vary by themselves: then the first
// guess, for long.
void TesseraPolicy::Reach::judge(bool slow) {
  ++bursts;
  if (fixed_for > 0) {
    --fixed_for;
    return;
  }
  Judged& judged = value > kNearLeast * kLeastReach ? wide : narrow;
  judged.add(slow);
  if (!slow || !was_slow) value *= std::exp(kReachStep * (kTooSlowShare - (slow ? 1 : 0)));
  value = std::clamp(value, kLeastReach, kMostReach);
  was_slow = slow;
  const double still = narrow.slow_share();
  if (narrow.n < kNeededJudged || still < kStillSlowShare || still < kHelped * wide.slow_share()) return;
  value = 1;
  wide = narrow = {};
  fixed_for = pause = std::clamp(pause * 2, kFirstPause, kMostPause);
}

// ---- what is in flight when a burst begins

uint64_t TesseraPolicy::turnaround_ns(const Observation& o) const {
  uint64_t least_ns = parameters_.window_ns;
  for (size_t i : protected_) {
    // A request's first burst meets best-effort work; what follows short gaps does not.
    const uint64_t exposed_ns = clients_[i].learnt->exposed_ns;
    const uint64_t burst_ns = std::max(exposed_ns, o.clients[i].burst_ns);
    const double allowed_ns = double(burst_ns) * parameters_.slowdown_target * kTurnaroundPerTarget;
    least_ns = std::min(least_ns, burst_ns == 0 ? kUnknownTurnaround_ns : uint64_t(allowed_ns));
  }
  return std::max(least_ns, std::min(kLeastTurnaround_ns, parameters_.window_ns));
}

// Until when no burst is expected, by the gaps of every protected client: arrivals with a rhythm, or a client
// that has been quiet for so long that it is not at work. 0 = one may come at any time.
uint64_t TesseraPolicy::undisturbed_until_ns(const Observation& o) const {
  uint64_t until_ns = UINT64_MAX;
  for (size_t i : protected_) {
    const ClientView& c = o.clients[i];
    const Learnt& l = *clients_[i].learnt;
    const uint64_t idle_ns = o.now_ns - std::min(o.now_ns, c.idle_since_ns);
    if (c.busy) return 0;
    if (idle_ns >= l.asleep_ns) continue;
    until_ns = std::min(until_ns, c.idle_since_ns + l.surely_idle_ns);
  }
  return until_ns > o.now_ns + 2 * turnaround_ns_ ? until_ns : 0;
}

void TesseraPolicy::size_slices(const Observation& o, Decision* d) const {
  const uint64_t until_ns = undisturbed_until_ns(o);
  if (until_ns != 0) {
    // Nothing to protect yet: as `temporal` grants it, drained before the first burst may come.
    const uint64_t left_ns = until_ns - o.now_ns;
    const uint64_t window_ns = std::min(parameters_.window_ns, left_ns / 2);
    for (Lease& lease : d->leases) {
      if (lease.grant == Grant::kFree) continue;
      lease.window_ns = std::min(lease.window_ns, window_ns);
      lease.slice_ns = std::min(lease.slice_ns, std::max(kLeastSlice_ns, window_ns / 2));
    }
    if (until_ns != UINT64_MAX) look_at(until_ns - std::min(left_ns / 2, window_ns), d);
    return;
  }
  // Of clients that few bursts are known of only all together say something: the least of many guesses is
  // low.
  double reach = reach_.value;
  for (size_t i : protected_) {
    const ClientView& c = o.clients[i];
    const Learnt& l = *clients_[i].learnt;
    if (!c.busy && o.now_ns - std::min(o.now_ns, c.idle_since_ns) >= l.asleep_ns) continue;
    if (l.reach.bursts >= kNeededJudged) reach = std::min(reach, l.reach.value);
    if (l.asleep_ns != UINT64_MAX && !c.busy) look_at(c.idle_since_ns + l.asleep_ns, d);
  }
  reach = std::exp2(std::floor(std::log2(reach) * kReachPerOctave) / kReachPerOctave);
  const auto long_ns = uint64_t(std::max(1.0, double(turnaround_ns_) * kLongPerTurnaround * reach));
  for (size_t i = 0; i < o.clients.size(); ++i) {
    Lease& lease = d->leases[i];
    if (lease.grant == Grant::kFree) continue;
    const uint64_t overhead_ns = o.clients[i].slice_overhead_ns;
    // One slice fills the turnaround, unless a shorter one costs nearly nothing: then the next is ready when
    // it ends.
    const uint64_t least_ns = std::max(kLeastSlice_ns, overhead_ns * kLeastPerOverhead);
    uint64_t slice_ns = turnaround_ns_;
    if (overhead_ns != 0 && overhead_ns * kSlicePerOverhead * 2 <= turnaround_ns_) slice_ns /= 2;
    lease.slice_ns = std::min(lease.slice_ns, std::max(slice_ns, least_ns));
    lease.window_ns = std::min(lease.window_ns, std::max(turnaround_ns_, lease.slice_ns));
    lease.marker_spacing_ns =
        uint32_t(std::min<uint64_t>(lease.marker_spacing_ns, lease.window_ns / kMarkersPerWindow));
    if (!o.mps) continue;  // room helps where work of several clients runs at once
    lease.long_block_ns = long_ns;
    lease.long_width_percent = kLongWidth_percent;
  }
}

// ---- when best-effort work starts again

// Gates start as soon as a pulse falls idle; where that is too early they are held before it does.
void TesseraPolicy::wait_out_gaps(const Observation& o, Decision* d) {
  uint64_t until_ns = 0;
  for (size_t i : protected_) {
    const ClientView& c = o.clients[i];
    const Learnt& l = *clients_[i].learnt;
    const uint64_t unknown_ns =
        all_gaps_.knows() ? all_wait_ns_ : std::max(parameters_.guard_ns, kUnknownGap_ns);
    const uint64_t wait_ns = l.gaps.knows() ? l.wait_ns : unknown_ns;
    if (wait_ns <= kGateGuard_ns) continue;
    until_ns = std::max(until_ns, c.busy ? UINT64_MAX : c.idle_since_ns + wait_ns);
  }
  if (until_ns <= o.now_ns) return;
  for (size_t i = 0; i < d->leases.size(); ++i) {
    Lease& lease = d->leases[i];
    if (lease.grant == Grant::kGranted) hold(&lease);
  }
  if (until_ns != UINT64_MAX) look_at(until_ns, d);
}

void TesseraPolicy::wake_in_time(const Observation& o, Decision* d) const {
  uint64_t end_ns = 0;
  for (size_t i : protected_) {
    const ClientView& c = o.clients[i];
    if (!c.busy) continue;
    if (c.burst_ns == 0) return;
    end_ns = std::max(end_ns, c.busy_since_ns + c.burst_ns);
  }
  if (end_ns == 0 || o.now_ns > end_ns + kWatch_ns) return;
  if (o.now_ns + kWakeLead_ns < end_ns) {
    look_at(end_ns - kWakeLead_ns, d);
    return;
  }
  for (size_t i = 0; i < o.clients.size(); ++i)
    if (d->leases[i].grant == Grant::kGranted && o.clients[i].waiting) d->leases[i].spin_ns = kWatch_ns;
}

// ---- who

// A client between two launches still wants its share; what it is owed is forgotten when it rests for longer.
bool TesseraPolicy::wants_gpu(const Client& c, uint64_t now_ns) const {
  return c.last_demand_ns != 0 && now_ns - c.last_demand_ns <= parameters_.idle_grace_ns;
}

void TesseraPolicy::keep_back(size_t i, Decision* d) {
  clients_[i].may_run = false;
  if (d->leases[i].grant == Grant::kGranted) hold(&d->leases[i]);
}

void TesseraPolicy::share_fairly(const Observation& o, Decision* d) {
  // Who is furthest behind among those that want the GPU; idling earns nothing.
  double floor_ns = -1;
  size_t n_demanding = 0;
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c)) continue;
    Client& a = clients_[i];
    if (!a.known) a.last_used_ns = c.used_ns;
    a.known = true;
    const uint64_t used_ns = c.used_ns - std::min(c.used_ns, a.last_used_ns);
    a.last_used_ns = c.used_ns;
    if (used_ns != 0) a.virtual_ns += double(used_ns) * 100 / std::max(1u, c.weight);
    if (has_demand(c)) a.last_demand_ns = o.now_ns;
    const bool demand = wants_gpu(a, o.now_ns);
    n_demanding += demand;
    if (demand && a.had_demand && (floor_ns < 0 || a.virtual_ns < floor_ns)) floor_ns = a.virtual_ns;
  }
  const bool contended = n_demanding >= 2;
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c)) continue;
    Client& a = clients_[i];
    const bool demand = wants_gpu(a, o.now_ns);
    if (demand && !a.had_demand) a.virtual_ns = std::max(a.virtual_ns, floor_ns);
    a.had_demand = demand;
    // What ran while nobody else was there is not held against it for long.
    if (floor_ns >= 0) a.virtual_ns = std::min(a.virtual_ns, floor_ns + kMostAhead_ns);
    const double lead_ns = floor_ns < 0 ? 0 : a.virtual_ns - floor_ns;
    a.ahead = contended && lead_ns > (a.ahead ? kCaughtUp_ns : kAhead_ns);
    const uint64_t waited_ns = c.waiting ? o.now_ns - std::min(o.now_ns, c.waiting_since_ns) : 0;
    a.urgent = (c.slo_ns != 0 && lead_ns < kMostAhead_ns && waited_ns > c.slo_ns / 2) ||
               waited_ns > parameters_.max_hold_ns / 2;
    if (a.ahead && !a.urgent) keep_back(i, d);
  }
  if (contended) look_at(o.now_ns + kFairLook_ns, d);
}

// What is in flight when a burst begins is bounded for each client, so only as many run at once as fill the
// GPU: the urgent, then those furthest behind, each until it is ahead of the next in line.
void TesseraPolicy::thin_out(const Observation& o, Decision* d) {
  line_.clear();
  for (size_t i = 0; i < o.clients.size(); ++i) {
    if (is_protected(o.clients[i]) || !clients_[i].had_demand) continue;
    line_.emplace_back(clients_[i].virtual_ns, i);
  }
  if (line_.size() <= kFew || undisturbed_until_ns(o) != 0) return;
  const double turn_ns = std::min(kAhead_ns, double(parameters_.max_hold_ns) / 8 / double(line_.size()));
  for (auto& [place_ns, i] : line_)
    place_ns -= clients_[i].urgent ? kUrgent_ns : clients_[i].runs ? turn_ns : 0;
  std::make_heap(line_.begin(), line_.end(), std::greater<>());
  double sms = 0;
  auto end = line_.end();
  for (; end != line_.begin() && sms < o.sm_count; --end) {
    std::pop_heap(line_.begin(), end, std::greater<>());
    const size_t i = std::prev(end)->second;
    clients_[i].runs = true;
    sms += o.clients[i].launch_sms == 0 ? o.sm_count : o.clients[i].launch_sms;
  }
  for (auto it = line_.begin(); it != end; ++it) {
    clients_[it->second].runs = false;
    keep_back(it->second, d);
  }
}

void TesseraPolicy::pack(const Observation& o, Decision* d) {
  if (parameters_.slowdown_target <= 0) return;
  size_t hp = size_t(-1);
  for (size_t i : protected_) {
    if (!o.clients[i].busy) continue;
    if (hp != size_t(-1)) return;  // two protected bursts at once: no baseline says what that costs
    hp = i;
  }
  if (hp == size_t(-1) || o.clients[hp].burst_ns == 0) return;
  const ClientView& p = o.clients[hp];
  Learnt& l = *clients_[hp].learnt;
  if (l.busy_share > kMostBusy || p.resource_class == ResourceClass::kUnknown) return;
  const double allowance = parameters_.slowdown_target - l.tail;
  if (l.unpacked.total() < kNeededUnpacked || allowance < kLeastAllowance) return;
  look_at(o.now_ns + kPackLook_ns, d);
  if (p.bursts % kSoloEvery == 0) return;
  size_t chosen = size_t(-1);
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c) || !has_demand(c) || c.wave_blocks == 0 || c.uncut_launches != 0) continue;
    if (c.resource_class == ResourceClass::kUnknown || c.resource_class == p.resource_class) continue;
    if (p.bursts < l.widths[size_t(c.resource_class)].blocked_bursts || !clients_[i].may_run) continue;
    if (chosen == size_t(-1) || clients_[i].virtual_ns < clients_[chosen].virtual_ns) chosen = i;
  }
  if (chosen == size_t(-1)) return;
  const ClientView& c = o.clients[chosen];
  Width& width = l.widths[size_t(c.resource_class)];
  if (width.share < kLeastShare) width.share = kFirstShare;
  Lease& lease = d->leases[chosen];
  lease.grant = Grant::kGranted;
  lease.packed = true;
  lease.width_blocks = std::max(1u, uint32_t(width.share * c.wave_blocks));
  l.packed = true;
  l.packed_class = c.resource_class;
}

// A hold that expires lets the whole rest of a kernel go; a slice before that starts its time anew. One
// client at a time, and once per hold, whatever a client says about its waits.
void TesseraPolicy::forestall_expiry(const Observation& o, Decision* d) {
  const auto patience_ns = uint64_t(double(parameters_.max_hold_ns) * kForestallAt);
  size_t longest = size_t(-1);
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    // Whose turn it is still counts; what else holds it the expiry would end, too.
    if (is_protected(c) || !c.waiting || c.waiting_since_ns == 0 || !clients_[i].in_turn) continue;
    const uint64_t begun_ns = clients_[i].forestalled_ns;
    uint64_t due_ns = c.waiting_since_ns + patience_ns;
    if (o.now_ns - begun_ns >= kForestallFor_ns) due_ns = std::max(due_ns, begun_ns + patience_ns);
    look_at(std::max(due_ns, o.now_ns + kForestallLook_ns), d);
    if (o.now_ns < due_ns) continue;
    if (longest == size_t(-1) || c.waiting_since_ns < o.clients[longest].waiting_since_ns) longest = i;
  }
  if (longest == size_t(-1)) return;
  uint64_t& begun_ns = clients_[longest].forestalled_ns;
  if (o.now_ns - begun_ns >= kForestallFor_ns) begun_ns = o.now_ns;
  let_run(&d->leases[longest]);
}

void TesseraPolicy::keep_minimum(const Observation& o, Decision* d) {
  uint64_t used_ns = 0;
  size_t longest = size_t(-1);
  for (size_t i = 0; i < o.clients.size(); ++i) {
    const ClientView& c = o.clients[i];
    if (is_protected(c)) continue;
    used_ns += c.used_ns;
    if (c.waiting && clients_[i].may_run &&
        (longest == size_t(-1) || c.waiting_since_ns < o.clients[longest].waiting_since_ns))
      longest = i;
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
  if (longest == size_t(-1) || owed_ns <= 0 || left_ns > owed_ns * 2) return;
  let_run(&d->leases[longest]);
}

}  // namespace tessera::policy
