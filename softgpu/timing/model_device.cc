// The device side of Model: which context is resident, which blocks sit where, how fast they run.
#include <algorithm>
#include <utility>

#include "softgpu/timing/model_state.h"

namespace tessera::softgpu::timing {

// ---- time slices

Model::Space* Model::next_busy() const {
  size_t n = spaces_.size(), at = 0;
  for (size_t i = 0; i < n; ++i)
    if (spaces_[i].get() == active_) at = i + 1;
  for (size_t i = 0; i < n; ++i) {
    Space* space = spaces_[(at + i) % n].get();
    if (space != active_ && space->busy()) return space;
  }
  return nullptr;
}

void Model::switch_to(Space* space) {
  bool from_nothing = active_ == nullptr;
  active_ = space;
  switching_until_ = from_nothing ? now_ : now_ + gpu_.time.switch_ns;
}

void Model::schedule_spaces() {
  if (mode_ == Mode::kMps) return;
  if (switching_until_ >= 0) {
    if (now_ < switching_until_) return;
    switching_until_ = -1;
    slice_end_ = now_ + gpu_.time.timeslice_ns;
  }
  Space* other = next_busy();
  if (!other) return;
  if (active_ && active_->busy()) {
    // Alone, slices follow one another unnoticed: move slice_end_ to the end of the present one.
    if (now_ > slice_end_) {
      double behind = std::floor((now_ - slice_end_) / gpu_.time.timeslice_ns) + 1;
      slice_end_ += behind * gpu_.time.timeslice_ns;
    }
    if (now_ < slice_end_) return;
  }
  switch_to(other);
  if (now_ >= switching_until_) schedule_spaces();
}

// ---- blocks on SMs

void Model::set_work(Op* op, const BlockWork& work) {
  double issue = gpu_.issue_per_s() / 1e9, tensor = gpu_.tensor_per_s() / 1e9;  // per ns, one SM
  double warp = gpu_.sm.clock_hz * gpu_.sm.warp_issue_per_clock / 1e9;          // one warp
  double dram = gpu_.memory.bytes_per_s / 1e9, sm_memory = gpu_.sm.clock_hz * gpu_.sm.bytes_per_clock / 1e9;
  double old_device_ns = op->device_ns;
  bool was_known = std::exchange(op->known, true);

  // A pipe that is slower than the issue slots keeps them waiting.
  const auto busy_ns = [&](double operations, double per_s) {
    return per_s > 0 ? operations * gpu_.sm.count / per_s * 1e9 : 0;
  };
  const double pipes_ns =
      std::max(busy_ns(work.fp64_operations, gpu_.peak.fp64), busy_ns(work.fp16_operations, gpu_.peak.fp16));

  op->issue_ns = std::max(work.warp_instructions / issue, pipes_ns) + gpu_.time.block_overhead_ns;
  op->tensor_ns = work.tensor_operations / tensor;
  op->bytes = work.global_bytes;
  double alone_issue = std::max(work.warp_instructions / std::min(issue, warp * op->threads / 32), pipes_ns) +
                       gpu_.time.block_overhead_ns;
  op->alone_ns = std::max({1.0, alone_issue, op->tensor_ns, op->bytes / std::min(dram, sm_memory)});
  double sms = op->sm_end - op->sm_begin;
  op->device_ns = std::max({std::max(op->issue_ns, op->tensor_ns) / sms, op->bytes / dram,
                            op->bytes / (sm_memory * sms), op->alone_ns / (sms * op->per_sm)});

  Space& space = *op->client->space;
  space.dirty = true;
  if (!was_known) {
    if (op->running == 0) return;
    // Blocks that waited for their cost have run meanwhile: credit the time they sat there, at the rate they
    // get now.
    compute_rates(space);
    for (Group& group : space.groups) {
      if (group.op != op) continue;
      double needed = group.rate > 0 ? group.left / group.rate : group.stalled;
      op->stall = std::max(op->stall, group.stalled - needed);
      group.left = std::max(0.0, group.left - group.rate * group.stalled);
    }
    space.dirty = true;
    return;
  }
  // Work already done was measured with the old yardstick; what it fell short of (or did too much) is owed by
  // the rest.
  double scale = old_device_ns / op->device_ns;
  op->debt = (op->debt - double(op->finished)) * scale + double(op->finished);
  for (Group& group : space.groups)
    if (group.op == op) group.left = std::max(0.0, 1 - (1 - group.left) * scale);
  if (op->pending == 0 && op->running > 0) {
    for (Group& group : space.groups)
      if (group.op == op) group.left = std::max(0.0, group.left + op->debt / double(op->running));
    op->debt = 0;
  }
}

void Model::release(Space& space, const Group& group) {
  if (group.sm < 0) return;
  Sm& sm = space.sms[size_t(group.sm)];
  sm.threads -= group.n * group.op->threads;
  sm.registers -= group.n * group.op->registers;
  sm.shared_bytes -= group.n * group.op->shared_bytes;
  sm.blocks -= group.n;
}

// Ends every group that is through. With many groups out of step, those of a kernel that are within kSnap of
// their end leave with it and the kernel's next blocks do the rest: keeps big devices cheap, the total exact.
void Model::retire(Space& space) {
  constexpr double kSnap = 0.03, kZero = 1e-9;
  constexpr size_t kManyGroups = 64;
  bool many = space.groups.size() > kManyGroups;
  std::vector<Op*> over;
  size_t kept = 0;
  for (Group& group : space.groups) {
    Op* op = group.op;
    bool through = op->known && (group.left <= kZero || (group.rate > 0 && group.left / group.rate < 0.5));
    bool snapped = !through && many && op->known && op->pending > op->running && group.left < kSnap;
    if (!through && !snapped) {
      space.groups[kept++] = group;
      continue;
    }
    if (snapped) op->debt += group.left * group.n;
    release(space, group);
    op->running -= group.n;
    op->finished += group.n;
    if (op->running == 0 && op->pending == 0) over.push_back(op);
  }
  space.dirty |= kept != space.groups.size();
  space.groups.resize(kept);
  for (Op* op : over) end_model(op);
}

// Puts as many pending blocks of `op` as fit on the SMs, evenly; returns how many.
uint64_t Model::place(Space& space, Op* op) {
  thread_local std::vector<uint32_t> fit;
  fit.assign(space.sms.size(), 0);
  uint64_t room = 0;
  uint32_t most = 0;
  for (size_t i = op->sm_begin; i < op->sm_end; ++i) {
    const Sm& sm = space.sms[i];
    uint32_t n = std::min(gpu_.sm.max_blocks - sm.blocks, (gpu_.sm.max_threads - sm.threads) / op->threads);
    if (op->registers) n = std::min(n, (gpu_.sm.registers - sm.registers) / op->registers);
    if (op->shared_bytes) n = std::min(n, (gpu_.sm.shared_bytes - sm.shared_bytes) / op->shared_bytes);
    fit[i] = n;
    room += n;
    most = std::max(most, sm.blocks + n);
  }
  if (room == 0) return 0;
  bool fits_together = op->spec.n_blocks <= uint64_t(op->per_sm) * (op->sm_end - op->sm_begin);
  if (op->spec.cooperative && fits_together && room < op->pending) return 0;

  // Breadth first: the lowest level of resident blocks per SM that takes all of them.
  uint64_t want = std::min(room, op->pending);
  uint32_t level = most;
  auto taken = [&](uint32_t l) {
    uint64_t sum = 0;
    for (size_t i = 0; i < fit.size(); ++i)
      sum += l > space.sms[i].blocks ? std::min(fit[i], l - space.sms[i].blocks) : 0;
    return sum;
  };
  if (want < room)
    for (level = 1; taken(level) < want;) ++level;
  uint64_t surplus =
      taken(level) - want;  // blocks of the top layer that are not there: taken off the last SMs
  double share = op->debt / double(want);
  double left = std::max(0.0, 1 + share);
  op->debt -= (left - 1) * double(want);
  if (std::abs(op->debt) < 1e-9) op->debt = 0;
  for (size_t i = fit.size(); i-- > 0;) {
    Sm& sm = space.sms[i];
    uint32_t n = level > sm.blocks ? std::min(fit[i], level - sm.blocks) : 0;
    if (n > 0 && surplus > 0 && sm.blocks + n == level) {
      --n;
      --surplus;
    }
    if (n == 0) continue;
    sm.blocks += n;
    sm.threads += n * op->threads;
    sm.registers += n * op->registers;
    sm.shared_bytes += n * op->shared_bytes;
    space.groups.push_back({op, int(i), n, left});
  }
  return want;
}

void Model::dispatch(Space& space) {
  // SMs that an earlier kernel still waits for: later ones of the same SMs wait until it is placed.
  uint32_t held_begin = gpu_.sm.count, held_end = 0;
  for (size_t i = 0; i < space.ready.size();) {
    Op* op = space.ready[i];
    const bool held = op->sm_begin < held_end && held_begin < op->sm_end;
    uint64_t placed = held ? 0 : place(space, op);
    if (placed > 0) {
      if (!std::exchange(op->started, true)) op->start = now_;
      op->pending -= placed;
      op->running += placed;
      space.dirty = true;
    }
    if (op->pending == 0) {
      space.ready.erase(space.ready.begin() + ptrdiff_t(i));
      continue;
    }
    held_begin = std::min(held_begin, op->sm_begin);
    held_end = std::max(held_end, op->sm_end);
    if (held_begin == 0 && held_end == gpu_.sm.count) return;
    ++i;
  }
}

// ---- rates

namespace {

// Members of one shared resource: what each would take, what it is entitled to, and the rate it gets.
struct Share {
  double demand;  // resource per ns at full rate
  double weight;
  double granted;
};

// Weighted max-min fairness: nobody gets more than it asks, what is left goes to the others by weight.
void grant(std::vector<Share>& shares, double capacity) {
  double wanted = 0, weight = 0;
  for (Share& s : shares) {
    s.granted = s.demand;
    wanted += s.demand;
  }
  if (wanted <= capacity) return;
  std::vector<Share*> open;
  for (Share& s : shares) {
    open.push_back(&s);
    weight += s.weight;
  }
  for (bool changed = true; changed && !open.empty();) {
    changed = false;
    double level = std::max(0.0, capacity) / weight;
    for (size_t i = 0; i < open.size();) {
      Share* s = open[i];
      if (s->demand > level * s->weight) {
        ++i;
        continue;
      }
      capacity -= s->demand;
      weight -= s->weight;
      open[i] = open.back();
      open.pop_back();
      changed = true;
    }
  }
  for (Share* s : open) s->granted = std::max(0.0, capacity) * s->weight / weight;
}

}  // namespace

// Three resources: issue slots and tensor units of each SM, memory of the device. Each round limits a group
// by one resource given what the other two leave it, so that what a memory-bound kernel cannot use goes to
// its neighbour; the last round only reduces, so no resource is ever oversubscribed.
void Model::compute_rates(Space& space) {
  space.dirty = false;
  struct Limits {
    double cap, by[3];
  };
  std::vector<Limits> limits(space.groups.size());
  std::vector<std::vector<size_t>> members(space.sms.size());
  std::vector<size_t> all;
  double sm_memory = gpu_.sm.clock_hz * gpu_.sm.bytes_per_clock / 1e9, dram = gpu_.memory.bytes_per_s / 1e9;
  const Op* only = nullptr;
  bool mixed = false;
  for (size_t i = 0; i < space.groups.size(); ++i) {
    Group& g = space.groups[i];
    g.rate = 0;
    if (!g.op->known) continue;
    double time = g.sm < 0 ? g.op->alone_ns : std::max(g.op->alone_ns, g.n * g.op->bytes / sm_memory);
    limits[i] = {1 / time, {kNever, kNever, kNever}};
    all.push_back(i);
    if (g.sm >= 0) members[size_t(g.sm)].push_back(i);
    mixed |= only && only != g.op;
    only = g.op;
  }

  std::vector<Share> shares;
  auto limit = [&](const std::vector<size_t>& groups, int resource, double capacity,
                   double (*cost)(const Op&)) {
    shares.clear();
    for (size_t i : groups) {
      const Group& g = space.groups[i];
      Limits& l = limits[i];
      l.by[resource] = kNever;
      double rate = std::min({l.cap, l.by[0], l.by[1], l.by[2]});
      double weight = g.sm < 0 ? 8.0 * gpu_.sm.count : double(g.n) * g.op->threads / 32;
      shares.push_back({rate * g.n * cost(*g.op), weight, 0});
    }
    grant(shares, capacity);
    for (size_t k = 0; k < groups.size(); ++k) {
      const Group& g = space.groups[groups[k]];
      if (shares[k].granted < shares[k].demand)
        limits[groups[k]].by[resource] = shares[k].granted / (g.n * cost(*g.op));
    }
  };
  auto round = [&] {
    for (const auto& sm : members) {
      if (sm.empty()) continue;
      limit(sm, 0, 1.0, [](const Op& op) { return op.issue_ns; });
      limit(sm, 1, 1.0, [](const Op& op) { return op.tensor_ns; });
    }
    limit(all, 2, dram, [](const Op& op) { return op.bytes; });
  };
  auto fold = [&] {
    for (size_t i : all) {
      Limits& l = limits[i];
      l = {std::min({l.cap, l.by[0], l.by[1], l.by[2]}), {kNever, kNever, kNever}};
    }
  };
  round();
  if (mixed) {
    round();
    round();
    fold();
    round();
  }
  fold();
  for (size_t i : all) space.groups[i].rate = limits[i].cap;
}

}  // namespace tessera::softgpu::timing
