// Which launches of a best-effort client keep to the SMs of LeaseView::sm_limit: those that nothing else bounds.
#pragma once

#include "admission/lease.h"

namespace tessera::admission {

struct WholeLaunch {  // a launch that goes out in one piece
  uint64_t blocks;
  uint64_t wave_blocks = 0;  // that fill the GPU once; 0 = not known
  uint64_t expected_ns = 0;  // on the whole GPU; 0 = not known
};

// SMs that the launch may use; 0 = all. Short ones are over before they disturb, and to confine them would cost more than
// it saves. Blocks that wait for each other need all of them to be resident at once: a launch of more than one wave cannot
// rely on that, one that would just fit the GPU may, and keeps all of it.
constexpr uint32_t confined_to_sms(const WholeLaunch& launch, const LeaseView& lease) {
  if (lease.sm_limit == 0 || lease.unmanaged()) return 0;
  const bool may_need_all_resident = launch.wave_blocks == 0 || launch.blocks <= launch.wave_blocks;
  const bool long_enough = launch.expected_ns > lease.slice_ns;
  return long_enough && !may_need_all_resident ? lease.sm_limit : 0;
}

}  // namespace tessera::admission
