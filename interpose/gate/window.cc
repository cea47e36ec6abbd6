#include "interpose/gate/window.h"

#include <span>

#include "admission/wait.h"
#include "interpose/gate/pulse.h"

namespace tessera::gate {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

bool try_lock(Lane& lane) {
  return lane.lock.exchange(1, kAcquire) == 0;
}  // pairs with unlock
void unlock(Lane& lane) {
  lane.lock.store(0, kRelease);
}

uint32_t* marker_word(const Lane& lane) {
  uint32_t* host = g_markers.host.load(kAcquire);  // pairs with provide in track/contexts.cc
  return host ? host + (&lane - g_lanes) * 16 : nullptr;
}

CUresult write_marker(Lane& lane, driver_api::StreamArg s, uint32_t value) {
  const auto& real = driver_api::real();
  const size_t index = size_t(&lane - g_lanes);
  const bool per_thread = s.flavour == driver_api::Flavour::kPerThread;
  if (g_markers.use_events.load(kAcquire)) {
    const CUevent event = g_markers.events[index][value % 4];
    return per_thread ? real.cuEventRecord_ptsz(event, s.stream) : real.cuEventRecord(event, s.stream);
  }
  const CUdeviceptr at = g_markers.device.load(kRelaxed) + index * 64;
  return per_thread ? real.cuStreamWriteValue32_v2_ptsz(s.stream, at, value, 0)
                    : real.cuStreamWriteValue32_v2(s.stream, at, value, 0);
}

bool available() {
  return g_markers.host.load(kAcquire) != nullptr || g_markers.use_events.load(kAcquire) != 0;
}

// Under lock. True if the marker has been reached.
bool reached(Lane& lane, const Lane::Pending& p) {
  if (g_markers.use_events.load(kAcquire) == 0) {
    const uint32_t* word = marker_word(lane);
    // acquire: the GPU's write; wraps are compared by difference
    return word && int32_t(std::atomic_ref(*const_cast<uint32_t*>(word)).load(kAcquire) - p.value) >= 0;
  }
  if (!enter_driver()) return false;
  const CUresult r = driver_api::real().cuEventQuery(g_markers.events[&lane - g_lanes][p.value % 4]);
  leave_driver();
  return r == CUDA_SUCCESS;
}

Lane* claim_lane(driver_api::StreamArg s, uint64_t key) {
  for (Lane& lane : g_lanes)
    if (lane.key.load(kAcquire) == key) return &lane;
  for (uint32_t pass = 0; pass < 2; pass++) {  // free lanes first, then drained ones (their counts go on)
    for (uint32_t i = 0; i + 1 < kLanes; i++) {
      Lane& lane = g_lanes[i];
      uint64_t seen = lane.key.load(kRelaxed);
      if (pass == 0 ? seen != 0 : lane.enqueued.load(kRelaxed) != lane.done.load(kRelaxed)) continue;
      if (!try_lock(lane)) continue;
      const bool won = lane.key.compare_exchange_strong(seen, key, std::memory_order_acq_rel);
      if (won) {
        lane.stream.store(s.stream, kRelaxed);
        lane.per_thread.store(s.flavour == driver_api::Flavour::kPerThread, kRelaxed);
        uint32_t used = g_lanes_used.load(kRelaxed);
        while (used <= i && !g_lanes_used.compare_exchange_weak(used, i + 1, kRelease)) {
        }
      }
      unlock(lane);
      if (won) return &lane;
    }
  }
  return &g_lanes[kLanes -
                  1];  // overflow: several streams, so no markers; sync calls and context queries count
}

bool is_overflow(const Lane& lane) {
  return &lane == &g_lanes[kLanes - 1];
}

// Lanes that a stream ever had; only they have markers.
std::span<Lane> marked_lanes() {
  return {g_lanes, g_lanes_used.load(kAcquire)};
}

// Moves `done` there, unless it is further: how much became free by that.
uint64_t advance(Lane& lane, uint64_t upto) {
  uint64_t seen = lane.done.load(kRelaxed);
  while (seen < upto) {
    if (!lane.done.compare_exchange_weak(seen, upto, std::memory_order_acq_rel)) continue;
    lane.since_ns.store(clock_ns(), kRelaxed);
    return upto - seen;
  }
  return 0;
}

void completed(uint64_t ns) {
  if (ns == 0) return;
  const DaemonLink* link = g_state.link.load(kAcquire);
  release_reserved(link, ns);
  std::atomic_ref(link->usage->completed_ns).fetch_add(ns, kRelaxed);
}

// True if a marker was reached, and what became free by that.
bool look_at_markers(Lane& lane, uint64_t& freed) {
  if (lane.done.load(kRelaxed) == lane.marked.load(kRelaxed) || !try_lock(lane)) return false;
  uint64_t upto = 0;
  while (lane.tail != lane.head && reached(lane, lane.pending[lane.tail % kMarkersPerLane])) {
    upto = lane.pending[lane.tail++ % kMarkersPerLane].upto;
  }
  unlock(lane);
  freed += advance(lane, upto);
  return upto != 0;
}

}  // namespace

