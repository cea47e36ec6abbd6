// One launch as slices: the loop that sends each of them through the gate.
#include <cstring>

#include "admission/slices.h"
#include "interpose/gate/learnt.h"
#include "interpose/gate/operation.h"
#include "interpose/gate/signals.h"
#include "interpose/gate/trace.h"
#include "interpose/slice/confine.h"
#include "interpose/slice/cut.h"
#include "interpose/slice/pause.h"
#include "interpose/slice/trial.h"
#include "interpose/slice/variant_params.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/cluster.h"
#include "interpose/track/reasons.h"
#include "interpose/track/track.h"

namespace tessera::cut {
namespace {

using admission::Action;
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

// One launch as slices. On the launching thread's stack.
class Cutting {
 public:
  Cutting(const LaunchCall& original, state::KernelRecord& kernel, gate::Timing* whole, gate::Wait& wait)
      : original_(original), kernel_(kernel), whole_(whole), wait_(wait), slice_(original) {}
  bool prepare();  // false: it cannot be cut now
  // False: nothing was launched. Else *result is what the program gets.
  bool run(CUresult* result);
  uint64_t estimate_ns() const { return estimate_ns_; }  // of the slices that were sent

 private:
  enum class Step { kSent, kAskAgain, kFailed };
  struct Plan {
    Box box;
    uint64_t estimate_ns;
    bool timed;
    uint32_t sms;  // that it keeps to; 0 = all
  };
  Plan plan(const admission::LeaseView& lease) const;
  Step send(CUresult* result);
  void set_box(const Box& box);
  bool send_apart(const Plan& plan, gate::Reservation& reservation, CUresult* result);
  CUresult issue(const Plan& plan, gate::Reservation& reservation, bool timed);
  void note_refusal();
  bool gave_up_trial(CUresult* result);

