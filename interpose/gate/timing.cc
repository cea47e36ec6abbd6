#include "interpose/gate/timing.h"

#include "interpose/gate/device_gate.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/trace.h"
#include "interpose/gate/window.h"

namespace tessera::gate {

using namespace state;

// kEmpty: no events. kIdle -> kOpen (one launching thread) -> kPending -> kReading (one harvester) -> kIdle.
// Where their context ends, all become kEmpty; but an open one kWithdrawn, until its thread lets go of it.
enum SampleState : uint32_t { kEmpty = 0, kIdle, kOpen, kPending, kReading, kWithdrawn };

struct Sample {
  std::atomic<uint32_t> state;
  Timing* timing;
  uint64_t record_key, blocks, wave;
  FirstOfShape first;
  CUevent start, stop;
};

namespace {

constinit Sample g_samples[kSamples] = {};
constinit std::atomic<uint32_t> g_pending{0};
constexpr auto kRelaxed = std::memory_order_relaxed;

CUresult record(CUevent event, driver_api::StreamArg s) {
  return driver_api::real().cuEventRecord(event, driver_api::on(s));
}

// The launching thread lets go. False: the events have ended meanwhile.
bool close(Sample& s, SampleState next) {
  uint32_t open = kOpen;
  // release: pairs with the acquire of whoever takes it next
  if (s.state.compare_exchange_strong(open, next, std::memory_order_release, kRelaxed)) return true;
  s.state.store(kEmpty, std::memory_order_release);
  return false;
}

constinit admission::SliceCost g_costs[kTimings] = {};  // under g_costs_lock
constinit std::atomic<uint32_t> g_costs_lock{0};        // try-lock: a sample more or less does not matter
constinit std::atomic<uint64_t> g_slice_cost_ns{0};

void learn_slice_cost(const Timing& t, uint64_t waves, uint64_t ns) {
  if (g_costs_lock.exchange(1, std::memory_order_acquire) != 0) return;  // pairs with the release below
  const uint64_t cost_ns = admission::add_sample(g_costs[&t - g_timings], waves, ns);
  g_costs_lock.store(0, std::memory_order_release);
  if (cost_ns == 0) return;
  const uint64_t old = g_slice_cost_ns.load(kRelaxed);
  g_slice_cost_ns.store(old == 0 ? cost_ns : (old * 7 + cost_ns) / 8, kRelaxed);
}

void first_measured(const FirstOfShape& first, uint64_t ns) {
  learn_ratio(first.basis, ns);
  if (first.expected_ns == 0 || !tracing()) return;
  const uint64_t now = clock_ns();
  trace({.kind = abi::kTraceEstimate,
         .detail = first.basis.ns > 0,
         .start_ns = now,
         .end_ns = now,
         .a = reinterpret_cast<uint64_t>(first.function),
         .b = first.expected_ns,
         .c = ns});
}

void learn(Sample& s, uint64_t ns) {
  Timing& t = *s.timing;
  const uint64_t blocks = s.blocks ? s.blocks : 1;
  const bool first = t.samples.fetch_add(1, kRelaxed) == 0;
  admission::History h = t.history();
  if (first) first_measured(s.first, ns);
  const bool says_something = admission::add_sample(h, {blocks, ns, s.wave}, first);
  t.block_ns.store(h.block_ns, kRelaxed);
  if (!says_something) return;
  t.growing.store(h.growing, kRelaxed);
  t.sample_blocks.store(h.sample_blocks, kRelaxed);
  t.sample_ns.store(h.sample_ns, kRelaxed);
  t.block_ps.store(h.block_ps, kRelaxed);
  t.estimate_ns.store(h.launch_ns, kRelaxed);
  if (s.wave && blocks >= s.wave && blocks % s.wave == 0) learn_slice_cost(t, blocks / s.wave, ns);
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
  return g_slice_cost_ns.load(kRelaxed);
}

bool load_code(CUfunction function, const KernelRecord* kernel) {
  if (!kernel || !enter_driver()) return false;
  const auto& real = driver_api::real();
  CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
  // Neither call is documented to take a CUkernel in place of its function, as launches do.
  CUkernel named = nullptr;
  if (kernel->loaded.owner_is_library &&
      real.cuLibraryGetKernel(&named, static_cast<CUlibrary>(kernel->loaded.owner), kernel->loaded.name) ==
          CUDA_SUCCESS &&
      reinterpret_cast<CUfunction>(named) == function &&
      real.cuKernelGetFunction(&function, named) != CUDA_SUCCESS)
    function = nullptr;
  const bool loaded = function && real.cuFuncIsLoaded(&state, function) == CUDA_SUCCESS &&
                      (state == CU_FUNCTION_LOADING_STATE_LOADED ||
                       (nothing_behind_gate() && real.cuFuncLoad(function) == CUDA_SUCCESS));
  leave_driver();
  return loaded;
}

Sample* sample_begin(Timing* t, driver_api::StreamArg stream, uint64_t record_key,
                     const FirstOfShape& first) {
  if (!t || !is_in_context(stream, g_markers.context)) return nullptr;
  if (g_pending.load(kRelaxed)) harvest_samples();
  for (Sample& s : g_samples) {
    uint32_t idle = kIdle;
    // acquire: pairs with the release that made it idle
    if (!s.state.compare_exchange_strong(idle, kOpen, std::memory_order_acquire, kRelaxed)) continue;
    s.timing = t;
    s.record_key = record_key;
    s.first = first;
    t_thread.call.sample = &s;
    if (record(s.start, stream) == CUDA_SUCCESS) return &s;
    t_thread.call.sample = nullptr;
    close(s, kIdle);
    return nullptr;
  }
  return nullptr;
}

void sample_end(Sample* s, driver_api::StreamArg stream, uint64_t blocks, uint64_t wave, CUresult result) {
  if (!s) return;
  s->blocks = blocks;
  s->wave = wave;
  // relaxed: a context that ends while it is recorded in is the program's own mistake
  const bool is_there = s->state.load(kRelaxed) == kOpen;
  t_thread.call.sample = nullptr;
  if (result != CUDA_SUCCESS || !is_there || record(s->stop, stream) != CUDA_SUCCESS) {
    close(*s, kIdle);
    return;
  }
  g_pending.fetch_add(1, kRelaxed);
  if (!close(*s, kPending)) g_pending.fetch_sub(1, kRelaxed);
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
    uint32_t seen = s.state.load(kRelaxed);
    while (seen != kWithdrawn && !s.state.compare_exchange_weak(seen, seen == kOpen ? kWithdrawn : kEmpty,
                                                                std::memory_order_acq_rel)) {
    }
    if (seen == kPending) g_pending.fetch_sub(1, kRelaxed);
  }
}

}  // namespace tessera::gate
