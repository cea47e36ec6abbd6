// Running a grid: blocks in launch order over the workers, warps of a block in turn. A worker keeps one block
// until it ends; those that only spin are joined by the next blocks, so that blocks waiting for each other make
// progress.
#include <algorithm>
#include <bit>
#include <thread>

#include "softgpu/exec/core.h"

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

constexpr uint64_t kWarpQuantum = 20000;         // issue slots before a warp gives way
constexpr uint32_t kReservedSharedBytes = 1024;  // as on hardware; cooperative groups use 288 from offset 1
// Blocks per worker, unless more are resident on the device or the grid is cooperative; and what they may
// take beyond it, since local memory of a large device's threads can be more than the host's.
constexpr uint64_t kMostResident = 128, kMostResidentBytes = uint64_t{1} << 30;

uint32_t round_up(uint64_t bytes, uint64_t to) {
  return static_cast<uint32_t>((bytes + to - 1) / to * to);
}

// A random permutation of [0, n) by index: a Feistel network over the next power of four, cycle-walking.
uint64_t permute(uint64_t index, uint64_t n, uint64_t seed) {
  if (seed == 0 || n < 2) return index;
  if (seed == 1) return n - 1 - index;
  unsigned half = 1;
  while ((uint64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (unsigned round = 0; round < 4; ++round) {
      uint64_t x = right * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u + round;
      x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
      const uint64_t next = left ^ ((x >> 29) & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}

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

// What is the same for all warps of all blocks that a slot runs.
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

// What stays the same for all blocks that this slot runs.
void prepare_slot(Block& b, Grid& grid, Worker& worker) {
  b.grid = &grid;
  b.worker = &worker;
  const Code& entry = *grid.kernel->codes[0];
  const auto& dim = grid.launch.block;
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
  for (size_t i = grid.n_warps; i < b.frames.size(); ++i) b.free_frames.push_back(b.frames[i].get());
  for (uint32_t wi = 0; wi < grid.n_warps; ++wi) {
    Warp& w = b.warps[wi];
    w = Warp{};
    w.index = wi;
    w.worker = &worker;
    w.block = &b;
    w.shared = b.shared.data();
    w.shared_bytes = grid.shared_bytes;
    w.local_bytes = grid.local_bytes;
    w.local = b.local.data() + size_t{grid.local_bytes} * kLanes * wi;
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
}

// `linear`: which cluster; the block's rank in it is set already.
void start_block(Block& b, uint64_t linear) {
  Grid& grid = *b.grid;
  uint32_t cluster_id[3], within[3];
  uint64_t rank = b.rank;
  for (unsigned axis = 0; axis < 3; ++axis) {
    const uint32_t n = grid.cluster[axis], clusters = grid.launch.grid[axis] / n;
    cluster_id[axis] = static_cast<uint32_t>(linear % clusters);
    within[axis] = static_cast<uint32_t>(rank % n);
    b.id[axis] = cluster_id[axis] * n + within[axis];
    linear /= clusters;
    rank /= n;
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
    *f = Frame{entry, nullptr, nullptr, w.live, 0, 0, 0};
    w.n_groups = 0;
    w.carry = 0;
    w.issued = 0;
    w.rotate = false;
    w.frame = f;
    w.groups[w.n_groups++] = Group{entry->ops.data(), f, w.live, GroupState::kReady, 0, 0};
  }
}

enum class Outcome { kDone, kSpinning, kBlocked, kStopped };

void report_deadlock(Cluster& cluster) {
  std::string text = "nothing can run: ";
  const Op* at_op = nullptr;
  Warp* where = nullptr;
  Mask lanes = 1;
  unsigned n = 0;
  for (auto& block : cluster.blocks)
    for (Warp& w : block->warps)
      for (uint32_t i = 0; i < w.n_groups; ++i) {
        const Group& g = w.groups[i];
        const bool barrier = g.state == GroupState::kBarrier;
        const Op* op = barrier ? g.pc - 1 : g.pc;
        if (!at_op) at_op = op, where = &w, lanes = g.mask;
        if (++n > 8) continue;
        char piece[128];
        std::snprintf(piece, sizeof piece, "%swarp %u lanes %08x at line %u wait for ", n > 1 ? "; " : "",
                      w.index, g.mask, op->line);
        if (n > 1 || cluster.blocks.size() == 1)
          text += piece;
        else
          text += "(by rank in the cluster) " + std::string(piece);
        text += !barrier                         ? "the other lanes of a .sync mask"
                : g.barrier == kClusterBarrier   ? "the cluster's barrier"
                : g.barrier == kWarpgroupBarrier ? "the other warps of its warpgroup"
                                                 : "barrier " + std::to_string(g.barrier);
      }
  if (n > 8) text += "; and " + std::to_string(n - 8) + " more groups";
  if (!at_op) return;
  raise(*where, at_op, FaultKind::kDeadlock, static_cast<unsigned>(std::countr_zero(lanes)), 0, text);
}

// Runs every ready warp until it waits, ends or has used up its quantum; kSpinning: some gave way and the
// block goes on later.
Outcome run_round(Block& b) {
  bool gave_way = false;
  bool progress = true;
  uint32_t yielded = 0;
  while (progress) {
    progress = false;
    for (uint32_t todo = b.ready & ~yielded; todo; todo = b.ready & ~yielded) {
      const unsigned wi = static_cast<unsigned>(std::countr_zero(todo));
      // Take each ready warp once before any again: later ones have higher numbers.
      Warp& w = b.warps[wi];
      w.stop = Stop::kNone;
      const uint64_t before = w.issued;
      const Op* op = start_ready(w);
      if (Audit* audit = b.worker->audit)
        while (op) op = audit->run(w, op);
      else
        while (op) op = op->fn(w, op);
      b.worker->warp_instructions += w.issued - before;
      switch (w.stop) {
        case Stop::kFault:
          return Outcome::kStopped;
        case Stop::kYield:
          yielded |= 1u << wi;
          gave_way = true;
          break;
        default: {
          // Blocked or done, but groups may have become ready through its own last step.
          bool any = false;
          for (uint32_t i = 0; i < w.n_groups; ++i) any |= w.groups[i].state == GroupState::kReady;
          if (!any) b.ready &= ~(1u << wi);
          break;
        }
      }
    }
  }
  if (gave_way) return Outcome::kSpinning;
  bool live = false;
  for (Warp& w : b.warps) live |= w.live != 0;
  return live ? Outcome::kBlocked : Outcome::kDone;
}

// A round for every block of a cluster; again while one has let another go on.
Outcome run_round(Cluster& cluster) {
  // One quantum for the whole turn: warps that meet at a barrier in a loop must give way, too, since what
  // they poll may be up to a block that is not resident yet.
  for (auto& block : cluster.blocks)
    for (Warp& w : block->warps) w.limit = w.issued + kWarpQuantum;
  for (;;) {
    bool spinning = false, done = true, ready = false;
    for (auto& block : cluster.blocks) {
      const Outcome outcome = run_round(*block);
      if (outcome == Outcome::kStopped) return outcome;
      spinning |= outcome == Outcome::kSpinning;
      done &= outcome == Outcome::kDone;
    }
    if (done) return Outcome::kDone;
    if (spinning) return Outcome::kSpinning;
    for (auto& block : cluster.blocks) ready |= block->ready != 0;
    if (ready) continue;
    report_deadlock(cluster);
    return Outcome::kStopped;
  }
}

Work work_of(const Worker& worker) {
  const auto& m = worker.memory;
  return {worker.warp_instructions, m.global_bytes,    m.tensor_operations,
          m.fp64_operations,        m.fp32_operations, m.fp16_operations};
}

void publish(Worker& worker, uint64_t blocks) {
  Progress* p = worker.grid->progress;
  if (!p) return;
  const Work now = work_of(worker);
  for (size_t i = 0; i < p->work.size();
       ++i)  // statistics only; blocks last, so that no block lacks its work
    p->work[i].fetch_add(now.*Work::kCounts[i] - worker.published.*Work::kCounts[i],
                         std::memory_order_relaxed);
  p->blocks_done.fetch_add(blocks, std::memory_order_release);
  worker.published = now;
}

void run_worker(Worker& worker, Grid& grid, uint64_t resident, unsigned workers) {
  std::vector<std::unique_ptr<Cluster>> active;
  const uint64_t n_clusters = grid.n_blocks / grid.cluster_blocks;
  // Blocks are taken in short runs, so that workers with short blocks do not meet at the counter for each.
  const uint64_t batch =
      grid.launch.cooperative ? 1 : std::clamp<uint64_t>(n_clusters / (workers * 64), 1, 64);
  uint64_t taken = 0, taken_end = 0;
  uint64_t done_here = 0;
  const auto stopped = [&] {
    return grid.stop.load(std::memory_order_relaxed) ||
           (grid.cancel &&
            grid.cancel->load(std::memory_order_relaxed));  // a late look costs a block, nothing else
  };
  const auto fetch = [&] {
    if (taken == taken_end) {
      taken = grid.next.fetch_add(batch, std::memory_order_relaxed);  // only unique numbers matter
      taken_end = std::min(taken + batch, n_clusters);
      if (taken >= n_clusters) {
        taken_end = taken;
        return false;
      }
    }
    const uint64_t index = taken++;
    std::unique_ptr<Cluster> slot;
    if (!worker.free_clusters.empty()) {
      slot = std::move(worker.free_clusters.back());
      worker.free_clusters.pop_back();
    } else {
      slot = std::make_unique<Cluster>();
    }
    while (slot->blocks.size() > grid.cluster_blocks) slot->blocks.pop_back();
    while (slot->blocks.size() < grid.cluster_blocks) slot->blocks.push_back(std::make_unique<Block>());
    slot->arrivals = false;
    const uint64_t which = permute(index, n_clusters, grid.launch.block_order_seed);
    for (uint32_t rank = 0; rank < grid.cluster_blocks; ++rank) {
      Block& b = *slot->blocks[rank];
      b.cluster = slot.get();
      b.rank = rank;
      if (b.grid != &grid) prepare_slot(b, grid, worker);
      start_block(b, which);
    }
    active.push_back(std::move(slot));
    return true;
  };
  bool more = true;
  const auto let_in = [&](uint64_t n) {
    for (; n && more && active.size() < resident; --n) more = fetch();
  };
  StandstillWatch watch(worker);
  bool backward = true;
  while (!stopped()) {
    if (active.empty()) {
      if (!more || !fetch()) break;
    }
    if (grid.launch.cooperative) let_in(resident);
    bool ended = false;
    // Now from one end, now from the other: blocks that wait for their neighbours all end in one pass.
    backward = !backward;
    for (auto& c : active) {
      std::unique_ptr<Cluster>& slot = backward ? active[active.size() - 1 - size_t(&c - active.data())] : c;
      const Outcome outcome = run_round(*slot);
      if (outcome == Outcome::kStopped || stopped()) goto out;
      if (outcome != Outcome::kDone) continue;
      ended = true;
      worker.free_clusters.push_back(std::move(slot));
      done_here += grid.cluster_blocks;
      if (done_here >= 16 || grid.n_blocks < 256) publish(worker, done_here), done_here = 0;
    }
    if (ended) std::erase(active, nullptr);
    if (active.empty()) continue;
    const size_t before = active.size();
    // Everything resident gave way: let more in, by a part of them, since each pass is over all.
    let_in(1 + before / 8);
    if (ended || active.size() != before)
      watch.moved();
    else
      watch.after_pass(active, n_clusters - std::min(n_clusters, grid.next.load(std::memory_order_relaxed)));
  }
out:
  publish(worker, done_here);
  for (auto& c : active)
    if (c) worker.free_clusters.push_back(std::move(c));
}

// Blocks that one worker may have begun and not ended.
uint64_t most_resident(const Grid& grid) {
  const Code& entry = *grid.kernel->codes[0];
  const uint64_t bytes = grid.shared_bytes + uint64_t{grid.n_warps} * (entry.reg_bytes + sizeof(Warp) +
                                                                       uint64_t{grid.local_bytes} * kLanes);
  return std::max(kMostResident, std::min(grid.launch.resident_blocks, kMostResidentBytes / bytes));
}

// A thread's slots survive its runs: launches of small kernels should not pay for memory.
Worker& own_worker() {
  thread_local Worker worker;
  return worker;
}

void attach(Worker& worker, Grid& grid) {
  worker.grid = &grid;
  worker.memory = MemoryView{};
  worker.memory.generation_now = grid.memory->generation_word();
  worker.memory.generation = grid.memory->generation();
  worker.warp_instructions = 0;
  worker.published = {};
  worker.audit = nullptr;
  const uint64_t params = reinterpret_cast<uint64_t>(grid.params);
  worker.params_range = CachedRange{params, params + grid.kernel->info.param_bytes, false};
  const uint64_t workspace = reinterpret_cast<uint64_t>(grid.workspace);
  worker.workspace_range = CachedRange{workspace, workspace + 64, true};
  for (auto& c : worker.free_clusters)
    for (auto& b : c->blocks) b->grid = nullptr;
}

}  // namespace

Fault run_grid(const Kernel& kernel, AllocationMap& memory, const Launch& launch, unsigned threads,
               Work* work, Progress* progress, const std::atomic<bool>* cancel) {
  static std::atomic<uint64_t> grids{1};
  Grid grid{};
  grid.kernel = &kernel;
  grid.launch = launch;
  grid.n_blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  grid.n_threads = launch.block[0] * launch.block[1] * launch.block[2];
  grid.n_warps = (grid.n_threads + kLanes - 1) / kLanes;
  grid.memory = &memory;
  grid.cancel = cancel;
  grid.progress = progress;
  grid.id = grids.fetch_add(1, std::memory_order_relaxed);  // only unique numbers matter
  if (grid.n_threads == 0 || grid.n_threads > 1024 || grid.n_blocks == 0) {
    grid.fault.kind = FaultKind::kIllegalInstruction;
    grid.fault.kernel = kernel.info.name;
    grid.fault.text = "launch of " + std::to_string(grid.n_threads) + " threads per block and " +
                      std::to_string(grid.n_blocks) +
                      " blocks: both must be at least 1, threads at most 1024";
    return grid.fault;
  }
  grid.cluster = launch.cluster[0] ? launch.cluster : kernel.info.required_cluster;
  grid.explicit_cluster = grid.cluster[0] != 0;
  if (!grid.explicit_cluster) grid.cluster = {1, 1, 1};
  grid.cluster_blocks = grid.cluster[0] * grid.cluster[1] * grid.cluster[2];
  bool fits = grid.cluster_blocks != 0 && grid.cluster_blocks <= kMostClusterBlocks;
  for (unsigned axis = 0; axis < 3 && fits; ++axis) fits = launch.grid[axis] % grid.cluster[axis] == 0;
  if (!fits) {
    grid.fault.kind = FaultKind::kIllegalInstruction;
    grid.fault.kernel = kernel.info.name;
    grid.fault.text = "launch in clusters of " + std::to_string(grid.cluster[0]) + " x " +
                      std::to_string(grid.cluster[1]) + " x " + std::to_string(grid.cluster[2]) +
                      " blocks: the grid must be a multiple of it and a cluster at most 16 blocks";
    return grid.fault;
  }
  Buffer params;
  params.reserve(kernel.info.param_bytes + 16);
  if (launch.params && kernel.info.param_bytes)
    std::memcpy(params.data(), launch.params, kernel.info.param_bytes);
  grid.params = params.data();
  alignas(64) char workspace[64] = {64};
  grid.workspace = workspace;
  grid.shared_bytes = kernel.dynamic_shared_offset + launch.dynamic_shared_bytes;
  if (launch.dynamic_shared_bytes == 0) grid.shared_bytes = kernel.info.static_shared_bytes;
  if (memory.bounds() == AllocationMap::Bounds::kHardware)
    grid.shared_bytes = round_up(grid.shared_bytes, kSharedGranuleBytes);
  grid.reserved_offset = round_up(grid.shared_bytes, kSharedGranuleBytes);
  if (kernel.reserves_shared) grid.shared_bytes = grid.reserved_offset + kReservedSharedBytes;
  grid.local_bytes = (kernel.info.local_bytes + 15u) & ~15u;

  const uint64_t n_clusters = grid.n_blocks / grid.cluster_blocks;
  threads = static_cast<unsigned>(std::clamp<uint64_t>(threads, 1, n_clusters));
  const uint64_t resident =
      launch.cooperative ? (n_clusters + threads - 1) / threads
                         : std::clamp<uint64_t>(most_resident(grid) / grid.cluster_blocks, 1, n_clusters);
  grid.standstill.workers = threads;
  std::vector<std::thread> helpers;
  std::vector<Work> shares(threads);
  const auto body = [&](unsigned index) {
    Worker& worker = own_worker();
    attach(worker, grid);
    run_worker(worker, grid, resident, threads);
    shares[index] = work_of(worker);
    worker.grid = nullptr;
  };
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(body, i);
  body(0);
  for (std::thread& t : helpers) t.join();
  if (work)
    for (const Work& share : shares)
      for (auto count : Work::kCounts) work->*count += share.*count;
  return std::move(grid.fault);
}

}  // namespace tessera::softgpu::exec
