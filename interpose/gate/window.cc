#include "interpose/gate/window.h"

#include <algorithm>
#include <span>

#include "admission/boundary.h"
#include "admission/wait.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/trace.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

bool try_lock(StreamAccount& account) {
  if (account.lock.exchange(1, kAcquire) != 0) return false;  // pairs with unlock
  t_thread.call.locked = &account;
  return true;
}
void unlock(StreamAccount& account) {
  t_thread.call.locked = nullptr;
  account.lock.store(0, kRelease);
}

uint32_t* marker_word(const StreamAccount& account) {
  uint32_t* host = g_markers.host.load(kAcquire);  // pairs with provide in track/contexts.cc
  return host ? host + (&account - g_accounts) * 16 : nullptr;
}

CUresult write_marker(StreamAccount& account, driver_api::StreamArg s, uint32_t value) {
  if (!is_in_context(s, g_markers.context)) return CUDA_ERROR_INVALID_CONTEXT;
  const auto& real = driver_api::real();
  const size_t index = size_t(&account - g_accounts);
  if (g_markers.use_events.load(kAcquire)) {
    const CUevent event = g_markers.events[index][value % 4];
    return real.cuEventRecord(event, driver_api::on(s));
  }
  const CUdeviceptr at = g_markers.device.load(kRelaxed) + index * 64;
  return real.cuStreamWriteValue32_v2(driver_api::on(s), at, value, 0);
}

bool available() {
  return g_markers.host.load(kAcquire) != nullptr || g_markers.use_events.load(kAcquire) != 0;
}

// Under lock. True if the marker has been reached.
bool reached(StreamAccount& account, const StreamAccount::Pending& p) {
  if (g_markers.use_events.load(kAcquire) == 0) {
    const uint32_t* word = marker_word(account);
    // acquire: the GPU's write; wraps are compared by difference
    return word && int32_t(std::atomic_ref(*const_cast<uint32_t*>(word)).load(kAcquire) - p.value) >= 0;
  }
  if (!enter_driver()) return false;
  const CUresult r = driver_api::real().cuEventQuery(g_markers.events[&account - g_accounts][p.value % 4]);
  leave_driver();
  return r == CUDA_SUCCESS;
}

// The account of streams that found none, and of default streams of threads that share a slot. It has no markers, because
// nobody knows in which stream. Synchronise calls that cover a context lower it, else its estimates do (count_down).
StreamAccount& overflow() {
  return g_accounts[kAccounts - 1];
}
// The key of an account whose stream has ended; of no stream, and with bit 63, because nobody can be asked about it.
constexpr uint64_t kGone = 1ull << 63;
constexpr auto kStreamDetached =
    CUresult(917);  // its green context has ended: it can be destroyed, and nothing else
bool is_overflow(const StreamAccount& account) {
  return &account == &overflow();
}

// Another stream may have its account. Not that of one that is blind: its work would be counted then.
bool is_at_rest(const StreamAccount& account) {
  return account.enqueued.load(kRelaxed) == account.done.load(kRelaxed) && account.blind.load(kRelaxed) == 0;
}

StreamAccount* claim_account(driver_api::StreamArg s, uint64_t key) {
  if (key >> 63 && t_thread.shared) return &overflow();
  for (StreamAccount& account : g_accounts)
    if (account.key.load(kAcquire) == key) return &account;
  for (uint32_t pass = 0; pass < 2; pass++) {  // free accounts first, then drained ones (their counts go on)
    for (uint32_t i = 0; i + 1 < kAccounts; i++) {
      StreamAccount& account = g_accounts[i];
      uint64_t seen = account.key.load(kRelaxed);
      if (pass == 0 ? seen != 0 : !is_at_rest(account)) continue;
      if (!try_lock(account)) continue;
      // Under the lock a key only becomes 0, when its stream ends. What is stored before the key is seen by who sees the key.
      bool won = account.key.load(kRelaxed) == seen;
      if (won) {
        account.blind.store(0, kRelaxed);
        account.quantum_left_ns.store(0, kRelaxed);  // no boundary stands in this stream
        account.behind_event.store(0, kRelaxed);
        account.stream.store(s.stream, kRelaxed);
        won = account.key.compare_exchange_strong(seen, key, std::memory_order_acq_rel);
      }
      uint32_t used = g_accounts_used.load(kRelaxed);
      while (won && used <= i && !g_accounts_used.compare_exchange_weak(used, i + 1, kRelease)) {
      }
      unlock(account);
      if (won) return &account;
    }
  }
  return &overflow();
}

