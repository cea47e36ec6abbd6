// When the next burst of one protected client may come, and when best-effort work is held because of that. Gaps have a rhythm
// where a client thinks for the same time after each answer. The beginnings of bursts have one where requests come by a
// clock: then the gap behind a burst that took longer is shorter. Both are learnt, and the one that gives more is used. Pure
// value; one per protected client; called once per burst.
#pragma once

#include "scheduler_daemon/policy/estimate/gap_model.h"

namespace tessera::policy {

// When work is held, from the beginning of a gap on: until `wait_ns`, and again in [from_ns, until_ns). 0: not.
struct Hold {
  uint64_t wait_ns = 0;
  uint64_t from_ns = 0, until_ns = 0;
  uint64_t ends_by_ns = 0;   // what begins before `from_ns` should have ended; 0: it does not matter
  bool since_began = false;  // these three count from the beginning of the burst

  bool covers(uint64_t ns) const { return ns < wait_ns || (ns >= from_ns && ns < until_ns); }
  uint64_t next_end_ns(uint64_t ns) const {  // a hold begins or ends after that; UINT64_MAX: none
    for (const uint64_t at_ns : {wait_ns, from_ns, until_ns})
      if (at_ns > ns) return at_ns;
    return UINT64_MAX;
  }
  // The hold counted from the end of a burst that took `burst_ns`.
  Hold after(uint64_t burst_ns) const {
    if (!since_began) return *this;
    const auto left = [&](uint64_t ns) { return ns - std::min(ns, burst_ns); };
    return {wait_ns, left(from_ns), left(until_ns), left(ends_by_ns)};
  }
};

class NextBurst {
 public:
  explicit NextBurst(const Tuning& t = {}) : gaps_(t), intervals_(t) {}

  void add(uint64_t gap_ns, uint64_t since_began_ns) {
    gaps_.add(gap_ns);
    intervals_.add(since_began_ns);
    burst_ns_ = since_began_ns - gap_ns;
  }
  const GapModel& gaps() const { return gaps_; }

  Hold hold(const Collision& collision, const Tuning& t) const {
    Hold hold{.wait_ns = gaps_.wait_ns(collision, t)};
    const bool whole = hold.wait_ns != 0 && use_within(collision, t, &hold);
    if (!whole)
      use(gaps_.stop(hold.wait_ns, collision, t), intervals_.stop(burst_ns_ + hold.wait_ns, collision, t),
          &hold);
    return hold;
  }

 private:
  // In time slices each gap that is used costs the burst behind it a change: short ones are not worth that.
  bool use_within(const Collision& collision, const Tuning& t, Hold* hold) const {
    if (!collision.side_by_side) return false;
    const uint64_t until_ns = hold->wait_ns;
    if (!use(gaps_.stop_within(0, until_ns, collision, t),
             intervals_.stop_within(burst_ns_, burst_ns_ + until_ns, collision, t), hold))
      return false;
    hold->wait_ns = 0;
    return true;
  }
  static bool use(const GapModel::Stop& gaps, const GapModel::Stop& intervals, Hold* hold) {
    const bool since_began = intervals.gain_ns > gaps.gain_ns;
    const GapModel::Stop& stop = since_began ? intervals : gaps;
    if (stop.gain_ns == 0) return false;
    *hold = {hold->wait_ns, stop.from_ns, stop.until_ns, stop.ends_by_ns, since_began};
    return true;
  }

  GapModel gaps_, intervals_;
  uint64_t burst_ns_ = 0;  // the latest
};

}  // namespace tessera::policy
