// A file in which calls are counted by shape: made by `tessera profile`, mapped and added to by libtessera_ops.so in
// every process of the program, read when they have ended. It is shared memory, so what a killed process counted stays.
//   TableHeader, then `slots` times TableSlot
// Both sides are of one release; another version is refused.
#pragma once

#include <cstdint>

namespace tessera::operations {

inline constexpr char kTableMagic[8] = {'T', 'S', 'O', 'P', 'C', 'N', 'T', 0};
inline constexpr uint32_t kTableVersion = 1;
inline constexpr uint32_t kTableSlots =
    4096;  // shapes; 512 KiB. A decoder that grows by a token has hundreds

struct TableHeader {
  char magic[8];
  uint32_t version, slots;
  uint64_t further_calls;  // of shapes that found no slot; writers add
  uint64_t reserved[5];
};
static_assert(sizeof(TableHeader) == 64);

enum SlotState : uint32_t { kSlotFree = 0, kSlotWriting = 1, kSlotReady = 2 };

struct TableSlot {
  uint32_t state;    // SlotState; kSlotReady is stored with release, then all but `calls` is constant
  uint32_t grouped;  // 1: groups of products with a shape each, m = n = k = 0
  int64_t m, n, k;
  int64_t count;     // products of a call; grouped: groups
  int32_t types[3];  // of A, B, C, as cudaDataType
  uint32_t reserved;
  uint64_t flop, bytes;  // of one call
  uint64_t calls;        // writers add
  char name[48];         // as in gemm_entries.def, zero-terminated
};
static_assert(sizeof(TableSlot) == 128);

inline constexpr uint64_t kTableBytes = sizeof(TableHeader) + uint64_t(kTableSlots) * sizeof(TableSlot);

}  // namespace tessera::operations
