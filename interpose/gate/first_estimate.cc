#include "interpose/gate/first_estimate.h"

#include <algorithm>

#include "admission/limits.h"
#include "base/claimed_key.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/rates.h"
#include "interpose/state/process.h"

namespace tessera::gate {
namespace {

using namespace state;
using operations::Ratio;
constexpr auto kRelaxed = std::memory_order_relaxed;

static_assert(sizeof(Ratio) == sizeof(uint64_t) && std::atomic<Ratio>::is_always_lock_free);
struct Slot {
  std::atomic<uint64_t> key;  // 0 = free; never changes once set
  std::atomic<Ratio> ratio;   // lossy when two harvesters meet
};
constexpr uint32_t kSlots = 1024, kProbes = 8;
constinit Slot g_slots[kSlots] = {};

// Null: not there, and, with `claim`, no room.
Slot* slot_of(uint64_t key, bool claim) {
  if (key == 0) return nullptr;
  constexpr auto kKeyAt = [](uint32_t i) -> auto& {
    return g_slots[i].key;
  };
  const base::ClaimedKey found = base::find_key(kKeyAt, kSlots, kProbes, key, claim);
  return found.at < 0 ? nullptr : &g_slots[found.at];
}

Ratio ratio_of(uint64_t key) {
  const Slot* slot = slot_of(key, false);
  return slot ? slot->ratio.load(kRelaxed) : Ratio{};
}

// The top bit is set in no address and hardly ever matters in a hash: a kind is no kernel.
uint64_t kind_of(const operations::Note& note) {
  if (note.entry >= operations::kEntries) return 0;
  const operations::Family family = operations::kind_of(operations::Entry(note.entry)).family;
  return uint64_t{1} << 63 | uint64_t(family) << 32 | uint32_t(note.type);
}

// Bounds the estimate, because arguments may be garbage. Copies have the same bound.
uint64_t bounded(double ns) {
  return std::max(uint64_t(std::min(ns, double(kLongestTransferNs))), admission::kLeastEstimateNs);
}

}  // namespace

Basis basis_of(const operations::Note& note, uint64_t kernel, uint64_t blocks, uint64_t of_blocks,
               bool first_of_call) {
  const double whole_ns = roofline_of(note).at_least_ns;
  if (whole_ns <= 0 || blocks == 0 || of_blocks == 0) return {};
  const double at_least_ns = whole_ns * double(blocks) / double(of_blocks);
  return {.ns = operations::reachable_ns(at_least_ns, blocks, state::sm_count()),
          .at_least_ns = at_least_ns,
          .kernel = kernel,
          .kind = first_of_call ? kind_of(note) : 0};
}

uint64_t first_estimate(const Basis& basis) {
  if (basis.ns <= 0) return 0;
  for (const uint64_t key : {basis.kernel, basis.kind})
    if (const Ratio ratio = ratio_of(key); ratio.samples != 0)
      return bounded(operations::times(ratio, basis.ns));
  // It takes no less: only where that is more than is expected of any kernel it says something.
  return basis.kind != 0 && basis.at_least_ns > double(admission::kUnknownKernelNs)
             ? bounded(basis.at_least_ns)
             : 0;
}

void learn_ratio(const Basis& basis, uint64_t measured_ns) {
  if (basis.ns <= 0 || measured_ns == 0) return;
  for (const uint64_t key : {basis.kernel, basis.kind})
    if (Slot* slot = slot_of(key, true))
      slot->ratio.store(operations::add_sample(slot->ratio.load(kRelaxed), basis.ns, double(measured_ns)),
                        kRelaxed);
}

}  // namespace tessera::gate
