#include "interpose/slice/cut.h"

#include <cstring>

#include "admission/slices.h"
#include "interpose/gate/learnt.h"
#include "interpose/slice/trial.h"
#include "interpose/state/clock.h"
#include "interpose/state/config.h"
#include "interpose/state/process.h"
#include "interpose/track/cluster.h"
#include "interpose/track/reasons.h"
#include "interpose/track/track.h"
#include "kernels/slice/globals.h"

namespace tessera::cut {
namespace {

using admission::Action;
using admission::Box;
using gate::LaunchCall;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kMaxParams = 256;  // more pointers than this and the launch is not cut
constexpr uint32_t kMostPadding = 16;
constexpr uint32_t kMaxParamBytes = 4096;  // of `extra` launches that are rebuilt on the stack
CUfunction const kNoVariant = reinterpret_cast<CUfunction>(uintptr_t{1});  // tried, or refused for good
constexpr uint32_t kGuessedSms = 64, kPilotBlocksPerSm = 2;
constexpr uint32_t kExpiriesBeforeWhole = 8;
constexpr uint32_t kMostRefused = 4;  // launches in a row whose first slice the driver refused
constexpr uint64_t kFirstOffNs = 5'000'000'000, kMostOffNs = 600'000'000'000;

constinit std::atomic<uint64_t> g_whole_releases{
    0};                                         // cut launches whose rest went out whole at the hold limit
constinit std::atomic<uint32_t> g_expiries{0};  // cut launches in a row whose hold limit was reached
constinit std::atomic<uint64_t> g_off_until_ns{0},
    g_off_ns{0};  // cutting is off until; for how long this time

// Holds that expire again and again: cutting gains nothing any more (the rest goes out whole anyway) and
// costs the program its slices. Then its kernels are not cut for a while, longer each time, and the daemon is
// told.
void note_expiry() {
  g_whole_releases.fetch_add(1, kRelaxed);
  if (g_expiries.fetch_add(1, kRelaxed) + 1 < kExpiriesBeforeWhole) return;
  g_expiries.store(0, kRelaxed);
  const uint64_t before = g_off_ns.load(kRelaxed);
  const uint64_t off_ns = before == 0 ? kFirstOffNs : before < kMostOffNs ? before * 2 : before;
  g_off_ns.store(off_ns, kRelaxed);
  g_off_until_ns.store(state::clock_ns() + off_ns, kRelaxed);
}

bool is_off() {
  const uint64_t until = g_off_until_ns.load(kRelaxed);
  if (until == 0) [[likely]]
    return false;
  if (state::clock_ns() < until) return true;
  g_off_until_ns.store(0, kRelaxed);
  return false;
}

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

// `extra` launches: {BUFFER_POINTER, p, BUFFER_SIZE, &n, END} in either order.
bool parse_extra(void** extra, const void** buffer, size_t* bytes) {
  *buffer = nullptr;
  *bytes = 0;
  for (int i = 0; i < 8 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *buffer = extra[i + 1];
    else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *bytes = *static_cast<const size_t*>(extra[i + 1]);
    else
      return false;
  }
  return *buffer && *bytes;
}

// What the driver would refuse as a whole may look harmless in pieces.
bool within_limits(const LaunchCall& launch) {
  constexpr uint32_t kMaxX = 0x7fffffff, kMaxYZ = 0xffff;
  return launch.grid[0] <= kMaxX && launch.grid[1] <= kMaxYZ && launch.grid[2] <= kMaxYZ &&
         !(launch.params && launch.extra);
}

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
  if (kernel.mirrored_context.load(std::memory_order_acquire) != context) return nullptr;  // pairs: resolver
  if (kernel.mirrored.load(std::memory_order_acquire) != kernel.attributes.load(kRelaxed)) return nullptr;
  const CUfunction variant = kernel.variant.load(kRelaxed);
  return variant == kNoVariant ? nullptr : variant;
}

uint64_t sms() {
  return state::g_sm_count.load(kRelaxed) ? state::g_sm_count.load(kRelaxed) : kGuessedSms;
}

// First slice of a kernel that was never measured: a few blocks on each SM, whatever they cost.
uint64_t pilot_of(const LaunchCall& launch) {
  return sms() * (launch.threads() > 512 ? 1 : kPilotBlocksPerSm);
}

// Parameters of the variant: the program's own, then the origin, then the addresses of variables that a
// sibling takes. One form per kind of launch.
struct Params {
  slice::SliceOrigin origin{};
  uint64_t globals[slice::kMaxPassedGlobals];
  void* pointers[kMaxParams + 2];
  alignas(16) unsigned char buffer[kMaxParamBytes + sizeof(slice::SliceOrigin) + sizeof(uint64_t) +
                                   sizeof globals];
  size_t buffer_bytes = 0;
  void* extra[5];
  uint32_t origin_offset = 0;
  bool by_pointer = true;