// Accounts that a stream ever had; only they have markers.
std::span<StreamAccount> marked_accounts() {
  return {g_accounts, g_accounts_used.load(kAcquire)};
}

// Moves `done` there, unless it is further: how much became free by that.
uint64_t advance(StreamAccount& account, uint64_t upto, uint64_t now) {
  uint64_t seen = account.done.load(kRelaxed);
  while (seen < upto) {
    if (!account.done.compare_exchange_weak(seen, upto, std::memory_order_acq_rel)) continue;
    account.since_ns.store(now, kRelaxed);
    return upto - seen;
  }
  return 0;
}

uint64_t advance(StreamAccount& account, uint64_t upto) {
  return account.done.load(kRelaxed) < upto ? advance(account, upto, clock_ns()) : 0;
}

void completed(uint64_t ns) {
  if (ns == 0) return;
  const DaemonLink* link = g_state.link.load(kAcquire);
  release_reserved(link, ns);
  std::atomic_ref(link->usage->completed_ns).fetch_add(ns, kRelaxed);
}

// Under lock. What the latest marker that was reached covers; 0 = none was, since the last time.
uint64_t reached_upto(StreamAccount& account) {
  uint64_t upto = 0;
  while (account.tail != account.head &&
         reached(account, account.pending[account.tail % kMarkersPerAccount])) {
    upto = account.pending[account.tail++ % kMarkersPerAccount].upto;
    g_markers_out.fetch_sub(1, kRelaxed);
  }
  if (upto != 0) trace_now(abi::kTraceDone, account.key.load(kRelaxed), upto);
  return upto;
}

// Under lock.
void enqueue_marker(StreamAccount& account, driver_api::StreamArg s) {
  // The account may be another stream's by now: their markers would not be reached in order.
  if (account.key.load(kRelaxed) != account_key(s)) return;
  const uint32_t room = g_markers.use_events.load(kRelaxed) ? 4 : kMarkersPerAccount;
  // Read before the marker is enqueued: launches counted here have returned, so they precede it in the
  // stream.
  const uint64_t upto = account.enqueued.load(kAcquire);
  if (upto == account.marked.load(kRelaxed) || upto == account.done.load(kRelaxed) ||
      account.head - account.tail >= room)
    return;
  const uint32_t value = account.last_value + 1;
  if (write_marker(account, s, value) != CUDA_SUCCESS) return;
  account.last_value = value;
  account.unmarked_calls.store(1, kRelaxed);  // the marker itself
  g_markers_out.fetch_add(1, kRelaxed);
  account.pending[account.head++ % kMarkersPerAccount] = {value, upto};
  account.marked.store(upto, kRelaxed);
  trace_now(abi::kTraceMarker, account.key.load(kRelaxed), upto);
}

// Another thread's default stream cannot be named from here; the legacy stream only with one context.
bool can_be_asked_about(const StreamAccount& account) {
  const uint64_t key = account.key.load(kAcquire);
  return key >> 63 == 0 && !(key == 1 && g_state.n_contexts.load(kRelaxed) > 1) && !is_overflow(account);
}

// Work that nobody can ask about and no marker covers is taken to be done as its estimates say: too early costs some
// protection, too late would starve this program, and those that wait for its drain. True if anything became free.
bool count_down(StreamAccount& account, uint64_t upto, uint64_t now) {
  const uint64_t done = account.done.load(kRelaxed), since = account.since_ns.load(kRelaxed);
  if (account.marked.load(kRelaxed) > done || now <= since) return false;
  if (waits_behind_gate()) {  // no estimate tells when it begins
    account.since_ns.store(now, kRelaxed);
    return false;
  }
  account_done(account, std::min(upto, done + (now - since)));
  return true;
}

// True if a marker was reached, and what became free by that.
bool look_at_markers(StreamAccount& account, uint64_t& freed) {
  if (account.done.load(kRelaxed) == account.marked.load(kRelaxed) || !try_lock(account)) return false;
  const uint64_t upto = reached_upto(account);
  unlock(account);
  freed += advance(account, upto);
  return upto != 0;
}

}  // namespace

constinit StreamAccount g_accounts[kAccounts] = {};
constinit std::atomic<uint32_t> g_accounts_used = 0;
constinit MarkerMemory g_markers = {};
constinit std::atomic<uint32_t> g_markers_out{0};

