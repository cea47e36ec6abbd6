#include "ipc/channel/region_layout.h"

#include "ipc/channel/packet.h"

namespace tessera::ipc {
namespace {

using base::Code;

bool inside(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  return offset % 64 == 0 && offset >= sizeof(abi::RegionHeader) && offset + bytes <= region_bytes;
}

}  // namespace

base::Result<RegionNumbers> check_region_header(const abi::RegionHeader& h, size_t bytes) {
  if (h.magic != abi::kRegionMagic) return base::error(Code::kInvalid, "not a Tessera region");
  if (!versions_agree(h.version, h.compat_version))
    return base::error(Code::kVersion,
                       "region of a daemon that is too old or too new: update Tessera on both sides");
  if ((h.required_features & ~kKnownRequiredFeatures) != 0)
    return base::error(Code::kVersion,
                       "the daemon requires features that this library does not have: update it");
  if (h.header_bytes < sizeof h || h.region_bytes != bytes)
    return base::error(Code::kInvalid, "region header with wrong sizes");
  bool power_of_two = h.ring_slots != 0 && (h.ring_slots & (h.ring_slots - 1)) == 0 && h.ring_slots <= 65536;
  uint64_t ring_bytes = offsetof(abi::RecordRing, slots) + uint64_t(h.ring_slots) * sizeof(abi::Record);
  if (!power_of_two || !inside(h.lease_offset, sizeof(abi::LeaseLine), bytes) ||
      !inside(h.usage_offset, sizeof(abi::UsageLine), bytes) || !inside(h.ring_offset, ring_bytes, bytes))
    return base::error(Code::kInvalid, "region header with wrong offsets");
  const bool has_signals = (h.features & abi::kFeatureSignals) != 0;
  if (has_signals && !inside(h.signals_offset, sizeof(abi::SignalLine), bytes))
    return base::error(Code::kInvalid, "region header with wrong offsets");
  const bool answers = has_signals && (h.features & abi::kFeatureAnswers) != 0;
  if (answers && !inside(h.answer_offset, sizeof(abi::AnswerLine), bytes))
    return base::error(Code::kInvalid, "region header with wrong offsets");
  const bool counts = (h.features & abi::kFeatureOperations) != 0;
  const uint64_t counts_bytes =
      sizeof(abi::OperationTotals) + uint64_t(h.operation_slots) * sizeof(abi::OperationCounts);
  if (counts && (h.operation_slots == 0 || !inside(h.operations_offset, counts_bytes, bytes)))
    return base::error(Code::kInvalid, "region header with wrong offsets");
  const bool cutting = (h.features & abi::kFeatureCutting) != 0;
  if (cutting && !inside(h.cutting_offset, sizeof(abi::CuttingLines), bytes))
    return base::error(Code::kInvalid, "region header with wrong offsets");
  const bool memory = (h.features & abi::kFeatureMemory) != 0;
  if (memory && !inside(h.memory_offset, abi::kMemoryTableBytes, bytes))
    return base::error(Code::kInvalid, "region header with wrong offsets");
  return RegionNumbers{h.lease_offset,
                       h.usage_offset,
                       h.ring_offset,
                       h.ring_slots,
                       h.on_daemon_loss,
                       h.guard_ns,
                       has_signals ? h.signals_offset : 0,
                       (h.features & abi::kFeatureLearnt) != 0,
                       answers ? h.answer_offset : 0,
                       h.answer_within_ms,
                       counts ? h.operations_offset : 0,
                       counts ? h.operation_slots : 0,
                       cutting ? h.cutting_offset : 0,
                       memory ? h.memory_offset : 0};
}

base::Status check_pulse_header(const abi::PulsePage& page) {
  if (page.magic != abi::kPulseMagic) return base::error(Code::kInvalid, "not a pulse page");
  if (!versions_agree(page.version, page.compat_version))
    return base::error(Code::kVersion, "pulse page of another version");
  return base::ok();
}

}  // namespace tessera::ipc
