// As wide as an additive increase, multiplicative decrease on the measured slowdown has found harmless, within
// what the tail has left of the target. No solo baseline, no packing; one burst in tuning.solo_every stays solo
// to refresh it.
#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// The only protected client that is busy. Of two bursts at once no baseline says what packing costs.
size_t only_busy(const Facts& f) {
  size_t found = kNobody;
  for (size_t i : f.learnt.protected_clients) {
    if (!f.o.clients[i].busy) continue;
    if (found != kNobody) return kNobody;
    found = i;
  }
  return found;
}

bool can_be_packed(const Facts& f, size_t client, const ClientView& beside, const PackingHistory& history) {
  const ClientView& c = f.o.clients[client];
  const bool other_class =
      c.resource_class != ResourceClass::kUnknown && c.resource_class != beside.resource_class;
  const bool fits = c.wave_blocks != 0 && c.uncut_launches == 0;
  return !is_protected(c) && has_demand(c) && fits && other_class &&
         !history.blocked(c.resource_class, beside.bursts) && f.learnt.clients[client].may_run();
}

}  // namespace

Packing::Packing(const Facts& facts) : Part(facts) {
  const Tuning& t = f_.tuning;
  if (!f_.both_kinds || !f_.o.mps || !f_.parameters.packing || f_.parameters.slowdown_target <= 0) return;
  beside_ = only_busy(f_);
  if (beside_ == kNobody || f_.o.clients[beside_].burst_ns == 0) return;
  const ClientView& p = f_.o.clients[beside_];
  const ProtectedClient& l = f_.learnt.of(beside_);
  const PackingHistory& history = l.packing;
  if (l.busy_share > t.most_busy || p.resource_class == ResourceClass::kUnknown) return;
  const double allowance = f_.parameters.slowdown_target - history.tail();
  if (history.n_unpacked() < t.needed_unpacked || allowance < t.least_allowance) return;
  decide_again_at(f_.o.now_ns + t.pack_look_ns);
  if (t.solo_every != 0 && p.bursts % t.solo_every == 0) return;
  for (size_t i = 0; i < f_.o.clients.size(); ++i) {
    if (!can_be_packed(f_, i, p, history)) continue;
    if (chosen_ == kNobody ||
        f_.learnt.clients[i].share.virtual_ns < f_.learnt.clients[chosen_].share.virtual_ns)
      chosen_ = i;
  }
  if (chosen_ == kNobody) return;
  const ClientView& c = f_.o.clients[chosen_];
  width_blocks_ = std::max(1u, uint32_t(history.share_to_try(c.resource_class, t) * c.wave_blocks));
}

Constraint Packing::of(size_t client) const {
  if (client != chosen_) return {};
  return {.start = Constraint::Start::kBeside, .width_blocks = width_blocks_};
}

void Packing::note(Learnt* learnt) const {
  if (chosen_ == kNobody) return;
  learnt->clients[beside_].learnt->packing.note_packed(f_.o.clients[chosen_].resource_class, f_.tuning);
}

}  // namespace tessera::policy
