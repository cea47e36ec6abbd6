// Holds what was learnt in earlier runs, for one client: a sealed memfd that the daemon fills before it sends the
// descriptor and nobody writes afterwards (message Learnt). Freestanding. An open-addressed table: look at
// slot (key >> 32) % slots, then at the next ones, at most kLearntProbes in all; key 0 = free, ends the
// search.
//
//   offset 0    LearntHeader
//   offset 64   LearntSlot[slots]
//
// Two kinds of keys (base/kernel_key.h): of a launch shape, with its time per block; of a kernel whatever its
// shape, with its class.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kLearntMagic = 0x4e525354;  // "TSRN" little endian
inline constexpr uint32_t kLearntProbes = 16;
inline constexpr uint32_t kMaxLearntSlots = 1u << 18;

struct LearntHeader {
  uint32_t magic;  // kLearntMagic
  uint16_t version, compat_version;
  uint32_t header_bytes;  // sizeof(LearntHeader): where the slots begin
  uint32_t slot_bytes;    // sizeof(LearntSlot)
  uint32_t slots;         // power of two
  uint32_t used;          // for people
  uint64_t reserved[5];   // zero
};
static_assert(sizeof(LearntHeader) == 64);

struct LearntSlot {
  uint64_t key;             // 0 = free
  uint64_t block_ps;        // launch shape: GPU time per block, picoseconds; 0 = not known
  uint32_t resource_class;  // abi::ResourceClass; 0 = not known
  uint32_t reserved[3];     // zero
};
static_assert(sizeof(LearntSlot) == 32);

}  // namespace tessera::ipc::abi
