// Exclusive turns of best-effort clients on a GPU that only one of them may use at a time (no MPS), in order
// of virtual time (turn time over weight). Pure; part of `temporal`.
//
// - Among clients that are not ahead of their share, those with an SLO go first, by the earliest deadline.
// - A turn passes on only when its holder has drained, died, or hung for drain_timeout. A holder whose drains
//   time out again and again is waited for less long, and pays more.
// - Time in which a protected client was busy is not charged to the holder. The time that it drains is:
//   nobody works then.
#pragma once

#include <vector>

#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/slots.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class Turns {
 public:
  Turns(const Parameters& parameters, const Tuning& tuning) : parameters_(parameters), tuning_(tuning) {}

  // Leases are exclusive now: decides whose turn it is. `best_effort`: places in the observation. Returns
  // when to look again, 0 = no need.
  uint64_t decide(const Observation& o, const std::vector<size_t>& best_effort);
  // They are not. `incumbent` has the first turn if they become so: what it started while it was free-running
  // was not measured, so its drain could not be proven at that moment. Null: nobody.
  void suspend(const Observation& o, const ClientView* incumbent);

  bool has_turn(uint64_t client_id) const { return turn_.holder == client_id && turn_.revoked_ns == 0; }
  bool gave_up_drain_of(uint64_t client_id) const { return overdue_client_ == client_id; }  // just now

 private:
  struct Account {                       // one client
    uint64_t virtual_ns = 0;             // charged time * 100 / weight
    bool had_demand = false;             // at the last decision
    uint64_t demand_ns = 0;              // the latest with demand
    uint32_t wasted = 0;                 // turns in a row that it waited for and did nothing with
    uint64_t last_in_line_until_ns = 0;  // for that, as long as others want a turn
  };
  struct Turn {  // holder 0: nobody
    uint64_t holder = 0;
    uint64_t started_ns = 0;
    uint64_t charged_ns = 0;        // of this turn
    uint64_t last_active_ns = 0;    // last look at which the holder worked
    uint64_t last_progress_ns = 0;  // last look at which its used_ns had grown
    uint64_t last_used_ns = 0;      // its used_ns then
    bool worked = false;            // the holder did anything
    uint64_t revoked_ns = 0;        // 0: the turn runs; else: draining since
  };
  static constexpr size_t kNone = size_t(-1);

  void open_accounts(const Observation& o);
  void charge_holder(const Observation& o, size_t holder);
  void charge(const Observation& o, size_t index, uint64_t since_ns, uint64_t price);
  // Is the revoked holder's drain over, or waited for no longer?
  bool drain_ended(const Observation& o, size_t holder);
  uint64_t drain_patience_ns(const ClientView& holder) const;
  uint64_t quantum_ns(uint64_t n_waiting) const;
  // Ends the turn or starts it anew if its time is over; true: revoked, the holder drains now.
  bool end_turn(const Observation& o, size_t holder, uint64_t n_waiting);
  // Is somebody who waits so far behind the holder that its turn ends early?
  bool owes(const Observation& o, size_t holder, uint64_t quantum_ns) const;
  // It does not use its turns: it wants none as long as others do.
  bool is_last_in_line(size_t client, uint64_t now_ns) const {
    return now_ns < accounts_[client].last_in_line_until_ns;
  }
  void judge_idle_turn(const Observation& o, size_t holder);
  void start_turn(const ClientView& holder, uint64_t now_ns);
  size_t next_in_line(const Observation& o, bool holder_may_stay) const;

  Parameters parameters_;
  Tuning tuning_;
  Slots<Account> accounts_;
  std::vector<size_t> best_effort_;  // of this observation
  Turn turn_;
  uint64_t overdue_client_ = 0;    // whose drain this decision gave up; 0: nobody's
  bool active_ = false;            // the previous decision was about turns
  uint64_t least_virtual_ns_ = 0;  // least virtual time of the active: where newcomers start
  uint64_t last_look_ns_ = 0;      // time of the previous decision
};

}  // namespace tessera::policy
