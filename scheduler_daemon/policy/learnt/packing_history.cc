#include "scheduler_daemon/policy/learnt/packing_history.h"

#include <algorithm>

namespace tessera::policy {
namespace {

constexpr double kPerExcess = 10'000;  // unit of the histogram

}  // namespace

void PackingHistory::note_packed(ResourceClass best_effort, const Tuning& t) {
  widths_[size_t(best_effort)].share = share_to_try(best_effort, t);
  packed_class_ = best_effort;
  packed_ = true;
}

void PackingHistory::add_burst(double slowdown, uint64_t n_bursts, double busy_share, double target,
                               const Tuning& t) {
  if (!packed_) {
    unpacked_.add(uint64_t(std::max(0.0, slowdown - 1) * kPerExcess));
    tail_ = double(unpacked_.quantile(0.99)) / kPerExcess;
    return;
  }
  packed_ = false;
  const double allowed = std::min(target * (1 - busy_share), t.spent_on_packing * (target - tail_));
  widths_[size_t(packed_class_)].judge(slowdown, allowed, n_bursts, t);
}

void PackingHistory::Width::judge(double slowdown, double allowed, uint64_t n_bursts, const Tuning& t) {
  slowdown_sum += slowdown;
  if (++n_slowdowns < t.judged_bursts) return;
  const double mean = slowdown_sum / double(n_slowdowns);
  slowdown_sum = 0;
  n_slowdowns = 0;
  const double affordable = mean > 1 ? share * allowed / (mean - 1) : t.most_share;
  if (mean > 1 + allowed || affordable < t.worthwhile_share) {
    share = affordable < t.worthwhile_share ? 0 : share / 2;
    if (share < t.least_share)
      blocked_bursts = n_bursts + (t.first_block << std::min<uint64_t>({punished, t.most_doublings, 40}));
    ++punished;
  } else {
    share = std::min(t.most_share, share + t.share_step);
    punished -= punished > 0;
  }
}

}  // namespace tessera::policy
