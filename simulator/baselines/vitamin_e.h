// `vitamin_e`: what is published of Vitamin-E (earlier DetShare, arXiv 2603.15042), re-implemented from its description; not the
// authors' system. Launches stay whole. Best-effort kernels run in one of a pool of green contexts that were made before, of a
// quarter, a half, three quarters or all of the SMs; the next kernel takes another one, so a change waits for the end of the
// running one. While protected clients work, or will within two looks (look-ahead reclaim), the context is one of the smaller ones; which,
// follows their measured slowdown: one size down beyond the target, one up after 16 bursts within it. How the authors' Pick,
// Select and Prepare choose is not published in enough detail; this is the plainest feedback with their parts. Pure.
#pragma once

#include <algorithm>

#include "base/units.h"
#include "simulator/baselines/common.h"

namespace tessera::simulator::baselines {

class VitaminEPolicy final : public Policy {
 public:
  explicit VitaminEPolicy(const Parameters& parameters) : parameters_(parameters) {}
  const char* name() const override { return "vitamin_e"; }
  uint64_t gate_guard_ns(const Parameters&) const override { return 0; }
  Decision decide(const Observation& o) override {
    Decision d;
    bool reclaim = false;
    for (const ClientView& c : o.clients) {
      if (!is_protected(c)) continue;
      learn(c);
      reclaim |= c.busy || (gap_ns_ != 0 && o.now_ns + kAheadNs > c.idle_since_ns + gap_ns_);
    }
    const uint32_t size = reclaim ? size_ : kSizes;
    for (const ClientView& c : o.clients) {
      Lease lease{.client_id = c.id, .grant = Grant::kFree};
      if (!is_protected(c)) {
        lease = granted(c, parameters_);
        lease.slice_ns = base::kNsPerS;
        lease.packed = size != 0;
        lease.sm_limit = size == kSizes ? 0 : o.sm_count * std::max(1u, size) / kSizes;
      }
      d.leases.push_back(lease);
    }
    look_at(o.now_ns + kLookNs, &d);
    return d;
  }

 private:
  static constexpr uint32_t kSizes = 4;
  static constexpr uint64_t kLookNs = base::us(100), kAheadNs = 2 * kLookNs;
  static constexpr uint32_t kGoodBursts = 16;

  void learn(const ClientView& c) {
    for (const policy::Span& burst : c.ended) {
      if (ended_ns_ != 0 && burst.began_ns > ended_ns_)
        gap_ns_ = gap_ns_ == 0 ? burst.began_ns - ended_ns_ : (7 * gap_ns_ + burst.began_ns - ended_ns_) / 8;
      ended_ns_ = burst.ended_ns;
    }
    if (c.slowdown == 0) return;
    const bool good = c.slowdown <= 1 + parameters_.slowdown_target;
    good_ = good ? good_ + 1 : 0;
    if (!good) size_ = size_ - std::min(size_, 1u);
    if (good_ >= kGoodBursts) size_ = std::min(size_ + 1, kSizes - 1), good_ = 0;
  }

  Parameters parameters_;
  uint32_t size_ = kSizes / 2, good_ = 0;  // of kSizes, during bursts; 0 = none
  uint64_t ended_ns_ = 0, gap_ns_ = 0;     // of bursts; mean gap
};

}  // namespace tessera::simulator::baselines
