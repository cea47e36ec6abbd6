#include "simulator/gpu.h"

#include <algorithm>
#include <cmath>

namespace tessera::simulator {
namespace {

constexpr double kEpsilon_ns = 0.5;  // virtual progress is real-valued, event times are whole ns
constexpr size_t kMaxGroups = 12;    // finer staggering costs events and changes nothing
constexpr uint64_t kRefillAfter_ns = 50'000;

}  // namespace

const char* regime_name(Regime regime) {
  static constexpr const char* kNames[] = {"timesliced", "mps", "mps_priority"};
  return kNames[size_t(regime)];
}

Gpu::Gpu(const GpuSpec& spec, Regime regime, const std::vector<uint32_t>& client_priorities, Random random)
    : spec_(spec), regime_(regime), random_(random), streams_(client_priorities.size()) {
  for (size_t i = 0; i < streams_.size(); ++i) streams_[i].priority = client_priorities[i];
}

double Gpu::clock(uint64_t now_ns) const {
  return now_ns >= spec_.slow_from_ns && now_ns < spec_.slow_to_ns ? spec_.slow_factor : 1;
}

void Gpu::submit(const Op& op) {
  Stream& s = streams_[op.client];
  s.queue.push_back(op);
  if (!s.has_head) {
    s.has_head = true;
    s.ready_ns = std::max(op.available_ns, s.last_end_ns + spec_.kernel_gap_ns) + op.gap_ns;
  }
}

void Gpu::retreat(uint32_t client) {
  Stream& s = streams_[client];
  if (!s.running || !s.queue.front().yields) return;
  if (s.bulk) leave_bulk(s);
  s.withdrawn += s.pending;
  s.pending = 0;
  changed_ = true;
  // Nothing resident: completes at the next advance, through an end that has passed already.
  if (s.groups.empty()) s.groups.push_back({s.v, 0});
}

void Gpu::drop_queue(uint32_t client) {
  Stream& s = streams_[client];
  while (s.queue.size() > (s.running ? 1u : 0u)) s.queue.pop_back();
  if (!s.running) s.has_head = false;
}

double Gpu::work_per_block(const Op& op) const {
  return double(op.kernel.block_ns) / op.kernel.wave_blocks(spec_.sm_count) * op.work_scale;
}

uint32_t Gpu::sms_of(const Op& op) const {
  return op.sm_limit == 0 ? spec_.sm_count : std::min(op.sm_limit, spec_.sm_count);
}

uint32_t Gpu::wave_of(const Op& op) const {
  const uint32_t wave = op.kernel.wave_blocks(sms_of(op));
  return op.workers == 0 ? wave : std::min(op.workers, wave);
}

// Of its blocks, for how many of them run: see Kernel::occupancy_knee.
double Gpu::block_speed(const Stream& s) const {
  const Op& op = s.queue.front();
  const uint32_t resident = s.bulk ? std::min(s.bulk_blocks, wave_of(op)) : s.resident;
  return op.kernel.block_speed(sms_of(op), resident);
}

double Gpu::first_end_v(const Stream& s) const {
  if (s.bulk) return s.bulk_end_v;
  double first = INFINITY;
  for (const Group& g : s.groups) first = std::min(first, g.end_v);
  return first;
}

uint64_t Gpu::next_ns() {
  uint64_t next = UINT64_MAX;
  auto at = [&](uint64_t t) { next = std::min(next, std::max(t, last_ns_)); };
  for (const Stream& s : streams_)
    if (s.has_head && !s.running) at(s.ready_ns);
  for (uint32_t c : running_) {
    const Stream& s = streams_[c];
    if (!in_context(c) || s.rate <= 0) continue;
    double end = first_end_v(s);
    if (end != INFINITY) at(last_ns_ + uint64_t(std::ceil(std::max(0.0, (end - s.v) / s.rate - 1e-3))));
  }
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

void Gpu::complete_groups(uint64_t now_ns, std::vector<Completion>* done) {
  for (size_t i = 0; i < running_.size();) {
    uint32_t client = running_[i];
    Stream& s = streams_[client];
    const Op& op = s.queue.front();
    const double per_block = work_per_block(op);
    bool ended = false;
    if (s.bulk) {
      if (s.v + kEpsilon_ns >= s.bulk_end_v) {
        s.work_ns += per_block * s.bulk_blocks;
        s.pending = s.resident = 0;
        ended = true;
      }
    } else {
      for (size_t g = 0; g < s.groups.size();) {
        if (s.v + kEpsilon_ns < s.groups[g].end_v) {
          ++g;
          continue;
        }
        s.resident -= s.groups[g].blocks;
        s.work_ns += per_block * s.groups[g].blocks;
        s.groups[g] = s.groups.back();
        s.groups.pop_back();
        changed_ = true;
        ++n_events_;
      }
      ended = s.pending == 0 && s.groups.empty();
    }
    if (!ended) {
      ++i;
      continue;
    }
    done->push_back({client, op.id, s.withdrawn});
    ++n_events_;
    changed_ = true;
    s.running = s.bulk = false;
    s.last_end_ns = now_ns;
    s.queue.pop_front();
    s.has_head = !s.queue.empty();
    if (s.has_head)
      s.ready_ns =
          std::max(s.queue.front().available_ns, now_ns + spec_.kernel_gap_ns) + s.queue.front().gap_ns;
    running_.erase(running_.begin() + long(i));
  }
}

void Gpu::activate(uint64_t now_ns) {
  for (uint32_t c = 0; c < streams_.size(); ++c) {
    Stream& s = streams_[c];
    if (!s.has_head || s.running || s.ready_ns > now_ns) continue;
    if (last_client_ != c && last_client_ != UINT32_MAX && spec_.refill_ns != 0 &&
        s.last_end_ns + kRefillAfter_ns < now_ns) {
      // Others used the GPU since: this client's data left the caches. Paid once, at the first kernel.
      last_client_ = c;
      s.ready_ns = now_ns + spec_.refill_ns;
      s.last_end_ns = now_ns + spec_.refill_ns;
      continue;
    }
    last_client_ = c;
    s.running = true;
    s.order = next_order_++;
    s.in_line = regime_ == Regime::kMps && random_.uniform() < spec_.in_line_share;
    s.v = 0;
    s.pending = s.queue.front().n_blocks;
    s.resident = s.withdrawn = 0;
    s.groups.clear();
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

void Gpu::slice_time(uint64_t now_ns) {
  if (switch_until_ns_ != 0) {
    if (now_ns < switch_until_ns_) return;
    switch_until_ns_ = 0;
    current_ = next_context_;
    slice_end_ns_ = now_ns + spec_.timeslice_ns;
    changed_ = true;
  }
  if (has_work(current_) && now_ns < slice_end_ns_) return;
  const uint32_t n = uint32_t(streams_.size());
  for (uint32_t step = 1; step < n; ++step) {
    uint32_t c = (current_ + step) % n;
    if (!streams_[c].running) continue;
    next_context_ = c;
    switch_until_ns_ = now_ns + std::max<uint64_t>(1, spec_.switch_ns);
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
    return;
  }
  Group& nearest = *std::min_element(s.groups.begin(), s.groups.end(), [&](const Group& a, const Group& b) {
    return std::abs(a.end_v - added.end_v) < std::abs(b.end_v - added.end_v);
  });
  const double sum = double(nearest.blocks) + double(added.blocks);
  nearest.end_v = (nearest.end_v * double(nearest.blocks) + added.end_v * double(added.blocks)) / sum;
  nearest.blocks += added.blocks;
  nearest.confined_sms += added.confined_sms;
}

void Gpu::place(Stream& s, uint32_t n) {
  const Op& op = s.queue.front();
  const double block_ns = double(op.kernel.block_ns);
  uint32_t pieces = uint32_t(std::clamp<size_t>(kMaxGroups - std::min(kMaxGroups, s.groups.size()), 1, 4));
  pieces = std::min(pieces, n);
  // The only wave of a kernel lasts exactly one block time; blocks of many waves drift apart.
  const bool one_wave = op.n_blocks <= wave_of(op);
  double confined_sms = 0;  // of all n
  if (confined_sms_ != 0) {
    const double outside = double(spec_.sm_count - confined_sms_) - taken_outside();
    confined_sms = op.sm_limit != 0 ? n * op.kernel.sms_per_block
                                    : std::max(0.0, n * op.kernel.sms_per_block - std::max(0.0, outside));
  }
  for (uint32_t i = 0; i < pieces; ++i) {
    uint32_t blocks = n / pieces + (i < n % pieces ? 1 : 0);
    double spread = one_wave ? -2 * (i + (i == 0 ? 0 : random_.uniform())) / pieces
                             : (2 * (i + random_.uniform()) / pieces - 1);
    add_group(s, {s.v + block_ns * (1 + spec_.block_jitter * spread), blocks, confined_sms * blocks / n});
  }
  s.resident += n;
  s.pending -= n;
}

double Gpu::fill(uint32_t client) const {
  const Stream& s = streams_[client];
  if (!s.running) return 0;
  const uint32_t blocks = s.bulk ? s.bulk_blocks : s.resident;
  const Op& op = s.queue.front();
  return std::min(double(sms_of(op)), blocks * op.kernel.sms_per_block) / spec_.sm_count;
}

void Gpu::find_confined() {
  confined_sms_ = 0;
  for (uint32_t c : running_) {
    const Op& op = streams_[c].queue.front();
    if (op.sm_limit != 0) confined_sms_ = std::max(confined_sms_, sms_of(op));
  }
}

// SMs that confined work may not use, and that are taken.
double Gpu::taken_outside() const {
  double taken = 0;
  for (uint32_t c : running_) {
    const Stream& s = streams_[c];
    const Op& op = s.queue.front();
    if (op.sm_limit != 0) continue;
    taken += s.resident * op.kernel.sms_per_block;
    for (const Group& g : s.groups) taken -= g.confined_sms;
  }
  return taken;
}

// Free SMs among those that the kernel may use. Limits are nested: a kernel with a larger one is taken to
// stand beside the SMs of the smaller one first.
double Gpu::room_for(const Stream& s) const {
  const double limit = sms_of(s.queue.front());
  double taken = 0;
  for (uint32_t c : running_) {
    const Stream& other = streams_[c];
    const Op& op = other.queue.front();
    if (op.sm_limit != 0) {
      taken += std::max(0.0, other.resident * op.kernel.sms_per_block - std::max(0.0, sms_of(op) - limit));
      continue;
    }
    double inside = 0;
    for (const Group& g : other.groups) inside += g.confined_sms;
    taken += inside * std::min(1.0, limit / confined_sms_);
  }
  return limit - taken;
}

void Gpu::leave_bulk(Stream& s) {
  const Op& op = s.queue.front();
  const double block_ns = double(op.kernel.block_ns);
  const uint32_t wave = wave_of(op);
  // A kernel that was alone stands on all SMs alike.
  const double confined = op.sm_limit != 0 ? 1 : double(confined_sms_) / spec_.sm_count;
  const double waves = s.v / block_ns;
  const bool drifted = waves >= 2;  // the first waves start together
  double done = drifted ? (waves - 0.5) * wave : std::floor(waves) * wave;
  const uint32_t n_done = uint32_t(std::min(done, double(s.bulk_blocks)));
  const uint32_t left = s.bulk_blocks - n_done;
  s.work_ns += work_per_block(op) * n_done;
  s.bulk = false;
  s.resident = std::min(left, wave);
  s.pending = left - s.resident;
  const uint32_t pieces = std::clamp(s.resident, 1u, drifted ? 8u : 4u);
  for (uint32_t i = 0; i < pieces && s.resident > 0; ++i) {
    uint32_t blocks = s.resident / pieces + (i < s.resident % pieces ? 1 : 0);
    double residual = drifted ? (i + random_.uniform()) / pieces : std::ceil(waves + 1e-9) - waves;
    s.groups.push_back({s.v + block_ns * residual, blocks, confined * blocks * op.kernel.sms_per_block});
  }
  if (s.groups.empty()) s.groups.push_back({s.v, 0});
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
    if (alone && fresh(s)) {
      const Op& op = s.queue.front();
      s.bulk = true;
      s.bulk_blocks = s.pending;
      s.v = 0;
      s.pending = 0;
      const uint32_t wave = wave_of(op);
      s.bulk_end_v = double((s.bulk_blocks + wave - 1) / wave * op.kernel.block_ns);
    }
    if (!alone && s.bulk) leave_bulk(s);
    used += s.resident * s.queue.front().kernel.sms_per_block;
  }
  uint32_t waiting = 0;
  for (uint32_t c : running_) waiting += streams_[c].pending > 0;
  bool all_placed = true;  // of the kernels before, which became ready earlier
  for (uint32_t c : running_) {
    Stream& s = streams_[c];
    if (s.bulk || s.pending == 0) continue;
    if (s.in_line && !all_placed) continue;
    const double sms = s.queue.front().kernel.sms_per_block;
    // Without priorities kernels with blocks to place share the room; with them, the first takes what it
    // needs and the hardware does not look past a kernel that has blocks left, unless it is confined.
    const bool share = regime_ == Regime::kMps && waiting > 1 && !s.in_line;
    const bool confined = s.queue.front().sm_limit != 0;
    // Blocks beyond the workers are a loop of theirs, not a queue of the hardware.
    const bool queues = s.queue.front().workers == 0;
    double room = spec_.sm_count - used;
    if (confined) room = std::min(room, room_for(s));
    room = std::max(0.0, room) / (share ? waiting : 1);
    const uint32_t wave = wave_of(s.queue.front());
    const double wanted = std::min(double(s.pending), double(wave - std::min(wave, s.resident)));
    const double fits = std::floor(room / sms + 1e-6);
    const uint32_t n = uint32_t(std::clamp(fits, 0.0, wanted));
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
  const Op& op = s.queue.front();
  if (confined_sms_ == 0 || op.sm_limit != 0 || s.resident == 0) return 0;
  double inside = 0;
  for (const Group& g : s.groups) inside += g.confined_sms;
  return std::clamp(1 - inside / (s.resident * op.kernel.sms_per_block), 0.0, 1.0);
}

// What `own` suffers from `other`, if that filled the GPU.
double Gpu::contention(const Stream& own, const Stream& other) const {
  const Op &mine = own.queue.front(), &theirs = other.queue.front();
  const size_t row = size_t(mine.kernel.resource_class), column = size_t(theirs.kernel.resource_class);
  const double shared = spec_.contention[row][column], apart = spec_.contention_apart[row][column];
  const bool one_is_confined = (mine.sm_limit != 0) != (theirs.sm_limit != 0);
  if (apart < 0 || !one_is_confined) return shared;
  const double outside = outside_confined(mine.sm_limit != 0 ? other : own);
  return shared + (apart - shared) * outside;
}

void Gpu::set_rates() {
  double speed = clock(last_ns_);
  // Who runs faster for being narrow disturbs others the more.
  auto share = [&](const Stream& s) {
    return s.resident * s.queue.front().kernel.sms_per_block / spec_.sm_count * block_speed(s);
  };
  for (uint32_t c : running_) {
    Stream& s = streams_[c];
    double slow = 1;
    if (regime_ != Regime::kTimesliced)
      for (uint32_t other : running_)
        if (other != c) slow += share(streams_[other]) * contention(s, streams_[other]);
    s.rate = speed * block_speed(s) / slow;
  }
}

}  // namespace tessera::simulator
