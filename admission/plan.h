// One best-effort launch under a lease: what goes out next (all of it or one slice), on how many SMs, and how long that
// counts as. The gate (interpose/slice) and the simulator call it.
//
//   Progress progress;
//   while (progress.done < launch.blocks)
//     Plan next = plan(launch, progress, lease)   asked for; when it was sent: progress.done += next.box.blocks()
//
// The progress says why a plan could not be carried out, and the next plan does without.
#pragma once

#include "admission/confine.h"
#include "admission/slices.h"

namespace tessera::admission {

struct PlannedLaunch {  // facts of the launch; they do not change while it waits
  uint32_t grid[3] = {1, 1, 1};
  uint64_t blocks = 1;  // of the grid
  Cluster cluster;
  uint32_t sm_count = 0;     // of the GPU
  uint64_t wave_blocks = 0;  // of the original that fill the GPU once; 0 = not known
  uint64_t expected_ns = 0;  // whole, on all SMs
  uint64_t block_ps = 0;     // GPU time per block of whole launches; 0 = never timed
  bool may_cut = false;
  bool may_confine = false;     // it can be kept to some SMs
  bool one_by_one = false;      // each slice is seen to end before the next one is sent
  Occupancy slice_occupancy{};  // of the kernel that is cut
  History sliced;               // of its slices
};

struct Progress {
  uint64_t done = 0;    // blocks that were sent
  bool let_go = false;  // held for too long: what is left goes out in as few pieces as its shape allows
  bool no_sms = false;  // no stream leads to some of the SMs: the launch goes where the program sent it
};

struct Plan {
  Box box;               // of a whole launch the grid
  uint64_t estimate_ns;  // on the SMs that it uses
  uint64_t blocks = 0;   // asked of the box
  uint64_t wave_blocks = 0;
  uint32_t sms = 0;     // that it keeps to; 0 = all
  bool sliced = false;  // false: the original, whole
};

// GPU time on `sms` of the SMs of what takes `ns` on all of them.
constexpr uint64_t confined_ns(uint64_t ns, uint32_t sms, uint32_t sm_count) {
  return sms == 0 || sms >= sm_count ? ns : ns * sm_count / sms;
}

// The launch as the program asked for it.
constexpr Plan plan_whole(const PlannedLaunch& l, const Progress& progress, const LeaseView& lease) {
  Plan p{.box = {{0, 0, 0}, {l.grid[0], l.grid[1], l.grid[2]}},
         .estimate_ns = l.expected_ns,
         .blocks = l.blocks,
         .wave_blocks = l.wave_blocks};
  // Estimates are of the whole GPU: what can be cut and was never timed is timed there first.
  if (progress.let_go || progress.no_sms || !l.may_confine || (l.may_cut && l.block_ps == 0)) return p;
  p.sms = confined_to_sms({l.blocks, l.wave_blocks, l.expected_ns, l.sm_count}, lease);
  if (p.sms != 0 && l.blocks * l.sm_count > l.wave_blocks * p.sms)
    p.estimate_ns = confined_ns(p.estimate_ns, p.sms, l.sm_count);
  return p;
}

constexpr Plan with_box(const PlannedLaunch& l, const Progress& progress, const LeaseView& lease, Plan p,
                        const History& sliced, uint64_t block_ps) {
  p.box = next_box(l.grid, l.cluster, progress.done, {p.blocks, p.wave_blocks});
  p.estimate_ns = slice_estimate_ns(sliced, block_ps, p.box.blocks(), lease);
  return p;
}

// Its next slice; without a lease, or once it was let go, all that one box can hold.
constexpr Plan plan_slice(const PlannedLaunch& l, const Progress& progress, const LeaseView& lease) {
  History sliced = l.sliced;
  uint64_t block_ps = sliced.block_ps != 0 ? sliced.block_ps : l.block_ps;
  const uint64_t left = l.blocks - progress.done;
  Plan p{.box = {}, .estimate_ns = 0, .blocks = left, .wave_blocks = l.slice_occupancy.wave_blocks};
  p.sliced = true;
  if (progress.let_go || lease.unmanaged()) return with_box(l, progress, lease, p, sliced, block_ps);
  if (l.may_confine && !progress.no_sms && !l.one_by_one && l.cluster.blocks() == 1 && block_ps != 0)
    p.sms = confined_to_sms(sliced.block_ns, l.sm_count, lease);
  if (p.sms != 0) {
    p.wave_blocks = p.wave_blocks * p.sms / l.sm_count;
    block_ps = confined_ns(block_ps, p.sms, l.sm_count);
    sliced.block_ps = confined_ns(sliced.block_ps, p.sms, l.sm_count);
  }
  p.blocks = slice_blocks(sliced, block_ps, left, lease, {l.slice_occupancy.pilot_blocks, p.wave_blocks});
  return with_box(l, progress, lease, p, sliced, block_ps);
}

// The same slice, to be timed: now and then it is smaller. `n_samples`: of slices so far.
constexpr Plan probed(const PlannedLaunch& l, const Progress& progress, const LeaseView& lease, Plan p,
                      uint32_t n_samples) {
  const uint64_t blocks = probe_blocks(n_samples, p.blocks, p.wave_blocks);
  if (blocks == p.blocks || p.blocks >= l.blocks - progress.done) return p;
  p.blocks = blocks;
  return with_box(l, progress, lease, p, l.sliced, l.sliced.block_ps != 0 ? l.sliced.block_ps : l.block_ps);
}

constexpr bool goes_whole(const PlannedLaunch& l, const Progress& progress, const LeaseView& lease) {
  if (progress.done != 0) return false;
  return progress.let_go || !l.may_cut ||
         !worth_cutting(l.blocks, l.block_ps, l.slice_occupancy.pilot_blocks, lease);
}

constexpr Plan plan(const PlannedLaunch& l, const Progress& progress, const LeaseView& lease) {
  return goes_whole(l, progress, lease) ? plan_whole(l, progress, lease) : plan_slice(l, progress, lease);
}

// Does a plan of one lease hold under the other?
constexpr bool same_plans(const LeaseView& a, const LeaseView& b) {
  return a.unmanaged() == b.unmanaged() && a.window_ns == b.window_ns && a.slice_ns == b.slice_ns &&
         a.long_width_percent == b.long_width_percent && a.long_block_ns == b.long_block_ns &&
         a.reserved_sms == b.reserved_sms && a.confine_all == b.confine_all;
}

}  // namespace tessera::admission
