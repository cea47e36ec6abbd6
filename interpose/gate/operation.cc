#include "interpose/gate/operation.h"

#include <algorithm>

#include "admission/limits.h"
#include "interpose/gate/rates.h"
#include "operations/roofline.h"

namespace tessera::gate {
namespace {

operations::Roofline roofline_of(const operations::Note& note) {
  const Rates& device = rates();
  const double bytes_per_s = double(device.memory) * 1e6;
  return operations::roofline(
      {note.flop, note.bytes},
      operations::rates_for(static_cast<operations::Type>(note.type), device.peaks, bytes_per_s));
}

}  // namespace

uint32_t class_of_operation(operations::Note& note) {
  if (note.resource_class == abi::kResourceUnknown) note.resource_class = roofline_of(note).resource_class;
  return note.resource_class;
}

uint64_t expected_of_operation() {
  operations::Note* note = state::t_note;
  if (!note || note->launches++ != 0) return 0;
  const double ns = roofline_of(*note).at_least_ns;
  if (ns <= 0) return 0;
  // What arguments that are garbage amount to is bounded, as of copies.
  return std::max(uint64_t(std::min(ns, double(kLongestTransferNs))), admission::kLeastEstimateNs);
}

}  // namespace tessera::gate
