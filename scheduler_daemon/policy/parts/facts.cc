#include <algorithm>

#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// By the gaps of every protected client: arrivals with a rhythm, or a client that has been quiet for so long that
// it is not at work.
uint64_t undisturbed_until_ns(const Observation& o, const Tuning& t, const PolicyState& learnt) {
  if (!t.undisturbed) return 0;
  uint64_t until_ns = UINT64_MAX;
  for (size_t i : learnt.protected_clients) {
    const ClientView& c = o.clients[i];
    if (c.busy) return 0;
    if (learnt.of(i).asleep(c, o.now_ns)) continue;
    until_ns = std::min(until_ns, c.idle_since_ns + learnt.of(i).surely_idle_ns);
  }
  // Half of that time may be in flight: worth it where it is more than at other times.
  return until_ns / 2 > o.now_ns / 2 + learnt.max_in_flight_ns ? until_ns : 0;
}

// Some piece of best-effort work is so long that the first burst which meets it would be far too slow.
bool a_piece_is_long(const Observation& o, const Tuning& t, const PolicyState& learnt) {
  const double long_ns = double(learnt.max_in_flight_ns) * t.reserve_from_in_flight;
  for (size_t i = 0; i < o.clients.size(); ++i)
    if (double(learnt.clients[i].longest_ns) > long_ns) return true;
  return false;
}

// The largest share of those who are at work: their bursts seldom coincide, and each was measured beside the others.
void learn_reserve(Facts* f) {
  f->reserve_helps = f->o.mps && f->tuning.reserve;
  if (!f->reserve_helps) return;
  const double least = a_piece_is_long(f->o, f->tuning, f->learnt) ? f->tuning.least_sms : 0;
  for (size_t i : f->learnt.protected_clients) {
    const ProtectedClientState& l = f->learnt.of(i);
    if (l.asleep(f->o.clients[i], f->o.now_ns)) continue;
    f->reserve_share = std::max({f->reserve_share, least, l.reserve.value()});
    f->reserve_helps &= l.reserve.helps(f->tuning);
  }
}

}  // namespace

Facts facts_of(const Observation& o, const Parameters& p, const Tuning& t, const PolicyState& learnt) {
  Facts f{o, p, t, learnt};
  const size_t n_protected = learnt.protected_clients.size();
  f.both_kinds = n_protected != 0 && n_protected < o.clients.size();
  if (f.both_kinds) {
    f.undisturbed_until_ns = undisturbed_until_ns(o, t, learnt);
    learn_reserve(&f);
  }
  if (f.undisturbed_until_ns != 0)
    f.undisturbed_window_ns = std::min(p.window_ns, (f.undisturbed_until_ns - o.now_ns) / 2);
  return f;
}

}  // namespace tessera::policy
