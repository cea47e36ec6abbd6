// The numbers in a RegionHeader: how the daemon lays a region out and what a client accepts. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "ipc/abi/cutting.h"
#include "ipc/abi/memory.h"
#include "ipc/abi/operations.h"
#include "ipc/abi/region.h"

namespace tessera::ipc {

inline constexpr uint32_t kLeaseOffset = 256, kAnswerOffset = 320, kUsageOffset = 512, kSignalsOffset = 640,
                          kCuttingOffset = 768, kRingOffset = 1024, kRingSlots = 1024,
                          kOperationsOffset = 51200, kMemoryOffset = 63616;
static_assert(kLeaseOffset + sizeof(abi::LeaseLine) <= kAnswerOffset &&
              kAnswerOffset + sizeof(abi::AnswerLine) <= kUsageOffset);
static_assert(kUsageOffset + sizeof(abi::UsageLine) <= kSignalsOffset &&
              kSignalsOffset + sizeof(abi::SignalLine) <= kCuttingOffset &&
              kCuttingOffset + sizeof(abi::CuttingLines) <= kRingOffset);
static_assert(kRingOffset + offsetof(abi::RecordRing, slots) + kRingSlots * sizeof(abi::Record) <=
              kOperationsOffset);
static_assert(kOperationsOffset + abi::kOperationTableBytes <= kMemoryOffset &&
              kMemoryOffset + abi::kMemoryTableBytes <= abi::kRegionBytes);

// Unless the daemon's configuration says otherwise (daemon.answer_within_ms).
inline constexpr uint32_t kDefaultAnswerWithin_ms = 1000;

// Required features that this build understands.
inline constexpr uint64_t kKnownRequiredFeatures = 0;

struct RegionNumbers {  // checked copies
  uint32_t lease_offset, usage_offset, ring_offset, ring_slots;
  uint32_t on_daemon_loss;
  uint64_t guard_ns;
  uint32_t signals_offset;  // 0: a daemon without that feature
  bool sends_learnt;        // kFeatureLearnt
  uint32_t answer_offset;   // 0: a daemon that answers no questions
  uint32_t answer_within_ms;
  uint32_t operations_offset;  // 0: a daemon that does not ask for library calls
  uint32_t operation_slots;
  uint32_t cutting_offset;  // 0: a daemon that does not ask what can be cut
  uint32_t memory_offset;   // 0: a daemon that does not count memory
};

inline abi::RegionHeader make_region_header(uint64_t daemon_epoch, uint32_t client_id, uint32_t priority) {
  abi::RegionHeader h{};
  h.magic = abi::kRegionMagic;
  h.version = abi::kVersion;
  h.compat_version = abi::kCompatVersion;
  h.header_bytes = sizeof h;
  h.region_bytes = abi::kRegionBytes;
  h.lease_offset = kLeaseOffset;
  h.usage_offset = kUsageOffset;
  h.ring_offset = kRingOffset;
  h.ring_slots = kRingSlots;
  h.features = abi::kFeatureSignals | abi::kFeatureAnswers | abi::kFeatureOperations | abi::kFeatureCutting |
               abi::kFeatureMemory;
  h.memory_offset = kMemoryOffset;
  h.operations_offset = kOperationsOffset;
  h.operation_slots = abi::kOperationSlots;
  h.cutting_offset = kCuttingOffset;
  h.signals_offset = kSignalsOffset;
  h.answer_offset = kAnswerOffset;
  h.answer_within_ms = kDefaultAnswerWithin_ms;
  h.daemon_epoch = daemon_epoch;
  h.client_id = client_id;
  h.priority = priority;
  return h;
}

// `bytes` is the size of the mapping. The header is copied by the caller first: it lies in shared memory.
base::Result<RegionNumbers> check_region_header(const abi::RegionHeader& header, size_t bytes);
base::Status check_pulse_header(const abi::PulsePage& page);

}  // namespace tessera::ipc
