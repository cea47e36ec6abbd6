// The parts of `tessera`: one concern each, one file each. A part is made from the facts of a decision and
// asked for the constraint of each client; it changes nothing, and knows of no other part. What a part has to
// remember is changed by its state step, before or after. tessera.cc puts them in their order of precedence.
// Pure.
#pragma once

#include <cstddef>
#include <utility>

#include "scheduler_daemon/policy/learnt/learnt.h"
#include "scheduler_daemon/policy/parts/constraint.h"
#include "scheduler_daemon/policy/policy.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

inline constexpr size_t kNobody = size_t(-1);
// Green contexts divide the SMs in steps of this number since compute capability 9.0.
inline constexpr uint32_t kSmsPerStep = 8;

struct Facts {  // all that a part may look at
  const Observation& o;
  const Parameters& parameters;
  const Tuning& tuning;
  const PolicyState& learnt;
  bool both_kinds = false;             // protected and best-effort clients are there
  uint64_t undisturbed_until_ns = 0;   // no burst is expected before; 0 = one may come at any time
  uint64_t undisturbed_window_ns = 0;  // what may be in flight then: drained before the first burst may come
  double reserve_share = 0;            // of the SMs, for services at work
  bool reserve_helps = false;          // all of those
};
Facts facts_of(const Observation& o, const Parameters& p, const Tuning& t, const PolicyState& learnt);

class Part {
 public:
  explicit Part(const Facts& facts) : f_(facts) {}
  uint64_t decide_again_ns() const { return decide_again_ns_; }  // absolute; 0 = no need

 protected:
  // The one of two that waits longer; one that cannot run comes after one that can. `found` may be nobody.
  size_t longest_waiting(size_t found, size_t other) const {
    if (found == kNobody) return other;
    const auto place = [&](size_t i) {
      return std::pair(f_.learnt.clients[i].progress.stalled, f_.o.clients[i].waiting_since_ns);
    };
    return place(other) < place(found) ? other : found;
  }
  void decide_again_at(uint64_t at_ns) {
    if (decide_again_ns_ == 0 || at_ns < decide_again_ns_) decide_again_ns_ = at_ns;
  }
  const Facts& f_;

 private:
  uint64_t decide_again_ns_ = 0;
};

// Bounds the time in flight when a burst begins, or allows large slices while none can come.
class InFlightLimit : public Part {
 public:
  explicit InFlightLimit(const Facts& facts);
  Constraint of(size_t client) const;

 private:
  uint64_t quantum_ns() const;  // of the gate on the device
};

// Kernels whose blocks last long cannot be cut short: their slices leave SMs free, the more the longer.
class FreeSms : public Part {
 public:
  explicit FreeSms(const Facts& facts);
  Constraint of(size_t client) const;

 private:
  uint64_t long_block_ns_ = 0, behind_gate_ns_ = 0;
};

// Kernels that cannot be cut keep off some SMs, where there is a way to make them (green contexts, MPS percentage).
class Reserve : public Part {
 public:
  explicit Reserve(const Facts& facts);
  Constraint of(size_t client) const;

 private:
  uint32_t sm_limit_ = 0;  // 0 = all
};

// Gates start as soon as a pulse falls idle. Where that is too early clients are held before it does.
class Gaps : public Part {
 public:
  explicit Gaps(const Facts& facts);
  Constraint of(size_t client) const;
  bool holds() const { return hold_; }
  void note(PolicyState* learnt) const;
  // Gates on the device, which open by themselves when a burst ends, unless its client's gaps are waited out.
  void close_gates(Decision* d) const;

 private:
  void expect(const ClientView& protected_client, const Hold& hold);
  void find_fitting_class();
  bool begins_first(size_t client) const;
  bool fits_gap(size_t client) const;  // the longest of its pieces does
  uint64_t spoils_until_ns(size_t client) const;
  bool spoils(size_t client) const { return short_period_ns_ != 0 && spoils_until_ns(client) > f_.o.now_ns; }
  Hold hold_of(size_t protected_client) const;
  bool stays_unused(size_t protected_client) const;
  uint64_t every(const ClientView& protected_client) const;  // bursts

  uint64_t unknown_wait_ns_ = 0;  // where nothing is known of a client's gaps
  bool hold_ = false;
  uint64_t ends_by_ns_ = 0;       // when the next burst is expected; 0 = not known
  uint64_t usable_from_ns_ = 0;   // with it: the gap was waited out
  uint64_t short_period_ns_ = 0;  // with it: of bursts whose gaps would be waited out, but for their rhythm
  uint32_t fits_ = base::kLongestClass;  // of lengths: what begins now ends by then
};

