// The leases of a gang (docs/gangs.md): best-effort clients on one or more GPUs that run together or not at all. Each GPU's
// policy says what it would allow its members; the rule says what they get. Pure.
//
//   what a GPU allows       the most that it would allow one of the gang's members there
//   what the gang may do    the least that any of its GPUs allows
//   what a member may do    that, or less if its own lease says less
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/units.h"
#include "scheduler_daemon/policy/policy.h"

namespace tessera::policy {

// A granted lease that limits nothing but when work starts, for a member that is alone on its GPU. Its GPU is looked at
// again, and the lease renewed, in half of its time.
constexpr uint64_t kRenewGangNs = base::ms(1000);
constexpr Lease kUnlimited{.grant = Grant::kGranted,
                           .duration_ns = 2 * kRenewGangNs,
                           .window_ns = 3600 * base::kNsPerS,
                           .marker_spacing_ns = uint32_t(base::ms(2))};

struct GangMember {
  size_t gpu = 0;  // any number, the same for members on the same GPU
  Lease offered;   // by that GPU's policy
};

// In ascending order.
enum class Allowed : uint8_t {
  kNothing,
  kBetweenBursts,
  kBesideBursts,
  kAnything,  // nobody else is on the GPU
};

inline Allowed allowed_by(const Lease& lease) {
  switch (lease.grant) {
    case Grant::kHold:
      return Allowed::kNothing;
    case Grant::kGranted:
      return lease.packed ? Allowed::kBesideBursts : Allowed::kBetweenBursts;
    case Grant::kFree:
      return Allowed::kAnything;
  }
  return Allowed::kNothing;
}

inline Allowed allowed_by(std::span<const GangMember> gang) {
  Allowed least = Allowed::kAnything;
  for (const GangMember& member : gang) {
    Allowed most = Allowed::kNothing;  // two members on one GPU may take turns there
    for (const GangMember& other : gang)
      if (other.gpu == member.gpu) most = std::max(most, allowed_by(other.offered));
    least = std::min(least, most);
  }
  return least;
}

// `offered`, or what is left of it. A free client looks at nothing, so that kUnlimited takes its place.
inline Lease cut_down(const Lease& offered, Allowed to) {
  if (allowed_by(offered) <= to) return offered;
  Lease lease = offered;
  if (offered.grant == Grant::kFree) {
    lease = kUnlimited;
    lease.client_id = offered.client_id;
  }
  if (to == Allowed::kNothing) {
    lease.grant = Grant::kHold;
    lease.held_by = HeldBy::kTurn;
  }
  lease.packed = to == Allowed::kBesideBursts;
  if (!lease.packed) lease.together = false;
  lease.confine_all = false;  // SMs of its own are kept for it on one GPU only
  lease.burst_classes = 0;
  return lease;
}

// Lessens `lease` to what another GPU of the same client gives. A client on several GPUs has one lease.
inline void cut_down_to(const Lease& other, Lease* lease) {
  const auto least_but_none = [](auto* value, auto limit) {  // 0 = none
    if (*value == 0 || (limit != 0 && limit < *value)) *value = limit;
  };
  const bool lessens = allowed_by(other) < allowed_by(*lease);
  const HeldBy held_by = lessens ? other.held_by : lease->held_by;
  *lease = cut_down(*lease, allowed_by(other));
  lease->held_by = held_by;
  if (other.grant != Grant::kFree) {
    lease->duration_ns = std::min(lease->duration_ns, other.duration_ns);
    lease->window_ns = std::min(lease->window_ns, other.window_ns);
  }
  least_but_none(&lease->slice_ns, other.slice_ns);
  least_but_none(&lease->marker_spacing_ns, other.marker_spacing_ns);
  least_but_none(&lease->long_block_ns, other.long_block_ns);
  lease->long_width_percent = std::min(lease->long_width_percent, other.long_width_percent);
  lease->spin_ns = std::max(lease->spin_ns, other.spin_ns);
  least_but_none(&lease->sm_limit, other.sm_limit);
  lease->confine_all = lease->confine_all && other.confine_all;
  lease->burst_classes &= other.burst_classes;
  least_but_none(&lease->quantum_ns, other.quantum_ns);
  least_but_none(&lease->ends_by_ns, other.ends_by_ns);
  lease->length_class = std::min(lease->length_class, other.length_class);
  lease->keeps_closed = lease->keeps_closed && other.keeps_closed;
  lease->quiet = lease->quiet && other.quiet;
  lease->together = lease->together && other.together;
}

// One lease per member, in the same order.
inline std::vector<Lease> leases_of(std::span<const GangMember> gang) {
  const Allowed allowed = allowed_by(gang);
  std::vector<Lease> leases;
  for (const GangMember& member : gang) leases.push_back(cut_down(member.offered, allowed));
  return leases;
}

}  // namespace tessera::policy
