// These counters in its region say what a best-effort client asked of libraries (docs/library-calls.md), by function and element
// type. The client writes all of it, the daemon reads it when somebody asks for its state (untrusted). Freestanding.
// tests/unit/ipc/layout_test.cc checks every offset.
//
// A thread of the client claims a free slot by its key, writes what it is of, then says so in `ready` (release). Several
// slots may be of one function and element type, which a reader adds up: threads have their own while there is room.
// Counters are added to one by one: a reader may see a call whose FLOP are not counted yet. All-zero is a valid initial
// state: nothing was called.
#pragma once

#include <cstdint>

namespace tessera::ipc::abi {

inline constexpr uint32_t kOperationSlots = 96;
inline constexpr uint32_t kOperationNameBytes = 48;

struct alignas(64) OperationTotals {
  uint64_t further_calls;  // of functions that found no slot
  uint64_t split_calls;    // calls that went out in pieces (`tessera run --split-operations`)
  uint64_t split_pieces;   // calls of the library made of them
  uint64_t split_proven;   // classes of shapes whose pieces were compared, and equal to the bit
  uint64_t split_unequal;  // likewise, and not equal: never split again
  // Calls that were longer than a slice and went out whole, by reason:
  uint64_t kept_unproven;   // their pieces were not compared yet
  uint64_t kept_unequal;    // their pieces give other bits
  uint64_t kept_form;       // nothing of them can be cut, or something of them is not known
  uint64_t narrowed_calls;  // calls for which the library was told of fewer SMs
  // Launches and slices of any kind that started while a burst of a higher level ran, by ResourceClass.
  uint64_t during_bursts[4];
  // Calls of kinds that can go out in pieces, if they are to; they went out whole:
  uint64_t kept_short;  // expected to take less than two slices
  uint64_t kept_free;   // no slice was wanted: nobody else is on the GPU, or the call is captured
  uint64_t splitting;   // 1: calls are to go out in pieces. Written when the client attaches
};
static_assert(sizeof(OperationTotals) == 128);

struct alignas(64) OperationCounts {
  uint64_t calls;
  uint64_t flop[2];   // low word, which wraps (a large GPU does that in hours), and how often it did
  uint64_t bytes[2];  // likewise
  uint64_t
      gpu_ns;  // GPU time that launches below the calls were expected to take; 0 while nothing is measured
  uint64_t launches;  // below the calls
  uint64_t key;       // 0: free; says nothing to others

  uint32_t ready;                  // 1: what follows is there
  int32_t type;                    // of the first operand, as cudaDataType; -1: has none
  uint32_t resource_class;         // ResourceClass of a call, 0 = not known; may change
  uint32_t reserved;               // zero
  char name[kOperationNameBytes];  // of the function, zero-terminated
};
static_assert(sizeof(OperationCounts) == 128);

struct OperationTable {
  OperationTotals totals;  // of the process
  OperationCounts counts[kOperationSlots];
};

}  // namespace tessera::ipc::abi
