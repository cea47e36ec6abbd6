#include "scheduler_daemon/policy/starvation.h"

#include <algorithm>

namespace tessera::policy {

void StarvationWatch::look(const Look& look) {
  if (first_.now_ns == 0) first_ = last_ = look;
  const uint64_t passed_ns = look.now_ns - std::min(look.now_ns, last_.now_ns);
  // The last decision was in force until this one.
  if (last_.wants) {
    wanted_ns_ += passed_ns;
    held_ns_[size_t(last_.held_by)] += passed_ns;
    if (last_.confined && last_.held_by == HeldBy::kNothing) confined_ns_ += passed_ns;
  }
  services_busy_ns_ += look.services_busy_ns - std::min(look.services_busy_ns, last_.services_busy_ns);
  last_ = look;
  if (look.now_ns - first_.now_ns >= kWindowNs) conclude();
}

void StarvationWatch::conclude() {
  const double window_ns = double(last_.now_ns - first_.now_ns);
  const auto share = [&](uint64_t ns) { return std::min(1.0, double(ns) / window_ns); };
  const auto held = [&](HeldBy by) { return share(held_ns_[size_t(by)]); };
  found_ = {.share = share(last_.used_ns - std::min(last_.used_ns, first_.used_ns)),
            .services_busy = share(services_busy_ns_)};
  if (share(wanted_ns_) >= kWants && found_.share < kLittle) {
    // While a service works it is that which keeps the client waiting, whatever else would.
    const struct {
      StarvedBy by;
      double share;
    } reasons[] = {{StarvedBy::kServices, found_.services_busy},
                   {StarvedBy::kGaps, held(HeldBy::kGap) - found_.services_busy},
                   {StarvedBy::kTurns, held(HeldBy::kTurn)},
                   {StarvedBy::kShares, held(HeldBy::kShare) + held(HeldBy::kCrowd)},
                   {StarvedBy::kLongBlocks, share(confined_ns_) - found_.services_busy}};
    const auto* most = std::max_element(std::begin(reasons), std::end(reasons),
                                        [](const auto& a, const auto& b) { return a.share < b.share; });
    found_.by = most->share > 0 ? most->by : StarvedBy::kNothing;
  }
  first_ = last_;
  wanted_ns_ = services_busy_ns_ = confined_ns_ = 0;
  held_ns_ = {};
}

Starvation StarvationWatch::latest(uint64_t now_ns) const {
  return now_ns - std::min(now_ns, first_.now_ns) <= 2 * kWindowNs ? found_ : Starvation{};
}

}  // namespace tessera::policy
