#include "interpose/slice/pause.h"

#include <atomic>

#include "interpose/state/clock.h"

namespace tessera::cut {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // single words; a launch more or less does not matter
constexpr uint32_t kExpiriesBeforePause = 8;          // in a row
constexpr uint64_t kFirstPauseNs = 5'000'000'000, kMostPauseNs = 600'000'000'000;

constinit std::atomic<uint64_t> g_expired{0};
constinit std::atomic<uint32_t> g_in_a_row{0};
constinit std::atomic<uint64_t> g_until_ns{0},
    g_latest_ns{0};  // end of the pause; how long the latest one is

}  // namespace

void note_expired_hold() {
  g_expired.fetch_add(1, kRelaxed);
  if (g_in_a_row.fetch_add(1, kRelaxed) + 1 < kExpiriesBeforePause) return;
  g_in_a_row.store(0, kRelaxed);
  const uint64_t before = g_latest_ns.load(kRelaxed);
  const uint64_t pause_ns = before == 0 ? kFirstPauseNs : before < kMostPauseNs ? before * 2 : before;
  g_latest_ns.store(pause_ns, kRelaxed);
  g_until_ns.store(state::clock_ns() + pause_ns, kRelaxed);
}

void note_served_launch() {
  if (g_in_a_row.load(kRelaxed) != 0) g_in_a_row.store(0, kRelaxed);
}

bool paused() {
  const uint64_t until = g_until_ns.load(kRelaxed);
  if (until == 0) [[likely]]
    return false;
  if (state::clock_ns() < until) return true;
  g_until_ns.store(0, kRelaxed);
  return false;
}

uint64_t expired_holds() {
  return g_expired.load(kRelaxed);
}

}  // namespace tessera::cut
