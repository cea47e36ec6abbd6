#include "interpose/gate/requests.h"

#include <cstring>

#include "admission/burst_roles.h"
#include "base/latency_buckets.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/trace.h"
#include "interpose/state/config.h"

namespace tessera::gate {
namespace {

using namespace state;

static_assert(abi::kRequestBuckets == base::kLatencyBuckets);

constexpr auto kRelaxed = std::memory_order_relaxed;

// A request's word: its state, and above that the number of those that had its place. Who exchanges a state for kTaken owns
// the place until it stores the next one (release). All else is
// atomic because others may look at it meanwhile; relaxed: what they see counts only if the word is still the same.
enum RequestState : uint64_t { kFree = 0, kTaken, kWaiting, kRunning, kEnded };
constexpr uint64_t kStateMask = 0xff;

struct Rest {  // of a request that is over: what has to end still
  struct Item {
    std::atomic<const StreamCount*> count;
    std::atomic<uint64_t> ended;
  };
  std::atomic<uint32_t> n;
  Item items[kMaxCover];
};

struct Request {
  std::atomic<uint64_t> word;
  std::atomic<uint32_t> kind;
  std::atomic<Thread*> yields;         // its thread, if it yields meanwhile; null: none does
  std::atomic<ThreadSlot*> slot;       // whose work it is; null: the whole process's
  std::atomic<uint64_t> since_ns;      // begin_request
  std::atomic<uint64_t> begun_before;  // calls until then
  std::atomic<uint64_t> start_ns;      // first call
  // Everything was seen to have ended when this number of calls had begun.
  std::atomic<uint64_t> complete_begun, complete_ns;
  Rest rest;
};
// As many as a server has in flight on streams of its own; each costs 2 KiB.
constexpr uint32_t kRequests = 64;
constinit Request g_requests[kRequests] = {};

// One that yields does not keep a burst going.
bool counts_as_running(const Request& r) {
  return r.yields.load(kRelaxed) == nullptr;
}

// Names of kinds, by number. A program may mark prefills and steps by ranges of these names.
struct KindName {
  std::atomic<uint32_t> state;  // 0 free, 1 taken, 2 there
  bool yields;
  char name[abi::kRequestNameBytes];
};
constinit KindName g_kinds[abi::kRequestKinds] = {
    {2, false, "burst"}, {2, false, "prefill"}, {2, false, "decode"}};

// The kind of the latest range that began to work in the burst that runs; 0: none did. Relaxed: as the burst's record.
constinit std::atomic<uint32_t> g_range_in_burst{0};

constinit admission::BurstRoles g_roles;           // whoever set the word
constinit std::atomic<uint32_t> g_roles_taken{0};  // of two bursts that end at once one has no role

template <class F>
void for_each_slot(ThreadSlot* one, F&& f) {
  if (one) return f(*one);
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++) f(g_slots[i]);
}

struct Calls {
  uint64_t begun = 0;
  bool all_ended = true;
};
// completed first: as all_complete()
Calls calls_of(ThreadSlot* slot) {
  Calls calls;
  for_each_slot(slot, [&](ThreadSlot& s) {
    for_each_stream(s, [&](const StreamCount& c) {
      const uint64_t completed = c.completed.load(std::memory_order_acquire);
      const uint64_t begun = c.begun.load(std::memory_order_acquire);
      calls.begun += begun;
      calls.all_ended = calls.all_ended && begun == completed;
    });
  });
  return calls;
}

bool take(Request& r, uint64_t word) {
  const uint64_t taken = (word & ~kStateMask) | kTaken;
  return r.word.compare_exchange_strong(word, taken, std::memory_order_acq_rel);
}

void set_state(Request& r, RequestState state) {
  r.word.store((r.word.load(kRelaxed) & ~kStateMask) | state, std::memory_order_release);
}

void give_back(Request& r) {
  set_state(r, kFree);
  g_requests_open.fetch_sub(1, kRelaxed);
}

bool has_ended(const Rest& rest) {
  const uint32_t n = rest.n.load(kRelaxed);
  for (uint32_t i = 0; i < n; i++) {
    const StreamCount* count = rest.items[i].count.load(kRelaxed);
    if (count->completed.load(std::memory_order_acquire) < rest.items[i].ended.load(kRelaxed)) return false;
  }
  return true;
}

void keep_rest(Request& r) {
  Cover cover;
  for_each_slot(r.slot.load(kRelaxed), [&](ThreadSlot& slot) { cover_slot(cover, slot); });
  for (uint32_t i = 0; i < cover.n; i++) {
    r.rest.items[i].count.store(cover.items[i].count, kRelaxed);
    r.rest.items[i].ended.store(cover.items[i].ended, kRelaxed);
  }
  r.rest.n.store(cover.n, kRelaxed);
}

void see_complete(Request& r, uint64_t now_ns) {
  const Calls calls = calls_of(r.slot.load(kRelaxed));
  if (!calls.all_ended || calls.begun == r.begun_before.load(kRelaxed) ||
      calls.begun == r.complete_begun.load(kRelaxed))
    return;
  r.complete_ns.store(now_ns, kRelaxed);
  r.complete_begun.store(calls.begun, std::memory_order_release);  // who sees it sees that time
}

uint64_t slo_of(const char* kind) {  // 0: none
  const state::Config& config = state::config();
  for (uint32_t i = 0; i < config.n_request_slos; i++)
    if (strncmp(config.request_slos[i].kind, kind, abi::kRequestNameBytes) == 0)
      return config.request_slos[i].slo_ns;
  return 0;
}

// Adds one to the histogram of its kind.
void count_in_row(uint32_t kind, uint64_t start_ns, uint64_t end_ns) {
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (!link->requests) return;
  abi::RequestKind& row = link->requests->kinds[kind];
  if (ipc::load(row.ready, kRelaxed) == 0) {  // who comes at once writes the same
    memcpy(row.name, g_kinds[kind].name, sizeof row.name);
    ipc::store(row.slo_ns, slo_of(row.name), kRelaxed);
    ipc::store(row.ready, 1u, std::memory_order_release);  // pairs with the daemon's load
  }
  const uint64_t ns = end_ns > start_ns ? end_ns - start_ns : 0;
  std::atomic_ref(row.counts[base::latency_bucket(ns)]).fetch_add(1, kRelaxed);
  std::atomic_ref(row.sum_ns).fetch_add(ns, kRelaxed);
  if (ns <= ipc::load(row.slo_ns, kRelaxed)) std::atomic_ref(row.within_slo).fetch_add(1, kRelaxed);
}

void count(uint32_t kind, uint64_t start_ns, uint64_t end_ns) {
  count_in_row(kind, start_ns, end_ns);
  if (!tracing()) return;
  const uint64_t id = reinterpret_cast<uint64_t>(g_kinds[kind].name);  // no function is there
  if (!was_named(id)) trace_text(id, g_kinds[kind].name, sizeof g_kinds[kind].name);
  trace({.kind = abi::kTraceRequest, .start_ns = start_ns, .end_ns = end_ns, .a = id});
}

void count(const Request& r, uint64_t end_ns) {
  count(r.kind.load(kRelaxed), r.start_ns.load(kRelaxed), end_ns);
}

// The request if it is still open, taken; in which state it was.
Request* take_open(uint64_t id, RequestState* was) {
  const uint64_t place = id & kStateMask;
  if (place == 0 || place > kRequests) return nullptr;
  Request& r = g_requests[place - 1];
  for (const RequestState state : {kWaiting, kRunning}) {
    if (!take(r, (id & ~kStateMask) | state)) continue;
    *was = state;
    if (state == kWaiting)
      g_requests_waiting.fetch_sub(1, kRelaxed);
    else if (counts_as_running(r))
      g_requests_running.fetch_sub(1, kRelaxed);
    // A range that is pushed ends in its thread.
    if (Thread* yields = r.yields.load(kRelaxed)) yields->yielding--;
    return &r;
  }
  return nullptr;
}

void miss() {
  const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (link->requests) std::atomic_ref(link->requests->totals.missed).fetch_add(1, kRelaxed);
}

// The gap that g_gap_begun began: everything was seen to have ended after that number of calls. Several threads may see it at
// once, a moment apart.
constinit std::atomic<uint64_t> g_gap_begun{0};

}  // namespace

