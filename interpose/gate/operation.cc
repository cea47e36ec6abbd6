#include "interpose/gate/operation.h"

#include <algorithm>

#include "admission/credit.h"
#include "admission/rule.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/rates.h"
#include "interpose/state/clock.h"
#include "interpose/state/process.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;

// The lease has something to say of this process's calls.
bool is_managed(const abi::LeaseLine& lease) {
  if (g_state.role.load(kRelaxed) != Role::kBestEffort || g_state.captures.load(kRelaxed) != 0) return false;
  const uint32_t word = ipc::load(lease.word, std::memory_order_acquire);  // pairs with lease_publish
  return admission::grant_of(word) != admission::Grant::kFree &&
         ipc::load(lease.rights, kRelaxed).passthrough == 0;
}

const abi::LeaseLine& lease_of_process() {
  return *g_state.link.load(std::memory_order_acquire)->lease;
}

}  // namespace

operations::Roofline roofline_of(const operations::Note& note) {
  const Rates& device = rates();
  const double bytes_per_s = double(device.memory) * 1e6;
  return operations::roofline(
      {note.flop, note.bytes},
      operations::rates_for(static_cast<operations::Type>(note.type), device.peaks, bytes_per_s));
}

uint32_t class_of_operation(operations::Note& note) {
  if (note.resource_class == abi::kResourceUnknown) note.resource_class = roofline_of(note).resource_class;
  return note.resource_class;
}

Basis below_call(uint64_t kernel, uint64_t blocks, uint64_t of_blocks) {
  const operations::Note* note = state::t_note;
  return note ? basis_of(*note, kernel, blocks, of_blocks, note->launches <= 1) : Basis{};
}

uint64_t expected_below_call(uint64_t kernel, uint64_t blocks) {
  const operations::Note* note = state::t_note;
  return note ? first_estimate(basis_of(*note, kernel, blocks, blocks, note->launches == 0)) : 0;
}

uint64_t expected_of_call(const operations::Note& note) {
  // As one launch that fills the GPU.
  const Basis basis = basis_of(note, 0, UINT32_MAX, UINT32_MAX, true);
  const uint64_t expected_ns = first_estimate(basis);
  return expected_ns ? expected_ns : uint64_t(std::min(basis.at_least_ns, double(kLongestTransferNs)));
}

uint64_t wanted_slice_ns() {
  const abi::LeaseLine& lease = lease_of_process();
  return is_managed(lease) ? ipc::load(lease.slice_ns, kRelaxed) : 0;
}

uint32_t sms_for_call(uint64_t expected_ns) {
  const abi::LeaseLine& lease = lease_of_process();
  if (expected_ns <= admission::kShortLaunchNs || !is_managed(lease)) return 0;
  const uint32_t reserved = ipc::load(lease.reserved_sms, kRelaxed), all = state::sm_count();
  return reserved != 0 && reserved < all ? all - reserved : 0;
}

bool undisturbed() {
  if (g_state.captures.load(kRelaxed) != 0) return false;
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  const uint32_t priority = ipc::load(link->lease->rights, std::memory_order_relaxed).priority;
  const uint64_t now = clock_ns();
  const Pulses pulses = current_pulses();
  for (const admission::PulseView& pulse : std::span<const admission::PulseView>(pulses))
    if (admission::in_the_way(pulse, priority, link->guard_ns, now)) return false;
  return true;
}

}  // namespace tessera::gate
