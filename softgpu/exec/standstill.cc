#include "softgpu/exec/standstill.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "softgpu/exec/access.h"
#include "softgpu/exec/core.h"
#include "softgpu/exec/surface.h"

namespace tessera::softgpu::exec {
namespace {

// A pass is up to 20,000 issue slots of every warp. Blocks that merely take long are looked at ever more rarely.
constexpr uint64_t kFirstLook = 4, kRarestLook = 4096;
// Passes after which a loop may be where it began: groups of lanes that take turns, back-off that doubles.
constexpr unsigned kLongestCycle = 8;
// A still grid waits for the host. It need not burn a processor for that.
constexpr auto kStillPause = std::chrono::microseconds(200);
constexpr uint64_t kRarestQuestion = 1000;  // cycles
constexpr uint64_t kLargestCompared = 1 << 16;

class Digest {
 public:
  void add(uint64_t x) {
    state_ = (std::rotl(state_, 23) ^ x) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 29;
  }
  void add(const void* from, size_t bytes) {
    const char* p = static_cast<const char*>(from);
    for (; bytes >= 8; p += 8, bytes -= 8) {
      uint64_t x;
      std::memcpy(&x, p, 8);
      add(x);
    }
    uint64_t rest = 0;
    if (bytes != 0) std::memcpy(&rest, p, bytes);  // nothing may be nowhere
    add(rest);
  }
  void add(const void* pointer) { add(reinterpret_cast<uint64_t>(pointer)); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x2545f4914f6cdd1d;
};

void digest(Digest& d, const Warp& w) {
  d.add(w.live);
  d.add(w.carry);
  d.add(w.rotate);
  d.add(w.async_pending);
  for (uint32_t i = 0; i < w.n_groups; ++i) {
    const Group& g = w.groups[i];
    d.add(g.pc);
    d.add(uint64_t{g.mask} << 32 | static_cast<uint64_t>(g.state) << 8 | g.barrier);
    uint64_t earlier = 0;  // the one that ran least recently goes first
    for (uint32_t k = 0; k < w.n_groups; ++k) earlier += w.groups[k].stamp < g.stamp;
    d.add(earlier);
    for (const Frame* f = g.frame; f; f = f->parent) {
      d.add(f->code);
      d.add(f->resume);
      d.add(uint64_t{f->lanes} << 32 | f->depth);
      d.add(uint64_t{f->reg_base} << 32 | f->local_base);
    }
  }
}

uint64_t state_of(const std::vector<std::unique_ptr<Cluster>>& active) {
  Digest d;
  for (const auto& cluster : active)
    for (const auto& b : cluster->blocks) {
      const Grid& grid = *b->grid;
      d.add(uint64_t{b->ready} << 32 | b->live_warps);
      d.add(b->cluster_arrived, sizeof b->cluster_arrived);
      d.add(b->barriers, sizeof b->barriers);
      d.add(b->registers.data(), b->register_stride * grid.n_warps);
      d.add(b->shared.data(), grid.shared_bytes);
      d.add(b->local.data(), size_t{grid.local_bytes} * kLanes * grid.n_warps);
      for (const Warp& w : b->warps) digest(d, w);
    }
  return d.value();
}

}  // namespace

void Audit::note_write(uint64_t begin, uint64_t end) {
  if (end - begin > kLargestCompared) {
    changed = true;
  } else if (!changed) {
    const char* p = reinterpret_cast<const char*>(begin);
    writes.push_back({begin, {p, p + (end - begin)}});
  }
}

void Audit::note_access(Warp& w, uint64_t address, uint64_t allocation) {
  allocations.insert(allocation);
  if (!reader) reader = &w, read_op = op, read_address = address;
}

const Op* Audit::run(Warp& w, const Op* next) {
  op = next;
  // Time goes on by itself; printf, malloc and stores to surfaces have effects that are not seen here.
  const bool builtin =
      op->fn == op_call && w.frame->code->calls[static_cast<size_t>(op->imm)].builtin != Builtin::kNone;
  const bool surface = op->fn == op_surface && op->sub & kSurfaceStore;
  changed |= builtin || op->fn == op_clock || surface;
  next = op->fn(w, op);
  for (const Write& write : writes)
    changed |= std::memcmp(reinterpret_cast<const void*>(write.begin), write.before.data(),
                           write.before.size()) != 0;
  writes.clear();
  return next;
}

StandstillWatch::StandstillWatch(Worker& worker)
    : worker_(worker), grid_(*worker.grid), next_look_(kFirstLook) {}

StandstillWatch::~StandstillWatch() {
  leave();
  std::lock_guard lock(grid_.standstill.mutex);
  --grid_.standstill.workers;
  ++grid_.standstill.epoch;
}

void StandstillWatch::leave() {
  worker_.audit = nullptr;
  audit_ = {};
  phase_ = Phase::kQuiet;
  quiet_passes_ = 0;
  if (!joined_) return;
  joined_ = false;
  Standstill& s = grid_.standstill;
  std::lock_guard lock(s.mutex);
  --s.still;
  s.confirmed = 0;
  s.nobody_writes = false;
  ++s.epoch;
  s.allocations.clear();
}

void StandstillWatch::moved() {
  leave();
  next_look_ = kFirstLook;
}

bool StandstillWatch::join_or_confirm() {
  Standstill& s = grid_.standstill;
  s.allocations.insert(audit_.allocations.begin(), audit_.allocations.end());
  if (!joined_) {
    joined_ = true;
    ++s.still;
    s.confirmed = 0;
    ++s.epoch;
  } else if (cycle_epoch_ == s.epoch && s.still == s.workers && !confirmed_) {
    confirmed_ = true;
    ++s.confirmed;
  }
  if (cycle_epoch_ != s.epoch) confirmed_ = false;
  cycle_epoch_ = s.epoch;
  return s.still == s.workers && s.confirmed == s.workers;
}

void StandstillWatch::after_pass(const std::vector<std::unique_ptr<Cluster>>& active,
                                 uint64_t waiting_blocks) {
  if (phase_ == Phase::kQuiet) {
    if (++quiet_passes_ < next_look_) return;
    phase_ = Phase::kLooking;
    state_ = state_of(active);
    cycle_passes_ = 0;
    return;
  }
  const bool back = !audit_.changed && state_of(active) == state_;
  if (audit_.changed || (!back && ++cycle_passes_ >= kLongestCycle)) {
    leave();
    next_look_ = std::min(next_look_ * 2, kRarestLook);
  }
  if (!back) return;
  if (phase_ == Phase::kLooking) {
    phase_ = Phase::kAuditing;
    worker_.audit = &audit_;
    std::fill(std::begin(worker_.memory.ranges), std::end(worker_.memory.ranges), CachedRange{});
    cycle_passes_ = 0;
    return;
  }
  cycle_passes_ = 0;
  {
    std::lock_guard lock(grid_.standstill.mutex);
    if (join_or_confirm()) question(active, waiting_blocks);
  }
  std::this_thread::sleep_for(kStillPause);
}

void StandstillWatch::question(const std::vector<std::unique_ptr<Cluster>>& active, uint64_t waiting_blocks) {
  Standstill& s = grid_.standstill;
  if (s.cycles++ < s.next_question) return;
  s.next_question = s.cycles + std::min(s.cycles, kRarestQuestion);
  Warp* w = &active[0]->blocks[0]->warps[0];
  const Op* op = grid_.kernel->codes[0]->ops.data();
  std::string text = "the grid polls, and nothing in it changes what it reads";
  if (audit_.reader) {
    w = audit_.reader, op = audit_.read_op;
    text += ": here " + hex(audit_.read_address);
    if (s.allocations.size() > 1)
      text += ", in all of " + std::to_string(s.allocations.size()) + " allocations";
  } else {
    text += ": shared memory only";
  }
  if (waiting_blocks) text += "; " + std::to_string(waiting_blocks) + " blocks wait for room";
  if (grid_.launch.may_be_released) {
    EndlessPoll poll;
    poll.where = fault_at(*w, op, FaultKind::kDeadlock, 0, audit_.read_address, text);
    poll.allocations.assign(s.allocations.begin(), s.allocations.end());
    poll.helpers = s.workers - 1;
    const bool nobody_wrote = std::exchange(s.nobody_writes, !grid_.launch.may_be_released(poll));
    if (!s.nobody_writes) return;
    if (!nobody_wrote) {  // what was written before the answer is read in the next cycle
      s.confirmed = 0;
      ++s.epoch;
      s.next_question = 0;
      return;
    }
  }
  raise(*w, op, FaultKind::kDeadlock, 0, audit_.read_address, std::move(text));
}

}  // namespace tessera::softgpu::exec
