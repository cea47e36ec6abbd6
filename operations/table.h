// A file in which calls are counted by shape: made by `tessera profile`, mapped and added to by libtessera_ops.so in
// every process of the program, read when they have ended. It is shared memory, so what a killed process counted stays.
//   TableHeader, then `slots` times TableSlot
// Both sides are of one release; another version is refused.
#pragma once

#include <cstdint>

#include "operations/catalogue.h"

namespace tessera::operations {

inline constexpr char kTableMagic[8] = {'T', 'S', 'O', 'P', 'C', 'N', 'T', 0};
inline constexpr uint32_t kTableVersion = 0x30000 + kEntries;  // also of the catalogue, as kNoteVersion
inline constexpr uint32_t kTableSlots =
    4096;  // shapes; 640 KiB. A decoder that grows by a token has hundreds

struct TableHeader {
  char magic[8];
  uint32_t version, slots;
  uint64_t further_calls;  // of shapes that found no slot; writers add
  uint64_t reserved[5];
};
static_assert(sizeof(TableHeader) == 64);

enum SlotState : uint32_t { kSlotFree = 0, kSlotWriting = 1, kSlotReady = 2 };

struct TableSlot {
  uint32_t state;           // SlotState; kSlotReady is stored with release, then all but `calls` is constant
  uint32_t entry;           // Entry
  int64_t dims[kMostDims];  // Shape
  int64_t count;
  uint32_t n_dims;
  int32_t types[3];     // of A, B, C, as cudaDataType
  int32_t computed_as;  // Type that decides which pipe computes
  uint32_t reserved;
  uint64_t flop, bytes;  // of one call
  uint64_t calls;        // writers add
};
static_assert(sizeof(TableSlot) == 160);

// While a call is counted, the launches of its thread are tagged with its slot's number + 1, so that the software
// GPU's trace tells which belong to it. Looked up in libcuda.so.1, which need not have it; 0: no tag. Answers how many
// launches became nodes of graphs since the last time.
using TagLaunches = uint64_t (*)(uint64_t tag);
// In the trace, part of the tag of the first of these: with each launch of the graph the call counts. Not when it is captured.
inline constexpr uint64_t kTagOfNode = uint64_t{1} << 63;
inline constexpr char kTagLaunches[] = "softgpu_tag_launches";

inline constexpr uint64_t kTableBytes = sizeof(TableHeader) + uint64_t(kTableSlots) * sizeof(TableSlot);

}  // namespace tessera::operations
