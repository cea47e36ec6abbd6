// From a launch and a lease to slices: which launches are cut, how many blocks one slice has, and the loop
// that sends each slice through the gate. Called by the launch hook of best-effort clients; runs in the
// caller's thread; all state is on its stack (allocation-free). What may be cut at all was decided at module
// load (interpose/track).
#pragma once

#include "interpose/gate/launch.h"

namespace tessera::cut {

// The part of a grid that one slice covers: a box, always starting at the linear block index `first`.
struct Piece {
  uint32_t origin[3], extent[3];
  uint64_t blocks() const { return uint64_t(extent[0]) * extent[1] * extent[2]; }
};
struct Budget {
  uint64_t blocks;
  uint64_t wave = 0;    // blocks that fill the GPU once, 0 = not known
  bool strict = false;  // never more blocks than that; else about as many, at most a third more
};
// The next box from block `first` on (linear, x fastest). Less than a wave: rows and planes divided evenly,
// because what is less may take as long; whole waves: as many each time, the last piece takes the rest.
// Successive pieces tile the grid without gap or overlap, in ascending order.
Piece next_piece(const uint32_t grid[3], uint64_t first, const Budget& budget);

// Blocks per slice so that it lasts about `slice_ns`; never 0. block_ps = 0 (not measured): the pilot, which
// measures. A slice too small to fill the GPU takes as long as a larger one, so its time per block is too
// high and the next slice is larger, until the GPU is full: the size finds itself. Beyond one wave (0 = not
// known) only whole waves, because a partial last wave costs as much as a full one.
// width_blocks (0 = no limit) is kept by the piece that next_piece() makes of the result, not only on
// average.
uint64_t blocks_per_slice(uint64_t total, uint64_t block_ps, uint64_t slice_ns, uint64_t pilot_blocks,
                          uint64_t wave_blocks, uint32_t width_blocks);

struct Width {           // of slices, in blocks
  uint64_t pilot, wave;  // wave 0: not known
  uint32_t most;         // of a packed lease, 0 = no limit
  uint32_t long_percent;
  uint64_t long_block_ns;
};
// Blocks per slice of a kernel whose slices were measured. What fits into `slice_ns`, in whole waves; but not
// less than would take as long, and `long_percent` of one where single blocks last longer than
// `long_block_ns`: no slice of those is short, so they leave room instead, the more the longer they last.
uint64_t budget_of(const gate::Timing& sliced, uint64_t left, uint64_t slice_ns, const Width& width);

// May this launch be cut at all now? Its attributes, the image and the user may forbid it, and holds that
// expired.
bool allowed(const gate::LaunchCall& launch, const gate::KernelRecord& kernel);

// Is a launch that may be cut worth it under the lease as it stands?
bool wanted(const gate::LaunchCall& launch, const gate::Timing* timing);

// Sends an allowed launch as slices; *result is what the program gets. False: nothing was launched (no
// variant, or the driver refused the first slice): launch the original. `call` carries what was waited
// already.
bool launch(const gate::LaunchCall& launch, gate::KernelRecord& kernel, gate::Timing* timing,
            gate::Call& call, CUresult* result);

// Cut launches whose rest went out whole after the hold limit; and whether that happened so often that
// nothing is cut for a while. For the signal line.
extern constinit std::atomic<uint64_t> g_whole_releases;
bool cutting_off();

// Slow path, set by interpose/track: the variant's handle, with the original's attributes in `context`, or
// null.
using ResolveVariant = CUfunction (*)(gate::KernelRecord& kernel, const gate::LaunchCall& launch,
                                      CUcontext context) noexcept;
extern constinit std::atomic<ResolveVariant> g_resolve_variant;  // relaxed: constant code
// Slow path, set by interpose/track: what only a launch shows. kHung: a slice did not end by itself
// (trial.h). kRows, kOneQueue: waits for lower blocks, and the grid has more rows than one, or the program's
// streams share one queue of the device; told once per kernel.
enum class Obstacle : uint8_t { kHung, kRows, kOneQueue };
using Met = void (*)(const gate::KernelRecord& kernel, Obstacle obstacle) noexcept;
extern constinit std::atomic<Met> g_met;
extern constinit std::atomic<uint32_t> g_sm_count;   // of the client's GPU; 0 = not known yet
extern constinit std::atomic<uint32_t> g_forbidden;  // 1: TESSERA_SLICE=0, or holds expired again and again

}  // namespace tessera::cut
