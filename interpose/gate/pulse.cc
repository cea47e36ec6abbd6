#include "interpose/gate/pulse.h"

#include "base/futex.h"
#include "base/hash.h"
#include "interpose/gate/graph_class.h"
#include "interpose/gate/peer_gates.h"
#include "interpose/gate/trace.h"
#include "interpose/state/kernels.h"
#include "ipc/channel/pulse.h"
#include "ipc/channel/ring.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;

void nothing() noexcept {}

// The burst, or the step of it, that runs now. Written by whoever announced the burst or ended the step before. All relaxed:
// statistics, a torn record is a slightly wrong one.
struct Running {
  std::atomic<uint64_t> since_ns, launches, first_function;
  // At the beginning of the step: calls that had begun, 0 = the burst has no steps yet; all launches; and the signature of
  // those that came in the step before it.
  std::atomic<uint64_t> begun, step_launches, signature;
};
constinit Running g_running = {};

// Classes. Votes of the running burst: helper and whoever ends it. Votes of recent bursts: whoever ends one.
// All relaxed: a lost vote is one of many.
using Votes = std::atomic<uint32_t>[4];
constinit Votes g_burst_votes = {}, g_recent_votes = {};
constexpr uint32_t kRecentBursts = 16;

uint32_t winner(const Votes& votes) {  // 0 = none: unknown has no votes
  uint32_t best = abi::kResourceUnknown;
  for (uint32_t c = 1; c < 4; c++)
    if (votes[c].load(kRelaxed) > (best ? votes[best].load(kRelaxed) : 0)) best = c;
  return best;
}

uint32_t class_of(uint64_t function) {
  if (function == 0) return abi::kResourceUnknown;
  const KernelRecord* kernel = find_kernel(reinterpret_cast<CUfunction>(function));
  return kernel ? kernel->resource_class() & 3u : graph_class(function);
}

// Returns the class of the burst that begins now: that of its first kernel if known, else that of the last bursts.
uint32_t expected_class(uint32_t of_call, uint64_t function) {
  if (const uint32_t first = class_of(function)) return first;
  const uint32_t recent = winner(g_recent_votes);
  return recent ? recent : of_call;
}

uint32_t end_burst_class() {
  const uint32_t used = g_slots_used.load(kRelaxed);
  for (uint32_t i = 0; i < used; i++)
    if (const uint32_t c = class_of(g_slots[i].last_function.load(kRelaxed)))
      g_burst_votes[c].fetch_add(1, kRelaxed);
  const uint32_t burst = winner(g_burst_votes);
  for (auto& v : g_burst_votes) v.store(0, kRelaxed);
  if (burst == 0) return 0;
  if (g_recent_votes[burst].fetch_add(1, kRelaxed) + 1 >= kRecentBursts)
    for (auto& v : g_recent_votes) v.store(v.load(kRelaxed) / 2, kRelaxed);
  return burst;
}
constinit std::atomic<uint32_t> g_ring_lock{0};  // try-lock around the single-producer ring

uint64_t signature_of(uint64_t launches) {
  uint64_t last = 0;
  const uint32_t used =
      launches == 0 ? 0 : g_slots_used.load(kRelaxed);  // else they are those of a burst before
  for (uint32_t i = 0; i < used; i++) last ^= g_slots[i].last_function.load(kRelaxed);
  return base::combine(base::combine(launches, g_running.first_function.load(kRelaxed)), last);
}

void record_burst(uint64_t signature, uint64_t launches, uint64_t end_ns) {
  const uint64_t since_ns = g_running.since_ns.load(kRelaxed);
  abi::Record record{};
  record.kind = abi::kRecordBurst;
  record.request_kind = uint16_t(count_burst(signature, since_ns, end_ns));
  record.key = signature;
  record.duration_ns = end_ns > since_ns ? end_ns - since_ns : 0;
  record.end_ns = end_ns;
  record.blocks = launches;
  record.resource_class = end_burst_class();
  push_record(record);
  trace({.kind = abi::kTraceBurst, .start_ns = since_ns, .end_ns = end_ns, .a = launches});
}

