// From a launch that may be cut to slices: is it worth it, how many blocks does the next slice have, and
// which box of the grid is it. Blocks and nanoseconds in, blocks out.
#pragma once

#include "admission/history.h"
#include "admission/lease.h"

namespace tessera::admission {

struct Occupancy {           // of the kernel that is cut
  uint64_t pilot_blocks;     // first slice of a kernel that was never measured; >= 1
  uint64_t wave_blocks = 0;  // blocks that fill the GPU once; 0 = not known
};

// Width of slices whose blocks last `block_ns`, longer than `long_block_ns`: no slice of those is short, so
// they leave room for bursts instead. Beyond kLongNarrowsAt times that length the less the longer they are,
// down to 1/kLeastLongPart of a wave; unless all are to fill waves. May be 0 where a wave is small.
constexpr uint64_t long_width_blocks(uint64_t wave, uint64_t long_percent, uint64_t long_block_ns,
                                     uint64_t block_ns) {
  const uint64_t most = wave * long_percent / 100, least = wave / abi::kLeastLongPart;
  const uint64_t shrinks_ns = abi::kLongNarrowsAt * long_block_ns;
  if (long_percent == 100 || block_ns <= shrinks_ns) return most;
  return at_least(most * shrinks_ns / block_ns, least);
}

constexpr uint64_t bounded_blocks(uint64_t n, uint64_t left) {
  if (n == 0) n = 1;
  return n < left ? n : left;
}

// The next of even parts of `left` blocks in parts of at most `per` >= 1; `nearest`: few of them the number
// that comes nearest to it, at most a third more.
constexpr uint64_t even_part(uint64_t left, uint64_t per, bool nearest) {
  if (left <= per) return left;
  uint64_t parts = (left + per - 1) / per;
  const uint64_t fewer = parts - 1;
  if (nearest && fewer <= 4 && left * left <= fewer * parts * per * per && left * 3 <= fewer * per * 4)
    parts = fewer;
  return (left + parts - 1) / parts;
}

// Blocks that last about `slice_ns`. Beyond one wave only whole waves, because a partial last wave costs as
// much as a full one.
constexpr uint64_t blocks_within(uint64_t slice_ns, uint64_t block_ps, uint64_t wave_blocks) {
  const uint64_t n = slice_ns * 1000 / block_ps;
  return wave_blocks != 0 && n > wave_blocks ? n - n % wave_blocks : n;
}

// A launch that does not fill the GPU takes as long as one twice its size, so the time per block of a small
// slice says nothing about larger ones, and rounding to rows would keep them small for ever. As long as
// doubling made blocks cheaper and there is room, the next slice doubles. There is room while a sample took
// at most three quarters of a slice, or hardly longer than a single block (no slice is shorter than that).
constexpr uint64_t grown(const History& h, uint64_t n, uint64_t slice_ns, uint64_t wave_blocks) {
  const uint64_t twice = 2 * h.sample_blocks;
  const bool room = h.sample_ns * 4 <= slice_ns * 3 || h.sample_ns * 8 <= h.block_ns * 9;
  if (!h.growing || !room || n >= twice) return n;
  return n < wave_blocks && twice > wave_blocks ? wave_blocks : twice;
}

// The longest slice under this lease: never longer than what may be in flight.
constexpr uint64_t longest_slice_ns(const LeaseView& lease) {
  return lease.window_ns != 0 && lease.window_ns < lease.slice_ns ? lease.window_ns : lease.slice_ns;
}

// Blocks of the next slice of `left` >= 1; `sliced`: of slices of this kernel; `block_ps`: from elsewhere,
// used while no slice was measured, 0 = not known.
constexpr uint64_t slice_blocks(const History& sliced, uint64_t block_ps, uint64_t left,
                                const LeaseView& lease, const Occupancy& occupancy) {
  const uint64_t slice_ns = longest_slice_ns(lease), wave = occupancy.wave_blocks;
  if (sliced.block_ps != 0) block_ps = sliced.block_ps;
  if (block_ps == 0) return bounded_blocks(occupancy.pilot_blocks, left);
  const uint64_t n = bounded_blocks(blocks_within(slice_ns, block_ps, wave), left);
  if (sliced.block_ps == 0 || wave == 0) return n;
  if (sliced.block_ns > lease.long_block_ns) {
    // All of them last as long, so that as many even ones leave more SMs free for nothing.
    const uint64_t most = bounded_blocks(
        long_width_blocks(wave, lease.long_width_percent, lease.long_block_ns, sliced.block_ns), left);
    return even_part(left, most, false);
  }
  // No slice is shorter than a block, so it holds what the GPU does in that time. And the few blocks that
  // make a slice a whole wave cost hardly anything: a fifth of a wave more.
  uint64_t most = at_least(n, sliced.block_ns * 1000 / block_ps);
  if (n < wave && most * 5 >= wave * 4) most = wave;
  return grown(sliced, most > n ? bounded_blocks(most, left) : n, slice_ns, wave);
}

// Now and then a timed slice is half as large, so that the cost of slicing shows. Only whole waves compare.
constexpr uint64_t probe_blocks(uint32_t n_samples, uint64_t blocks, uint64_t wave_blocks) {
  constexpr uint32_t kProbeEvery = 4;
  if (wave_blocks == 0 || blocks < 2 * wave_blocks || n_samples == 0 || n_samples % kProbeEvery != 0)
    return blocks;
  return blocks / 2 - blocks / 2 % wave_blocks;
}

// Estimate of a slice of `n` blocks. A pilot counts as a whole slice, so that few are in flight before the
// first one was measured.
constexpr uint64_t slice_estimate_ns(const History& sliced, uint64_t block_ps, uint64_t n,
                                     const LeaseView& lease) {
  if (block_ps == 0) return at_least(lease.slice_ns, kUnknownKernelNs);
  return at_least(block_ps * n / 1000, sliced.block_ns) + kLeastEstimateNs;
}

// Is a launch that may be cut worth it? One that was never measured is, if it is more than two pilots: a
// pilot slice finds out whether it is long.
constexpr bool worth_cutting(uint64_t blocks, uint64_t block_ps, uint64_t pilot_blocks,
                             const LeaseView& lease) {
  if (lease.unmanaged() || lease.slice_ns == 0 || blocks < 2) return false;
  if (block_ps == 0) return blocks > 2 * pilot_blocks;
  return block_ps * blocks / 1000 > lease.slice_ns;
}

// Is work of several launches that goes out as one (a graph) worth taking apart? `total_ns`: of all of it, as far
// as known.
constexpr bool worth_taking_apart(uint64_t total_ns, const LeaseView& lease) {
  return !lease.unmanaged() && lease.slice_ns != 0 && total_ns > lease.slice_ns;
}

// The part of a grid that one slice covers: a box, which begins at the linear block index asked for.
struct Box {
  uint32_t origin[3], extent[3];
  constexpr uint64_t blocks() const { return uint64_t(extent[0]) * extent[1] * extent[2]; }
};

struct Cluster {  // blocks that must be in one slice; a launch without clusters has ones
  uint32_t shape[3] = {1, 1, 1};
  constexpr uint64_t blocks() const { return uint64_t(shape[0]) * shape[1] * shape[2]; }
};

struct Budget {
  uint64_t blocks;    // about as many, at most a third more
  uint64_t wave = 0;  // blocks that fill the GPU once; 0 = not known
};

// The next part of `left` in parts of about `per`, which hold `waves` whole waves each.
constexpr uint64_t next_part(uint64_t left, uint64_t per, uint64_t waves) {
  if (left <= per) return left;
  if (waves != 0) {  // waves stay whole; the rest of many goes with the last part
    const uint64_t most = waves >= 4 ? per * 5 / 4 : per;
    return left <= most ? left : per;
  }
  return even_part(left, per, true);  // less than a wave may cost as much as one
}

// The next box from block `first` on (linear, x fastest). Less than a wave: rows and planes divided evenly,
// because what is less may take as long; whole waves: as many each time, the last box takes the rest.
// Successive boxes tile the grid without gap or overlap, in ascending order.
constexpr Box next_box(const uint32_t (&grid)[3], uint64_t first, const Budget& budget) {
  const uint64_t row = grid[0], plane = row * grid[1], n = at_least(budget.blocks, 1);
  const uint64_t waves = budget.wave != 0 ? n / budget.wave : 0;
  Box box{{uint32_t(first % row), uint32_t(first / row % grid[1]), uint32_t(first / plane)}, {1, 1, 1}};
  // From part of a row to planes: whatever is not whole is all that the box has of this dimension.
  box.extent[0] = uint32_t(next_part(row - box.origin[0], n, waves));
  if (box.extent[0] < row) return box;
  box.extent[1] = uint32_t(next_part(grid[1] - box.origin[1], at_least(n / row, 1), waves));
  if (box.extent[1] < grid[1]) return box;
  box.extent[2] = uint32_t(next_part(grid[2] - box.origin[2], at_least(n / plane, 1), waves));
  return box;
}

// The same in units of clusters: `first` and the budget are in blocks, and a box is at least one cluster.
constexpr Box next_box(const uint32_t (&grid)[3], const Cluster& cluster, uint64_t first,
                       const Budget& budget) {
  const uint64_t n = cluster.blocks();
  const uint32_t clusters[3] = {grid[0] / cluster.shape[0], grid[1] / cluster.shape[1],
                                grid[2] / cluster.shape[2]};
  Box box = next_box(clusters, first / n, {budget.blocks / n, budget.wave / n});
  for (uint32_t axis = 0; axis < 3; axis++) {
    box.origin[axis] *= cluster.shape[axis];
    box.extent[axis] *= cluster.shape[axis];
  }
  return box;
}

}  // namespace tessera::admission