  bool prepare(const LaunchCall& launch, const state::KernelRecord& kernel) {
    memcpy(origin.grid, launch.grid, sizeof origin.grid);
    const uint32_t n = kernel.n_globals;
    if (n > slice::kMaxPassedGlobals) return false;
    for (uint32_t i = 0; i < n; i++) globals[i] = kernel.globals[i].load(kRelaxed);
    if (launch.params || kernel.n_params == 0) {
      if (kernel.n_params > kMaxParams) return false;
      for (uint32_t i = 0; i < kernel.n_params; i++) pointers[i] = launch.params[i];
      pointers[kernel.n_params] = &origin;
      pointers[kernel.n_params + 1] = globals;  // not read if there are none
      return true;
    }
    const void* source = nullptr;
    size_t bytes = 0;
    if (!launch.extra || !parse_extra(launch.extra, &source, &bytes)) return false;
    origin_offset = kernel.origin_offset;
    // The origin begins at the first multiple of 4 behind the parameters; a structure of the program's may be
    // padded beyond that. Anything else is for the driver to judge.
    if (bytes + 3 < origin_offset || bytes >= origin_offset + kMostPadding) return false;
    if (origin_offset > kMaxParamBytes) return false;
    const size_t used = bytes < origin_offset ? bytes : origin_offset;
    memcpy(buffer, source, used);
    memset(buffer + used, 0, origin_offset - used);
    buffer_bytes = origin_offset + sizeof origin;
    if (n != 0) {
      memset(buffer + buffer_bytes, 0, kernel.globals_offset - buffer_bytes);
      memcpy(buffer + kernel.globals_offset, globals, n * sizeof *globals);
      buffer_bytes = kernel.globals_offset + n * sizeof *globals;
    }
    by_pointer = false;
    void* const form[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &buffer_bytes,
                           CU_LAUNCH_PARAM_END};
    memcpy(extra, form, sizeof form);
    return true;
  }
  void set_origin(const uint32_t at[3]) {
    memcpy(origin.origin, at, sizeof origin.origin);
    if (!by_pointer) memcpy(buffer + origin_offset, &origin, sizeof origin);
  }
};

// Blocks from `done` on beside the slice that does not end without them.
CUresult launch_rest(const LaunchCall& original, LaunchCall slice, const admission::Cluster& cluster,
                     Params& params, uint64_t done, Trial& trial) {
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
  if (!kernel.ascending_row || (!rows && !state::config().one_queue)) return true;
  if (!kernel.whole_told.exchange(true, kRelaxed))
    track::count_refusal(rows ? track::RunTimeReason::kGridRows : track::RunTimeReason::kOneQueue);
  return false;
}

}  // namespace

void publish(ipc::abi::SignalLine& signals) {
  ipc::store(signals.whole_releases, g_whole_releases.load(kRelaxed), kRelaxed);
  ipc::store(signals.cutting_off, uint32_t(is_off()), kRelaxed);
  ipc::store(signals.watchdog_releases, g_watchdog_releases.load(kRelaxed), kRelaxed);
}

bool allowed(const LaunchCall& launch, const state::KernelRecord& kernel) {
  if (!state::config().slice || is_off()) return false;
  if (!harmless(launch.config) || !within_limits(launch)) return false;
  return reinterpret_cast<uint64_t>(kernel.variant.load(kRelaxed)) != 1;  // 1: tried, refused by the driver
}

bool wanted(const LaunchCall& launch, const gate::Timing* timing) {
  if (state::g_state.role.load(kRelaxed) != state::Role::kBestEffort) return false;
  const uint64_t block_ps = timing ? timing->block_ps.load(kRelaxed) : 0;
  return admission::worth_cutting(launch.blocks(), block_ps, pilot_of(launch), gate::current_lease());
}

// One launch as slices. On the launching thread's stack.
class Cutting {
 public:
  Cutting(const LaunchCall& original, state::KernelRecord& kernel, gate::Timing* whole, gate::Wait& wait)
      : original_(original), kernel_(kernel), whole_(whole), wait_(wait), slice_(original) {}
  bool prepare();  // false: it cannot be cut now
  // False: nothing was launched. Else *result is what the program gets.
  bool run(CUresult* result);

 private:
  enum class Step { kSent, kAskAgain, kFailed };
  struct Plan {
    Box box;
    uint64_t estimate_ns;
    bool timed;
  };
  Plan plan(const admission::LeaseView& lease) const;
  Step send(CUresult* result);
  CUresult issue(const Plan& plan, gate::Reservation& reservation, bool timed);
  void note_refusal();
  bool gave_up_trial(CUresult* result);

  const LaunchCall& original_;
  state::KernelRecord& kernel_;
  gate::Timing* const whole_;  // of the launch as the program asked for it; may be null
  gate::Wait& wait_;
  LaunchCall slice_;
  admission::Cluster cluster_;
  Params params_;
  Trial trial_;
  bool tried_ = false;    // each slice is seen to end before the next one is sent
  uint32_t n_ended_ = 0;  // slices of a trial
  bool let_go_ = false;   // held for too long: what is left goes out in as few pieces as its shape allows
  uint64_t total_ = 0, done_ = 0;
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
  tried_ = kernel_.ascending_row || Trial::needed(kernel_, original_);
  if (tried_ && !trial_.begin(original_, context))
    return false;  // nobody would see a slice that does not end
  slice_.params = params_.by_pointer ? params_.pointers : nullptr;
  slice_.extra = params_.by_pointer ? nullptr : params_.extra;
  total_ = original_.blocks();
  occupancy_ = {pilot_of(original_), cluster_.blocks() == 1 ? sms() * kernel_.blocks_per_sm.load(kRelaxed)
                                                            : kernel_.cluster_wave.load(kRelaxed)};
  sliced_ = gate::timing_of(
      gate::timing_key({kernel_.hash ^ 0x5ce, 1, original_.threads(), original_.shared_bytes}));
  return true;
}

