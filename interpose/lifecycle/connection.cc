#include "interpose/lifecycle/connection.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "base/errno_guard.h"
#include "interpose/gate/collectives.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/peer_gates.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/trace.h"
#include "interpose/gate/window.h"
#include "interpose/hooks/trace.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/lifecycle/park.h"
#include "interpose/memory/memory.h"
#include "interpose/state/clock.h"
#include "interpose/state/config.h"

namespace tessera::lifecycle {

namespace abi = ipc::abi;

namespace {

using state::g_state;
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

constinit std::atomic<ipc::Attachment*> g_attachment{nullptr};
constinit std::atomic<uint32_t> g_notifying{
    0};  // threads inside notify_daemon: the descriptors stay open for them
constinit std::atomic<pid_t> g_owner_pid{0};
constinit std::atomic<uint32_t> g_lost{0};
constinit bool g_trace_wanted = false;  // helper thread only

struct Watched {  // helper thread only
  uint32_t client_id = 0;
  void* page = nullptr;  // mapped, current or retired
  bool used = false;
};
constinit Watched g_watched[state::kWatched] = {};

state::DaemonLink link_of(const ipc::Attachment& a, abi::PulsePage* pulse) {
  abi::Region& shared = a.shared();
  return {&shared.lease,
          &shared.usage,
          &shared.ring,
          abi::kRingSlots,
          pulse ? pulse : state::g_unmanaged.pulse,
          a.guard_ns,
          state::config().max_hold_ns,
          &shared.signals,
          &shared.operations.totals,
          shared.operations.counts,
          abi::kOperationSlots,
          &shared.cutting,
          &shared.answer,
          &shared.requests};
}

}  // namespace

void notify_daemon() noexcept {
  const base::ErrnoGuard keep_errno;
  g_notifying.fetch_add(1, kSeqCst);  // pairs with withdraw: pointer gone, then wait for us
  if (ipc::Attachment* a = g_attachment.load(kSeqCst); a && g_owner_pid.load(kRelaxed) == getpid())
    if (!ipc::notify(*a))
      g_lost.store(1, kRelaxed);  // host closed our descriptors: the helper ends the attachment
  g_notifying.fetch_sub(1, kSeqCst);
}

void close_sockets_in_child() {
  ipc::Attachment* a = g_attachment.exchange(nullptr, kSeqCst);
  if (a) ipc::close_descriptors(*a);
}

bool descriptors_lost() {
  ipc::Attachment* a = g_attachment.load(kSeqCst);
  return a && (g_lost.exchange(0, kRelaxed) != 0 || !ipc::descriptors_intact(*a));
}

ipc::Attachment* attached() {
  return g_attachment.load(kSeqCst);
}

void publish(ipc::Attachment&& attachment) {
  // Leaked on purpose (see the header); a few hundred bytes and, once withdrawn, addresses without memory.
  auto* kept = new (std::nothrow) ipc::Attachment(std::move(attachment));
  auto* link = new (std::nothrow) state::DaemonLink;
  if (!kept || !link) {
    delete kept;
    delete link;
    return;
  }
  *link = link_of(*kept, kept->pulse());
  // relaxed: it stands for itself
  ipc::store(link->operations->splitting, uint64_t(state::config().splits_operations), kRelaxed);
  gate::forget_accounts();  // what ran unmanaged is not in the new window
  g_owner_pid.store(getpid(), kRelaxed);
  g_lost.store(0, kRelaxed);
  g_attachment.store(kept, kSeqCst);
  memory::adopt(&kept->shared().memory, kept->answer_within_ms, notify_daemon);
  state::set_link(link);
  if (!g_state.poisoned.load(kRelaxed))
    g_state.role.store(
        kept->priority > 0 && kept->pulse() ? state::Role::kProtected : state::Role::kBestEffort, kRelaxed);
}

// Launches under way finish by the rules that they began with: each keeps its own DaemonLink, and both links count
// in the same region. The old pulse page is never unmapped, nobody watches it any more.
void change_role(uint32_t priority, ipc::Mapping&& page) {
  ipc::Attachment* a = g_attachment.load(kSeqCst);
  auto* link = new (std::nothrow) state::DaemonLink;
  const bool becomes_protected = priority > 0 && page.valid();
  if (!a || !link || g_state.poisoned.load(kRelaxed)) {
    delete link;
    return;
  }
  auto* pulse = becomes_protected ? static_cast<abi::PulsePage*>(page.leak()) : nullptr;
  *link = link_of(*a, pulse);
  if (becomes_protected) {
    gate::leave_gang();
    gate::stop_device_gate(g_state.link.load(std::memory_order_acquire));
    unwatch_all();
    gate::reclaim_credits();
    gate::forget_accounts();
  } else {
    gate::override_device_gate(false);
    gate::forget_peer_gates();
  }
  a->priority = priority;
  state::set_link(link);
  g_state.role.store(becomes_protected ? state::Role::kProtected : state::Role::kBestEffort, kRelaxed);
  if (becomes_protected && !ipc::acknowledge_pulse(*a).ok()) g_lost.store(1, kRelaxed);
}

void withdraw(bool hold_on_loss) {
  const bool best_effort = g_state.role.load(kRelaxed) == state::Role::kBestEffort;
  const bool hold = hold_on_loss && best_effort;
  state::set_link(hold ? &state::g_daemonless_hold : &state::g_unmanaged);
  if (!hold) g_state.role.store(state::Role::kForward, kRelaxed);
  memory::withdraw();
  gate::leave_gang();
  gate::adopt_device_gate(nullptr);  // what waits behind it goes
  gate::forget_peer_gates();
  unwatch_all();
  follow_trace({});
  ipc::Attachment* a = g_attachment.exchange(nullptr, kSeqCst);
  while (g_notifying.load(kSeqCst) != 0) sched_yield();
  if (!a) return;
  ipc::close_descriptors(*a);
  ipc::drop_memory(a->region.data(), a->region.bytes());
  if (a->pulse_page.valid()) ipc::drop_memory(a->pulse_page.data(), a->pulse_page.bytes());
}

// The memory of an earlier trace stays mapped for threads that still write, but its pages go.
void follow_trace(ipc::Mapping&& memory) {
  static constinit void* mapped = nullptr;  // helper thread only
  void* before = mapped;
  mapped = memory.valid() ? memory.leak() : nullptr;
  g_trace_wanted = mapped != nullptr;
  if (mapped) trace_as_wanted();
  gate::set_trace(static_cast<abi::TraceHeader*>(mapped));
  if (!mapped) trace_as_wanted();
  if (before) ipc::drop_memory(before, abi::kTraceBytes);
}

void trace_as_wanted() {
  static constinit bool traced = false;
  if (traced == g_trace_wanted || slots_are_exchanged()) return;
  hooks::trace_driver_calls(traced = g_trace_wanted);
}

void watch_peer(uint32_t client_id, uint32_t priority, uint64_t slo_ns, ipc::Mapping&& page) {
  if (!page.valid() || page.bytes() < abi::kPulseBytes) return;
  uint32_t at = state::kWatched;  // its own place, if its terms changed; else the first free one
  for (uint32_t i = state::kWatched; i-- > 0;) {
    if (!g_watched[i].used) at = i;
    if (g_watched[i].used && g_watched[i].client_id == client_id) {
      at = i;
      break;
    }
  }
  // More than kWatched: revocation by the daemon reaches us instead. The mapping unmaps itself, nobody saw
  // it.
  if (at == state::kWatched) return;
  Watched& w = g_watched[at];
  void* mapped = page.leak();
  if (w.page) {  // put it where the retired page was: addresses are reused, launches never see a hole
    void* moved = mremap(mapped, abi::kPulseBytes, abi::kPulseBytes, MREMAP_MAYMOVE | MREMAP_FIXED, w.page);
    if (moved == MAP_FAILED) return;
    mapped = moved;
  }
  w = {client_id, mapped, true};
  g_state.watch[at].priority.store(priority, kRelaxed);
  g_state.watch[at].slo_ns.store(slo_ns, kRelaxed);
  g_state.watch[at].page.store(static_cast<const abi::PulsePage*>(mapped), std::memory_order_release);
  if (g_state.n_watched.load(kRelaxed) < at + 1) g_state.n_watched.store(at + 1, std::memory_order_release);
  state::begin_epoch();  // no credit was asked about this peer
}

void unwatch_peer(uint32_t client_id) {
  uint32_t highest = 0;
  for (uint32_t i = 0; i < state::kWatched; i++) {
    Watched& w = g_watched[i];
    if (w.used && w.client_id == client_id) {
      g_state.watch[i].page.store(&state::g_idle_pulse, std::memory_order_release);
      ipc::drop_memory(w.page, abi::kPulseBytes);
      w.used = false;
    }
    if (w.used) highest = i + 1;
  }
  g_state.n_watched.store(highest, std::memory_order_release);
  state::begin_epoch();
}

void unwatch_all() {
  for (Watched& w : g_watched)
    if (w.used) unwatch_peer(w.client_id);
}

}  // namespace tessera::lifecycle