CUcontext context_of(const driver_api::StreamArg& s) {
  const auto& real = driver_api::real();
  const bool is_special =
      reinterpret_cast<uint64_t>(s.stream) <= reinterpret_cast<uint64_t>(CU_STREAM_PER_THREAD);
  CUcontext context = nullptr;
  const CUresult result =
      is_special ? real.cuCtxGetCurrent(&context) : real.cuStreamGetCtx(s.stream, &context);
  return result == CUDA_SUCCESS ? context : nullptr;
}

bool is_of(const driver_api::StreamArg& s, const std::atomic<CUcontext>& context) {
  return context_of(s) == context.load(kRelaxed);
}

// Per-thread streams share handle 2: the thread's slot tells them apart. Bit 63 is never set in a pointer.
uint64_t account_key(driver_api::StreamArg s) {
  const uint64_t key = stream_key(s);
  if (key != 2) return key;
  Thread& t = t_thread;
  if (!t.slot) claim_slot(t);
  return (1ull << 63) | uint64_t(t.slot - g_slots) << 8 | 2;
}

StreamAccount* account_of(driver_api::StreamArg s) {
  Thread& t = t_thread;
  const uint64_t key = account_key(s);
  if (t.account && t.account_key == key && t.account->key.load(kRelaxed) == key) [[likely]]
    return t.account;
  t.account = claim_account(s, key);
  t.account_key = key;
  return t.account;
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

void account_done(StreamAccount& account, uint64_t upto) {
  completed(advance(account, upto));
}

void account_mark(StreamAccount* account, driver_api::StreamArg s) {
  if (is_overflow(*account) || !available() || !try_lock(*account)) return;
  enqueue_marker(*account, s);
  unlock(*account);
}

uint64_t account_enqueued(StreamAccount& account, uint64_t ns) {
  // release: pairs with enqueue_marker; the launches have returned
  const uint64_t before = account.enqueued.fetch_add(ns, kRelease);
  if (before == account.done.load(kRelaxed)) account.since_ns.store(clock_ns(), kRelaxed);
  return before;
}

uint64_t account_turn(StreamAccount& account, driver_api::StreamArg s, uint64_t ns, uint64_t now) {
  (void)account_enqueued(account, ns);
  if (is_overflow(account) || !available() || !try_lock(account)) return 0;
  enqueue_marker(account, s);
  const uint64_t upto = reached_upto(account);
  unlock(account);
  const uint64_t ended = advance(account, upto, now);
  if (ended) std::atomic_ref(g_state.link.load(kAcquire)->usage->completed_ns).fetch_add(ended, kRelaxed);
  return ended;
}

uint32_t accounts_at_work(const StreamAccount& asking) {
  uint32_t n = 1;
  for (const StreamAccount& account : marked_accounts())
    n += &account != &asking && account.enqueued.load(kRelaxed) != account.done.load(kRelaxed);
  return n;
}

void account_launched(StreamAccount* account, driver_api::StreamArg s, uint64_t ns, uint64_t spacing_ns) {
  const uint64_t enqueued = account_enqueued(*account, ns) + ns;
  const uint64_t marked = account->marked.load(kRelaxed), done = account->done.load(kRelaxed);
  count_call(*account);
  if (enqueued - (marked > done ? marked : done) >= spacing_ns ||
      account->unmarked_calls.load(kRelaxed) >= admission::kCallsPerMarker)
    account_mark(account, s);
}

int64_t next_marker_in_ns(uint64_t now_ns) {
  int64_t least = admission::kNoMarker;
  for (StreamAccount& account : marked_accounts()) {
    const uint64_t done = account.done.load(kRelaxed);
    if (done == account.marked.load(kRelaxed) || !try_lock(account)) continue;
    for (uint32_t i = account.tail; i != account.head; i++) {
      const uint64_t upto = account.pending[i % kMarkersPerAccount].upto;
      if (upto <= done) continue;  // known already, by a synchronise call or a query
      const int64_t left = int64_t(upto - done) - int64_t(now_ns - account.since_ns.load(kRelaxed));
      if (left < least) least = left;
      break;
    }
    unlock(account);
  }
  return least;
}

bool poll_accounts() {
  bool any = false;
  uint64_t freed = 0;
  for (StreamAccount& account : marked_accounts()) any = look_at_markers(account, freed) || any;
  completed(freed);  // once: other threads launch by that word
  return any;
}

void poll_account(StreamAccount& account) {
  uint64_t freed = 0;
  look_at_markers(account, freed);
  completed(freed);
}

bool query_accounts() {
  const bool may_ask = enter_driver();
  bool any = false;
  for (StreamAccount& account : g_accounts) {
    const uint64_t key = account.key.load(kAcquire);
    const uint64_t upto = account.enqueued.load(kAcquire);
    if (upto == account.done.load(kRelaxed)) continue;
    if (!can_be_asked_about(account)) {
      any = count_down(account, upto, clock_ns()) || any;
      continue;
    }
    const CUstream stream = key == 1 ? CU_STREAM_LEGACY : account.stream.load(kRelaxed);
    if (!may_ask) continue;
    const CUresult answer = driver_api::real().cuStreamQuery(stream);
    if (answer == kStreamDetached) any = count_down(account, upto, clock_ns()) || any;
    if (answer != CUDA_SUCCESS) continue;
    account_done(account, upto);
    any = true;
  }
  if (may_ask) leave_driver();
  return any;
}

uint64_t accounts_of_others(CUcontext context) {
  static_assert(kAccounts == 64);
  uint64_t others = 0;
  for (const StreamAccount& account : g_accounts) {
    // One at rest may be of a stream that is gone.
    if (account.enqueued.load(kRelaxed) == account.done.load(kRelaxed)) continue;
    bool is_anothers = g_state.n_contexts.load(kRelaxed) > 1;
    if (account.key.load(kAcquire) > 2 && can_be_asked_about(account)) {
      const CUcontext of = context_of({account.stream.load(kRelaxed), driver_api::Flavour::kLegacy});
      is_anothers = of && of != context;
    }
    if (is_anothers) others |= uint64_t(1) << (&account - g_accounts);
  }
  return others;
}

void forget_accounts(uint64_t kept, bool markers_end) {
  for (StreamAccount& account : g_accounts) {
    const bool is_kept = kept >> (&account - g_accounts) & 1;
    if (is_kept && !markers_end) continue;
    if (is_kept)
      account.marked.store(account.done.load(kRelaxed), kRelaxed);
    else
      account_done(account, account.enqueued.load(kAcquire));
    if (!try_lock(account)) continue;  // whoever has it sees its markers later, if they are ever reached
    g_markers_out.fetch_sub(account.head - account.tail, kRelaxed);
    account.tail = account.head;
    unlock(account);
  }
}

void mark_before_end(CUstream stream) {
  const driver_api::StreamArg s{stream, driver_api::Flavour::kLegacy};
  for (StreamAccount& account : marked_accounts())
    if (account.key.load(kAcquire) == stream_key(s) &&
        account.enqueued.load(kRelaxed) != account.done.load(kRelaxed) &&
        (g_state.captures.load(kRelaxed) == 0 || !capturing(s)))
      account_mark(&account, s);
}

void forget_account_of(uint64_t key) {
  begin_epoch();
  for (StreamAccount& account : g_accounts) {
    uint64_t seen = key;
    if (account.key.load(kRelaxed) != key) continue;
    const uint64_t upto = account.enqueued.load(kAcquire);
    const bool is_marked = account.marked.load(kRelaxed) == upto && account.done.load(kRelaxed) != upto &&
                           account.blind.load(kRelaxed) == 0;
    if (!is_marked) account_done(account, upto);
    account.key.compare_exchange_strong(seen, is_marked ? kGone : 0, kRelease);
  }
}

namespace {
void cover_account(AccountCover& cover, StreamAccount& account) {
  const uint64_t upto = account.enqueued.load(kAcquire);
  const uint32_t blind = account.blind.load(kRelaxed);
  if (upto != account.done.load(kRelaxed) || blind != 0) cover.items[cover.n++] = {&account, upto, blind};
}
}  // namespace

void cover_account_of(AccountCover& cover, driver_api::StreamArg s) {
  if (ThreadSlot* own = t_thread.slot) settle_credit(*own);
  const uint64_t key = account_key(s);
  if (key == 1 && g_state.n_contexts.load(kRelaxed) > 1) return;
  for (StreamAccount& account : g_accounts)
    if (account.key.load(kAcquire) == key) cover_account(cover, account);
}

void cover_all_accounts(AccountCover& cover) {
  if (ThreadSlot* own = t_thread.slot) settle_credit(*own);
  if (g_state.n_contexts.load(kRelaxed) > 1) return;
  for (StreamAccount& account : g_accounts) cover_account(cover, account);
}

void accounts_covered(const AccountCover& cover) {
  for (uint32_t i = 0; i < cover.n; i++) {
    const auto& item = cover.items[i];
    account_done(*item.account, item.upto);
    // Not where another thread has enqueued a wait meanwhile.
    uint32_t blind = item.blind;
    if (blind != 0) item.account->blind.compare_exchange_strong(blind, 0, kRelaxed);
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
