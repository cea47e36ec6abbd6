#include "scheduler_daemon/policy/tessera.h"

#include <algorithm>

#include "scheduler_daemon/policy/burst_end.h"
#include "scheduler_daemon/policy/levels.h"
#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

Parameters with_gate_guard(Parameters p, const Tuning& t) {
  p.guard_ns = std::min(p.guard_ns, t.gate_guard_ns);
  return p;
}

// In order of precedence: where two parts disagree the later one decides.
template <class... Parts>
void combine(Decision* d, const Parts&... in_order) {
  for (uint64_t at_ns : {in_order.decide_again_ns()...})
    if (at_ns != 0) look_at(at_ns, d);
  for (size_t i = 0; i < d->leases.size(); ++i) (apply(in_order.of(i), &d->leases[i]), ...);
}

}  // namespace

TesseraPolicy::TesseraPolicy(const Parameters& parameters, const Tuning& tuning)
    : parameters_(parameters),
      tuning_(tuning),
      temporal_(with_gate_guard(parameters, tuning), tuning),
      learnt_(tuning) {}

uint64_t TesseraPolicy::gate_guard_ns(const Parameters& parameters) const {
  return with_gate_guard(parameters, tuning_).guard_ns;
}

double TesseraPolicy::block_scale(uint64_t protected_id) const {
  const ClientState* c = learnt_.clients.find(protected_id);
  return c == nullptr || !c->learnt ? 1 : c->learnt->block_scale.value();
}

Decision TesseraPolicy::decide(const Observation& o) {
  Decision d = temporal_.decide(o);
  update(o, d);
  const Facts facts = facts_of(o, parameters_, tuning_, learnt_);
  choose_runners(facts, &learnt_);

  const InFlightLimit in_flight_limit(facts);
  const FreeSms free_sms(facts);
  const Reserve reserve(facts);
  const Gaps gaps(facts);
  const Waking waking(facts);
  const Fairness fairness(facts);
  const Crowd crowd(facts);
  Packing packing(facts, gaps.holds());
  const Together together(facts, packing.share());
  if (together.on()) packing.give_way();
  const Holds holds(facts);
  const Minimum minimum(facts);
  combine(&d,               // over the turns and levels of `temporal`:
          in_flight_limit,  // how much may be in flight and how long a slice is
          free_sms,         // how wide kernels of long blocks are
          reserve,          // which SMs kernels that cannot be cut keep off,
          gaps,             // nobody starts in a gap that is too short,
          waking,           // who does is awake when the burst ends,
          fairness,         // unless it is ahead of its share,
          crowd,            // or others fill the GPU;
          together,         // but all may start if that is harmless during the burst,
          packing,          // or on SMs of their own if that is,
          holds,            // or its hold would expire,
          minimum);         // or best-effort work has not had its minimum
  gaps.close_gates(&d);
  choose_quiet(o, &d);
  gaps.note(&learnt_);
  packing.note(d, &learnt_);
  together.note(d, &learnt_);
  d.tell_busy = packing.tell_busy();
  holds.note(&learnt_);
  note_offers(d, &learnt_);
  return d;
}

// Updates the memory of the policy before anything is decided.
void TesseraPolicy::update(const Observation& o, const Decision& turns) {
  learnt_.observe(o, parameters_, tuning_);
  for (size_t i = 0; i < o.clients.size(); ++i) {
    ClientState& c = learnt_.clients[i];
    c.in_turn = turns.leases[i].grant == Grant::kGranted;
    c.held_back = c.crowded_out = false;
  }
  if (o.mps) {
    account_progress(o, parameters_, tuning_, &learnt_);
    account_shares(o, parameters_, tuning_, &learnt_);
  }
  account_minimum(o, tuning_, &learnt_);
}

}  // namespace tessera::policy