constinit std::atomic<uint32_t> g_requests_waiting{0}, g_requests_running{0}, g_requests_open{0};
constinit std::atomic<uint64_t> g_gap_ns{0};

uint32_t request_kind(const char* name, bool yields) {
  for (uint32_t i = 1; i < abi::kRequestKinds; i++) {
    KindName& kind = g_kinds[i];
    uint32_t seen = 0;
    if (kind.state.compare_exchange_strong(seen, 1, std::memory_order_acq_rel)) {
      strncpy(kind.name, name, sizeof kind.name - 1);
      kind.yields = yields;
      kind.state.store(2, std::memory_order_release);
      return i;
    }
    if (seen == 2 && strncmp(kind.name, name, sizeof kind.name - 1) == 0) return i;
  }
  return 0;
}

uint64_t begin_request(uint32_t kind, bool of_thread) {
  if (kind == 0 || kind >= abi::kRequestKinds || g_state.role.load(kRelaxed) != Role::kProtected) return 0;
  Thread& t = t_thread;
  if (!t.slot) claim_slot(t);
  for (uint32_t i = 0; i < kRequests; i++) {
    Request& r = g_requests[i];
    const uint64_t word = r.word.load(kRelaxed), next = (word & ~kStateMask) + kStateMask + 1;
    if ((word & kStateMask) != kFree || !take(r, word)) continue;
    ThreadSlot* const slot = of_thread && !t.shared ? t.slot : nullptr;
    r.kind.store(kind, kRelaxed);
    r.slot.store(slot, kRelaxed);
    // A range that is started has all threads in it, and some of them may have requests to protect.
    const bool thread_yields = of_thread && g_kinds[kind].yields;
    r.yields.store(thread_yields ? &t : nullptr, kRelaxed);
    t.yielding += thread_yields;
    r.since_ns.store(clock_ns(), kRelaxed);
    r.begun_before.store(calls_of(slot).begun, kRelaxed);
    r.complete_begun.store(0, kRelaxed);
    g_requests_open.fetch_add(1, kRelaxed);
    g_requests_waiting.fetch_add(1, kRelaxed);
    t.key = 0;  // no stream has this key
    r.word.store(next | kWaiting, std::memory_order_release);
    return next | (i + 1);
  }
  miss();
  return 0;
}

