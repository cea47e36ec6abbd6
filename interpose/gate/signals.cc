#include "interpose/gate/signals.h"

#include "interpose/gate/operation.h"
#include "interpose/gate/timing.h"
#include "interpose/state/process.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;  // single words of statistics; the daemon bounds them
constexpr uint32_t kThreadsPerSm = 2048, kMostPerSm = 32, kSharedPerSm = 160 * 1024, kSharedPerBlock = 1024;

void put(uint32_t& word, uint32_t value) {
  if (ipc::load(word, kRelaxed) != value) ipc::store(word, value, kRelaxed);
}

// Occupancy as the driver said, or its upper bound by threads and shared memory (registers are not known
// here).
uint32_t blocks_per_sm(const LaunchCall& launch, const KernelRecord* kernel) {
  if (const uint32_t known = kernel ? kernel->variant.blocks_per_sm.load(kRelaxed) : 0) return known;
  const uint32_t threads = launch.threads() ? launch.threads() : 1;
  uint32_t n = kThreadsPerSm / threads;
  const uint32_t by_shared = kSharedPerSm / (launch.shared_bytes + kSharedPerBlock);
  if (by_shared < n) n = by_shared;
  if (n > kMostPerSm) n = kMostPerSm;
  return n ? n : 1;
}

}  // namespace

Width width_of(const LaunchCall& launch, const KernelRecord* kernel) {
  const uint32_t sms = state::sm_count();
  const uint32_t per_sm = blocks_per_sm(launch, kernel);
  const uint64_t filled = (launch.blocks() + per_sm - 1) / per_sm;
  return {sms * per_sm, filled < sms ? uint32_t(filled) : sms};
}

void describe(const DaemonLink* link, uint32_t resource_class, const Width& width, bool may_cut) {
  abi::SignalLine& s = *link->signals;
  put(s.resource_class, resource_class);
  put(s.wave_blocks, may_cut ? width.wave_blocks : 0);
  put(s.launch_sms, width.launch_sms);
}

void describe_whole(const DaemonLink* link, uint32_t resource_class) {
  abi::SignalLine& s = *link->signals;
  put(s.resource_class, resource_class);
  put(s.wave_blocks, 0);
  put(s.launch_sms, 0);
}

void publish_signals(const DaemonLink* link) {
  uint64_t blocks = 0, uncut = 0;
  abi::CuttingLines cutting{};
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++) {
    blocks += g_slots[i].blocks.load(kRelaxed);
    uncut += g_slots[i].uncut.load(kRelaxed);
    for (uint32_t k = 0; k < abi::kLaunchOutcomes; k++) {
      cutting.outcomes[k].launches += g_slots[i].outcomes[k].launches.load(kRelaxed);
      cutting.outcomes[k].gpu_ns += g_slots[i].outcomes[k].gpu_ns.load(kRelaxed);
    }
  }
  abi::SignalLine& s = *link->signals;
  ipc::store(s.blocks_launched, blocks, kRelaxed);
  ipc::store(s.uncut_launches, uncut, kRelaxed);
  put(s.slice_overhead_ns, uint32_t(slice_overhead_ns()));
  for (uint32_t k = 0; link->cutting && k < abi::kLaunchOutcomes; k++) {
    ipc::store(link->cutting->outcomes[k].launches, cutting.outcomes[k].launches, kRelaxed);
    ipc::store(link->cutting->outcomes[k].gpu_ns, cutting.outcomes[k].gpu_ns, kRelaxed);
  }
}

}  // namespace tessera::gate
