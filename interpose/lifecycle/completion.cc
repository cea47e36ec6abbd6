// Sees the end of work that nobody synchronised with.
#include "interpose/lifecycle/completion.h"

#include "interpose/gate/ask.h"
#include "interpose/gate/device_gate.h"
#include "interpose/gate/pulse.h"
#include "interpose/gate/timing.h"
#include "interpose/lifecycle/lifecycle.h"
#include "interpose/state/process.h"
#include "ipc/channel/pulse.h"

namespace tessera::lifecycle {

namespace abi = ipc::abi;

namespace {

using state::g_state;
using state::Role;
constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr uint64_t kUs = 1'000, kMs = 1'000'000;
constexpr uint64_t kBeatNs = 100 * kMs;
constexpr uint64_t kParkAfterNs = 10 * kMs;
constexpr uint64_t kForgiveNs = 20 * kMs;  // work on streams that nobody can ask about
constexpr uint64_t kQueryNs = 10 * kMs;
constexpr uint64_t kForgiveSoonNs = 2 * kMs, kLongInTheWayNs = 100 * kMs;  // is_in_the_way_for_long

struct CompletionWatch {  // of one attachment; helper thread only
  uint64_t next_beat_ns = 0;
  uint64_t idle_since_ns = 0;                   // protected: of the parking clock
  uint64_t last_total = 0, last_change_ns = 0;  // launches, and when there was the latest one
  uint64_t seen_launches = 0;                   // by protected_round
  uint64_t forgave_ns = 0;                      // the latest that was forgiven soon
  uint64_t poll_ns = 100 * kUs;
  uint64_t next_query_ns = 0;  // best-effort, while something waits on the device
};
constinit CompletionWatch g_watch = {};

// Asks each known context in turn until one knows the stream. Under enter_driver.
CUresult query_anywhere(CUstream stream) {
  const auto& real = driver_api::real();
  CUcontext contexts[state::kContexts];
  const uint32_t n = state::copy_contexts(contexts, state::kContexts);
  CUresult result = CUDA_ERROR_INVALID_CONTEXT;
  for (uint32_t i = 0; i < n; i++) {
    if (real.cuCtxSetCurrent(contexts[i]) != CUDA_SUCCESS) continue;
    result = real.cuStreamQuery(stream);
    if (result == CUDA_ERROR_NOT_READY) return result;
    if (result == CUDA_SUCCESS && stream != CU_STREAM_LEGACY)
      return result;  // legacy: every context must be empty
  }
  return result;
}

// Another thread's default stream and streams without a place of their own cannot be asked about, nor what is of a
// dead context, or whose handle is used again.
CUresult query_count(const state::StreamCount& c) {
  const uint64_t key = c.key.load(kRelaxed);
  if (key == 0 || key == 2) return CUDA_ERROR_INVALID_HANDLE;
  if (!state::enter_driver()) return CUDA_ERROR_NOT_READY;
  const CUresult result = query_anywhere(key == 1 ? CU_STREAM_LEGACY : reinterpret_cast<CUstream>(key));
  state::leave_driver();
  return result;
}

// Work that nobody can ask about is taken to be done if nothing was launched for a while: too early an idle costs
// protection, too late starves others. Of a program that was never seen idle for long the second is more likely.
bool is_in_the_way_for_long(uint64_t now) {
  const abi::PulsePage& page = *g_state.link.load(std::memory_order_acquire)->pulse;
  const uint64_t busy_since_ns = ipc::load(page.busy_since_ns, kRelaxed);
  return now > busy_since_ns + kLongInTheWayNs ||
         (g_watch.forgave_ns != 0 && now < g_watch.forgave_ns + kLongInTheWayNs);
}

uint64_t protected_round(uint64_t now) {
  const state::DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  abi::PulsePage& page = *link->pulse;
  if (ipc::load(page.busy, std::memory_order_acquire) != 0) {
    g_watch.idle_since_ns = 0;
    if (now >= g_watch.next_beat_ns) {
      ipc::pulse_beat(page, now);
      g_watch.next_beat_ns = now + kBeatNs / 2;
    }
    gate::sample_class();
    const uint64_t launches = gate::total_launches();
    if (launches != g_watch.seen_launches) {
      g_watch.seen_launches = launches;  // it is launching, so it is not idle: nothing to ask the driver
    } else if (poll_idle(now)) {
      gate::g_pulse_stats.idled_by_helper.fetch_add(1, kRelaxed);
      g_watch.poll_ns = 100 * kUs;
    } else if (g_watch.poll_ns < 2 * kMs) {
      g_watch.poll_ns += g_watch.poll_ns / 4;  // long bursts are asked about less often
    }
    return g_watch.poll_ns;
  }
  g_watch.poll_ns = 100 * kUs;
  if (g_watch.idle_since_ns == 0) g_watch.idle_since_ns = now;
  return now - g_watch.idle_since_ns < kParkAfterNs ? 2 * kMs : kParkedNs;
}

uint64_t best_effort_round(uint64_t now) {
  const state::DaemonLink* link = g_state.link.load(std::memory_order_acquire);
  if (gate::in_flight(link).load(std::memory_order_seq_cst) == 0 && !gate::samples_pending()) {
    gate::acknowledge_drain();
    gate::watch_device_gate(link, now);
    return g_state.waiters.load(kRelaxed) ? 10 * kMs : 50 * kMs;
  }
  if (admission::grant_at(gate::lease_of(link), now) != admission::Grant::kGranted)
    gate::reclaim_kept_credits();
  gate::poll_accounts();
  // Before the driver is asked anything: its answer may wait behind the very gate.
  const uint64_t gate_look_ns = gate::watch_device_gate(link, now);
  CUcontext context = nullptr;
  const bool asks = gate_look_ns == 0 || now >= g_watch.next_query_ns;
  if (asks && state::copy_contexts(&context, 1) && state::enter_driver()) {
    g_watch.next_query_ns = now + kQueryNs;
    driver_api::real().cuCtxSetCurrent(context);
    state::leave_driver();
    gate::query_accounts();
    gate::harvest_samples();
  }
  gate::acknowledge_drain();
  if (now >= g_watch.next_beat_ns) {
    ipc::store(link->usage->heartbeat_ns, now, kRelaxed);
    g_watch.next_beat_ns = now + kBeatNs / 2;
  }
  const uint32_t word = ipc::load(link->lease->word, std::memory_order_acquire);
  const bool draining = (word & abi::kLeaseStateMask) == abi::kLeaseHold;
  if (gate_look_ns != 0) return gate_look_ns;
  if (!draining) return 5 * kMs;
  g_watch.poll_ns = g_watch.poll_ns < kMs ? g_watch.poll_ns + g_watch.poll_ns / 8 : kMs;
  return g_watch.poll_ns;
}

}  // namespace

void begin_completion_watch() {
  g_watch = {};
}

uint64_t look_for_completion(uint64_t now) {
  switch (g_state.role.load(kRelaxed)) {
    case Role::kProtected:
      return protected_round(now);
    case Role::kBestEffort:
      return best_effort_round(now);
    case Role::kForward:
      return 50 * kMs;
  }
  return 50 * kMs;
}

bool poll_idle(uint64_t now) {
  const uint64_t total = gate::total_launches();
  if (total != g_watch.last_total) {
    g_watch.last_total = total;
    g_watch.last_change_ns = now;
  }
  const bool starves = is_in_the_way_for_long(now);
  const bool quiet = now - g_watch.last_change_ns > (starves ? kForgiveSoonNs : kForgiveNs);
  const uint32_t used = state::g_slots_used.load(std::memory_order_acquire);
  const auto is_at_work = [&](state::StreamCount& c) {
    const uint64_t ended = c.ended.load(std::memory_order_acquire);
    if (ended == c.completed.load(kRelaxed)) return false;
    const CUresult result = query_count(c);
    if (result == CUDA_ERROR_NOT_READY) return true;
    if (result != CUDA_SUCCESS && !quiet) return false;  // try_idle() finds it
    if (result != CUDA_SUCCESS && starves) g_watch.forgave_ns = now;
    gate::advance(c, ended);
    return false;
  };
  for (uint32_t i = 0; i < used; i++)
    if (state::find_stream(state::g_slots[i], is_at_work)) {
      gate::look_at_requests();
      return false;
    }
  gate::look_at_requests();
  return gate::try_idle();
}

}  // namespace tessera::lifecycle
