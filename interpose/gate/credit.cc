#include "interpose/gate/credit.h"

#include <algorithm>
#include <span>

#include "interpose/gate/learnt.h"
#include "interpose/gate/pulse.h"
#include "interpose/state/clock.h"

namespace tessera::gate {
namespace {

using namespace state;
using driver_api::StreamArg;
constexpr auto kRelaxed = std::memory_order_relaxed, kSeqCst = std::memory_order_seq_cst;

// To the window: `ns` of what is left.
void give_back(Credit& c, uint64_t ns) {
  uint64_t left = c.left_ns.load(kRelaxed), given = 0;
  do given = ns < left ? ns : left;
  while (!c.left_ns.compare_exchange_weak(left, left - given, std::memory_order_acq_rel, kRelaxed));
  release_reserved(g_state.link.load(std::memory_order_acquire), given);
}

// Among the threads that have credit, or not any more. A reclaimer may get here, too.
void count(Credit& c, uint32_t has_credit) {
  if (c.counted.load(kRelaxed) == has_credit || c.counted.exchange(has_credit, kRelaxed) == has_credit)
    return;
  if (has_credit)
    g_state.credits.fetch_add(1, kRelaxed);
  else
    g_state.credits.fetch_sub(1, kRelaxed);
}

}  // namespace

bool enter_on_credit(Thread& t, uint64_t account_key, uint64_t expected_ns) {
  Credit& c = t.slot->credit;
  c.in_gate.store(base::stack_pointer(), kRelaxed);
  asymmetric_fence();  // then look; pairs with reclaim_credits: raise the epoch, fence, look at in_gate
  bool valid = c.epoch != 0 && c.account_key == account_key && still_granted(c, c.epoch);
  for (uint32_t i = 0; valid && i < c.n_peers; i++) valid = !stirred(c.peers[i]);
  if (valid && pay(c, expected_ns)) return true;
  c.in_gate.store(0, std::memory_order_release);
  if (!valid) settle_credit(*t.slot);
  return false;
}

bool renew_credit(Thread& t) {
  Credit& c = t.slot->credit;
  LaunchMemo& memo = t.memo;
  const uint64_t now = clock_ns();
  if (now >= c.expires_ns || t.slot->launches.load(kRelaxed) >= t.timed_at) return false;  // should_time
  const uint64_t spent = c.spent_ns.exchange(0, std::memory_order_acq_rel);  // a reclaimer may get here, too
  const uint64_t ended = account_turn(*c.account.load(kRelaxed), {memo.stream, memo.family}, spent, now);
  const uint64_t left = c.left_ns.load(kRelaxed) + ended,
                 most = admission::credit_share_ns(c.window_ns, g_state.credits.load(kRelaxed));
  c.left_ns.fetch_add(ended, std::memory_order_release);
  if (left > most) give_back(c, left - most);
  memo.expected_ns = estimate_kernel(memo.timing, memo.blocks);
  return memo.expected_ns <= admission::kShortLaunchNs && pay(c, memo.expected_ns);
}

CUresult leave_unspent(CUresult result, uint64_t expected_ns) {
  Credit& c = t_thread.slot->credit;
  const uint64_t spent = c.spent_ns.load(kRelaxed);  // nobody takes it while this thread is inside
  c.spent_ns.store(spent - std::min(spent, expected_ns), kRelaxed);
  c.left_ns.fetch_add(expected_ns, std::memory_order_release);
  c.in_gate.store(0, std::memory_order_release);  // pairs with reclaim_credits
  if (is_sticky(result)) poison();
  return result;
}

// The rest of the last credit stays if it is for the same stream and daemon.
uint64_t wanted_credit_ns(ThreadSlot& slot, const DaemonLink* link, StreamArg stream, uint64_t estimate_ns) {
  Credit& c = slot.credit;
  if (c.epoch != g_state.epoch.load(kRelaxed) || c.account_key != account_key(stream)) settle_credit(slot);
  // Each thread completes its own work where it can: accounts and the window's word stay on its CPU then.
  poll_account(*account_of(stream));
  const uint64_t window_ns = ipc::load(link->lease->window_ns, kRelaxed);
  const uint64_t taken_ns = in_flight(link).load(kRelaxed) + estimate_ns;
  const uint32_t n_threads = g_state.credits.load(kRelaxed) + (c.counted.load(kRelaxed) == 0);
  return admission::credit_wanted_ns(window_ns > taken_ns ? window_ns - taken_ns : 0,
                                     admission::credit_share_ns(window_ns, n_threads),
                                     c.left_ns.load(kRelaxed), estimate_ns);
}

// The peers that the rule looked at: watched, and of a higher level. A packed lease and a stale pulse are the
// rule's business: where one of them is busy now, `stirred` finds it so at the next launch.
static void note_peers(Credit& c, const DaemonLink* link) {
  const uint32_t n = g_state.n_watched.load(kRelaxed),
                 own = ipc::load(link->lease->rights, kRelaxed).priority;
  c.n_peers = 0;
  for (uint32_t i = 0; i < n && i < kWatched; i++) {
    const Watch& watch = g_state.watch[i];
    if (watch.priority.load(kRelaxed) <= own) continue;
    const abi::PulsePage* page = watch.page.load(std::memory_order_acquire);
    c.peers[c.n_peers++] = {page, ipc::load(page->burst, kRelaxed)};
  }
  for (uint32_t i = c.n_peers; i < kPeersOfARepeat; i++) c.peers[i] = {&g_idle_pulse, 0};
}

void keep_credit(ThreadSlot& slot, const DaemonLink* link, uint32_t word, uint32_t epoch, uint64_t credit_ns,
                 StreamArg stream) {
  Credit& c = slot.credit;
  c.lease_word = &link->lease->word;
  c.word = word;
  // If a later lease is there by now, this end is its end; then the word has changed, and this credit is void.
  c.expires_ns = ipc::load(link->lease->expires_ns, kRelaxed);
  c.window_ns = ipc::load(link->lease->window_ns, kRelaxed);
  // Whoever sees the epoch that a capture began sees the capture (lifecycle::enter_exclusive).
  // The same holds for a reclaimer, who raised it after he had counted himself.
  c.epoch = g_state.captures.load(kSeqCst) == 0 && g_state.reclaimers.load(kSeqCst) == 0 ? epoch : 0;
  note_peers(c, link);
  c.account.store(account_of(stream), kRelaxed);
  if (c.account_key != t_thread.account_key) t_thread.memo.epoch = 0;  // it may be of the other stream
  c.account_key = t_thread.account_key;
  count(c, 1);
  // Added, because a reclaimer may just have taken what was left; release: pairs with settle_credit's
  // exchange
  c.left_ns.fetch_add(credit_ns, std::memory_order_release);
}

uint64_t take_spent(ThreadSlot& slot, const StreamAccount* account) {
  Credit& c = slot.credit;
  if (c.spent_ns.load(kRelaxed) == 0 || c.account.load(kRelaxed) != account) return 0;
  return c.spent_ns.exchange(0, std::memory_order_acq_rel);  // a reclaimer may get here, too
}

uint64_t settle_credit(ThreadSlot& slot) {
  Credit& c = slot.credit;
  count(c, 0);
  if (c.left_ns.load(kRelaxed) == 0 && c.spent_ns.load(kRelaxed) == 0) return 0;
  // Before the exchanges: the owner spends nothing of another account until both sides are through.
  StreamAccount* account = c.account.load(kRelaxed);
  // Exchanges: owner and reclaimer may both get here, each nanosecond is given back once.
  const uint64_t spent = c.spent_ns.exchange(0, std::memory_order_acq_rel);
  const uint64_t left = c.left_ns.exchange(0, std::memory_order_acq_rel);
  // Marked with the next launch, or asked about.
  if (spent && account) (void)account_enqueued(*account, spent);
  if (left) release_reserved(g_state.link.load(std::memory_order_acquire), left);
  return left;
}

bool reclaim_credits() {
  g_state.reclaimers.fetch_add(1, kSeqCst);
  begin_epoch();
  g_slow.heavy_fence();  // pairs with asymmetric_fence in enter_on_credit
  uint64_t freed = 0;
  const uint32_t used = g_slots_used.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < used; i++)
    if (g_slots[i].credit.in_gate.load(std::memory_order_acquire) == 0) freed += settle_credit(g_slots[i]);
  g_state.reclaimers.fetch_sub(1, kSeqCst);  // pairs with keep_credit: what was taken is seen to be taken
  return freed != 0;
}

// State::credits does not tell: a thread that keeps credit while a reclaimer settles its slot has some and is not counted.
bool reclaim_kept_credits() {
  const std::span<ThreadSlot> used{g_slots, g_slots_used.load(std::memory_order_acquire)};
  return std::ranges::any_of(used,
                             [](const ThreadSlot& slot) {
                               return slot.credit.left_ns.load(kRelaxed) != 0 ||
                                      slot.credit.spent_ns.load(kRelaxed) != 0;
                             }) &&
         reclaim_credits();
}

}  // namespace tessera::gate