void begin_record(uint64_t now_ns, uint64_t launches, uint64_t function) {
  g_running.since_ns.store(now_ns, kRelaxed);
  g_running.launches.store(launches, kRelaxed);
  g_running.first_function.store(function, kRelaxed);
}

}  // namespace

constinit PulseStats g_pulse_stats = {};
constinit std::atomic<uint64_t> g_graph_classes[kGraphClasses] = {};
constinit SlowPath g_slow = {nothing, nothing};
constinit std::atomic<uint32_t> g_helper_word{0};
constinit std::atomic<uint32_t> g_burst_counter{0};

uint64_t total_launches() {
  uint64_t sum = 0;
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++) sum += g_slots[i].launches.load(kRelaxed);
  return sum;
}

bool push_record(const abi::Record& record) {
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (link->ring_slots == 0) return false;
  bool written = false;
  if (g_ring_lock.exchange(1, std::memory_order_acquire) == 0) {  // pairs with the release below
    ipc::RingWriter writer(link->ring, link->ring_slots);
    written = writer.write(record);
    g_ring_lock.store(0, std::memory_order_release);
  }
  if (!written) std::atomic_ref(link->usage->records_dropped).fetch_add(1, kRelaxed);
  return written;
}

void become_busy(uint32_t resource_class, uint64_t function) {
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (g_state.role.load(kRelaxed) != Role::kProtected) return;
  before_first_call();  // of requests of the whole process, in another thread
  if (yields()) return;
  // relaxed: a hint; whoever begins on the old one began a moment earlier
  if (ipc::load(link->lease->rights, kRelaxed).defers != 0) [[unlikely]]
    defer(link);
  uint32_t burst = g_burst_counter.fetch_add(1, kRelaxed) + 1;
  if (burst == 0) burst = g_burst_counter.fetch_add(1, kRelaxed) + 1;
  const uint64_t now = clock_ns();
  const uint64_t launches = total_launches();
  g_running.begun.store(0, kRelaxed);
  g_running.step_launches.store(launches, kRelaxed);
  begin_record(now, launches, function);
  // Several threads may get here at once; each stores a busy word, the last one names the burst.
  ipc::pulse_set_busy(*link->pulse, burst, expected_class(resource_class, function), burst, now);
  // Pairs with the helper, twice: it lists a gate, then looks at busy (watch_peer_gate); it stores parked, fence, load busy.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  close_peer_gates(burst);
  g_pulse_stats.announced.fetch_add(1, kRelaxed);
  trace_now(abi::kTraceBusy, 0, 0);
  if (g_helper_word.load(kRelaxed) == 1 && g_helper_word.exchange(0, kRelaxed) == 1) {
    g_pulse_stats.helper_wakes.fetch_add(1, kRelaxed);
    base::futex_wake_all(reinterpret_cast<const uint32_t*>(&g_helper_word));
  }
}

bool park(const DaemonLink& link) {
  g_helper_word.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(
      std::memory_order_seq_cst);  // pairs with become_busy: stores busy, fence, load parked
  return ipc::load(link.pulse->busy, std::memory_order_seq_cst) == 0;
}

void sample_class() {
  static constinit uint64_t seen[kSlots] = {};  // launches at the last call; helper thread only
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  uint32_t latest = 0;
  for (uint32_t i = 0; i < used; i++) {
    const uint64_t launches = g_slots[i].launches.load(kRelaxed);
    if (launches == seen[i]) continue;
    seen[i] = launches;
    const uint32_t c = class_of(g_slots[i].last_function.load(kRelaxed));
    if (c == 0) continue;
    g_burst_votes[c].fetch_add(1, kRelaxed);
    latest = c;
  }
  abi::PulsePage& page = *g_state.link.load(std::memory_order_acquire)->pulse;
  // Only a change is stored: launching threads read this line.
  if (latest && ipc::load(page.resource_class, kRelaxed) != latest)
    ipc::store(page.resource_class, latest, kRelaxed);
}

bool all_complete() {
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  const auto is_at_work = [](const StreamCount& c) {
    // completed first: a launch that slips in between makes the two differ, never agree by accident
    const uint64_t completed = c.completed.load(std::memory_order_acquire);
    return c.begun.load(std::memory_order_acquire) != completed;
  };
  for (uint32_t i = 0; i < used; i++)
    if (find_stream(g_slots[i], is_at_work)) return false;
  return true;
}

