#include "interpose/slice/cutting.h"

#include <cstring>

#include "interpose/slice/cut.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/cluster.h"
#include "interpose/track/reasons.h"
#include "interpose/track/track.h"

namespace tessera::cut {
namespace {

using admission::Box;
using gate::LaunchCall;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kMostRefused = 4;  // launches in a row whose first slice the driver refused

// The context that the launch runs in: its stream's, which for a CUkernel need not be the current one. Null
// if it is not the current one, or not known: then attributes cannot be compared.
CUcontext context_of(const LaunchCall& launch) {
  const auto& real = driver_api::real();
  CUcontext current = nullptr, of_stream = nullptr;
  if (real.cuCtxGetCurrent(&current) != CUDA_SUCCESS) return nullptr;
  const uint64_t stream = reinterpret_cast<uint64_t>(launch.stream.stream);
  if (stream <= reinterpret_cast<uint64_t>(CU_STREAM_PER_THREAD)) return current;
  if (real.cuStreamGetCtx(launch.stream.stream, &of_stream) != CUDA_SUCCESS) return nullptr;
  return of_stream == current ? current : nullptr;
}

// The variant, if nothing has to be done before it may be launched in this context; else null.
CUfunction ready_variant(const state::KernelRecord& kernel, CUcontext context) {
  if (kernel.variant.mirrored_context.load(std::memory_order_acquire) != context)
    return nullptr;  // pairs: resolver
  if (kernel.variant.mirrored.load(std::memory_order_acquire) != kernel.settings.changes.load(kRelaxed))
    return nullptr;
  const CUfunction variant = kernel.variant.handle.load(kRelaxed);
  return variant == state::kNoVariant ? nullptr : variant;
}

// Blocks from `done` on beside the slice that does not end without them.
CUresult launch_rest(const LaunchCall& original, LaunchCall slice, const admission::Cluster& cluster,
                     VariantParams& params, uint64_t done, Trial& trial) {
  const uint64_t total = original.blocks();
  CUlaunchConfig config{};
  if (original.config) {
    config = *original.config;
    slice.config = &config;
  }
  uint32_t used = 0;
  CUresult result = CUDA_SUCCESS;
  while (done < total && result == CUDA_SUCCESS) {
    const Box box = admission::next_box(original.grid, cluster, done, {total - done});
    memcpy(slice.grid, box.extent, sizeof slice.grid);
    params.set_origin(box.origin);
    config.hStream = trial.stream(used);
    slice.stream = {trial.stream(used++), driver_api::Flavour::kLegacy};
    result = gate::issue(slice);
    done += box.blocks();
  }
  const CUresult joined = trial.join(original, used);
  return result != CUDA_SUCCESS ? result : joined;
}

// Blocks that wait for lower ones count along x: only there is a lower number in an earlier slice. And if one
// waits for a higher one after all, what is launched beside it must not queue up behind it.
bool may_ascend(state::KernelRecord& kernel, const LaunchCall& launch) {
  const bool rows = launch.grid[1] != 1 || launch.grid[2] != 1;
  if (!kernel.form.ascending_row || (!rows && !state::config().one_queue)) return true;
  if (!kernel.cuts.whole_told.exchange(true, kRelaxed))
    track::count_refusal(rows ? track::RunTimeReason::kGridRows : track::RunTimeReason::kOneQueue);
  return false;
}

}  // namespace

bool Cutting::prepare(admission::PlannedLaunch& planned) {
  const CUcontext context = context_of(original_);
  if (!context) return false;
  slice_.function = ready_variant(kernel_, context);
  if (!slice_.function) slice_.function = track::resolve_variant(kernel_, original_, context);
  if (!slice_.function) return false;
  if (!track::cluster_of(original_, kernel_, &cluster_) || !params_.prepare(original_, kernel_)) return false;
  if (!may_ascend(kernel_, original_)) return false;
  one_by_one_ = kernel_.form.ascending_row || Trial::needed(kernel_, original_);
  if (one_by_one_ && !trial_.begin(original_, context))
    return false;  // nobody would see a slice that does not end
  slice_.params = params_.params();
  slice_.extra = params_.extra();
  sliced_ = gate::timing_of(
      gate::timing_key({kernel_.loaded.hash ^ 0x5ce, 1, original_.threads(), original_.shared_bytes}));
  planned.cluster = cluster_;
  planned.one_by_one = one_by_one_;
  planned.slice_occupancy.wave_blocks = cluster_.blocks() == 1
                                            ? state::sm_count() * kernel_.variant.blocks_per_sm.load(kRelaxed)
                                            : kernel_.variant.cluster_wave.load(kRelaxed);
  return true;
}

void Cutting::learn(admission::PlannedLaunch& planned) const {
  if (!sliced_ || sliced_->block_ps.load(kRelaxed) == 0) gate::harvest_samples();
  if (sliced_) planned.sliced = sliced_->history();
  if (whole_) planned.block_ps = whole_->block_ps.load(kRelaxed);
}

const LaunchCall& Cutting::slice(const Box& box) {
  memcpy(slice_.grid, box.extent, sizeof slice_.grid);
  params_.set_origin(box.origin);
  return slice_;
}

// Programs also try what a GPU may not have (clusters) and fall back: that says nothing about the variant.
void Cutting::note_first(CUresult result) {
  std::atomic<uint32_t>& refused = kernel_.cuts.refused;
  if (result == CUDA_SUCCESS) {
    if (refused.load(kRelaxed) != 0) refused.store(0, kRelaxed);
  } else if (refused.fetch_add(1, kRelaxed) + 1 >= kMostRefused) {
    kernel_.variant.handle.store(state::kNoVariant, kRelaxed);
  }
}

std::optional<CUresult> Cutting::rescue(uint64_t done) {
  if (!one_by_one_ || done == original_.blocks()) return std::nullopt;
  if (trial_.ended(original_)) {
    n_ended_++;
    return std::nullopt;
  }
  const CUresult result = launch_rest(original_, slice_, cluster_, params_, done, trial_);
  g_watchdog_releases.fetch_add(1, kRelaxed);
  kernel_.variant.handle.store(state::kNoVariant, kRelaxed);
  track::slice_hung(kernel_);
  return result;
}

void Cutting::note_end() {
  if (n_ended_ != 0) Trial::proven(kernel_, original_);
}

}  // namespace tessera::cut
