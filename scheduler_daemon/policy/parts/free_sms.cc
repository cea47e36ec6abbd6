// A whole wave of blocks that last a little longer than a burst may be late is no harm. Longer ones get part of a
// wave, which gates lessen as the blocks get longer. What counts as long follows the measured bursts.
#include <algorithm>
#include <cmath>

#include "scheduler_daemon/policy/parts/parts.h"

namespace tessera::policy {
namespace {

// Clients with few known bursts count only all together, because the least of many guesses is low.
double block_scale(const Facts& f) {
  double scale = f.learnt.block_scale.value();
  for (size_t i : f.learnt.protected_clients) {
    const ProtectedClientState& l = f.learnt.of(i);
    if (l.asleep(f.o.clients[i], f.o.now_ns) || l.block_scale.bursts() < f.tuning.retry_every) continue;
    scale = std::min(scale, l.block_scale.value());
  }
  // In steps: leases do not change with every burst.
  const double step = f.tuning.scale_step;
  return std::exp(std::floor(std::log(scale) / step) * step);
}

}  // namespace

// FreeSms helps where work of several clients runs at once. While no burst can come only blocks need it that would
// not have ended when the first one may; what is launched to wait on the device may start later than that.
FreeSms::FreeSms(const Facts& facts) : Part(facts) {
  if (!f_.both_kinds || !f_.o.mps || !f_.tuning.free_sms || f_.undisturbed_until_ns == UINT64_MAX) return;
  const double scale = f_.tuning.learnt_free_sms ? block_scale(f_) : 1;
  const double allowance_ns = std::max(f_.learnt.allowance_ns, double(f_.tuning.reaction_ns));
  const double long_ns = allowance_ns * f_.tuning.long_per_allowance * scale;
  long_block_ns_ = behind_gate_ns_ = uint64_t(std::max(1.0, long_ns));
  if (f_.undisturbed_until_ns != 0) long_block_ns_ = std::max<uint64_t>(1, f_.undisturbed_window_ns);
}

// A client that can keep off some SMs does that instead (reserve.cc) while it helps: those SMs are free as a whole.
Constraint FreeSms::of(size_t client) const {
  const bool confined = f_.reserve_helps && f_.o.clients[client].can_confine;
  return {.long_block_ns = f_.o.clients[client].gate_on_device ? behind_gate_ns_ : long_block_ns_,
          .long_width_percent = confined ? 100 : uint32_t(100 * (1 - f_.tuning.first_sms))};
}

}  // namespace tessera::policy
