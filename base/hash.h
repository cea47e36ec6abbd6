// Hashes whose values are kept, in files or across processes, and thus never change: FNV-1a of bytes and of
// words, a finaliser, and the joining of two values. Pure arithmetic, safe on the launch path. None resists
// somebody who looks for collisions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::base {

inline constexpr uint64_t kFnvBasis = 0xcbf29ce484222325u;

constexpr uint64_t fnv1a_step(uint64_t hash, uint64_t unit) {
  return (hash ^ unit) * 0x100000001b3u;
}
inline uint64_t fnv1a(const void* bytes, size_t n, uint64_t basis = kFnvBasis) {
  uint64_t hash = basis;
  for (const auto* at = static_cast<const unsigned char*>(bytes); n != 0; --n, ++at)
    hash = fnv1a_step(hash, *at);
  return hash;
}

constexpr uint64_t mix64(uint64_t x) {  // finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline constexpr uint64_t kGoldenRatio =
    0x9e3779b97f4a7c15u;  // SplitMix64 adds it per number: mix64(state += ...)

// Place in a table of 2^bits entries, by the upper bits of a product: handles are alike in their lower ones.
constexpr uint32_t slot_of(uint64_t value, uint32_t bits) {
  return uint32_t(value * kGoldenRatio >> (64 - bits));
}

constexpr uint64_t combine(uint64_t hash, uint64_t value) {
  hash ^= value + kGoldenRatio + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdu;
}

}  // namespace tessera::base
