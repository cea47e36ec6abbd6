#include "interpose/slice/cut.h"

#include <cstring>

#include "interpose/gate/clock.h"
#include "interpose/gate/learnt.h"
#include "interpose/lifecycle/config.h"
#include "interpose/slice/cluster.h"
#include "interpose/slice/trial.h"
#include "ipc/abi/width.h"
#include "kernels/slice/globals.h"

namespace tessera::cut {
namespace {

using gate::Admission;
using gate::Call;
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
  g_off_until_ns.store(gate::clock_ns() + off_ns, kRelaxed);
}

bool is_off() {
  const uint64_t until = g_off_until_ns.load(kRelaxed);
  if (until == 0) [[likely]]
    return false;
  if (gate::clock_ns() < until) return true;
  g_off_until_ns.store(0, kRelaxed);
  return false;
}

CUfunction no_resolver(gate::KernelRecord&, const LaunchCall&, CUcontext) noexcept {
  return nullptr;
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
CUfunction ready_variant(const gate::KernelRecord& kernel, CUcontext context) {
  if (kernel.mirrored_context.load(std::memory_order_acquire) != context) return nullptr;  // pairs: resolver
  if (kernel.mirrored.load(std::memory_order_acquire) != kernel.attributes.load(kRelaxed)) return nullptr;
  const CUfunction variant = kernel.variant.load(kRelaxed);
  return variant == kNoVariant ? nullptr : variant;
}

uint64_t sms() {
  return g_sm_count.load(kRelaxed) ? g_sm_count.load(kRelaxed) : kGuessedSms;
}

// First slice of a kernel that was never measured: a few blocks on each SM, whatever they cost.
uint64_t pilot_of(const LaunchCall& launch) {
  return sms() * (launch.threads() > 512 ? 1 : kPilotBlocksPerSm);
}

uint64_t within(uint32_t width, uint64_t budget) {  // 0 = no limit
  return width && budget > width ? width : budget;
}

// A launch that does not fill the GPU takes as long as one twice its size, so the time per block of a small
// pilot says nothing about larger slices, and rounding to rows would keep them small for ever. As long as
// doubling made blocks cheaper and the budget has room, double. There is room, too, as long as a slice takes
// hardly longer than a block: no slice is shorter.
uint64_t grown(const gate::Timing& t, uint64_t budget, uint64_t slice_ns, const Width& width) {
  const uint64_t sample_ns = t.sample_ns.load(kRelaxed), twice = 2 * t.sample_blocks.load(kRelaxed);
  const bool room = sample_ns * 4 <= slice_ns * 3 || sample_ns * 8 <= t.block_ns.load(kRelaxed) * 9;
  if (!t.growing.load(kRelaxed) || !room || budget >= twice) return budget;
  return within(width.most, budget < width.wave && twice > width.wave ? width.wave : twice);
}

uint64_t estimate_of(const gate::Timing* sliced, uint64_t block_ps, uint64_t n, uint64_t slice_ns) {
  // A pilot counts as a whole slice, so that few are in flight before the first one was measured.
  if (block_ps == 0) return slice_ns > gate::kDefaultKernelNs ? slice_ns : gate::kDefaultKernelNs;
  const uint64_t ns = block_ps * n / 1000, least = sliced ? sliced->block_ns.load(kRelaxed) : 0;
  return (ns > least ? ns : least) + gate::kMinEstimateNs;
}

// The next part of `left` in parts of about `per`, which hold `waves` whole waves each.
uint64_t share(uint64_t left, uint64_t per, uint64_t waves, bool strict) {
  if (left <= per) return left;
  if (!strict && waves != 0) {  // waves stay whole; the rest of many goes with the last part
    const uint64_t most = waves >= 4 ? per * 5 / 4 : per;
    return left <= most ? left : per;
  }
  return ipc::abi::even_part(left, per, !strict);  // less than a wave may cost as much as one
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

  bool prepare(const LaunchCall& launch, const gate::KernelRecord& kernel) {
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
CUresult launch_rest(const LaunchCall& original, LaunchCall slice, const Cluster& cluster, Params& params,
                     uint64_t done, Trial& trial) {
  const uint64_t total = original.blocks();
  CUlaunchConfig config{};
  if (original.config) {
    config = *original.config;
    slice.config = &config;
  }
  uint32_t used = 0;
  CUresult result = CUDA_SUCCESS;
  while (done < total && result == CUDA_SUCCESS) {
    const Piece piece = next_piece(original.grid, cluster, done, {total - done});
    memcpy(slice.grid, piece.extent, sizeof slice.grid);
    params.set_origin(piece.origin);
    config.hStream = trial.stream(used);
    slice.stream = {trial.stream(used++), driver_api::Flavour::kLegacy};
    result = gate::issue(slice);
    done += piece.blocks();
  }
  const CUresult joined = trial.join(original, used);
  return result != CUDA_SUCCESS ? result : joined;
}

// Blocks that wait for lower ones count along x: only there is a lower number in an earlier slice. And if one
// waits for a higher one after all, what is launched beside it must not queue up behind it.
bool may_ascend(gate::KernelRecord& kernel, const LaunchCall& launch) {
  const bool rows = launch.grid[1] != 1 || launch.grid[2] != 1;
  if (!kernel.ascending_row || (!rows && !lifecycle::config().one_queue)) return true;
  if (!kernel.whole_told.exchange(true, kRelaxed))
    g_met.load(kRelaxed)(kernel, rows ? Obstacle::kRows : Obstacle::kOneQueue);
  return false;
}

void nobody_told(const gate::KernelRecord&, Obstacle) noexcept {}

}  // namespace

constinit std::atomic<Met> g_met{nobody_told};
constinit std::atomic<ResolveVariant> g_resolve_variant{no_resolver};
constinit std::atomic<uint32_t> g_sm_count{0};
constinit std::atomic<uint32_t> g_forbidden{0};
constinit std::atomic<uint64_t> g_whole_releases{0};

bool cutting_off() {
  return is_off();
}

Piece next_piece(const uint32_t grid[3], uint64_t first, const Budget& budget) {
  const uint64_t row = grid[0], plane = row * grid[1], n = budget.blocks ? budget.blocks : 1;
  const uint64_t waves = budget.wave ? n / budget.wave : 0;
  Piece p{{uint32_t(first % row), uint32_t(first / row % grid[1]), uint32_t(first / plane)}, {1, 1, 1}};
  // From part of a row to planes: whatever is not whole is all that the piece has of this dimension.
  p.extent[0] = uint32_t(share(row - p.origin[0], n, waves, budget.strict));
  if (p.extent[0] < row) return p;
  p.extent[1] = uint32_t(share(grid[1] - p.origin[1], n / row ? n / row : 1, waves, budget.strict));
  if (p.extent[1] < grid[1]) return p;
  p.extent[2] = uint32_t(share(grid[2] - p.origin[2], n / plane ? n / plane : 1, waves, budget.strict));
  return p;
}

uint64_t blocks_per_slice(uint64_t total, uint64_t block_ps, uint64_t slice_ns, uint64_t pilot, uint64_t wave,
                          uint32_t width) {
  uint64_t n = block_ps ? slice_ns * 1000 / block_ps : pilot;
  if (wave && n > wave) n -= n % wave;
  n = within(width, n);
  if (n == 0) n = 1;
  return n < total ? n : total;
}

uint64_t budget_of(const gate::Timing& t, uint64_t left, uint64_t slice_ns, const Width& width) {
  const uint64_t block_ps = t.block_ps.load(kRelaxed), block_ns = t.block_ns.load(kRelaxed);
  const uint64_t n = blocks_per_slice(left, block_ps, slice_ns, width.pilot, width.wave, width.most);
  if (width.wave == 0 || block_ps == 0) return n;
  if (block_ns > width.long_block_ns)
    return blocks_per_slice(
        left, 0, 0,
        ipc::abi::long_width_blocks(width.wave, width.long_percent, width.long_block_ns, block_ns), 0,
        width.most);
  // No slice is shorter than a block, so it holds what the GPU does in that time; and the few blocks that
  // make a slice a whole wave cost hardly anything.
  uint64_t most = n;
  if (block_ns * 1000 > block_ps * most) most = block_ns * 1000 / block_ps;
  if (n < width.wave && most * 5 >= width.wave * 4) most = width.wave;
  return grown(t, most > n ? blocks_per_slice(left, 0, 0, most, 0, width.most) : n, slice_ns, width);
}

bool allowed(const LaunchCall& launch, const gate::KernelRecord& kernel) {
  if (g_forbidden.load(kRelaxed) || is_off()) return false;
  if (!harmless(launch.config) || !within_limits(launch)) return false;
  return reinterpret_cast<uint64_t>(kernel.variant.load(kRelaxed)) != 1;  // 1: tried, refused by the driver
}

bool wanted(const LaunchCall& launch, const gate::Timing* timing) {
  const gate::Plan plan = gate::current_plan();
  if (!plan.managed || plan.slice_ns == 0) return false;
  const uint64_t blocks = launch.blocks();
  if (blocks < 2) return false;
  if (plan.width_blocks && blocks > plan.width_blocks) return true;
  const uint64_t block_ps = timing ? timing->block_ps.load(kRelaxed) : 0;
  if (block_ps == 0) return blocks > 2 * pilot_of(launch);  // long or not? a pilot slice finds out
  return block_ps * blocks / 1000 > plan.slice_ns;
}

bool launch(const LaunchCall& original, gate::KernelRecord& kernel, gate::Timing* whole, Call& gate,
            CUresult* result) {
  LaunchCall slice = original;
  const CUcontext context = context_of(original);
  if (!context) return false;
  slice.function = ready_variant(kernel, context);
  if (!slice.function) slice.function = g_resolve_variant.load(kRelaxed)(kernel, original, context);
  if (!slice.function) return false;
  Cluster cluster;
  Params params;
  if (!cluster_of(original, kernel, &cluster) || !params.prepare(original, kernel)) return false;
  if (!may_ascend(kernel, original)) return false;
  Trial trial;
  const bool tried = kernel.ascending_row || Trial::needed(kernel, original);
  uint32_t ended = 0;                                          // slices of a trial
  if (tried && !trial.begin(original, context)) return false;  // nobody would see a slice that does not end
  slice.params = params.by_pointer ? params.pointers : nullptr;
  slice.extra = params.by_pointer ? nullptr : params.extra;

  const uint64_t total = original.blocks(), pilot = pilot_of(original);
  const uint64_t wave = cluster.blocks() == 1 ? sms() * kernel.blocks_per_sm.load(kRelaxed)
                                              : kernel.cluster_wave.load(kRelaxed);
  // Slices of one kernel share an entry: their time per block, whatever their size.
  const uint64_t key = gate::timing_key({kernel.hash ^ 0x5ce, 1, original.threads(), original.shared_bytes});
  gate::Timing* sliced = gate::timing_of(key);
  bool let_go = false;  // held for too long: what is left goes out whole
  for (uint64_t done = 0; done < total;) {
    const gate::Plan plan = gate::current_plan();
    uint64_t block_ps = sliced ? sliced->block_ps.load(kRelaxed) : 0;
    if (block_ps == 0 && whole) block_ps = whole->block_ps.load(kRelaxed);
    uint64_t budget = total - done;
    const bool due = gate::sample_due(sliced) == gate::Due::kYes;
    if (!let_go && plan.managed) {
      const uint64_t slice_ns =
          plan.window_ns && plan.window_ns < plan.slice_ns ? plan.window_ns : plan.slice_ns;
      const Width width{pilot, wave, plan.width_blocks, plan.long_width_percent, plan.long_block_ns};
      budget = sliced && sliced->block_ps.load(kRelaxed)
                   ? budget_of(*sliced, total - done, slice_ns, width)
                   : blocks_per_slice(total - done, block_ps, slice_ns, pilot, wave, plan.width_blocks);
      if (due && budget < total - done) budget = gate::probe_size(sliced, budget, wave);
    }
    const Piece piece = next_piece(original.grid, cluster, done, {budget, wave, plan.width_blocks != 0});
    const uint64_t n = piece.blocks();
    const uint64_t estimate = estimate_of(sliced, block_ps, n, plan.slice_ns);
    gate.blocks = n;
    gate.may_narrow = n > cluster.blocks() && !let_go;
    const Admission admission = gate::admit(gate, original.stream, estimate);
    if (admission == Admission::kReplan) continue;
    if (admission == Admission::kExpired && !let_go) {
      // Held too long: the rest goes in as few pieces as its shape allows.
      let_go = true;
      note_expiry();
      gate::roll_back(gate);
      continue;
    }
    if (block_ps == 0) gate::harvest_samples();
    memcpy(slice.grid, piece.extent, sizeof slice.grid);
    params.set_origin(piece.origin);
    const bool timed = due && admission == Admission::kReserved;
    // Other processes know the launch, not our slices: their time per block stands for the launch's.
    if (timed) gate::note_shape(whole, original, &kernel);
    const uint64_t record_key = whole ? whole->key.load(kRelaxed) : key;
    gate::Sample* sample = timed ? gate::sample_begin(sliced, original.stream, record_key) : nullptr;
    *result = gate::issue(slice);
    gate::sample_end(sample, original.stream, n, wave, *result);
    gate::settle(gate, original.stream, *result);
    if (*result != CUDA_SUCCESS) {
      if (done != 0)
        return true;  // part of the work is enqueued: the program gets this error, as for any launch
      // Programs also try what a GPU may not have (clusters) and fall back: that says nothing about the
      // variant.
      if (kernel.refused.fetch_add(1, kRelaxed) + 1 >= kMostRefused)
        kernel.variant.store(kNoVariant, kRelaxed);
      return false;
    }
    if (done == 0 && kernel.refused.load(kRelaxed) != 0) kernel.refused.store(0, kRelaxed);
    done += n;
    std::atomic_ref(gate::g_state.link.load(std::memory_order_acquire)->usage->slices).fetch_add(1, kRelaxed);
    if (!tried || done == total) continue;
    if (trial.ended(original)) {
      ended++;
      continue;
    }
    *result = launch_rest(original, slice, cluster, params, done, trial);
    g_watchdog_releases.fetch_add(1, kRelaxed);
    kernel.variant.store(kNoVariant, kRelaxed);
    g_met.load(kRelaxed)(kernel, Obstacle::kHung);
    return true;
  }
  if (ended) Trial::proven(kernel, original);
  if (!let_go && g_expiries.load(kRelaxed) != 0) g_expiries.store(0, kRelaxed);
  return true;
}

}  // namespace tessera::cut
