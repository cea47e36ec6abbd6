#include "softgpu/exec/block.h"

#include <algorithm>
#include <bit>

namespace tessera::softgpu::exec {

void Buffer::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  bytes = (bytes + 255) & ~size_t{255};
  void* fresh = std::aligned_alloc(128, bytes);
  if (data_) std::memcpy(fresh, data_, bytes_);
  std::memset(static_cast<char*>(fresh) + bytes_, 0, bytes - bytes_);
  std::free(data_);
  data_ = fresh;
  bytes_ = bytes;
}

namespace {

// A uniform special register; along: its y and z follow x. Columns are zero at first and only written here,
// so one that begins with the value is full of it: most do from block to block.
void fill(Block& b, Special which, uint32_t value, unsigned along = 0) {
  uint32_t* out = reinterpret_cast<uint32_t*>(b.uniforms.data() + uniform_offset(which) + along * 128);
  if (*out == value) return;
  for (unsigned i = 0; i < kLanes; ++i) out[i] = value;
}
void fill64(char* column, uint64_t value) {
  for (unsigned i = 0; i < kLanes; ++i) std::memcpy(column + i * 8, &value, 8);
}

// Prepares the values that are the same for all warps of all blocks that a slot runs.
void prepare_uniforms(Block& b, Grid& grid) {
  const std::vector<ParameterColumn>& columns = grid.kernel->codes[0]->columns;
  b.uniforms.reserve(kUniformBytes + columns.size() * 256);
  for (unsigned axis = 0; axis < 3; ++axis) {
    fill(b, Special::kNtidX, grid.launch.block[axis], axis);
    fill(b, Special::kNctaidX, grid.launch.grid[axis], axis);
    fill(b, Special::kClusterNctaidX, grid.cluster[axis], axis);
    fill(b, Special::kNclusteridX, grid.launch.grid[axis] / grid.cluster[axis], axis);
  }
  const uint64_t workspace = reinterpret_cast<uint64_t>(grid.workspace);
  fill(b, Special::kNwarpid, 64);
  fill(b, Special::kNsmid, 1);
  fill(b, Special::kGridid, static_cast<uint32_t>(grid.id));
  fill64(b.uniforms.data() + uniform_offset(Special::kGridid64), grid.id);
  fill64(b.uniforms.data() + uniform_offset(Special::kDynamicBase64), grid.kernel->dynamic_shared_offset);
  fill(b, Special::kDynamicBase, grid.kernel->dynamic_shared_offset);
  fill(b, Special::kDynamicSmem, grid.launch.dynamic_shared_bytes);
  fill(b, Special::kTotalSmem, grid.shared_bytes);
  fill(b, Special::kReservedBegin, grid.reserved_offset);
  fill(b, Special::kReservedEnd, grid.reserved_offset + kReservedSharedBytes);
  fill(b, Special::kReservedCap, kReservedSharedBytes);
  fill(b, Special::kReserved1, grid.reserved_offset + kReservedSharedBytes / 2);
  fill(b, Special::kEnvreg1, static_cast<uint32_t>(workspace >> 32));
  fill(b, Special::kEnvreg2, static_cast<uint32_t>(workspace));
  fill(b, Special::kClusterNctarank, grid.cluster_blocks);
  fill(b, Special::kExplicitCluster, grid.explicit_cluster ? ~0u : 0);
  char* to = b.uniforms.data() + kUniformBytes;
  for (const ParameterColumn& column : columns) {
    uint64_t value = 0;
    std::memcpy(&value, grid.params + column.offset, column.bytes);
    if (column.is_signed)
      value =
          static_cast<uint64_t>(column.bytes == 1 ? static_cast<int8_t>(value) : static_cast<int16_t>(value));
    if (column.wide) {
      fill64(to, value);
    } else {
      const uint32_t narrow = static_cast<uint32_t>(value);
      for (unsigned i = 0; i < kLanes; ++i) std::memcpy(to + i * 4, &narrow, 4);
    }
    to += 256;
  }
}

// A warp's views into its block's memory, and where its lanes are.
void prepare_warp(Block& b, uint32_t wi) {
  const auto& dim = b.grid->launch.block;
  Warp& w = b.warps[wi];
  w = Warp{};
  w.index = wi;
  w.worker = b.worker;
  w.block = &b;
  w.shared = b.shared.data();
  w.shared_bytes = b.grid->shared_bytes;
  w.local_bytes = b.grid->local_bytes;
  w.local = b.local.data() + size_t{b.grid->local_bytes} * kLanes * wi;
  w.registers = b.registers.data() + b.register_stride * wi;
  w.register_bytes = b.register_stride;
  char* s = w.specials = b.specials.data() + kSpecialBytes * wi;
  w.base[2] = s - 2;
  w.base[3] = b.uniforms.data() - 3;
  const auto column = [s](Special which) {
    return reinterpret_cast<uint32_t*>(s + static_cast<size_t>(which) * 128);
  };
  for (unsigned i = 0; i < kLanes; ++i) {
    const uint32_t linear = wi * kLanes + i;
    column(Special::kTidX)[i] = linear % dim[0];
    column(Special::kTidY)[i] = linear / dim[0] % dim[1];
    column(Special::kTidZ)[i] = linear / (dim[0] * dim[1]);
    column(Special::kLaneid)[i] = i;
    column(Special::kLanemaskEq)[i] = 1u << i;
    column(Special::kLanemaskLt)[i] = (1u << i) - 1;
    column(Special::kLanemaskLe)[i] = ((1u << i) - 1) | 1u << i;
    column(Special::kLanemaskGe)[i] = ~((1u << i) - 1);
    column(Special::kLanemaskGt)[i] = ~(((1u << i) - 1) | 1u << i);
  }
  for (unsigned i = 0; i < kLanes; ++i) column(Special::kWarpid)[i] = wi;
}

// The index along an axis of `n`; the axes behind it stay in `linear`. A grid of one axis takes no division,
// which would cost as much as a warp's shortest instructions.
inline uint32_t take_axis(uint64_t& linear, uint32_t n) {
  const uint64_t all = linear;
  linear = all < n ? 0 : all / n;
  return static_cast<uint32_t>(all - linear * n);
}

}  // namespace

