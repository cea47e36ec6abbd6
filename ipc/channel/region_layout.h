// The header of a region, as the daemon writes it and as a client accepts it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "ipc/abi/region.h"

namespace tessera::ipc {

// Unless the daemon's configuration says otherwise (daemon.answer_within_ms).
inline constexpr uint32_t kDefaultAnswerWithinMs = 1000;

// Required features that this build understands.
inline constexpr uint64_t kKnownRequiredFeatures = 0;

inline abi::RegionHeader make_region_header(uint64_t daemon_epoch, uint32_t client_id, uint32_t priority) {
  abi::RegionHeader h{};
  h.magic = abi::kRegionMagic;
  h.version = abi::kVersion;
  h.compat_version = abi::kCompatVersion;
  h.header_bytes = sizeof h;
  h.region_bytes = abi::kRegionBytes;
  h.answer_within_ms = kDefaultAnswerWithinMs;
  h.daemon_epoch = daemon_epoch;
  h.client_id = client_id;
  h.priority = priority;
  return h;
}

// `bytes` is the size of the mapping. The header is copied by the caller first: it lies in shared memory.
base::Status check_region_header(const abi::RegionHeader& header, size_t bytes);
base::Status check_pulse_header(const abi::PulsePage& page);

}  // namespace tessera::ipc
