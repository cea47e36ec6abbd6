// Open addressing over keys that are claimed once and never change: places by key in an array that any thread may add to.
// No lock, no allocation. The array is the caller's, as is what lies beside a key: who claimed it fills that in.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::base {

struct ClaimedKey {
  int64_t at;  // < 0: it is not there, and, with `claim`, there is no room
  bool is_new;
};

// `key_at(i)`: the key of place i < n, as std::atomic or std::atomic_ref; 0 = free. `key` is not 0. Places are looked at from
// one that the key decides, `most` of them.
template <class KeyAt>
ClaimedKey find_key(KeyAt&& key_at, uint32_t n, uint32_t most, uint64_t key, bool claim) {
  constexpr auto kRelaxed = std::memory_order_relaxed;        // the key stands for itself
  uint64_t at = (key * 0x9e3779b97f4a7c15u >> 32) * n >> 32;  // below n: no division
  for (uint32_t i = 0; i < most; i++, at++) {
    if (at == n) at = 0;
    auto&& place = key_at(uint32_t(at));
    uint64_t seen = place.load(kRelaxed);
    if (seen == key) return {int64_t(at), false};
    if (seen != 0) continue;
    if (!claim) break;
    if (place.compare_exchange_strong(seen, key, kRelaxed)) return {int64_t(at), true};
    if (seen == key) return {int64_t(at), false};
  }
  return {-1, false};
}

}  // namespace tessera::base
