#include "interpose/track/reasons.h"

#include <stdio.h>
#include <string.h>

#include "interpose/slice/trial.h"
#include "interpose/track/track.h"
#include "ipc/channel/atomic.h"
#include "kernels/slice/globals.h"

namespace tessera::track {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // single counters; names are constants
constexpr uint32_t kReasons = 48;
struct Count {
  std::atomic<const char*> reason;  // null = free; set once
  std::atomic<uint64_t> n;
};
constinit Count g_counts[kReasons] = {};

using ipc::abi::SignalLine;
struct Group {
  const char* reason;
  uint32_t SignalLine::*counter;
};
constexpr Group kGroups[] = {{"grid_sync", &SignalLine::refused_waiting},
                             {"inter_block_wait", &SignalLine::refused_waiting},
                             {"lower_block_wait", &SignalLine::refused_waiting},
                             {"lock_loop", &SignalLine::refused_waiting},
                             {"cluster", &SignalLine::refused_waiting},
                             {"collective", &SignalLine::refused_waiting},
                             {reasons::kGridRows, &SignalLine::refused_waiting},
                             {reasons::kOneQueue, &SignalLine::refused_waiting},
                             {reasons::kWatchdog, &SignalLine::refused_waiting},
                             {"order_dependent", &SignalLine::refused_order},
                             {"coordinate_form", &SignalLine::refused_unclear},
                             {"indirect_call", &SignalLine::refused_unclear},
                             {"unknown_opcode", &SignalLine::refused_unclear},
                             {"too_complex", &SignalLine::refused_unclear},
                             {reasons::kNotParsed, &SignalLine::refused_unclear},
                             {reasons::kBitStability, &SignalLine::refused_bits},
                             {reasons::kNoSource, &SignalLine::refused_state},
                             {reasons::kVariableAddress, &SignalLine::refused_state},
#define TS_ROW(id, name, text) {name, &SignalLine::refused_state},
                             TS_GLOBALS_OBSTACLES(TS_ROW)
#undef TS_ROW
};

uint32_t SignalLine::*group_of(const char* reason) {
  for (const Group& g : kGroups)
    if (strcmp(g.reason, reason) == 0) return g.counter;
  return &SignalLine::refused_other;
}

}  // namespace

void publish_refusals(SignalLine& signals) noexcept {
  uint32_t SignalLine::*const counters[] = {&SignalLine::refused_waiting, &SignalLine::refused_order,
                                            &SignalLine::refused_unclear, &SignalLine::refused_bits,
                                            &SignalLine::refused_state,   &SignalLine::refused_other};
  for (const auto counter : counters) {
    uint64_t n = 0;
    for (const Count& c : g_counts) {
      const char* reason = c.reason.load(kRelaxed);
      if (reason && group_of(reason) == counter) n += c.n.load(kRelaxed);
    }
    if (ipc::load(signals.*counter, kRelaxed) != n) ipc::store(signals.*counter, uint32_t(n), kRelaxed);
  }
  ipc::store(signals.watchdog_releases, cut::g_watchdog_releases.load(kRelaxed), kRelaxed);
}

void count_refusal(const char* reason) noexcept {
  if (!reason || !*reason) return;
  for (Count& c : g_counts) {
    const char* seen = c.reason.load(kRelaxed);
    if (!seen) c.reason.compare_exchange_strong(seen, reason, kRelaxed);
    if (seen && strcmp(seen, reason) != 0) continue;
    c.n.fetch_add(1, kRelaxed);
    return;
  }
}

uint64_t refusals(const char* reason) noexcept {
  for (const Count& c : g_counts) {
    const char* seen = c.reason.load(kRelaxed);
    if (seen && strcmp(seen, reason) == 0) return c.n.load(kRelaxed);
  }
  return 0;
}

void describe_refusals(char* out, uint32_t size) noexcept {
  if (size == 0) return;
  *out = 0;
  uint32_t used = 0;
  for (const Count& c : g_counts) {
    const char* reason = c.reason.load(kRelaxed);
    if (!reason) return;
    const int n = snprintf(out + used, size - used, "%s%s %llu", used ? ", " : "", reason,
                           static_cast<unsigned long long>(c.n.load(kRelaxed)));
    if (n < 0 || uint32_t(n) >= size - used) return;
    used += uint32_t(n);
  }
}

}  // namespace tessera::track