// A held client watches when the burst should end, instead of sleeping.
class Waking : public Part {
 public:
  explicit Waking(const Facts& facts);
  Constraint of(size_t client) const;

 private:
  bool watch_ = false;
};

// Nobody waits for a client that wants the GPU, may start and leaves it idle for long. These steps keep its state: before
// anything else that asks who wants the GPU, and after the decision.
void account_progress(const Observation& o, const Parameters& p, const Tuning& t, PolicyState* learnt);
void note_offers(const Decision& d, PolicyState* learnt);

// Holds a client that is ahead of its share until the others have caught up (MPS).
void account_shares(const Observation& o, const Parameters& p, const Tuning& t, PolicyState* learnt);
class Fairness : public Part {
 public:
  explicit Fairness(const Facts& facts);
  Constraint of(size_t client) const;
};

// The time in flight is bounded for each client, so only as many clients run as fill the GPU (MPS).
void choose_runners(const Facts& facts, PolicyState* learnt);
class Crowd : public Part {
 public:
  using Part::Part;
  Constraint of(size_t client) const;
};

// Best-effort work runs beside protected bursts, on SMs of its own, as wide as was found to make them hardly longer (MPS).
class Packing : public Part {
 public:
  Packing(const Facts& facts, bool gaps_hold);
  void give_way();  // work runs anywhere beside these bursts
  // Each best-effort client gets at least this part of what it could use during bursts.
  double share() const;
  Constraint of(size_t client) const;
  bool tell_busy() const { return tell_busy_; }
  void note(const Decision& d, PolicyState* learnt) const;  // state step, after

 private:
  struct Plan {          // for work of one class, in parts of the SMs
    double between = 0;  // bursts; 0 = the whole GPU, confined no more than usual
    double beside = 0;   // 0 = nothing runs during bursts
    double gain = 0;     // of share
    bool trial = false;
  };
  void choose(size_t resource_class);
  Plan best(size_t resource_class, double (NeighbourCost::*cost_of)(const Tuning&) const) const;
  uint64_t longest_ns(size_t resource_class) const;
  uint32_t sms(double width) const;
  bool may_be_packed(size_t client) const;
  bool has_few_blocks(size_t client) const;
  // Wide launches that wait on the device were confined for another moment than that in which they begin.
  bool waits_on_device(size_t client) const {
    const ClientView& c = f_.o.clients[client];
    return c.gate_on_device && !in_thread_[size_t(c.resource_class)];
  }

  bool gives_way_ = false;
  double budget_ = 0;                  // by how much bursts may become longer
  std::vector<size_t> at_work_;        // protected clients
  double idle_ = 1;                    // of the time: none of them is busy
  uint64_t shortest_ns_ = UINT64_MAX;  // of their bursts
  bool tell_busy_ = false;
  bool now_ = false;  // a burst, or a gap inside a request
  Plan plan_[kClasses];
  bool in_thread_[kClasses] = {};  // packing gives, or may give, much more than the time between bursts
  double few_blocks_width_[kClasses] = {};  // for work that is no wider by itself
};

// Best-effort work runs anywhere, bursts or not, where they were found to be hardly longer for it, else beside a part of each
// burst as the target pays for (MPS).
class Together : public Part {
 public:
  Together(const Facts& facts, double packed_share);
  Constraint of(size_t client) const;
  bool on() const { return on_ || (chosen_ && !trial_); }   // nothing else runs beside these bursts
  void note(const Decision& d, PolicyState* learnt) const;  // state step, after

 private:
  double affordable(size_t protected_client, double idle) const;
  double tried(size_t protected_client, double longest_piece) const;

  bool on_ = false;                      // now
  bool chosen_ = false, trial_ = false;  // for these bursts
  double share_ = 0;                     // of each, that work may run beside; 1 = all the time
};

// A hold that expires lets the whole rest of a kernel go; a slice before that starts its time anew. One client
// at a time, and once per hold, whatever a client says about its waits.
class Holds : public Part {
 public:
  explicit Holds(const Facts& facts);
  Constraint of(size_t client) const;
  void note(PolicyState* learnt) const;  // state step, after

 private:
  size_t chosen_ = kNobody;
};

// The share of the time that the operator wants for best-effort work against any protected load.
void account_minimum(const Observation& o, const Tuning& t, PolicyState* learnt);
class Minimum : public Part {
 public:
  explicit Minimum(const Facts& facts);
  Constraint of(size_t client) const;

 private:
  size_t chosen_ = kNobody;
};

}  // namespace tessera::policy
