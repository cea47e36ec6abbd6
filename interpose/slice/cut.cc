#include "interpose/slice/cut.h"

#include "admission/slices.h"
#include "interpose/gate/ask.h"
#include "interpose/slice/pause.h"
#include "interpose/slice/trial.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"

namespace tessera::cut {
namespace {

using gate::LaunchCall;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kPilotBlocksPerSm = 2, kManyThreads = 512;  // per block: one of them is enough

// Attributes that change nothing about which blocks run or when dependants may start, and the shape of
// clusters, which each slice gets, too. Not the preferred shape: where the driver grants that is its choice.
bool harmless(const CUlaunchConfig* config) {
  if (!config) return true;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const auto id = config->attrs[i].id;
    if (id != CU_LAUNCH_ATTRIBUTE_IGNORE && id != CU_LAUNCH_ATTRIBUTE_PRIORITY &&
        id != CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW && id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION &&
        id != CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
      return false;
  }
  return true;
}

// A launch that the driver would refuse as a whole may look harmless in pieces.
bool within_limits(const LaunchCall& launch) {
  constexpr uint32_t kMaxX = 0x7fffffff, kMaxYZ = 0xffff;
  return launch.grid[0] <= kMaxX && launch.grid[1] <= kMaxYZ && launch.grid[2] <= kMaxYZ &&
         !(launch.params && launch.extra);
}

}  // namespace

void publish(ipc::abi::SignalLine& signals) {
  ipc::store(signals.whole_releases, expired_holds(), kRelaxed);
  ipc::store(signals.cutting_off, uint32_t(paused()), kRelaxed);
  ipc::store(signals.watchdog_releases, g_watchdog_releases.load(kRelaxed), kRelaxed);
}

uint64_t pilot_blocks(const LaunchCall& launch) {
  return uint64_t(state::sm_count()) * (launch.threads() > kManyThreads ? 1 : kPilotBlocksPerSm);
}

bool allowed(const LaunchCall& launch, const state::KernelRecord& kernel) {
  if (!state::config().slice || paused()) return false;
  if (!harmless(launch.config) || !within_limits(launch)) return false;
  return kernel.variant.handle.load(kRelaxed) != state::kNoVariant;
}

bool wanted(const LaunchCall& launch, const gate::Timing* timing) {
  if (state::g_state.role.load(kRelaxed) != state::Role::kBestEffort) return false;
  const uint64_t block_ps = timing ? timing->block_ps.load(kRelaxed) : 0;
  return admission::worth_cutting(launch.blocks(), block_ps, pilot_blocks(launch), gate::current_lease());
}

}  // namespace tessera::cut
