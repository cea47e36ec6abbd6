#include "interpose/gate/collectives.h"

#include <algorithm>

#include "admission/wait.h"
#include "base/errno_guard.h"
#include "base/futex.h"
#include "interpose/gate/ask.h"
#include "interpose/gate/launch.h"
#include "interpose/gate/operation_counts.h"

namespace tessera::gate {
namespace {

using namespace state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

constinit std::atomic<abi::GangPage*> g_gang{nullptr};  // null: in none. Never unmapped
constinit std::atomic<uint64_t> g_started{0};           // collectives of this process

// Has another member begun this one, or does nobody know?
bool has_begun(const abi::CollectiveLine& line, uint64_t number) {
  return ipc::load(line.begun, kSeqCst) >= number || ipc::load(line.uncounted, kRelaxed) != 0;
}

// Members that wait look at `begun` between raising `waiting` and sleeping: one of the two sees the other (seq_cst).
void begin(abi::CollectiveLine& line, uint64_t number) {
  const std::atomic_ref begun(line.begun);
  uint64_t before = begun.load(kRelaxed);
  while (before < number && !begun.compare_exchange_weak(before, number, kSeqCst)) {
  }
  if (before >= number || ipc::load(line.waiting, kSeqCst) == 0) return;
  const base::ErrnoGuard keep_errno;
  std::atomic_ref(line.changes).fetch_add(1, kSeqCst);
  base::futex_wake_all(&line.changes);
}

}  // namespace

// The first of its gang: as Asking (ask.cc), but what it waits for is another member, too. Nothing is reserved, because
// nobody knows how long a collective waits for its peers.
class FirstCollective {
 public:
  FirstCollective(abi::CollectiveLine& line, uint64_t number) : line_(line), number_(number) {}
  void wait();

 private:
  void sleep(const admission::LeaseView& lease, admission::Reason reason);

  abi::CollectiveLine& line_;
  const uint64_t number_;
  Wait wait_;
};

void FirstCollective::wait() {
  while (g_state.role.load(kRelaxed) == Role::kBestEffort && !has_begun(line_, number_)) {
    const DaemonLink* link = g_state.link.load(std::memory_order_acquire);
    wait_.follow(link);
    const admission::LeaseView lease = lease_of(link);
    const uint64_t now_ns = clock_ns();
    const admission::Verdict verdict =
        admission::judge({}, lease, current_pulses(), link->guard_ns, 0, wait_.waited_, now_ns);
    if (verdict.action != admission::Action::kWait) return;
    wait_.begin(link, 0, now_ns);
    if (admission::daemon_should_know(verdict.reason, lease, wait_.waited_)) wait_.tell_daemon(lease.word);
    sleep(lease, verdict.reason);
    const uint64_t after_ns = clock_ns();
    admission::after_wait(wait_.waited_, verdict.reason, after_ns > now_ns ? after_ns - now_ns : 0, false);
  }
}

// A change of the lease wakes nobody here, so that no sleep is longer than those of launches that wait for pulses.
void FirstCollective::sleep(const admission::LeaseView& lease, admission::Reason reason) {
  const base::ErrnoGuard keep_errno;
  poll_accounts();
  const uint64_t limit_ns =
      lease.max_hold_ns - std::min(lease.max_hold_ns, wait_.waited_.towards_limit_ns(reason));
  const uint64_t longest_ns =
      admission::plan_wait(reason, lease, wait_.waited_, 0, admission::kNoMarker).sleep_ns;
  const std::atomic_ref waiting(line_.waiting);
  waiting.fetch_add(1, kSeqCst);
  const uint32_t seen = ipc::load(line_.changes, kSeqCst);
  if (!has_begun(line_, number_)) base::futex_wait(&line_.changes, seen, std::min(longest_ns, limit_ns));
  waiting.fetch_sub(1, kSeqCst);
}

bool starts_collective(CUfunction function) {
  abi::GangPage* page = g_gang.load(std::memory_order_acquire);
  if (!page) [[likely]]
    return false;
  const KernelRecord* kernel = find_kernel(function);
  if (!kernel || !kernel->loaded.never_hold) return false;
  const DepthGuard depth;
  charge_operation(0);
  const uint64_t number = g_started.fetch_add(1, kRelaxed) + 1;
  FirstCollective(page->collectives, number).wait();
  begin(page->collectives, number);
  return true;
}

void join_gang(abi::GangPage* page, bool counted) {
  if (!counted) ipc::store(page->collectives.uncounted, 1u, kRelaxed);
  g_gang.store(page, std::memory_order_release);
}

void leave_gang() {
  if (abi::GangPage* page = g_gang.exchange(nullptr, std::memory_order_acq_rel))
    ipc::store(page->collectives.uncounted, 1u, kRelaxed);
}

}  // namespace tessera::gate
