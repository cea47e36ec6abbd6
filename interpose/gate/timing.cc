#include "interpose/gate/timing.h"

#include "interpose/gate/clock.h"
#include "interpose/gate/pulse.h"

namespace tessera::gate {

// kEmpty: no events. kIdle -> kOpen (one launching thread) -> kPending -> kReading (one harvester) -> kIdle.
enum SampleState : uint32_t { kEmpty = 0, kIdle, kOpen, kPending, kReading };

struct Sample {
  std::atomic<uint32_t> state;
  Timing* timing;
  uint64_t record_key, blocks, wave;
  CUevent start, stop;
};

namespace {

constinit Sample g_samples[kSamples] = {};
constinit std::atomic<uint32_t> g_pending{0};
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kLeastOverheadNs = 1'000;  // what events can tell apart

CUresult record(CUevent event, driver_api::StreamArg s) {
  const auto& real = driver_api::real();
  return s.flavour == driver_api::Flavour::kPerThread ? real.cuEventRecord_ptsz(event, s.stream)
                                                      : real.cuEventRecord(event, s.stream);
}

// Neighbours, time slices and preemption only ever add to what events show, so the smaller figure is the
// truer one: it is taken at once, a larger one by and by (clocks do drop).
uint64_t blend(uint64_t old, uint64_t fresh) {
  return old == 0 || fresh < old ? fresh : (old * 7 + fresh) / 8;
}

// Least time of a large and of a small launch of one entry, in whole waves, because what is less than a wave
// may take as long as one: what is left of the small one when its share of the difference is taken off is the
// fixed cost. Least times, because neighbours and preemption only add; they age, because clocks drop. Written
// by harvesters, lossy when two meet.
struct Sizes {
  std::atomic<uint64_t> large_waves, large_ns, small_waves, small_ns;
};
constinit Sizes g_sizes[kTimings] = {};
constinit std::atomic<uint64_t> g_overhead_ns{0};

uint64_t aged_least(uint64_t old, uint64_t fresh) {
  const uint64_t aged = old + old / 64;
  return old == 0 || fresh < aged ? fresh : aged;
}

void learn_overhead(const Timing& t, uint64_t waves, uint64_t ns) {
  Sizes& s = g_sizes[&t - g_timings];
  const uint64_t large = s.large_waves.load(kRelaxed);
  if (waves * 4 > large * 5) {  // larger than ever: begin anew
    s.large_waves.store(waves, kRelaxed);
    s.large_ns.store(ns, kRelaxed);
    s.small_waves.store(0, kRelaxed);
    return;
  }
  if (waves * 5 >= large * 4) {
    s.large_ns.store(aged_least(s.large_ns.load(kRelaxed), ns * large / waves), kRelaxed);
  } else if (waves * 5 <= large * 3 && waves * 4 >= large) {
    const uint64_t small = s.small_waves.load(kRelaxed);
    s.small_ns.store(small == waves ? aged_least(s.small_ns.load(kRelaxed), ns) : ns, kRelaxed);
    s.small_waves.store(waves, kRelaxed);
  }
  const uint64_t small = s.small_waves.load(kRelaxed), small_ns = s.small_ns.load(kRelaxed);
  const uint64_t large_ns = s.large_ns.load(kRelaxed);
  if (small == 0 || large <= small || large_ns <= small_ns) return;
  const uint64_t work_ns = (large_ns - small_ns) * small / (large - small);
  const uint64_t cost_ns = small_ns > work_ns ? small_ns - work_ns : 0;
  const uint64_t old = g_overhead_ns.load(kRelaxed),
                 least = cost_ns > kLeastOverheadNs ? cost_ns : kLeastOverheadNs;
  g_overhead_ns.store(old == 0 ? least : (old * 7 + least) / 8, kRelaxed);
}

// A sample with more time per block than known. Where blocks do not fill the GPU that is so whatever changed:
// it counts only if it lasted longer than a larger one did, as after a drop of clocks. So is the rest of a
// grid, much smaller than a usual slice.
bool says_little(const Timing& t, uint64_t blocks, uint64_t ns, uint64_t wave) {
  const uint64_t before = t.sample_blocks.load(kRelaxed), before_ns = t.sample_ns.load(kRelaxed);
  if (blocks * 2 < before) return true;
  const uint64_t filled_ns = wave && before > wave ? before_ns * wave / before : before_ns;
  return blocks < wave && blocks < before && ns * 8 <= filled_ns * 9;
}

void learn(Sample& s, uint64_t ns) {
  Timing& t = *s.timing;
  const uint64_t blocks = s.blocks ? s.blocks : 1, ps = ns * 1000 / blocks + 1;
  const uint64_t old = t.block_ps.load(kRelaxed);
  const bool first = t.samples.fetch_add(1, kRelaxed) == 0;
  if (s.wave && blocks * 2 <= s.wave) t.block_ns.store(aged_least(t.block_ns.load(kRelaxed), ns), kRelaxed);
  if (old != 0 && ps >= old && says_little(t, blocks, ns, s.wave)) return;
  // The first: what was learnt before may be of small slices. One of the same size tells nothing of another;
  // several pilots are in flight before any was measured.
  if (first || blocks != t.sample_blocks.load(kRelaxed))
    t.growing.store(first || ps * 10 < old * 9, kRelaxed);
  t.sample_blocks.store(blocks, kRelaxed);
  t.sample_ns.store(ns, kRelaxed);
  t.block_ps.store(blend(old, ps), kRelaxed);
  if (s.wave && blocks >= s.wave && blocks % s.wave == 0) learn_overhead(t, blocks / s.wave, ns);
  t.estimate_ns.store(blend(t.estimate_ns.load(kRelaxed), ns), kRelaxed);
  abi::Record record_out{};
  record_out.kind = abi::kRecordKernel;
  record_out.key = s.record_key;
  record_out.duration_ns = ns;
  record_out.end_ns = clock_ns();
  record_out.blocks = s.blocks;
  push_record(record_out);
}

}  // namespace

constinit Timing g_timings[kTimings] = {};

uint64_t slice_overhead_ns() {
  return g_overhead_ns.load(kRelaxed);
}

uint64_t probe_size(const Timing* t, uint64_t budget, uint64_t wave) {
  if (!t || wave == 0 || budget < 2 * wave || t->samples.load(kRelaxed) < 4) return budget;
  if (t->samples.load(kRelaxed) % 4 != 0) return budget;
  const uint64_t half = budget / 2;
  return half - half % wave;
}

bool load_code(CUfunction function, const KernelRecord* kernel) {
  if (!kernel || !enter_driver()) return false;
  const auto& real = driver_api::real();
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  // Neither call is documented to take a CUkernel in place of its function, as launches do.
  CUkernel named = nullptr;
  if (kernel->owner_is_library &&
      real.cuLibraryGetKernel(&named, static_cast<CUlibrary>(kernel->owner), kernel->name) == CUDA_SUCCESS &&
      reinterpret_cast<CUfunction>(named) == function &&
      real.cuKernelGetFunction(&function, named) != CUDA_SUCCESS)
    function = nullptr;
  const bool loaded =
      function && real.cuFuncIsLoaded(&state, function) == CUDA_SUCCESS &&
      (state == CU_FUNCTION_LOADING_STATE_LOADED || real.cuFuncLoad(function) == CUDA_SUCCESS);
  leave_driver();
  return loaded;
}

Sample* sample_begin(Timing* t, driver_api::StreamArg stream, uint64_t record_key) {
  if (!t) return nullptr;
  if (g_pending.load(kRelaxed)) harvest_samples();
  for (Sample& s : g_samples) {
    uint32_t idle = kIdle;
    // acquire: pairs with the release that made it idle
    if (!s.state.compare_exchange_strong(idle, kOpen, std::memory_order_acquire, kRelaxed)) continue;
    s.timing = t;
    s.record_key = record_key;
    if (record(s.start, stream) == CUDA_SUCCESS) return &s;
    s.state.store(kIdle, std::memory_order_release);
    return nullptr;
  }
  return nullptr;
}

void sample_end(Sample* s, driver_api::StreamArg stream, uint64_t blocks, uint64_t wave, CUresult result) {
  if (!s) return;
  s->blocks = blocks;
  s->wave = wave;
  if (result != CUDA_SUCCESS || record(s->stop, stream) != CUDA_SUCCESS) {
    s->state.store(kIdle, std::memory_order_release);
    return;
  }
  g_pending.fetch_add(1, kRelaxed);
  s->state.store(kPending, std::memory_order_release);  // pairs with the acquire in harvest_samples
}

bool samples_pending() {
  return g_pending.load(kRelaxed) != 0;
}

void harvest_samples() {
  if (g_pending.load(kRelaxed) == 0 || !enter_driver()) return;
  const auto& real = driver_api::real();
  for (Sample& s : g_samples) {
    uint32_t pending = kPending;
    if (!s.state.compare_exchange_strong(pending, kReading, std::memory_order_acquire, kRelaxed)) continue;
    float ms = 0;
    const CUresult ready = real.cuEventQuery(s.stop);
    if (ready == CUDA_ERROR_NOT_READY) {
      s.state.store(kPending, std::memory_order_release);
      continue;
    }
    if (ready == CUDA_SUCCESS && real.cuEventElapsedTime_v2(&ms, s.start, s.stop) == CUDA_SUCCESS && ms >= 0)
      learn(s, uint64_t(double(ms) * 1e6));
    g_pending.fetch_sub(1, kRelaxed);
    s.state.store(kIdle, std::memory_order_release);
  }
  leave_driver();
}

void provide_events(const CUevent (&start)[kSamples], const CUevent (&stop)[kSamples]) {
  for (uint32_t i = 0; i < kSamples; i++) {
    Sample& s = g_samples[i];
    if (s.state.load(kRelaxed) != kEmpty) continue;
    s.start = start[i];
    s.stop = stop[i];
    s.state.store(kIdle, std::memory_order_release);
  }
}

void withdraw_events() {
  for (Sample& s : g_samples) {
    // One exchange: nobody else may count the same sample off.
    if (s.state.exchange(kEmpty, std::memory_order_acq_rel) == kPending) g_pending.fetch_sub(1, kRelaxed);
  }
}

}  // namespace tessera::gate
