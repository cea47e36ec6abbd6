// Gaps between the bursts of one protected client, and during which part of one best-effort work had better be held. The latest
// gaps count, exactly: a rhythm is known to the microsecond. Pure value; one per protected client; called once per burst.
//
// A request may consist of several bursts with little host work between them (tokens of a model, stages of a pipeline), and
// requests may come with a rhythm. A burst that begins while best-effort work runs collides with it. `worth` is the idle time
// that one spared collision is worth, F the distribution of the gaps.
//
// Waiting until `g` in each gap spares the share F(g) a collision and costs (1 - F(g)) * g of idle GPU: the best wait is where
//   F(g) * worth - (1 - F(g)) * g
// is largest. 0 = start at once: gaps that are short as rarely as chance has it are no reason to wait.
//
// In the rest of a gap G, running until x and no longer is worth
//   h(x) = E[min(G, x)] - worth * F(x + lead)
// where `lead` is what still runs after that. Work is held from `s` until `e` where h(s) - h(e) is largest, if it is worth it.
// Gaps at random have an h that only rises, or only falls: there is no such hold.
#pragma once

#include <algorithm>
#include <vector>

#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

// The loss of a burst that begins while best-effort work runs.
struct Collision {
  uint64_t in_flight_ns = 0;  // at most; the burst waits for it
  uint64_t change_ns = 0;     // that it loses besides
  // Processes run side by side: a burst loses nothing to work that ended before it.
  bool side_by_side = false;
};

class GapModel {
 public:
  explicit GapModel(const Tuning& t = {}) : needed_(t.least_seen), memory_(std::max<uint64_t>(1, t.memory)) {}

  void add(uint64_t gap_ns) {
    if (latest_.size() < memory_) {
      latest_.push_back(gap_ns);
    } else {
      sorted_.erase(std::lower_bound(sorted_.begin(), sorted_.end(), latest_[n_ % memory_]));
      latest_[n_ % memory_] = gap_ns;
    }
    ++n_;
    sorted_.insert(std::upper_bound(sorted_.begin(), sorted_.end(), gap_ns), gap_ns);
  }
  bool is_known() const { return sorted_.size() >= std::max<uint64_t>(1, needed_); }
  uint64_t total() const { return sorted_.size(); }  // that still count
  uint64_t quantile_ns(double q) const {             // 0 if there are none
    return sorted_.empty() ? 0 : sorted_[std::min(sorted_.size() - 1, size_t(q * double(sorted_.size())))];
  }

  // Waited from the beginning of a gap on. At most `longest_gap_ns`: a longer gap is worth using whatever comes after it.
  uint64_t wait_ns(const Collision& collision, const Tuning& t) const {
    if (!is_known()) return 0;
    uint64_t best_ns = 0;
    double best = 0;
    for (size_t i = 0; i < sorted_.size() && sorted_[i] < t.longest_gap_ns; ++i) {
      const uint64_t wait_ns = std::min(t.longest_gap_ns, after(sorted_[i]));
      const double spared = share(i + 1);
      const double gain = spared * worth(collision, t) - (1 - spared) * double(wait_ns);
      if (gain > best) best = gain, best_ns = wait_ns;
    }
    return best_ns;
  }

  struct Stop {          // work is held before the next burst; times from the beginning of the gap
    double gain_ns = 0;  // of idle time; 0: there is none
    uint64_t from_ns = 0, until_ns = 0;
    uint64_t ends_by_ns = 0;  // what began before should have ended
  };

  // Work begins at `first_ns`. A stop is only worth it if the time before it is worth Tuning::reaction_ns and a change.
  Stop stop(uint64_t first_ns, const Collision& collision, const Tuning& t) const {
    Stop best;
    if (!is_known()) return best;
    const uint64_t lead_ns = collision.in_flight_ns + t.reaction_ns;
    Sum to_first, to_stop, to_end;
    const double used_before = to_first.until(first_ns, sorted_);
    double h_stop = used_before - worth(collision, t) * share(to_first.gaps) +
                    double(t.reaction_ns + collision.change_ns);
    uint64_t stop_ns = 0;
    best.gain_ns = t.least_spared * worth(collision, t);
    for (size_t i = 0; i < sorted_.size(); ++i) {
      if (sorted_[i] <= first_ns + lead_ns) continue;
      const uint64_t ns = sorted_[i] - lead_ns;
      const double h = to_stop.until(ns, sorted_) - worth(collision, t) * share(i);
      if (h > h_stop) h_stop = h, stop_ns = ns;
      if (stop_ns == 0) continue;
      const uint64_t end_ns = after(sorted_[i]);
      const double used = to_end.until(end_ns, sorted_),
                   h_end = used - worth(collision, t) * share(to_end.gaps);
      if (h_stop - h_end > best.gain_ns)
        best = {h_stop - h_end, stop_ns, end_ns, stop_ns + collision.in_flight_ns};
    }
    if (best.from_ns == 0) best.gain_ns = 0;
    return best;
  }

  // Gaps that are waited out, from `first_ns` until `until_ns`, but come with a rhythm: hardly one is shorter than the time
  // that may be used before the next burst.
  Stop stop_within(uint64_t first_ns, uint64_t until_ns, const Collision& collision, const Tuning& t) const {
    Stop best;
    if (!is_known()) return best;
    const uint64_t lead_ns = collision.in_flight_ns + t.reaction_ns;
    Sum to_first, to_stop;
    const double used_before = to_first.until(first_ns, sorted_) + double(t.reaction_ns);
    for (size_t i = 0; i < sorted_.size() && sorted_[i] < until_ns && share(i) <= t.too_slow_share; ++i) {
      if (sorted_[i] <= first_ns + lead_ns) continue;
      const uint64_t ns = sorted_[i] - lead_ns;
      const double gain = to_stop.until(ns, sorted_) - used_before - worth(collision, t) * share(i);
      if (gain > best.gain_ns) best = {gain, ns, until_ns, ns + collision.in_flight_ns};
    }
    return best;
  }

 private:
  static double worth(const Collision& c, const Tuning& t) {
    return double(t.worth_of_in_flight * c.in_flight_ns + c.change_ns);
  }
  double share(size_t gaps) const { return double(gaps) / double(sorted_.size()); }

  struct Sum {  // of the gaps that are shorter than a time, which grows
    size_t gaps = 0;
    double ns = 0;
    // Idle time until then, in a gap on average.
    double until(uint64_t x_ns, const std::vector<uint64_t>& sorted) {
      for (; gaps < sorted.size() && sorted[gaps] <= x_ns; ++gaps) ns += double(sorted[gaps]);
      return (ns + double(x_ns) * double(sorted.size() - gaps)) / double(sorted.size());
    }
  };
  // A quarter more: gaps of one kind spread, and the hold must end after them.
  static uint64_t after(uint64_t gap_ns) { return gap_ns + gap_ns / 4; }

  uint64_t needed_;  // gaps; with fewer it is_known nothing
  uint64_t memory_;  // gaps
  uint64_t n_ = 0;
  std::vector<uint64_t> latest_;  // a ring
  std::vector<uint64_t> sorted_;  // the same
};

}  // namespace tessera::policy
