// Which launches of a best-effort client keep off the reserved SMs of its lease: those that no slice makes short.
#pragma once

#include "admission/lease.h"

namespace tessera::admission {

struct WholeLaunch {  // a launch that cannot be cut
  uint64_t blocks;
  uint64_t wave_blocks = 0;  // that fill the GPU once, or more; 0 = not known
  uint64_t expected_ns = 0;  // on the whole GPU; 0 = not known
  uint32_t sm_count = 0;     // of the GPU
};

// SMs that the launch may use; 0 = all. Short ones are over before they disturb, and to confine them would cost
// more than it saves. Blocks that wait for each other need all of them to be resident at once: a launch of more
// than one wave cannot rely on that. One that would just fit the GPU may, and keeps all of it.
constexpr uint32_t confined_to_sms(const WholeLaunch& launch, const LeaseView& lease) {
  if (lease.reserved_sms == 0 || lease.reserved_sms >= launch.sm_count || lease.unmanaged()) return 0;
  const bool may_need_all_resident = launch.wave_blocks == 0 || launch.blocks <= launch.wave_blocks;
  const bool long_enough = launch.expected_ns > lease.slice_ns;
  return long_enough && !may_need_all_resident ? launch.sm_count - lease.reserved_sms : 0;
}

// The same for a slice of a kernel that may be cut: no slice is shorter than a block, however narrow it is. Its blocks
// do not wait for each other.
constexpr uint32_t confined_to_sms(uint64_t block_ns, uint32_t sm_count, const LeaseView& lease) {
  if (lease.reserved_sms == 0 || lease.reserved_sms >= sm_count || lease.unmanaged()) return 0;
  return block_ns > lease.long_block_ns ? sm_count - lease.reserved_sms : 0;
}

}  // namespace tessera::admission
