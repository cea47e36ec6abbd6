// `temporal`: strict levels in time. Pure; one object per GPU; called by the daemon's core, the simulator,
// tests.
//
// - Protected clients (priority > 0) are free-running: their launches are never held (design D5). Between
// protected
//   levels the hardware's stream priorities are all there is in this version.
// - One client alone on its GPU: free-running.
// - Best-effort clients keep their lease while protected ones are busy: they watch the pulses themselves
// before each
//   launch (design D6), which takes microseconds instead of a round trip. What this policy adds is the way
//   back: a guard time after the last protected client became idle it nudges whoever waits. A busy client
//   whose pulse nobody watches (more than eight of them) is obeyed by revocation.
// - Several best-effort clients: with MPS their leases overlap. Without MPS they take exclusive turns in
//   order of virtual time (turn time over weight); among those that are not ahead of their share, one with an
//   SLO goes before the others, the earliest deadline first. A turn passes on only when its holder has
//   drained, died, or hung for drain_timeout_ns. Time in which a protected client was busy is not charged to
//   the holder, but the time that it drains is: nobody works then. Whose drains time out again and again is
//   waited for less long, and pays more. What passing on costs is learnt, and turns are long enough that it
//   is a small part of them.
#pragma once

#include "scheduler_daemon/policy/estimate/switch_cost.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/slots.h"

namespace tessera::policy {

class TemporalPolicy final : public Policy {
 public:
  explicit TemporalPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "temporal"; }
  Decision decide(const Observation& observation) override;
  uint64_t switch_cost_ns() const { return switch_cost_.ns(); }  // learnt; 0 = not known

 private:
  struct Account {            // one client; unused for protected ones
    uint64_t virtual_ns = 0;  // charged time * 100 / weight
    bool had_demand = false;  // at the last decision
    uint64_t demand_ns = 0;   // the latest with demand
  };
  struct Turn {  // exclusive mode; holder 0: nobody
    uint64_t holder = 0;
    uint64_t started_ns = 0;
    uint64_t charged_ns = 0;        // of this turn
    uint64_t last_active_ns = 0;    // last look at which the holder worked
    uint64_t last_used_ns = 0;      // its used_ns then
    uint64_t used_at_start_ns = 0;  // likewise
    uint64_t revoked_ns = 0;        // 0: the turn runs; else: draining since
    bool busy_to_the_end = false;   // it was revoked although it had work
  };
  static constexpr size_t kNone = size_t(-1);

  // Returns when to look again, 0 = no need. Sets turn_.
  uint64_t decide_turns(const Observation& o);
  void open_accounts(const Observation& o);
  void charge_holder(const Observation& o, size_t holder, bool any_busy);
  void charge(const Observation& o, size_t index, uint64_t since_ns, uint64_t price);
  // Is the revoked holder's drain over, or waited for no longer?
  bool drain_ended(const Observation& o, size_t holder);
  uint64_t drain_patience_ns(const ClientView& holder) const;
  uint64_t quantum_ns(uint64_t n_waiting) const;
  // Is somebody who waits so far behind the holder that its turn ends early?
  bool owes(const Observation& o, size_t holder, uint64_t quantum_ns) const;
  void start_turn(const ClientView& holder, uint64_t now_ns);
  size_t next_in_line(const Observation& o, bool holder_may_stay) const;
  void nudge_after_guard(const Observation& o, Decision* d);

  Parameters parameters_;
  Slots<Account> accounts_;
  std::vector<size_t> best_effort_;  // of this observation
  Turn turn_;
  SwitchCost switch_cost_;
  uint64_t overdue_client_ = 0;    // whose drain this decision gave up; 0: nobody's
  bool took_turns_ = false;        // the previous decision was about exclusive turns
  uint64_t floor_virtual_ns_ = 0;  // least virtual time of the active: where newcomers start
  uint64_t last_look_ns_ = 0;      // time of the previous decision
  uint64_t nudged_idle_ns_ = 0;    // idle_since_ns whose guard time has been answered by a nudge
};

}  // namespace tessera::policy
