#include "interpose/operations/described.h"

#include <string.h>

#include <atomic>

namespace tessera::library {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint32_t kSlots = 1024;  // kinds of calls; 700 KiB of which only what is used is ever touched
constexpr uint32_t kProbes = 8;    // one or two cache lines of hashes
constexpr uint32_t kHints = 1024;
constexpr uint64_t kFactor = 0x9e3779b97f4a7c15u;

// Constant once it is ready.
struct Slot {
  std::atomic<bool> is_ready;  // stored with release
  uint32_t n_parts;
  WordPair pairs[kMostDescriptorPairs];
  Operation operation;
};
constinit Slot g_slots[kSlots] = {};
// Of the bytes that a slot was taken for; 0: free. Never changes once it is set.
constinit std::atomic<uint64_t> g_hashes[kSlots] = {};
// By addresses of descriptors: the slot that was right the last time, and is wrong now if they have other bytes.
constinit std::atomic<uint16_t> g_hints[kHints] = {};

WordPair pair_at(const void* at, size_t i) {
  WordPair pair;
  memcpy(&pair, static_cast<const char*>(at) + i * sizeof pair, sizeof pair);
  return pair;
}

bool is_of(const Slot& slot, const Descriptor* parts, uint32_t n_parts) {
  // Acquire: pairs with remember().
  if (!slot.is_ready.load(std::memory_order_acquire) || slot.n_parts != n_parts) return false;
  const WordPair* known = slot.pairs;
  WordPair different = {};
  for (uint32_t part = 0; part < n_parts; part++) {
    const Significant& significant = *parts[part].significant;
    for (size_t i = 0; i < significant.n_pairs; i++)
      different |= (pair_at(parts[part].at, i) & significant.pairs[i]) ^ *known++;
  }
  return (different[0] | different[1]) == 0;
}

// Place in an array, from the upper bits, which all others have reached.
uint32_t place_of(uint64_t hash, uint32_t size) {
  return uint32_t((hash >> 32) * size >> 32);
}

}  // namespace

void learn_significant(const void* made_of_zeros, const void* made_of_ones, size_t bytes, Significant* out) {
  const size_t n = bytes / sizeof(WordPair);
  if (n > Significant::kMostPairs) return;
  uint32_t n_pairs = 0;
  for (uint32_t i = 0; i < n; i++) {
    const WordPair bits = ~(pair_at(made_of_zeros, i) ^ pair_at(made_of_ones, i));
    out->pairs[i] = bits;
    if ((bits[0] | bits[1]) != 0) n_pairs = i + 1;
  }
  out->n_pairs = n_pairs;
}

uint32_t DescriptorKey::place_of_addresses() const {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < n_parts_; i++)
    hash += reinterpret_cast<uint64_t>(parts_[i].at) * (kFactor + 2 * uint64_t(i));
  return place_of(hash, kHints);
}

// The hash is of sums and of sums of sums, so that places count: additions of pairs, which cost next to nothing.
void DescriptorKey::gather() {
  is_gathered_ = true;
  WordPair* to = pairs_;
  WordPair sums = {}, sums_of_sums = {};
  for (uint32_t part = 0; part < n_parts_; part++) {
    const Significant& significant = *parts_[part].significant;
    for (size_t i = 0; i < significant.n_pairs; i++) {
      const WordPair pair = pair_at(parts_[part].at, i) & significant.pairs[i];
      *to++ = pair;
      sums += pair;
      sums_of_sums += sums;
    }
  }
  hash_ = n_parts_;
  for (const uint64_t sum : {sums[0], sums[1], sums_of_sums[0], sums_of_sums[1]}) {
    hash_ = (hash_ ^ sum) * kFactor;
    hash_ ^= hash_ >> 32;
  }
  hash_ *= kFactor;
  if (hash_ == 0) hash_ = 1;
}

const Operation* DescriptorKey::find() {
  if (!is_usable_ || n_pairs_ > kMostDescriptorPairs) return nullptr;
  // relaxed: whatever it says is compared
  std::atomic<uint16_t>& hint = g_hints[place_of_addresses()];
  const Slot& last = g_slots[hint.load(kRelaxed)];
  if (is_of(last, parts_, n_parts_)) return &last.operation;
  gather();
  for (uint32_t i = 0, at = place_of(hash_, kSlots); i < kProbes; i++, at = (at + 1) % kSlots) {
    const uint64_t hash = g_hashes[at].load(kRelaxed);  // what it leads to is compared
    if (hash == 0) return nullptr;
    if (hash != hash_ || !is_of(g_slots[at], parts_, n_parts_)) continue;
    hint.store(uint16_t(at), kRelaxed);
    return &g_slots[at].operation;
  }
  return nullptr;
}

void DescriptorKey::remember(const Operation& operation) {
  if (!is_gathered_) return;
  for (uint32_t i = 0, at = place_of(hash_, kSlots); i < kProbes; i++, at = (at + 1) % kSlots) {
    uint64_t free = g_hashes[at].load(kRelaxed);
    // relaxed: who finds it looks whether the slot is ready
    if (free != 0 || !g_hashes[at].compare_exchange_strong(free, hash_, kRelaxed)) continue;
    Slot& slot = g_slots[at];
    slot.n_parts = n_parts_;
    memcpy(slot.pairs, pairs_, n_pairs_ * sizeof pairs_[0]);
    slot.operation = operation;
    slot.is_ready.store(true, std::memory_order_release);  // pairs with is_of()
    return;
  }
}

}  // namespace tessera::library
