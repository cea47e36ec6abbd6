// Expected times of launches: a fixed, lock-free table keyed by (kernel, block, shared memory, grid
// bucket), filled by event pairs around sampled launches in the normal flow. Read on every gated launch of a
// best-effort client. Entries are never removed; a full table means the class default. Nothing here allocates
// or waits, but for load_code, which a launch of a new kernel would pay anyway.
#pragma once

#include "admission/history.h"
#include "base/kernel_key.h"
#include "interpose/gate/first_estimate.h"
#include "interpose/state/kernels.h"
#include "interpose/state/state.h"

namespace tessera::gate {

// Samples of one shape: admission::History as atomics. Harvesters write, lossy when two meet.
struct Timing {
  std::atomic<uint64_t> key;  // 0 = free
  std::atomic<uint64_t> estimate_ns, block_ps, block_ns, sample_blocks, sample_ns;
  std::atomic<uint32_t> growing;
  std::atomic<uint32_t> launches, samples;

  admission::History history() const {
    constexpr auto relaxed = std::memory_order_relaxed;  // a slightly old estimate is fine
    return {block_ps.load(relaxed),      estimate_ns.load(relaxed), block_ns.load(relaxed),
            sample_blocks.load(relaxed), sample_ns.load(relaxed),   growing.load(relaxed) != 0};
  }
};

struct Shape {
  uint64_t function;  // CUfunction, CUkernel or CUgraphExec, or the kernel's stable hash
  uint64_t blocks;
  uint32_t threads;  // per block
  uint32_t shared_bytes;
};

// Power-of-two buckets: durations of neighbours in a bucket differ by at most a factor of two, and are then
// scaled.
inline uint64_t timing_key(const Shape& s) {
  return base::launch_key(s.function, base::grid_bucket(s.blocks), s.threads, s.shared_bytes);
}

inline constexpr uint32_t kTimings = 8192;
extern constinit Timing g_timings[kTimings];

// The entry of a key, claimed if new; null if its neighbourhood is full.
inline Timing* timing_of(uint64_t key) {
  for (uint32_t i = 0; i < 8; i++) {
    Timing& t = g_timings[(key + i) % kTimings];
    uint64_t seen = t.key.load(std::memory_order_relaxed);  // keys never change once set
    if (seen == key) return &t;
    if (seen == 0 && (t.key.compare_exchange_strong(seen, key, std::memory_order_relaxed) || seen == key))
      return &t;
  }
  return nullptr;
}

inline uint64_t estimate_of(const Timing* t, uint64_t blocks) {
  return admission::expected_ns(t ? t->block_ps.load(std::memory_order_relaxed) : 0, blocks);
}

enum class TimeIt { kNo, kYes, kIfLoaded };

inline uint64_t draw(uint32_t bits) {  // a random number of `bits` bits, of the thread's own
  return (++state::t_thread.draws * 0x9e3779b97f4a7c15u) >> (64 - bits);
}

// Should this launch be timed? The 2nd to 9th of its shape, then about 1 in 16 .. 1024, drawn by a count of
// the thread's own: once a shape is known, launching it writes no line that another thread reads, and no
// rhythm of the program hides a kernel. Long kernels afford two more events often, short ones hardly ever.
// Short ones wait for a count of the thread's launches, so that a launch on credit pays nothing. Lossy when
// threads race, which only shifts the sample. The first launch may load code, and only if it does not, it says how long the
// kernel takes: asked about (load_code) where nothing is known of the shape, because there may be no second.
inline TimeIt should_time(Timing* t) {
  if (!t) return TimeIt::kNo;
  if (t->samples.load(std::memory_order_relaxed) < 8) {
    const uint32_t n = t->launches.load(std::memory_order_relaxed);
    t->launches.store(n + 1, std::memory_order_relaxed);
    if (n != 0) return TimeIt::kYes;
    return t->block_ps.load(std::memory_order_relaxed) == 0 ? TimeIt::kIfLoaded : TimeIt::kNo;
  }
  const uint64_t ns = t->estimate_ns.load(std::memory_order_relaxed);
  if (ns > 50'000) return draw(ns > 500'000 ? 4 : 6) == 0 ? TimeIt::kYes : TimeIt::kNo;
  state::Thread& thread = state::t_thread;
  const uint64_t launches = thread.slot ? thread.slot->launches.load(std::memory_order_relaxed) : 0;
  if (launches < thread.timed_at) return TimeIt::kNo;
  const bool drawn = thread.timed_at != 0;
  thread.timed_at = launches + 1 + draw(11);  // 1024 on average
  return drawn ? TimeIt::kYes : TimeIt::kNo;
}

// Before a first launch: is the kernel's code on the GPU? A lazily loading driver loads it now instead of in
// the launch that follows, at the same cost and in the same turn, but outside the time that is taken. False:
// not known, a capture is open, or work is behind a gate, for whose end the driver would wait.
bool load_code(CUfunction function, const state::KernelRecord* kernel);

// A launch that is timed: events around it in its own stream.
struct Sample;
// Checked when the first sample of a shape is there; all-zero: nothing to check.
struct FirstOfShape {
  Basis basis;           // what else learns from it
  const void* function;  // for a trace: what was launched, and how long that was expected to take
  uint64_t expected_ns;
};
// Records the start event. Null: no events, or all in use.
Sample* sample_begin(Timing* t, driver_api::StreamArg stream, uint64_t record_key,
                     const FirstOfShape& first = {});
// `wave` blocks fill the GPU once; 0 = not known.
void sample_end(Sample* sample, driver_api::StreamArg stream, uint64_t blocks, uint64_t wave,
                CUresult result);
// Reads finished samples into their entries. Enters the driver only while no capture is open. Any thread.
void harvest_samples();
bool samples_pending();

// GPU time that one slice more costs, learnt from slices of one kernel of one and of several whole waves; 0 =
// not known yet.
uint64_t slice_overhead_ns();

// Slow path: gives the sampler its events (created in the current context); taken away when the context dies.
inline constexpr uint32_t kSamples = 16;
void provide_events(const CUevent (&start)[kSamples], const CUevent (&stop)[kSamples]);
void withdraw_events();

}  // namespace tessera::gate
