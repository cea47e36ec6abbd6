// Until when no burst is expected, by the gaps of every protected client: arrivals with a rhythm, or a client that
// has been quiet for so long that it is not at work.
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

uint64_t undisturbed_until_ns(const Observation& o, const Tuning& t, const Learnt& learnt) {
  if (!t.undisturbed) return 0;
  uint64_t until_ns = UINT64_MAX;
  for (size_t i : learnt.protected_clients) {
    const ClientView& c = o.clients[i];
    if (c.busy) return 0;
    if (learnt.of(i).asleep(c, o.now_ns)) continue;
    until_ns = std::min(until_ns, c.idle_since_ns + learnt.of(i).surely_idle_ns);
  }
  return until_ns > o.now_ns + t.undisturbed_turnarounds * learnt.turnaround_ns ? until_ns : 0;
}

}  // namespace

Facts facts_of(const Observation& o, const Parameters& p, const Tuning& t, const Learnt& learnt) {
  Facts f{o, p, t, learnt};
  const size_t n_protected = learnt.protected_clients.size();
  f.both_kinds = n_protected != 0 && n_protected < o.clients.size();
  if (f.both_kinds) f.undisturbed_until_ns = undisturbed_until_ns(o, t, learnt);
  if (f.undisturbed_until_ns != 0)
    f.undisturbed_window_ns = std::min(p.window_ns, (f.undisturbed_until_ns - o.now_ns) / 2);
  return f;
}

}  // namespace tessera::policy