void first_call_of_requests() {
  const uint64_t now_ns = clock_ns();
  for (Request& r : g_requests) {
    const uint64_t word = r.word.load(std::memory_order_acquire);
    const ThreadSlot* slot = r.slot.load(kRelaxed);
    if ((word & kStateMask) != kWaiting || (slot && slot != t_thread.slot) || !take(r, word)) continue;
    r.start_ns.store(now_ns, kRelaxed);
    g_requests_waiting.fetch_sub(1, kRelaxed);
    if (counts_as_running(r)) {
      g_range_in_burst.store(r.kind.load(kRelaxed), kRelaxed);
      g_requests_running.fetch_add(1, kRelaxed);
    }
    set_state(r, kRunning);
  }
}

void see_requests_end() {
  const uint64_t now_ns = clock_ns();
  for (Request& r : g_requests) {
    const uint64_t word = r.word.load(std::memory_order_acquire), state = word & kStateMask;
    if (state == kWaiting || state == kRunning) see_complete(r, now_ns);
    if (state != kEnded || !has_ended(r.rest) || !take(r, word)) continue;
    count(r, now_ns);
    give_back(r);
  }
}

void end_request(uint64_t id) {
  RequestState was;
  Request* const taken = take_open(id, &was);
  if (!taken) return;
  Request& r = *taken;
  const bool is_protected = g_state.role.load(kRelaxed) == Role::kProtected;
  const Calls calls = calls_of(r.slot.load(kRelaxed));
  // Another thread's first call, while the GPU was busy already: nobody saw it.
  if (was == kWaiting) r.start_ns.store(r.since_ns.load(kRelaxed), kRelaxed);
  if (!is_protected || calls.begun == r.begun_before.load(kRelaxed)) {
    give_back(r);
  } else if (calls.begun == r.complete_begun.load(std::memory_order_acquire)) {
    count(r, r.complete_ns.load(kRelaxed));
    give_back(r);
  } else {
    keep_rest(r);
    set_state(r, kEnded);
    see_requests_end();
  }
  if (is_protected && g_requests_running.load(kRelaxed) == 0) try_idle();
}

void drop_request(uint64_t id) {
  RequestState was;
  if (Request* r = take_open(id, &was)) give_back(*r);
}

uint32_t count_burst(uint64_t signature, uint64_t start_ns, uint64_t end_ns) {
  count_in_row(abi::kBurstKind, start_ns, end_ns);
  const uint32_t range = g_range_in_burst.load(kRelaxed);
  if (range != 0) g_range_in_burst.store(0, kRelaxed);
  if (range != 0 || g_requests_running.load(kRelaxed) != 0) return range;
  const admission::BurstRoles::Burst burst{signature, start_ns, end_ns};
  if (burst.is_short()) return abi::kBurstKind;
  if (g_roles_taken.exchange(1, std::memory_order_acquire) != 0)  // pairs with the release below
    return abi::kBurstKind;
  const auto role = g_roles.add(
      burst, [](const auto& prefill) { count(abi::kPrefillKind, prefill.start_ns, prefill.end_ns); });
  g_roles_taken.store(0, std::memory_order_release);
  if (role == admission::BurstRole::kStep) count(abi::kDecodeKind, start_ns, end_ns);
  static constexpr uint32_t kKinds[] = {abi::kBurstKind, abi::kPrefillKind, abi::kDecodeKind};  // by role
  return kKinds[uint32_t(role)];
}

uint64_t gap_since_ns(uint64_t now_ns) {
  const uint64_t begun = calls_of(nullptr).begun;
  if (g_gap_begun.load(std::memory_order_acquire) != begun) {
    g_gap_ns.store(now_ns, kRelaxed);
    g_gap_begun.store(begun,
                      std::memory_order_release);  // who sees it sees this gap's time, not an earlier one's
  }
  return g_gap_ns.load(kRelaxed);
}

}  // namespace tessera::gate