  const LaunchCall& original_;
  state::KernelRecord& kernel_;
  gate::Timing* const whole_;  // of the launch as the program asked for it; may be null
  gate::Wait& wait_;
  LaunchCall slice_;
  admission::Cluster cluster_;
  VariantParams params_;
  Trial trial_;
  bool tried_ = false;    // each slice is seen to end before the next one is sent
  uint32_t n_ended_ = 0;  // slices of a trial
  bool no_path_ = false;  // to SMs of its own: it goes where the program sent it
  bool let_go_ = false;   // held for too long: what is left goes out in as few pieces as its shape allows
  uint64_t total_ = 0, done_ = 0, estimate_ns_ = 0;
  admission::Occupancy occupancy_{};
  // Slices of one kernel share an entry: their time per block, whatever their size.
  gate::Timing* sliced_ = nullptr;
};

bool Cutting::prepare() {
  const CUcontext context = context_of(original_);
  if (!context) return false;
  slice_.function = ready_variant(kernel_, context);
  if (!slice_.function) slice_.function = track::resolve_variant(kernel_, original_, context);
  if (!slice_.function) return false;
  if (!track::cluster_of(original_, kernel_, &cluster_) || !params_.prepare(original_, kernel_)) return false;
  if (!may_ascend(kernel_, original_)) return false;
  tried_ = kernel_.form.ascending_row || Trial::needed(kernel_, original_);
  if (tried_ && !trial_.begin(original_, context))
    return false;  // nobody would see a slice that does not end
  slice_.params = params_.params();
  slice_.extra = params_.extra();
  total_ = original_.blocks();
  occupancy_ = {pilot_blocks(original_),
                cluster_.blocks() == 1 ? state::sm_count() * kernel_.variant.blocks_per_sm.load(kRelaxed)
                                       : kernel_.variant.cluster_wave.load(kRelaxed)};
  sliced_ = gate::timing_of(
      gate::timing_key({kernel_.loaded.hash ^ 0x5ce, 1, original_.threads(), original_.shared_bytes}));
  return true;
}

Cutting::Plan Cutting::plan(const admission::LeaseView& lease) const {
  const admission::History history = sliced_ ? sliced_->history() : admission::History{};
  const uint64_t block_ps =
      history.block_ps == 0 && whole_ ? whole_->block_ps.load(kRelaxed) : history.block_ps;
  const uint64_t left = total_ - done_;
  uint64_t blocks = left, wave = occupancy_.wave_blocks;
  uint32_t sms = 0;
  const bool managed = state::g_state.role.load(kRelaxed) == state::Role::kBestEffort && !lease.unmanaged();
  // A shape that was never timed is timed first: estimates are of the whole GPU.
  if (managed && !let_go_ && !no_path_ && !tried_ && cluster_.blocks() == 1 && block_ps != 0)
    sms = confine::sms_for_slices(original_, history.block_ns, lease);
  if (sms != 0) wave = wave * sms / state::sm_count();
  const bool timed = sms == 0 && gate::should_time(sliced_) == gate::TimeIt::kYes;
  if (!let_go_ && managed) {
    blocks = admission::slice_blocks(history, block_ps, left, lease, {occupancy_.pilot_blocks, wave});
    if (timed && blocks < left)
      blocks = admission::probe_blocks(sliced_->samples.load(kRelaxed), blocks, wave);
  }
  const Box box =
      admission::next_box(original_.grid, cluster_, done_, {blocks, wave, lease.width_blocks != 0});
  return {box, admission::slice_estimate_ns(history, block_ps, box.blocks(), lease), timed, sms};
}

Cutting::Step Cutting::send(CUresult* result) {
  const Plan next = plan(gate::current_lease());
  const admission::Ask what{.estimate_ns = next.estimate_ns,
                            .resource_class = gate::class_of(&kernel_),
                            .may_keep_apart = next.sms != 0,
                            .in_thread = tried_};
  gate::Reservation reservation;
  const Action action = gate::ask(what, original_.stream, wait_, reservation);
  if (action == Action::kLetGo && !let_go_) {
    let_go_ = true;
    note_expired_hold();
    return Step::kAskAgain;
  }
  if (next.sms != 0) {
    no_path_ = !send_apart(next, reservation, result);
    if (no_path_) return Step::kAskAgain;
  } else {
    *result = issue(next, reservation, next.timed && action == Action::kGo);
  }
  if (*result != CUDA_SUCCESS) return Step::kFailed;
  done_ += next.box.blocks();
  estimate_ns_ += next.estimate_ns;
  const state::DaemonLink* link = state::g_state.link.load(std::memory_order_acquire);
  std::atomic_ref(link->usage->slices).fetch_add(1, kRelaxed);
  return Step::kSent;
}

void Cutting::set_box(const Box& box) {
  memcpy(slice_.grid, box.extent, sizeof slice_.grid);
  params_.set_origin(box.origin);
}

// False: nothing was launched.
bool Cutting::send_apart(const Plan& next, gate::Reservation& reservation, CUresult* result) {
  set_box(next.box);
  if (!confine::launch(slice_, next.sms, result)) return false;
  reservation.settle(original_.stream, *result);
  return true;
}

CUresult Cutting::issue(const Plan& next, gate::Reservation& reservation, bool timed) {
  if (!sliced_ || sliced_->block_ps.load(kRelaxed) == 0) gate::harvest_samples();
  set_box(next.box);
  // Other processes know the launch, not our slices: their time per block stands for the launch's.
  if (timed) gate::note_shape(whole_, original_, &kernel_);
  const gate::Timing* named = whole_ ? whole_ : sliced_;
  gate::Sample* sample =
      timed ? gate::sample_begin(
                  sliced_, original_.stream, named->key.load(kRelaxed),
                  {gate::below_call(kernel_.loaded.hash, next.box.blocks(), original_.blocks()), nullptr, 0})
            : nullptr;
  const CUresult result = gate::issue(slice_);
  gate::sample_end(sample, original_.stream, next.box.blocks(), occupancy_.wave_blocks, result);
  reservation.settle(original_.stream, result);
  return result;
}

// Programs also try what a GPU may not have (clusters) and fall back: that says nothing about the variant.
void Cutting::note_refusal() {
  if (kernel_.cuts.refused.fetch_add(1, kRelaxed) + 1 >= kMostRefused)
    kernel_.variant.handle.store(state::kNoVariant, kRelaxed);
}

// True if the slice does not end without the blocks behind it: the rest went out beside it.
bool Cutting::gave_up_trial(CUresult* result) {
  if (trial_.ended(original_)) {
    n_ended_++;
    return false;
  }
  *result = launch_rest(original_, slice_, cluster_, params_, done_, trial_);
  g_watchdog_releases.fetch_add(1, kRelaxed);
  kernel_.variant.handle.store(state::kNoVariant, kRelaxed);
  track::slice_hung(kernel_);
  return true;
}

bool Cutting::run(CUresult* result) {
  while (done_ < total_) {
    const bool first = done_ == 0;
    const Step step = send(result);
    if (step == Step::kAskAgain) continue;
    if (step == Step::kFailed) {
      if (!first)
        return true;  // part of the work is enqueued: the program gets this error, as for any launch
      note_refusal();
      return false;
    }
    if (first && kernel_.cuts.refused.load(kRelaxed) != 0) kernel_.cuts.refused.store(0, kRelaxed);
    if (tried_ && done_ < total_ && gave_up_trial(result)) return true;
  }
  if (n_ended_) Trial::proven(kernel_, original_);
  if (!let_go_) note_served_launch();
  return true;
}

bool launch(const LaunchCall& original, state::KernelRecord& kernel, gate::Timing* whole, gate::Wait& wait,
            CUresult* result) {
  Cutting cutting(original, kernel, whole, wait);
  if (!cutting.prepare()) return false;
  const uint64_t start = gate::tracing() ? state::clock_ns() : 0;
  state::t_thread.cutting = original.function;
  const bool launched = cutting.run(result);
  state::t_thread.cutting = nullptr;
  if (launched) gate::count_outcome(ipc::abi::kOutcomeSliced, 1, cutting.estimate_ns());
  if (launched && start != 0) {  // one that began before the trace is not in it
    gate::trace_name(original.function);
    gate::trace({.kind = gate::abi::kTraceLaunch,
                 .detail = uint16_t(*result),
                 .start_ns = start,
                 .end_ns = state::clock_ns(),
                 .stream = gate::account_key(original.stream),
                 .a = reinterpret_cast<uint64_t>(original.function),
                 .b = original.blocks(),
                 .c = gate::abi::launch_facts(gate::abi::kOutcomeSliced)});
  }
  return launched;
}

}  // namespace tessera::cut
