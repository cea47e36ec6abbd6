// Running a grid: blocks in launch order over the workers, warps of a block in turn. A worker keeps one block
// until it ends; those that only spin are joined by the next blocks, so that blocks waiting for each other make
// progress.
#include <algorithm>
#include <bit>
#include <string>
#include <thread>
#include <utility>

#include "softgpu/exec/block.h"
#include "softgpu/exec/core.h"

namespace tessera::softgpu::exec {

namespace {

constexpr uint64_t kWarpQuantum = 20000;  // issue slots before a warp gives way
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
  return b.live_warps ? Outcome::kBlocked : Outcome::kDone;
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

// The grid's clusters on their way into one worker's slots. They are taken in short runs, so that workers with
// short blocks do not meet at the counter for each.
class Intake {
 public:
  Intake(Worker& worker, Grid& grid, uint64_t resident, unsigned workers)
      : worker_(worker),
        grid_(grid),
        resident_(resident),
        n_clusters_(grid.n_blocks / grid.cluster_blocks),
        batch_(grid.launch.cooperative ? 1 : std::clamp<uint64_t>(n_clusters_ / (workers * 64), 1, 64)) {}
  ~Intake() {
    for (auto& slot : active)
      if (slot) worker_.free_clusters.push_back(std::move(slot));
  }

  // As far as there is room for them.
  void let_in(uint64_t n) {
    for (; n && more_ && active.size() < resident_; --n) more_ = start_next();
  }
  // Lets one in where there is none. False: the grid has no more.
  bool any_active() {
    if (active.empty() && more_) more_ = start_next();
    return !active.empty();
  }
  // Counts the clusters that nobody has begun.
  uint64_t waiting() const {
    return n_clusters_ - std::min(n_clusters_, grid_.next.load(std::memory_order_relaxed));
  }

  std::vector<std::unique_ptr<Cluster>> active;

 private:
  bool start_next() {
    if (taken_ == taken_end_) {
      taken_ = grid_.next.fetch_add(batch_, std::memory_order_relaxed);  // only unique numbers matter
      taken_end_ = std::min(taken_ + batch_, n_clusters_);
      if (taken_ >= n_clusters_) {
        taken_end_ = taken_;
        return false;
      }
    }
    const uint64_t which = permute(taken_++, n_clusters_, grid_.launch.block_order_seed);
    std::unique_ptr<Cluster> slot = free_slot();
    for (uint32_t rank = 0; rank < grid_.cluster_blocks; ++rank) {
      Block& b = *slot->blocks[rank];
      b.cluster = slot.get();
      b.rank = rank;
      if (b.grid != &grid_) prepare_slot(b, grid_, worker_);
      start_block(b, which);
    }
    active.push_back(std::move(slot));
    return true;
  }

  std::unique_ptr<Cluster> free_slot() {
    std::unique_ptr<Cluster> slot;
    if (!worker_.free_clusters.empty()) {
      slot = std::move(worker_.free_clusters.back());
      worker_.free_clusters.pop_back();
    } else {
      slot = std::make_unique<Cluster>();
    }
    while (slot->blocks.size() > grid_.cluster_blocks) slot->blocks.pop_back();
    while (slot->blocks.size() < grid_.cluster_blocks) slot->blocks.push_back(std::make_unique<Block>());
    slot->arrivals = false;
    return slot;
  }

