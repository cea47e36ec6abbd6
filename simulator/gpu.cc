#include "simulator/gpu.h"

#include <algorithm>
#include <cmath>

namespace tessera::simulator {
namespace {

constexpr double kEpsilonNs = 0.5;  // virtual progress is real-valued, event times are whole ns
constexpr size_t kMaxGroups = 12;   // finer staggering costs events and changes nothing
constexpr uint64_t kRefillAfterNs = 50'000;

}  // namespace

const char* regime_name(Regime regime) {
  static constexpr const char* kNames[] = {"timesliced", "mps", "mps_priority"};
  return kNames[size_t(regime)];
}

Gpu::Gpu(const GpuSpec& spec, Regime regime, const std::vector<uint32_t>& client_priorities, Random random)
    : spec_(spec),
      regime_(regime),
      random_(random),
      streams_(client_priorities.size()),
      ready_ns_(client_priorities.size(), UINT64_MAX),
      shares_(client_priorities.size()) {
  for (size_t i = 0; i < streams_.size(); ++i) streams_[i].priority = client_priorities[i];
}

double Gpu::clock(uint64_t now_ns) const {
  return now_ns >= spec_.slow_from_ns && now_ns < spec_.slow_to_ns ? spec_.slow_factor : 1;
}

void Gpu::submit(const GpuWork& op) {
  Stream& s = streams_[op.client];
  s.queue.push_back(op);
  if (s.queue.size() == 1) set_ready(op.client);
}

void Gpu::set_ready(uint32_t client) {
  const Stream& s = streams_[client];
  ready_ns_[client] = UINT64_MAX;
  if (s.running || s.queue.empty()) return;
  const GpuWork& op = s.queue.front();
  if (op.gated && !passes(s)) return;
  const uint64_t reached_ns = std::max(op.available_ns, s.last_end_ns + spec_.kernel_gap_ns) + op.gap_ns;
  ready_ns_[client] = op.gated ? std::max(reached_ns, s.opens_ns) : reached_ns;
}

void Gpu::open_gate(uint32_t client, uint64_t at_ns, uint32_t longest_class) {
  streams_[client].longest_class = longest_class;
  streams_[client].opens_ns = at_ns;
  streams_[client].passes = kAlwaysOpen;
  set_ready(client);
}

void Gpu::close_gate(uint32_t client) {
  streams_[client].passes = 0;
  set_ready(client);
}

void Gpu::add_pass(uint32_t client, uint64_t at_ns) {
  Stream& s = streams_[client];
  if (s.passes == kAlwaysOpen) return;
  if (s.passes == 0) s.opens_ns = at_ns;
  ++s.passes;
  set_ready(client);
}

void Gpu::retreat(uint32_t client) {
  Stream& s = streams_[client];
  if (!s.running || !s.queue.front().yields) return;
  if (s.bulk) leave_bulk(s);
  s.withdrawn += s.pending;
  s.pending = 0;
  changed_ = true;
  // Nothing resident: completes at the next advance, through an end that has passed already.
  if (s.groups.empty()) add_group(s, {s.v, 0});
}

void Gpu::meet(uint32_t client) {
  streams_[client].awaits_peers = false;
  changed_ = true;
}

void Gpu::drop_queue(uint32_t client) {
  Stream& s = streams_[client];
  if (waits_for_peers(client)) meet(client);
  while (s.queue.size() > (s.running ? 1u : 0u)) s.queue.pop_back();
  if (!s.running) ready_ns_[client] = UINT64_MAX;
}

Gpu::Head Gpu::head_of(const GpuWork& op) const {
  const Kernel& kernel = op.kernel;
  const uint32_t sms = op.sm_limit == 0 ? spec_.sm_count : std::min(op.sm_limit, spec_.sm_count);
  const uint32_t wave = kernel.wave_blocks(sms);
  const auto block_ns = double(kernel.block_ns);
  return {.sms = sms,
          .wave = op.workers == 0 ? wave : std::min(op.workers, wave),
          .confined = op.sm_limit != 0 && !op.lowest,
          .full_speed = kernel.occupancy_knee >= 1,
          .resource_class = kernel.resource_class,
          .sms_per_block = kernel.sms_per_block,
          .block_ns = block_ns,
          .work_per_block = block_ns / kernel.wave_blocks(spec_.sm_count) * op.work_scale};
}

// GpuSpec::lends: how wide the client's kernel may be now.
void Gpu::lend(uint32_t client) {
  Stream& s = streams_[client];
  const bool all_idle = std::all_of(streams_.begin(), streams_.end(),
                                    [&](const Stream& other) { return &other == &s || other.queue.empty(); });
  const GpuWork& op = s.queue.front();
  s.head.sms = all_idle || op.sm_limit == 0 ? spec_.sm_count : op.sm_limit;
  s.head.wave = op.kernel.wave_blocks(s.head.sms);
}

// The speed of its blocks, for how many of them run: see Kernel::occupancy_knee.
double Gpu::block_speed(const Stream& s) const {
  const uint32_t resident = s.bulk ? std::min(s.bulk_blocks, s.head.wave) : s.resident;
  // Memory bandwidth is the device's, however few SMs ask for it; an SM's other units are its own.
  const bool of_memory = s.head.resource_class == policy::ResourceClass::kMemory;
  return s.head.full_speed
             ? 1
             : s.queue.front().kernel.block_speed(of_memory ? spec_.sm_count : s.head.sms, resident);
}

uint64_t Gpu::end_ns(const Stream& s) const {
  if (s.rate <= 0 || s.first_end_v == INFINITY) return UINT64_MAX;
  const double left_ns = std::max(0.0, (s.first_end_v - s.v) / s.rate - 1e-3);
  const auto whole_ns = uint64_t(left_ns);
  return last_ns_ + whole_ns + (double(whole_ns) < left_ns);  // std::ceil is a call
}

uint64_t Gpu::next_ns() {
  uint64_t next = UINT64_MAX;
  for (uint64_t ready_ns : ready_ns_) next = std::min(next, ready_ns);
  for (uint32_t c : running_)
    if (in_context(c)) next = std::min(next, end_ns(streams_[c]));
  next = std::max(next, last_ns_);
  auto at = [&](uint64_t t) { next = std::min(next, std::max(t, last_ns_)); };
  if (last_ns_ < spec_.slow_from_ns) at(spec_.slow_from_ns);
  if (last_ns_ < spec_.slow_to_ns) at(spec_.slow_to_ns);
  if (regime_ == Regime::kTimesliced) {
    if (switch_until_ns_ != 0) {
      at(switch_until_ns_);
    } else {
      for (uint32_t c : running_)
        if (c != current_) at(has_work(current_) ? slice_end_ns_ : last_ns_);
    }
  }
  return next;
}

void Gpu::progress(uint64_t now_ns) {
  double elapsed = double(now_ns - last_ns_);
  if (elapsed > 0)
    for (uint32_t c : running_)
      if (in_context(c)) streams_[c].v += streams_[c].rate * elapsed;
  if (spec_.slow_to_ns != 0 && clock(now_ns) != clock(last_ns_)) changed_ = true;
  last_ns_ = now_ns;
}

void Gpu::advance(uint64_t now_ns, std::vector<Completion>* done) {
  progress(now_ns);
  complete_groups(now_ns, done);
  activate(now_ns);
  if (regime_ == Regime::kTimesliced) slice_time(now_ns);
  if (!changed_) return;
  changed_ = false;
  place_blocks();
  set_rates();
}

// Groups that have ended give up their places.
void Gpu::end_groups(Stream& s) {
  const double until_v = s.v + kEpsilonNs;
  double first_end_v = INFINITY;
  size_t n = s.groups.size();
  for (size_t g = 0; g < n;) {
    Group& group = s.groups[g];
    if (until_v < group.end_v) {
      first_end_v = std::min(first_end_v, group.end_v);
      ++g;
      continue;
    }
    s.resident -= group.blocks;
    s.work_ns += s.head.work_per_block * group.blocks;
    group = s.groups[--n];
    changed_ = true;
    ++n_events_;
  }
  s.groups.resize(n);
  s.first_end_v = first_end_v;
}

void Gpu::complete_groups(uint64_t now_ns, std::vector<Completion>* done) {
  for (size_t i = 0; i < running_.size();) {
    uint32_t client = running_[i];
    Stream& s = streams_[client];
    if (s.v + kEpsilonNs < s.first_end_v) {
      ++i;
      continue;
    }
    if (s.bulk) {
      s.work_ns += s.head.work_per_block * s.bulk_blocks;
      s.pending = s.resident = 0;
    } else {
      end_groups(s);
    }
    const bool ended = s.pending == 0 && s.groups.empty();
    if (!ended) {
      ++i;
      continue;
    }
    done->push_back({client, s.queue.front().id, s.withdrawn});
    ++n_events_;
    changed_ = true;
    s.running = s.bulk = false;
    s.last_end_ns = now_ns;
    s.queue.pop_front();
    set_ready(client);
    running_.erase(running_.begin() + long(i));
  }
}

void Gpu::activate(uint64_t now_ns) {
  for (uint32_t c = 0; c < streams_.size(); ++c) {
    if (ready_ns_[c] > now_ns) continue;
    Stream& s = streams_[c];
    if (last_client_ != c && last_client_ != UINT32_MAX && spec_.refill_ns != 0 &&
        s.last_end_ns + kRefillAfterNs < now_ns) {
      // Others used the GPU since: this client's data left the caches. Paid once, at the first kernel.
      last_client_ = c;
      ready_ns_[c] = now_ns + spec_.refill_ns;
      s.last_end_ns = now_ns + spec_.refill_ns;
      continue;
    }
    last_client_ = c;
    ready_ns_[c] = UINT64_MAX;
    const GpuWork& op = s.queue.front();
    if (op.gated && s.passes != kAlwaysOpen) --s.passes;
    s.head = head_of(op);
    s.running = true;
    s.awaits_peers = op.meets;
    s.order = next_order_++;
    s.in_line = regime_ == Regime::kMps && !spec_.partitions && random_.uniform() < spec_.in_line_share;
    s.v = 0;
    s.pending = s.queue.front().n_blocks;
    s.resident = s.withdrawn = 0;
    s.groups.clear();
    s.first_end_v = INFINITY;
    s.blocks_started += s.pending;
    auto before = [&](uint32_t a, uint32_t b) {
      const Stream &x = streams_[a], &y = streams_[b];
      if (regime_ == Regime::kMpsPriority && x.priority != y.priority) return x.priority > y.priority;
      return x.order < y.order;
    };
    running_.insert(std::upper_bound(running_.begin(), running_.end(), c, before), c);
    changed_ = true;
    ++n_events_;
  }
}

uint64_t Gpu::change_ns() const {
  return contended_ ? spec_.switch_ns : spec_.idle_switch_ns;
}

void Gpu::slice_time(uint64_t now_ns) {
  if (switch_until_ns_ != 0) {
    if (now_ns < switch_until_ns_) return;
    switch_until_ns_ = 0;
    current_ = next_context_;
    contended_ = false;
    slice_end_ns_ = now_ns + spec_.timeslice_ns;
    changed_ = true;
  }
  const bool others =
      std::any_of(running_.begin(), running_.end(), [&](uint32_t c) { return c != current_; });
  contended_ |= others && has_work(current_);
  const auto most = [&](uint32_t least) {
    return std::any_of(running_.begin(), running_.end(),
                       [&](uint32_t c) { return c != current_ && streams_[c].priority >= least; });
  };
  const bool ranked = spec_.context_priorities;
  const uint32_t own = streams_[current_].priority;
  if (has_work(current_) && !(ranked && most(own + 1))) {
    if (now_ns < slice_end_ns_) return;
    if (ranked && !most(own)) {
      slice_end_ns_ = now_ns + spec_.timeslice_ns;
      return;
    }
  }
  const uint32_t n = uint32_t(streams_.size());
  for (uint32_t step = 1; step < n; ++step) {
    uint32_t c = (current_ + step) % n;
    if (!streams_[c].running || (ranked && most(streams_[c].priority + 1))) continue;
    next_context_ = c;
    switch_until_ns_ = now_ns + std::max<uint64_t>(1, change_ns());
    changed_ = true;
    ++n_events_;
    return;
  }
  slice_end_ns_ = now_ns + spec_.timeslice_ns;
}

// At most kMaxGroups: what comes on top joins the one that ends nearest, which ends at the blocks' mean then.
void Gpu::add_group(Stream& s, const Group& added) {
  if (s.groups.size() < kMaxGroups) {
    s.groups.push_back(added);
    s.first_end_v = std::min(s.first_end_v, added.end_v);
    return;
  }
  Group* nearest = nullptr;
  double least = INFINITY;
  for (Group& g : s.groups) {
    const double distance = std::abs(g.end_v - added.end_v);
    nearest = distance < least ? &g : nearest;
    least = std::min(least, distance);
  }
  const bool was_first = nearest->end_v == s.first_end_v;
  const double sum = double(nearest->blocks) + double(added.blocks);
  nearest->end_v = (nearest->end_v * double(nearest->blocks) + added.end_v * double(added.blocks)) / sum;
  nearest->blocks += added.blocks;
  nearest->confined_sms += added.confined_sms;
  s.first_end_v = std::min(s.first_end_v, nearest->end_v);
  if (!was_first) return;
  s.first_end_v = INFINITY;  // it ends later now: another may be the first
  for (const Group& g : s.groups) s.first_end_v = std::min(s.first_end_v, g.end_v);
}

void Gpu::place(Stream& s, uint32_t n) {
  const double sms = n * s.head.sms_per_block;
  uint32_t pieces = uint32_t(std::clamp<size_t>(kMaxGroups - std::min(kMaxGroups, s.groups.size()), 1, 4));
  pieces = std::min(pieces, n);
  // The only wave of a kernel lasts exactly one block time; blocks of many waves drift apart.
  const bool one_wave = s.queue.front().n_blocks <= s.head.wave;
  double confined_sms = 0;  // of all n
  if (confined_sms_ != 0) {
    const double outside = double(spec_.sm_count - confined_sms_) - taken_outside();
    confined_sms = s.head.confined ? sms : std::max(0.0, sms - std::max(0.0, outside));
  }
  for (uint32_t i = 0; i < pieces; ++i) {
    uint32_t blocks = n / pieces + (i < n % pieces ? 1 : 0);
    double spread = one_wave ? -2 * (i + (i == 0 ? 0 : random_.uniform())) / pieces
                             : (2 * (i + random_.uniform()) / pieces - 1);
    add_group(s,
              {s.v + s.head.block_ns * (1 + spec_.block_jitter * spread), blocks, confined_sms * blocks / n});
  }
  s.resident += n;
  s.pending -= n;
}

double Gpu::fill(uint32_t client) const {
  const Stream& s = streams_[client];
  if (!s.running) return 0;
  const uint32_t blocks = s.bulk ? s.bulk_blocks : s.resident;
  return std::min(double(s.head.sms), blocks * s.head.sms_per_block) / spec_.sm_count;
}

void Gpu::find_confined() {
  confined_sms_ = 0;
  for (uint32_t c : running_) {
    const Head& head = streams_[c].head;
    if (head.confined) confined_sms_ = std::max(confined_sms_, head.sms);
  }
}

// SMs that confined work may not use, and that are taken.
double Gpu::taken_outside() const {
  double taken = 0;
  for (uint32_t c : running_) {
    const Stream& s = streams_[c];
    if (s.head.confined) continue;
    taken += s.resident * s.head.sms_per_block;
    for (const Group& g : s.groups) taken -= g.confined_sms;
  }
  return taken;
}

// Free SMs among those that the kernel may use. Limits are nested: a kernel with a larger one is taken to
// stand beside the SMs of the smaller one first.
double Gpu::room_for(const Stream& s) const {
  const double limit = s.head.sms;
  double taken = 0;
  for (uint32_t c : running_) {
    const Stream& other = streams_[c];
    const Head& head = other.head;
    if (head.confined) {
      taken += std::max(0.0, other.resident * head.sms_per_block - std::max(0.0, head.sms - limit));
      continue;
    }
    double inside = 0;
    for (const Group& g : other.groups) inside += g.confined_sms;
    taken += inside * std::min(1.0, limit / confined_sms_);
  }
  return limit - taken;
}

void Gpu::leave_bulk(Stream& s) {
  const double block_ns = s.head.block_ns;
  const uint32_t wave = s.head.wave;
  // A kernel that was alone stands on all SMs alike.
  const bool disjoint = s.queue.front().lowest && !spec_.lends;  // from confined work
  const double confined = s.head.confined ? 1 : disjoint ? 0 : double(confined_sms_) / spec_.sm_count;
  const double waves = s.v / block_ns;
  const bool drifted = waves >= 2;  // the first waves start together
  double done = drifted ? (waves - 0.5) * wave : std::floor(waves) * wave;
  const uint32_t n_done = uint32_t(std::min(done, double(s.bulk_blocks)));
  const uint32_t left = s.bulk_blocks - n_done;
  s.work_ns += s.head.work_per_block * n_done;
  s.bulk = false;
  s.first_end_v = INFINITY;
  s.resident = std::min(left, wave);
  s.pending = left - s.resident;
  const uint32_t pieces = std::clamp(s.resident, 1u, drifted ? 8u : 4u);
  for (uint32_t i = 0; i < pieces && s.resident > 0; ++i) {
    uint32_t blocks = s.resident / pieces + (i < s.resident % pieces ? 1 : 0);
    double residual = drifted ? (i + random_.uniform()) / pieces : std::ceil(waves + 1e-9) - waves;
    add_group(s, {s.v + block_ns * residual, blocks, confined * blocks * s.head.sms_per_block});
  }
  if (s.groups.empty()) add_group(s, {s.v, 0});
}

void Gpu::place_blocks() {
  auto fresh = [](const Stream& s) {
    return !s.bulk && s.resident == 0 && s.groups.empty() && s.pending > 0;
  };
  const bool alone = regime_ == Regime::kTimesliced || running_.size() == 1;
  find_confined();
  double used = 0;
  for (uint32_t c : running_) {
    Stream& s = streams_[c];
    if (spec_.lends && !s.bulk) lend(c);
    if (alone && fresh(s)) {
      s.bulk = true;
      s.bulk_blocks = s.pending;
      s.v = 0;
      s.pending = 0;
      const uint32_t wave = s.head.wave;
      const uint64_t waves = (s.bulk_blocks + wave - 1) / wave;
      s.first_end_v = double(waves * s.queue.front().kernel.block_ns);
    }
    if (!alone && s.bulk) {
      leave_bulk(s);
      if (spec_.lends) lend(c);
    }
    used += s.resident * s.head.sms_per_block;
  }
  uint32_t waiting = 0;
  for (uint32_t c : running_) waiting += streams_[c].pending > 0;
  bool all_placed = true;  // of the kernels before, which became ready earlier
  for (uint32_t c : running_) {
    Stream& s = streams_[c];
    if (s.bulk || s.pending == 0) continue;
    if (s.in_line && !all_placed) continue;
    const double sms = s.head.sms_per_block;
    // Without priorities kernels with blocks to place share the room; with them, the first takes what it
    // needs and the hardware does not look past a kernel that has blocks left, unless it is confined.
    const bool share = regime_ == Regime::kMps && waiting > 1 && !s.in_line && !spec_.partitions;
    const bool confined = s.head.confined;
    // Blocks beyond the workers are a loop of theirs, not a queue of the hardware.
    const bool queues = s.queue.front().workers == 0;
    double room = spec_.sm_count - used;
    if (confined && s.head.sms < spec_.sm_count) room = std::min(room, room_for(s));
    room = std::max(0.0, room) / (share ? waiting : 1);
    const uint32_t wanted = std::min(s.pending, s.head.wave - std::min(s.head.wave, s.resident));
    const uint32_t n = uint32_t(std::min(double(wanted), room / sms + 1e-6));
    if (n > 0) place(s, n);
    used += n * sms;
    --waiting;
    all_placed &= s.pending == 0 || !queues;
    if (s.pending > 0 && queues && regime_ == Regime::kMpsPriority && !confined) break;
  }
}

// Part of the stream's resident blocks that stand beside the SMs of confined work. Limits are nested, so confined
// work has its SMs in common with all other confined work.
double Gpu::outside_confined(const Stream& s) const {
  if (confined_sms_ == 0 || s.head.confined || s.resident == 0) return 0;
  double inside = 0;
  for (const Group& g : s.groups) inside += g.confined_sms;
  return std::clamp(1 - inside / (s.resident * s.head.sms_per_block), 0.0, 1.0);
}

// Returns what `own` suffers from `other`, if that filled the GPU.
double Gpu::contention(const Stream& own, const Stream& other) const {
  const size_t row = size_t(own.head.resource_class), column = size_t(other.head.resource_class);
  const double shared = spec_.contention[row][column], disjoint = spec_.contention_disjoint[row][column];
  if (disjoint < 0 || own.head.confined == other.head.confined) return shared;
  const double outside = outside_confined(own.head.confined ? other : own);
  return shared + (disjoint - shared) * outside;
}

void Gpu::set_rates() {
  const double speed = clock(last_ns_);
  // A kernel that runs faster for being narrow disturbs others the more.
  for (uint32_t c : running_) {
    const Stream& s = streams_[c];
    shares_[c] = s.resident * s.head.sms_per_block / spec_.sm_count * block_speed(s);
  }
  for (uint32_t c : running_) {
    Stream& s = streams_[c];
    double slow = 1;
    if (regime_ != Regime::kTimesliced)
      for (uint32_t other : running_)
        if (other != c && shares_[other] != 0) slow += shares_[other] * contention(s, streams_[other]);
    s.rate = s.awaits_peers ? 0 : speed * block_speed(s) / slow;
  }
}

}  // namespace tessera::simulator