constinit Lane g_lanes[kLanes] = {};
constinit std::atomic<uint32_t> g_lanes_used = 0;
constinit MarkerMemory g_markers = {};

// Per-thread streams share handle 2: the thread's slot tells them apart. Bit 63 is never set in a pointer.
uint64_t lane_key(driver_api::StreamArg s) {
  const uint64_t key = stream_key(s);
  if (key != 2) return key;
  Thread& t = t_thread;
  if (!t.slot) claim_slot(t);
  return (1ull << 63) | uint64_t(t.slot - g_slots) << 8 | 2;
}

Lane* lane_of(driver_api::StreamArg s) {
  Thread& t = t_thread;
  const uint64_t key = lane_key(s);
  if (t.lane && t.lane_key == key && t.lane->key.load(kRelaxed) == key) [[likely]]
    return t.lane;
  t.lane = claim_lane(s, key);
  t.lane_key = key;
  return t.lane;
}

void release_reserved(const DaemonLink* link, uint64_t ns) {
  auto word = in_flight(link);
  uint64_t seen = word.load(kRelaxed);
  // A completion counted before a reconnect may meet a fresh counter: stop at zero.
  while (!word.compare_exchange_weak(seen, seen > ns ? seen - ns : 0, std::memory_order_seq_cst)) {
  }
  // For whoever asks whether we disturbed a burst; only when the window runs empty.
  if (seen <= ns) ipc::store(link->signals->in_flight_end_ns, clock_ns(), kRelaxed);
}

void lane_done(Lane& lane, uint64_t upto) {
  completed(advance(lane, upto));
}

void lane_mark(Lane* lane, driver_api::StreamArg s) {
  if (is_overflow(*lane) || !available() || !try_lock(*lane)) return;
  const uint32_t room = g_markers.use_events.load(kRelaxed) ? 4 : kMarkersPerLane;
  // Read before the marker is enqueued: launches counted here have returned, so they precede it in the
  // stream.
  const uint64_t upto = lane->enqueued.load(kAcquire);
  if (upto != lane->marked.load(kRelaxed) && upto != lane->done.load(kRelaxed) &&
      lane->head - lane->tail < room) {
    const uint32_t value = lane->last_value + 1;
    if (write_marker(*lane, s, value) == CUDA_SUCCESS) {
      lane->last_value = value;
      lane->pending[lane->head++ % kMarkersPerLane] = {value, upto};
      lane->marked.store(upto, kRelaxed);
    }
  }
  unlock(*lane);
}

void lane_launched(Lane* lane, driver_api::StreamArg s, uint64_t ns, uint64_t spacing_ns) {
  // release: pairs with lane_mark; the launch has returned
  const uint64_t enqueued = lane->enqueued.fetch_add(ns, kRelease) + ns;
  const uint64_t marked = lane->marked.load(kRelaxed), done = lane->done.load(kRelaxed);
  if (enqueued - ns == done) lane->since_ns.store(clock_ns(), kRelaxed);
  if (enqueued - (marked > done ? marked : done) >= spacing_ns) lane_mark(lane, s);
}

int64_t next_marker_in_ns(uint64_t now_ns) {
  int64_t least = admission::kNoMarker;
  for (Lane& lane : marked_lanes()) {
    const uint64_t done = lane.done.load(kRelaxed);
    if (done == lane.marked.load(kRelaxed) || !try_lock(lane)) continue;
    for (uint32_t i = lane.tail; i != lane.head; i++) {
      const uint64_t upto = lane.pending[i % kMarkersPerLane].upto;
      if (upto <= done) continue;  // known already, by a synchronise call or a query
      const int64_t left = int64_t(upto - done) - int64_t(now_ns - lane.since_ns.load(kRelaxed));
      if (left < least) least = left;
      break;
    }
    unlock(lane);
  }
  return least;
}