Cutting::Plan Cutting::plan(const admission::LeaseView& lease) const {
  const admission::History history = sliced_ ? sliced_->history() : admission::History{};
  const uint64_t block_ps =
      history.block_ps == 0 && whole_ ? whole_->block_ps.load(kRelaxed) : history.block_ps;
  const uint64_t left = total_ - done_, wave = occupancy_.wave_blocks;
  const bool due = gate::should_time(sliced_) == gate::TimeIt::kYes;
  uint64_t blocks = left;
  const bool managed = state::g_state.role.load(kRelaxed) == state::Role::kBestEffort && !lease.unmanaged();
  if (!let_go_ && managed) {
    blocks = admission::slice_blocks(history, block_ps, left, lease, occupancy_);
    if (due && blocks < left) blocks = admission::probe_blocks(sliced_->samples.load(kRelaxed), blocks, wave);
  }
  const Box box =
      admission::next_box(original_.grid, cluster_, done_, {blocks, wave, lease.width_blocks != 0});
  return {box, admission::slice_estimate_ns(history, block_ps, box.blocks(), lease), due};
}

Cutting::Step Cutting::send(CUresult* result) {
  const Plan next = plan(gate::current_lease());
  const admission::Ask what{.estimate_ns = next.estimate_ns,
                            .blocks = next.box.blocks(),
                            .resource_class = kernel_.resource_class,
                            .may_narrow = next.box.blocks() > cluster_.blocks() && !let_go_};
  gate::Reservation reservation;
  const Action action = gate::ask(what, original_.stream, wait_, reservation);
  if (action == Action::kNarrow) return Step::kAskAgain;
  if (action == Action::kLetGo && !let_go_) {
    let_go_ = true;
    note_expiry();
    return Step::kAskAgain;
  }
  *result = issue(next, reservation, next.timed && action == Action::kGo);
  if (*result != CUDA_SUCCESS) return Step::kFailed;
  done_ += next.box.blocks();
  const state::Link* link = state::g_state.link.load(std::memory_order_acquire);
  std::atomic_ref(link->usage->slices).fetch_add(1, kRelaxed);
  return Step::kSent;
}

CUresult Cutting::issue(const Plan& next, gate::Reservation& reservation, bool timed) {
  if (!sliced_ || sliced_->block_ps.load(kRelaxed) == 0) gate::harvest_samples();
  memcpy(slice_.grid, next.box.extent, sizeof slice_.grid);
  params_.set_origin(next.box.origin);
  // Other processes know the launch, not our slices: their time per block stands for the launch's.
  if (timed) gate::note_shape(whole_, original_, &kernel_);
  const gate::Timing* named = whole_ ? whole_ : sliced_;
  gate::Sample* sample =
      timed ? gate::sample_begin(sliced_, original_.stream, named->key.load(kRelaxed)) : nullptr;
  const CUresult result = gate::issue(slice_);
  gate::sample_end(sample, original_.stream, next.box.blocks(), occupancy_.wave_blocks, result);
  reservation.settle(original_.stream, result);
  return result;
}

// Programs also try what a GPU may not have (clusters) and fall back: that says nothing about the variant.
void Cutting::note_refusal() {
  if (kernel_.refused.fetch_add(1, kRelaxed) + 1 >= kMostRefused) kernel_.variant.store(kNoVariant, kRelaxed);
}

// True if the slice does not end without the blocks behind it: the rest went out beside it.
bool Cutting::gave_up_trial(CUresult* result) {
  if (trial_.ended(original_)) {
    n_ended_++;
    return false;
  }
  *result = launch_rest(original_, slice_, cluster_, params_, done_, trial_);
  g_watchdog_releases.fetch_add(1, kRelaxed);
  kernel_.variant.store(kNoVariant, kRelaxed);
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
    if (first && kernel_.refused.load(kRelaxed) != 0) kernel_.refused.store(0, kRelaxed);
    if (tried_ && done_ < total_ && gave_up_trial(result)) return true;
  }
  if (n_ended_) Trial::proven(kernel_, original_);
  if (!let_go_ && g_expiries.load(kRelaxed) != 0) g_expiries.store(0, kRelaxed);
  return true;
}

bool launch(const LaunchCall& original, state::KernelRecord& kernel, gate::Timing* whole, gate::Wait& wait,
            CUresult* result) {
  Cutting cutting(original, kernel, whole, wait);
  return cutting.prepare() && cutting.run(result);
}

}  // namespace tessera::cut