void prepare_slot(Block& b, Grid& grid, Worker& worker) {
  b.grid = &grid;
  b.worker = &worker;
  const Code& entry = *grid.kernel->codes[0];
  const size_t regs = (entry.reg_bytes + 127) & ~size_t{127};
  b.register_stride = std::max<size_t>(regs, 128);
  b.registers.reserve(b.register_stride * grid.n_warps);
  b.specials.reserve(kSpecialBytes * grid.n_warps);
  b.shared.reserve(grid.shared_bytes + 64);
  b.local.reserve(size_t{grid.local_bytes} * kLanes * grid.n_warps);
  if (b.warps.size() != grid.n_warps) b.warps.resize(grid.n_warps);
  prepare_uniforms(b, grid);
  // The first frames are the warps' own, for the entry.
  while (b.frames.size() < grid.n_warps) b.frames.push_back(std::make_unique<Frame>());
  b.free_frames.clear();
  for (size_t i = 0; i < grid.n_warps; ++i) *b.frames[i] = Frame{&entry, nullptr, nullptr, 0, 0, 0, 0};
  for (size_t i = grid.n_warps; i < b.frames.size(); ++i) b.free_frames.push_back(b.frames[i].get());
  for (uint32_t wi = 0; wi < grid.n_warps; ++wi) prepare_warp(b, wi);
}

void start_block(Block& b, uint64_t linear) {
  Grid& grid = *b.grid;
  uint32_t cluster_id[3], within[3];
  uint64_t rank = b.rank;
  for (unsigned axis = 0; axis < 3; ++axis) {
    const uint32_t n = grid.cluster[axis], blocks = grid.launch.grid[axis];
    cluster_id[axis] = take_axis(linear, n == 1 ? blocks : blocks / n);
    within[axis] = take_axis(rank, n);
    b.id[axis] = cluster_id[axis] * n + within[axis];
  }
  std::fill(std::begin(b.cluster_arrived), std::end(b.cluster_arrived), 0);
  b.live_warps = grid.n_warps;
  b.ready = grid.n_warps == 32 ? ~0u : (1u << grid.n_warps) - 1;
  for (uint32_t used = b.barriers_used; used; used &= used - 1)
    b.barriers[std::countr_zero(used)] = Barrier{};
  b.barriers_used = 0;
  if (grid.kernel->reserves_shared)
    std::memset(b.shared.data() + grid.reserved_offset, 0, kReservedSharedBytes);
  for (unsigned axis = 0; axis < 3; ++axis) {
    fill(b, Special::kCtaidX, b.id[axis], axis);
    fill(b, Special::kClusteridX, cluster_id[axis], axis);
    fill(b, Special::kClusterCtaidX, within[axis], axis);
  }
  fill(b, Special::kClusterCtarank, b.rank);
  const Code* entry = grid.kernel->codes[0].get();
  for (Warp& w : b.warps) {
    const uint32_t threads = std::min(grid.n_threads - w.index * kLanes, kLanes);
    w.live = threads == 32 ? ~0u : (1u << threads) - 1;
    Frame* f = b.frames[w.index].get();
    f->lanes = w.live;
    w.n_groups = 0;
    w.carry = 0;
    w.issued = 0;
    w.rotate = false;
    w.frame = f;
    w.groups[w.n_groups++] = Group{entry->ops.data(), f, w.live, GroupState::kReady, 0, 0};
  }
}

}  // namespace tessera::softgpu::exec
