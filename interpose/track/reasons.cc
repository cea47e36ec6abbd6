#include "interpose/track/reasons.h"

#include <stdio.h>
#include <string.h>

namespace tessera::track {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // single counters; names are constants
constexpr uint32_t kReasons = 32;
struct Count {
  std::atomic<const char*> reason;  // null = free; set once
  std::atomic<uint64_t> n;
};
constinit Count g_counts[kReasons] = {};

}  // namespace

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
