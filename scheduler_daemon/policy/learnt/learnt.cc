#include "scheduler_daemon/policy/learnt/learnt.h"

#include <algorithm>

#include "scheduler_daemon/policy/levels.h"

namespace tessera::policy {
namespace {

// A share of the length of the bursts, so that long requests cost best-effort work little and short ones are
// protected.
double allowance_of(const Observation& o, const Parameters& p, const Tuning& t, const PolicyState& learnt) {
  double allowance_ns = double(p.window_ns) / t.in_flight_per_target;
  for (size_t i : learnt.protected_clients) {
    // Work that is in flight when a request begins makes all of the request late.
    const uint64_t burst_ns = std::max(learnt.of(i).exposed_ns, o.clients[i].burst_ns);
    const double left = p.slowdown_target - learnt.of(i).packed_excess;
    const double more = learnt.of(i).varies(p.slowdown_target) ? t.more_where_varied : 1;
    allowance_ns = std::min(allowance_ns, burst_ns == 0 ? double(t.short_work_ns) / t.in_flight_per_target
                                                        : double(burst_ns) * left * more);
  }
  return allowance_ns;
}

Neighbours neighbours_of(const Observation& o, const Tuning& t) {
  size_t n = 0;
  bool confined = false;
  for (const ClientView& c : o.clients) {
    if (is_protected(c)) continue;
    ++n;
    confined |= c.can_confine;
  }
  return {.crowd = n > t.few, .confined = confined};
}

// A launch of unknown width may fill the GPU.
void observe_width(const ClientView& c, const Observation& o, const Tuning& t, ClientState* client) {
  const uint32_t sms = c.launch_sms == 0 ? o.sm_count : c.launch_sms;
  if (!has_demand(c) || (sms < client->widest_sms && o.now_ns - client->widest_ns < t.recent_ns)) return;
  client->widest_sms = sms;
  client->widest_ns = o.now_ns;
}

// How long what waits takes: no slice is shorter than a block, and what cannot be cut is one piece.
void observe_length(const ClientView& c, uint64_t now_ns, const Tuning& t, ClientState* client) {
  if (!c.waiting || (c.queued_ns < client->longest_ns && now_ns - client->longest_seen_ns < t.recent_ns))
    return;
  client->longest_ns = c.queued_ns;
  client->longest_seen_ns = now_ns;
}

}  // namespace

void PolicyState::observe(const Observation& o, const Parameters& p, const Tuning& t) {
  clients.follow(o.clients);
  protected_clients.clear();
  for (size_t i = 0; i < o.clients.size(); ++i) {
    if (!is_protected(o.clients[i])) {
      observe_width(o.clients[i], o, t, &clients[i]);
      observe_length(o.clients[i], o.now_ns, t, &clients[i]);
      continue;
    }
    protected_clients.push_back(i);
    if (!clients[i].learnt) clients[i].learnt = std::make_unique<ProtectedClientState>(t);
  }
  allowance_ns = allowance_of(o, p, t, *this);
  max_in_flight_ns =
      std::max(uint64_t(allowance_ns * t.in_flight_per_target), std::min(t.reaction_ns, p.window_ns));
  const uint64_t last_look_ns = last_look_ns_;
  for (size_t i : protected_clients)
    for (size_t k = 0; k < clients.size(); ++k)
      if (clients[k].burst_width > 0)
        clients[i].learnt->note_during_bursts(o.clients[i], last_look_ns_, o.now_ns, clients[k].burst_class,
                                              clients[k].burst_width);
  last_look_ns_ = o.now_ns;
  const Neighbours neighbours = neighbours_of(o, t);
  bursts_.clear();
  uint64_t dearest_change_ns = 0;
  for (size_t i : protected_clients) {
    const ClientView& c = o.clients[i];
    for_each_burst(c, o.now_ns, [&](const Span& burst) { bursts_.push_back(burst); });
    dearest_change_ns = std::max(dearest_change_ns, c.change_ns);
    bool slow = false;
    if (clients[i].learnt->observe(c, last_look_ns, o.now_ns, {max_in_flight_ns, c.change_ns, o.mps},
                                   p.slowdown_target, neighbours, t, &slow))
      block_scale.judge(slow, !neighbours.crowd, t);
  }
  std::sort(bursts_.begin(), bursts_.end(),
            [](const Span& a, const Span& b) { return a.began_ns < b.began_ns; });
  for (const Span& burst : bursts_)
    all_idle_.add(burst, [&](uint64_t gap_ns, uint64_t) {
      all_gaps.add(gap_ns);
      all_gap_wait_ns = all_gaps.wait_ns({max_in_flight_ns, dearest_change_ns, o.mps}, t);
    });
}

}  // namespace tessera::policy
