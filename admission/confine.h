// Decides which launches of a best-effort client keep off the reserved SMs of its lease: those that no slice makes
// short, or all of them if the lease says so (apart).
#pragma once

#include "admission/lease.h"

namespace tessera::admission {

// Two events go with a launch on SMs of its own: shorter ones are not worth them.
inline constexpr uint64_t kLeastConfinedNs = 20'000;

struct WholeLaunch {  // a launch that cannot be cut
  uint64_t blocks;
  uint64_t wave_blocks = 0;  // that fill the GPU once, or more; 0 = not known
  uint64_t expected_ns = 0;  // on the whole GPU; 0 = not known
  uint32_t sm_count = 0;     // of the GPU
};

constexpr bool reserves(const LeaseView& lease, uint32_t sm_count) {
  return lease.reserved_sms != 0 && lease.reserved_sms < sm_count && !lease.unmanaged();
}

// Blocks that wait for each other need all of them to be resident at once. A launch of more than a wave cannot rely on
// that; one that fits into the SMs that are left is resident there as well.
constexpr bool may_be_confined(const WholeLaunch& launch, uint32_t sms) {
  const uint64_t wave_left = launch.wave_blocks * sms / launch.sm_count;
  return launch.wave_blocks != 0 && (launch.blocks > launch.wave_blocks || launch.blocks <= wave_left);
}

// SMs that the launch may use; 0 = all. One that fits the window may be in flight when a burst begins, and one that is no
// longer than blocks may be is found to be harmless: on fewer SMs both take a wave more for nothing, unless they start
// during a burst.
constexpr uint32_t confined_to_sms(const WholeLaunch& launch, const LeaseView& lease) {
  if (!reserves(lease, launch.sm_count)) return 0;
  const uint32_t sms = launch.sm_count - lease.reserved_sms;
  // Apart it must not hold up what comes when the burst is over.
  const uint64_t longer_ns = launch.expected_ns * lease.reserved_sms / sms;
  const bool short_enough = launch.expected_ns > kLeastConfinedNs && longer_ns <= lease.window_ns;
  const bool too_long = launch.expected_ns > lease.window_ns && launch.expected_ns > lease.long_block_ns;
  const bool wanted = too_long || (lease.confine_all && short_enough);
  return wanted && may_be_confined(launch, sms) ? sms : 0;
}

// The same for a slice of a kernel that may be cut: no slice is shorter than a block, however narrow it is. Its blocks
// do not wait for each other.
constexpr uint32_t confined_to_sms(uint64_t block_ns, uint32_t sm_count, const LeaseView& lease) {
  if (!reserves(lease, sm_count)) return 0;
  return lease.confine_all || block_ns > lease.long_block_ns ? sm_count - lease.reserved_sms : 0;
}

}  // namespace tessera::admission
