// Timed launches of one shape: they tell how long the next one takes, and what one slice more costs. The gate keeps a History per shape and adds samples as their events are read; the simulator makes one
// from its kernel.
#pragma once

#include "admission/limits.h"

namespace tessera::admission {

struct History {
  uint64_t block_ps = 0;   // GPU time per block, picoseconds; 0 = not measured
  uint64_t launch_ns = 0;  // of one launch of this shape; 0 = not measured
  uint64_t block_ns = 0;   // least time of a sample of at most half a wave: what one block takes; 0 = none
  uint64_t sample_blocks = 0;  // of the latest sample that said something about the time per block
  uint64_t sample_ns = 0;
  bool growing = false;  // blocks were still getting cheaper with size: the GPU was not full yet
};

struct Sample {  // one timed launch
  uint64_t blocks = 1;
  uint64_t ns = 0;
  uint64_t wave_blocks = 0;  // blocks that fill the GPU once; 0 = not known
};

constexpr uint64_t at_least(uint64_t value, uint64_t least) {
  return value < least ? least : value;
}

// Neighbours, time slices and preemption only ever add to what events show, so the smaller figure is the
// truer one: it is taken at once, a larger one by and by (clocks do drop).
constexpr uint64_t blend(uint64_t old, uint64_t fresh) {
  return old == 0 || fresh < old ? fresh : (old * 7 + fresh) / 8;
}

// The least figure, which ages by a 64th per sample, because clocks drop.
constexpr uint64_t aged_least(uint64_t old, uint64_t fresh) {
  const uint64_t aged = old + old / 64;
  return old == 0 || fresh < aged ? fresh : aged;
}

// A sample with more time per block than known says little in two cases. It is the rest of a grid: less than
// half of the usual slice. Or it does not fill the GPU, where time per block rises with every block less:
// then it counts only if it took longer than a larger one did, as after a drop of clocks (an eighth is
// noise).
constexpr bool says_little(const History& h, const Sample& s) {
  if (s.blocks * 2 < h.sample_blocks) return true;
  const bool before_filled = s.wave_blocks != 0 && h.sample_blocks > s.wave_blocks;
  const uint64_t wave_ns = before_filled ? h.sample_ns * s.wave_blocks / h.sample_blocks : h.sample_ns;
  return s.blocks < s.wave_blocks && s.blocks < h.sample_blocks && s.ns * 8 <= wave_ns * 9;
}

// False: the sample said nothing about the time per block. `first`: of this shape in this process.
constexpr bool add_sample(History& h, const Sample& s, bool first) {
  const uint64_t block_ps = s.ns * 1000 / s.blocks + 1;
  if (s.wave_blocks != 0 && s.blocks * 2 <= s.wave_blocks) h.block_ns = aged_least(h.block_ns, s.ns);
  if (h.block_ps != 0 && block_ps >= h.block_ps && says_little(h, s)) return false;
  // The first: what was learnt before may be of small slices. One of the same size tells nothing of another;
  // several pilots are in flight before any was measured. A tenth cheaper is cheaper.
  if (first || s.blocks != h.sample_blocks) h.growing = first || block_ps * 10 < h.block_ps * 9;
  h.sample_blocks = s.blocks;
  h.sample_ns = s.ns;
  h.block_ps = blend(h.block_ps, block_ps);
  h.launch_ns = blend(h.launch_ns, s.ns);
  return true;
}

// GPU time of a launch of `blocks` blocks.
constexpr uint64_t expected_ns(uint64_t block_ps, uint64_t blocks) {
  return block_ps == 0 ? kUnknownKernelNs : at_least(block_ps * blocks / 1000, kLeastEstimateNs);
}

// Least time of a large and of a small launch of one shape, both of whole waves, because what is less than a
// wave may take as long as one. With t = cost + waves * work:
//   work = (large_ns - small_ns) / (large_waves - small_waves),   cost = small_ns - small_waves * work
struct SliceCost {
  uint64_t large_waves = 0, large_ns = 0, small_waves = 0, small_ns = 0;  // least times; they age
};
inline constexpr uint64_t kLeastSliceCostNs = 1'000;  // what events can tell apart

// Returns the cost of one slice by the samples so far; 0 = not known yet.
constexpr uint64_t add_sample(SliceCost& c, uint64_t waves, uint64_t ns) {
  if (waves * 4 > c.large_waves * 5) {  // larger than ever: begin anew
    c = {waves, ns, 0, 0};
    return 0;
  }
  if (waves * 5 >= c.large_waves * 4) {
    c.large_ns = aged_least(c.large_ns, ns * c.large_waves / waves);
  } else if (waves * 5 <= c.large_waves * 3 && waves * 4 >= c.large_waves) {
    c.small_ns = c.small_waves == waves ? aged_least(c.small_ns, ns) : ns;
    c.small_waves = waves;
  }
  if (c.small_waves == 0 || c.large_waves <= c.small_waves || c.large_ns <= c.small_ns) return 0;
  const uint64_t work_ns = (c.large_ns - c.small_ns) * c.small_waves / (c.large_waves - c.small_waves);
  return at_least(c.small_ns > work_ns ? c.small_ns - work_ns : 0, kLeastSliceCostNs);
}

}  // namespace tessera::admission