  Worker& worker_;
  Grid& grid_;
  const uint64_t resident_, n_clusters_, batch_;
  uint64_t taken_ = 0, taken_end_ = 0;
  bool more_ = true;
};

bool stopped(const Grid& grid) {  // a late look costs a block, nothing else
  return grid.stop.load(std::memory_order_relaxed) ||
         (grid.cancel && grid.cancel->load(std::memory_order_relaxed));
}

void run_worker(Worker& worker, Grid& grid, uint64_t resident, unsigned workers) {
  Intake intake(worker, grid, resident, workers);
  std::vector<std::unique_ptr<Cluster>>& active = intake.active;
  StandstillWatch watch(worker);
  uint64_t done_here = 0;
  bool backward = true;
  while (!stopped(grid) && intake.any_active()) {
    if (grid.launch.cooperative) intake.let_in(resident);
    bool ended = false;
    // Now from one end, now from the other: blocks that wait for their neighbours all end in one pass.
    backward = !backward;
    for (size_t i = 0; i < active.size(); ++i) {
      std::unique_ptr<Cluster>& slot = active[backward ? active.size() - 1 - i : i];
      const Outcome outcome = run_round(*slot);
      if (outcome == Outcome::kStopped || stopped(grid)) return publish(worker, done_here);
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
    intake.let_in(1 + before / 8);
    if (ended || active.size() != before)
      watch.moved();
    else
      watch.after_pass(active, intake.waiting());
  }
  publish(worker, done_here);
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

bool refuse(Grid& grid, std::string text) {
  grid.fault.kind = FaultKind::kIllegalInstruction;
  grid.fault.kernel = grid.kernel->info.name;
  grid.fault.text = std::move(text);
  return false;
}

// From grid.launch and grid.kernel. False: the grid's fault says why such a launch cannot run.
bool set_shape(Grid& grid) {
  const Launch& launch = grid.launch;
  grid.n_blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  grid.n_threads = launch.block[0] * launch.block[1] * launch.block[2];
  grid.n_warps = (grid.n_threads + kLanes - 1) / kLanes;
  if (grid.n_threads == 0 || grid.n_threads > 1024 || grid.n_blocks == 0)
    return refuse(grid, "launch of " + std::to_string(grid.n_threads) + " threads per block and " +
                            std::to_string(grid.n_blocks) +
                            " blocks: both must be at least 1, threads at most 1024");
  grid.cluster = launch.cluster[0] ? launch.cluster : grid.kernel->info.required_cluster;
  grid.explicit_cluster = grid.cluster[0] != 0;
  if (!grid.explicit_cluster) grid.cluster = {1, 1, 1};
  grid.cluster_blocks = grid.cluster[0] * grid.cluster[1] * grid.cluster[2];
  bool fits = grid.cluster_blocks != 0 && grid.cluster_blocks <= kMostClusterBlocks;
  for (unsigned axis = 0; axis < 3 && fits; ++axis) fits = launch.grid[axis] % grid.cluster[axis] == 0;
  if (!fits)
    return refuse(grid, "launch in clusters of " + std::to_string(grid.cluster[0]) + " x " +
                            std::to_string(grid.cluster[1]) + " x " + std::to_string(grid.cluster[2]) +
                            " blocks: the grid must be a multiple of it and a cluster at most 16 blocks");
  return true;
}

void set_memory_of_blocks(Grid& grid) {
  const Kernel& kernel = *grid.kernel;
  grid.shared_bytes = kernel.dynamic_shared_offset + grid.launch.dynamic_shared_bytes;
  if (grid.launch.dynamic_shared_bytes == 0) grid.shared_bytes = kernel.info.static_shared_bytes;
  if (grid.memory->bounds() == AllocationMap::Bounds::kHardware)
    grid.shared_bytes = round_up(grid.shared_bytes, kSharedGranuleBytes);
  grid.reserved_offset = round_up(grid.shared_bytes, kSharedGranuleBytes);
  if (kernel.reserves_shared) grid.shared_bytes = grid.reserved_offset + kReservedSharedBytes;
  grid.local_bytes = (kernel.info.local_bytes + 15u) & ~15u;
}

}  // namespace

Fault run_grid(const Kernel& kernel, AllocationMap& memory, const Launch& launch, unsigned threads,
               Work* work, Progress* progress, const std::atomic<bool>* cancel) {
  static std::atomic<uint64_t> grids{1};
  Grid grid{};
  grid.kernel = &kernel;
  grid.launch = launch;
  grid.memory = &memory;
  grid.cancel = cancel;
  grid.progress = progress;
  grid.id = grids.fetch_add(1, std::memory_order_relaxed);  // only unique numbers matter
  if (!set_shape(grid)) return grid.fault;
  Buffer params;
  params.reserve(kernel.info.param_bytes + 16);
  if (launch.params && kernel.info.param_bytes)
    std::memcpy(params.data(), launch.params, kernel.info.param_bytes);
  grid.params = params.data();
  alignas(64) char workspace[64] = {64};
  grid.workspace = workspace;
  set_memory_of_blocks(grid);

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
