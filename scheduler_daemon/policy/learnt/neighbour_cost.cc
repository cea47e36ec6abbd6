#include "scheduler_daemon/policy/learnt/neighbour_cost.h"

#include <algorithm>
#include <cmath>

namespace tessera::policy {

void NeighbourCost::judge(double width, double excess, bool slow, bool far_too_slow, bool spending,
                          const Tuning& t) {
  if (n_ != 0) {
    const double off = excess - cost() * width;
    variance_ += (off * off - variance_) / double(std::min<uint64_t>(n_, t.memory));
  }
  ++n_;
  const double kept = 1 - 1 / double(t.memory);
  sum_ww_ = sum_ww_ * kept + width * width;
  sum_we_ = sum_we_ * kept + width * excess;
  if (spending || !slow) spent_ *= std::exp(t.scale_step * (slow ? t.too_slow_share - 1 : t.too_slow_share));
  spent_ = std::clamp(spent_, t.least_scale, 1.0);
  limit_ = far_too_slow ? std::min(limit_, width * std::exp(-t.scale_step))
                        : std::min(1.0, limit_ * std::exp(t.scale_step * t.too_slow_share));
}

double NeighbourCost::error() const {
  if (sum_ww_ <= 0) return 1e9;
  return std::sqrt((spread_ * spread_ + variance_ * double(n_ - 1)) / double(n_) / sum_ww_);
}

double NeighbourCost::upper(const Tuning&) const {
  return cost() + error();
}

double NeighbourCost::promised(const Tuning& t) const {
  const double error_then = spread_ / (t.first_sms * std::sqrt(double(t.enough)));
  return std::max(0.0, cost() - error()) + error_then;
}

bool NeighbourCost::too_dear(double width, double allowed) const {
  return n_ != 0 && (cost() - 2 * error()) * width > allowed;
}

double NeighbourCost::widest(double allowed, const Tuning& t) const {
  if (allowed <= 0) return 0;
  return std::min({allowed * spent_ / std::max(1e-6, upper(t)), limit_, t.most_width});
}

}  // namespace tessera::policy