// No other thread ever launched, so that none can have read `busy` just before it was cleared. One that comes now takes its
// slot, and behind a fence (claim_slot) finds `busy` cleared if this look did not find the slot.
static bool is_only_thread() {
  return t_thread.slot == &g_slots[0] && !t_thread.shared &&
         g_slots_used.load(std::memory_order_seq_cst) == 1;
}

// The daemon has to hear of the burst that was just recorded. seq_cst: we clear the pulse, then look here; the daemon stores
// `quiet`, then looks at the pulse.
static bool must_tell(const DaemonLink& link) {
  return ipc::load(link.answers->quiet, std::memory_order_seq_cst) == 0 ||
         ipc::ends_half(*link.ring, link.ring_slots);
}

bool try_idle() {
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  abi::PulsePage& page = *link->pulse;
  const uint32_t word = ipc::load(page.busy, kRelaxed);
  if (word == 0 || !all_complete()) return false;
  const uint64_t now = clock_ns(), since_ns = idle_since_ns(now);
  if (is_in_gap(since_ns, now)) return false;
  if (!ipc::pulse_try_idle(page, word, now)) return false;
  if (!is_only_thread()) g_slow.heavy_fence();
  if (!all_complete()) {  // a launch read `busy` just before we cleared it
    // Only if nobody announced meanwhile; the burst goes on under its old number.
    uint32_t expected = 0;
    if (std::atomic_ref(page.busy).compare_exchange_strong(expected, word, std::memory_order_seq_cst))
      close_peer_gates(word);  // who closed meanwhile saw no number
    g_pulse_stats.retracted.fetch_add(1, kRelaxed);
    return false;
  }
  open_peer_gates(word);
  const uint64_t launches = total_launches() - g_running.launches.load(kRelaxed);
  record_burst(signature_of(launches), launches, since_ns);
  if (must_tell(*link)) g_slow.notify_daemon();
  return true;
}

// A wait has returned and work is left. A step ends when as many calls have ended as had begun when it began: about the
// work that was in flight then. The first wait of a burst begins its first step.
static void look_at_step() {
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (ipc::load(link->pulse->busy, kRelaxed) == 0) return;
  uint64_t begun = 0, completed = 0;
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++)
    for_each_stream(g_slots[i], [&](const StreamCount& c) {
      completed += c.completed.load(std::memory_order_acquire);  // completed first, as in all_complete
      begun += c.begun.load(std::memory_order_acquire);
    });
  if (begun == completed) return;  // a gap in the middle of a request: the burst goes on
  uint64_t before = g_running.begun.load(kRelaxed);
  if (completed < before || !g_running.begun.compare_exchange_strong(before, begun, kRelaxed)) return;
  const uint64_t launches = total_launches();
  const uint64_t of_step = launches - g_running.step_launches.exchange(launches, kRelaxed);
  // The work that ends now was launched before the step began; launches since then are the next step.
  const uint64_t signature = g_running.signature.exchange(signature_of(of_step), kRelaxed);
  if (before == 0) return;
  const uint64_t now_ns = clock_ns();
  record_burst(signature, launches - g_running.launches.load(kRelaxed), now_ns);
  begin_record(now_ns, launches, 0);
  if (must_tell(*link)) g_slow.notify_daemon();
}

void covered(const Cover& cover, bool waited) {
  for (uint32_t i = 0; i < cover.n; i++) advance(*cover.items[i].count, cover.items[i].ended);
  look_at_requests();
  if (try_idle())
    g_pulse_stats.idled_by_sync.fetch_add(1, kRelaxed);
  else if (waited)
    look_at_step();
}

void forgive_all() {
  for (ThreadSlot& slot : g_slots)
    for_each_stream(slot, [](StreamCount& c) { advance(c, c.ended.load(std::memory_order_acquire)); });
  forget_waits(0);
}

void forgive_stream(uint64_t key) {
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++)
    for_each_stream(g_slots[i], [&](StreamCount& c) {
      if (c.key.load(kRelaxed) == key) advance(c, c.ended.load(std::memory_order_acquire));
    });
  forget_waits(key);
}

}  // namespace tessera::gate