bool poll_lanes() {
  bool any = false;
  uint64_t freed = 0;
  for (Lane& lane : marked_lanes()) any = look_at_markers(lane, freed) || any;
  completed(freed);  // once: other threads launch by that word
  return any;
}

void poll_lane(Lane& lane) {
  uint64_t freed = 0;
  look_at_markers(lane, freed);
  completed(freed);
}

bool query_lanes() {
  if (!enter_driver()) return false;
  const auto& real = driver_api::real();
  bool any = false;
  for (Lane& lane : g_lanes) {
    const uint64_t key = lane.key.load(kAcquire);
    const uint64_t upto = lane.enqueued.load(kAcquire);
    if (upto == lane.done.load(kRelaxed) || is_overflow(lane)) continue;
    // Another thread's default stream cannot be named from here; the legacy stream only with one context.
    if (key >> 63 || (key == 1 && g_state.n_contexts.load(kRelaxed) > 1)) continue;
    const CUstream stream = key == 1 ? CU_STREAM_LEGACY : lane.stream.load(kRelaxed);
    if (real.cuStreamQuery(stream) != CUDA_SUCCESS) continue;
    lane_done(lane, upto);
    any = true;
  }
  leave_driver();
  return any;
}

bool lanes_empty() {
  for (const Lane& lane : g_lanes)
    if (lane.enqueued.load(kAcquire) != lane.done.load(kAcquire)) return false;
  return true;
}

void forget_lanes() {
  for (Lane& lane : g_lanes) lane_done(lane, lane.enqueued.load(kAcquire));
}

void lane_forget_stream(uint64_t key) {
  begin_epoch();
  for (Lane& lane : g_lanes) {
    uint64_t seen = key;
    if (lane.key.load(kRelaxed) != key) continue;
    lane_done(lane, lane.enqueued.load(kAcquire));
    lane.key.compare_exchange_strong(seen, 0, kRelease);
  }
}

void lane_cover_stream(LaneCover& cover, driver_api::StreamArg s) {
  if (ThreadSlot* own = t_thread.slot) settle_credit(*own);
  const uint64_t key = lane_key(s);
  if (key == 1 && g_state.n_contexts.load(kRelaxed) > 1) return;
  for (Lane& lane : g_lanes)
    if (lane.key.load(kAcquire) == key && lane.enqueued.load(kAcquire) != lane.done.load(kRelaxed))
      cover.items[cover.n++] = {&lane, lane.enqueued.load(kAcquire)};
}

void lane_cover_all(LaneCover& cover) {
  if (ThreadSlot* own = t_thread.slot) settle_credit(*own);
  if (g_state.n_contexts.load(kRelaxed) > 1) return;
  for (Lane& lane : g_lanes)
    if (lane.enqueued.load(kAcquire) != lane.done.load(kRelaxed))
      cover.items[cover.n++] = {&lane, lane.enqueued.load(kAcquire)};
}

void lane_covered(const LaneCover& cover) {
  for (uint32_t i = 0; i < cover.n; i++) {
    lane_done(*cover.items[i].lane, cover.items[i].upto);
    cover.items[i].lane->blind.store(0, kRelaxed);
  }
  if (cover.n) acknowledge_drain();
}

void acknowledge_drain() {
  const DaemonLink* link = g_state.link.load(kAcquire);
  const uint32_t word = ipc::load(link->lease->word, std::memory_order_seq_cst);
  if ((word & abi::kLeaseStateMask) == abi::kLeaseFree) return;
  if (in_flight(link).load(std::memory_order_seq_cst) != 0) return;
  std::atomic_ref<uint32_t> drained(link->usage->drained_word);
  uint32_t seen = drained.load(kRelaxed);
  if ((word & abi::kLeaseStateMask) != abi::kLeaseHold || seen == word) return;
  if (drained.compare_exchange_strong(seen, word, kRelease)) g_slow.notify_daemon();  // one notice per hold
}

}  // namespace tessera::gate
