#include "scheduler_daemon/policy/burst_end.h"
#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// The length of the burst that ran last, or what the one that runs should take.
uint64_t length_ns(const ClientView& c) {
  return c.busy ? c.next_burst_ns : c.idle_since_ns - std::min(c.busy_since_ns, c.idle_since_ns);
}

}  // namespace

Gaps::Gaps(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !t.gaps) return;
  unknown_wait_ns_ = f_.learnt.all_gaps.is_known() ? f_.learnt.all_gap_wait_ns
                                                   : std::max(f_.parameters.guard_ns, t.unknown_gap_ns);
  for (size_t i : f_.learnt.protected_clients) {
    const ClientView& c = f_.o.clients[i];
    const Hold hold = hold_of(i).after(length_ns(c));
    const uint64_t idle_ns = c.busy ? 0 : f_.o.now_ns - std::min(f_.o.now_ns, c.idle_since_ns);
    hold_ |= hold.covers(idle_ns);
    if (c.busy ? hold.ends_by_ns != 0 : hold.ends_by_ns > idle_ns) expect(c, hold);
    const uint64_t next_ns = hold.next_end_ns(idle_ns);
    if (!c.busy && next_ns != UINT64_MAX) decide_again_at(c.idle_since_ns + next_ns);
  }
  find_fitting_class();
  for (size_t i = 0; i < f_.o.clients.size(); ++i)
    if (spoils(i)) decide_again_at(spoils_until_ns(i));
}

// Work that begins should end before the first of the bursts that are expected. Work starts at the end of a burst without the
// daemon, so it must be told before.
void Gaps::expect(const ClientView& c, const Hold& hold) {
  const uint64_t idle_since_ns = c.busy ? c.busy_since_ns + length_ns(c) : c.idle_since_ns;
  const uint64_t at_ns = idle_since_ns + hold.ends_by_ns;
  usable_from_ns_ = std::max(usable_from_ns_, idle_since_ns + hold.wait_ns);
  if (hold.ends_by_ns < f_.tuning.longest_gap_ns)
    short_period_ns_ = std::max(short_period_ns_, length_ns(c) + hold.ends_by_ns);
  ends_by_ns_ = ends_by_ns_ == 0 ? at_ns : std::min(ends_by_ns_, at_ns);
}

// Work that is longer than the gap itself begins at the beginning of one. Short gaps are not for it.
bool Gaps::begins_first(size_t client) const {
  return short_period_ns_ == 0 && !fits_gap(client) &&
         f_.o.now_ns < usable_from_ns_ + f_.learnt.max_in_flight_ns;
}

bool Gaps::fits_gap(size_t client) const {
  return f_.learnt.clients[client].longest_ns <= ends_by_ns_ - std::min(ends_by_ns_, usable_from_ns_);
}

// A piece that fits into no short gap waits for the hold limit, and then makes late each burst that comes meanwhile, and at
// half load as many behind those. Its client brings such pieces soon if it gets short gaps. It gets none until the bursts that
// are late are as few as may be slow.
uint64_t Gaps::spoils_until_ns(size_t client) const {
  const ClientState& l = f_.learnt.clients[client];
  if (ends_by_ns_ == 0 || fits_gap(client)) return l.spoils_until_ns;
  const uint64_t late_ns = 2 * (l.longest_ns + short_period_ns_);
  return f_.o.now_ns + uint64_t(double(late_ns) / f_.tuning.too_slow_share);
}

// The gate on the device cannot read a clock: the class of what fits falls while the next burst comes nearer. Nobody
// looks for longer classes than there is work of.
void Gaps::find_fitting_class() {
  if (ends_by_ns_ == 0 || hold_) return;
  const uint64_t from_ns = std::max(f_.o.now_ns, usable_from_ns_);
  uint64_t longest_ns = 0;
  for (size_t i = 0; i < f_.o.clients.size(); ++i) {
    if (is_protected(f_.o.clients[i])) continue;
    if (begins_first(i)) decide_again_at(usable_from_ns_ + f_.learnt.max_in_flight_ns);
    if (f_.o.clients[i].gate_on_device) longest_ns = std::max(longest_ns, f_.learnt.clients[i].longest_ns);
  }
  const uint32_t needed = base::length_class(longest_ns);
  const uint32_t fits = base::class_within(ends_by_ns_ - std::min(ends_by_ns_, from_ns));
  if (fits < needed) fits_ = fits;
  const uint32_t closes_next = std::min(fits, needed);
  if (needed == 0 || closes_next == base::kLongestClass) return;
  const uint64_t closes_ns = ends_by_ns_ - std::min(ends_by_ns_, base::kLongestOfClass[closes_next]) + 1;
  if (closes_ns > f_.o.now_ns) decide_again_at(closes_ns);
}

// One gap in many is left alone where processes take turns on the GPU: the burst behind it says what the others lose to work
// that ran before them.
bool Gaps::stays_unused(size_t protected_client) const {
  const ClientView& c = f_.o.clients[protected_client];
  return !f_.o.mps && f_.learnt.of(protected_client).unused_gap.due(c.bursts, every(c));
}

uint64_t Gaps::every(const ClientView& c) const {
  return c.knows_change ? f_.tuning.retry_every : f_.tuning.solo_every;
}

void Gaps::note(PolicyState* learnt) const {
  for (size_t i = 0; short_period_ns_ != 0 && i < learnt->clients.size(); ++i)
    learnt->clients[i].spoils_until_ns = spoils_until_ns(i);
  for (size_t i : learnt->protected_clients)
    learnt->clients[i].learnt->unused_gap.note(f_.o.clients[i].bursts, every(f_.o.clients[i]));
}

Hold Gaps::hold_of(size_t protected_client) const {
  const ProtectedClientState& l = f_.learnt.of(protected_client);
  if (stays_unused(protected_client)) return {.wait_ns = f_.tuning.longest_gap_ns};
  Hold hold = l.next_burst.gaps().is_known() ? l.gap_hold : Hold{.wait_ns = unknown_wait_ns_};
  if (hold.wait_ns <= f_.tuning.gate_guard_ns) hold.wait_ns = 0;  // gates wait as long by themselves
  return hold;
}

void Gaps::close_gates(Decision* d) const {
  if (!f_.both_kinds) return;
  for (size_t i : f_.learnt.protected_clients) {
    const Hold hold = f_.tuning.gaps ? hold_of(i) : Hold{};
    wait_out_gaps(f_.o, i, hold.wait_ns, f_.tuning.gate_guard_ns, d);
    d->leases[i].timed = hold.from_ns != 0;
  }
}

Constraint Gaps::of(size_t client) const {
  if (hold_ || spoils(client)) return {.start = Constraint::Start::kHeld, .held_by = HeldBy::kGap};
  if (ends_by_ns_ == 0 || begins_first(client)) return {};
  return {.ends_by_ns = ends_by_ns_, .length_class = fits_};
}

}  // namespace tessera::policy
