// Gaps between the bursts of one protected client, and how long best-effort work had better wait in one
// before it starts. Pure value; one per protected client; called once per burst.
//
// A request may consist of several bursts with little host work between them (tokens of a model, stages of a
// pipeline); a burst that follows such a gap would find best-effort blocks. Waiting until the time `g` in a
// gap spares the share F(g) of the bursts a collision, and costs (1 - F(g)) * g of idle GPU; the best
// one is where this is largest:
//   F(g) * worth - (1 - F(g)) * g
// where `worth` is the idle time that one spared collision is worth. 0 = start at once: gaps that are short
// as rarely as chance has it are no reason to wait.
#pragma once

#include "scheduler_daemon/policy/estimate/histogram.h"
#include "scheduler_daemon/policy/tuning.h"

namespace tessera::policy {

class GapModel {
 public:
  explicit GapModel(const Tuning& t = {}) : needed_(t.needed_gaps), gaps_(uint32_t(t.gap_memory)) {}

  void add(uint64_t gap_ns) { gaps_.add(gap_ns); }
  bool is_known() const { return gaps_.total() >= needed_; }
  uint32_t total() const { return gaps_.total(); }  // that still count
  uint64_t quantile_ns(double q) const { return gaps_.quantile(q); }

  // At most `longest_ns`: a longer gap is worth using whatever comes after it.
  uint64_t wait_ns(uint64_t worth_ns, uint64_t longest_ns) const {
    if (!is_known()) return 0;
    uint64_t best_ns = 0;
    double best = 0, below = 0;
    const double n = gaps_.total();
    for (size_t i = 0; i < Histogram::kBuckets && Histogram::lower(i + 1) <= longest_ns; ++i) {
      if (gaps_.count(i) == 0) continue;
      below += gaps_.count(i);
      // A quarter more than the bucket: gaps of one kind spread, and the wait must end after them.
      const uint64_t wait_ns = std::min(longest_ns, Histogram::lower(i + 1) * 5 / 4);
      const double spared = below / n;
      const double gain = spared * double(worth_ns) - (1 - spared) * double(wait_ns);
      if (gain > best) best = gain, best_ns = wait_ns;
    }
    return best_ns;
  }

 private:
  uint64_t needed_;  // gaps; with fewer it is_known nothing
  Histogram gaps_;
};

}  // namespace tessera::policy
