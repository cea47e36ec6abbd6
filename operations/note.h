// A note tells the launch hooks of a thread about its library call while the call lasts. Here is also how
// libtessera_ops.so, which writes the note, finds libtessera.so, which reads it. Both are preloaded. If one is missing
// or of another release, nothing is told. A C interface: plain data, one function looked up by name.
#pragma once

#include <cstdint>

#include "operations/catalogue.h"

namespace tessera::operations {

// The version of Note, NoteReader and the catalogue, whose rows are numbered: each change of its length is another
// version by itself.
inline constexpr uint32_t kNoteVersion = 0x60000 + kEntries;

// One per outermost call, on its stack; touched by the calling thread only. What the reader writes begins as 0.
struct Note {
  uint64_t flop, bytes;     // of the whole call
  uint32_t entry;           // Entry (catalogue.h): reader compares with kEntries
  int32_t type;             // that decides which pipe computes: of A, as cudaDataType
  uint32_t resource_class;  // abi::ResourceClass; reader writes, 0 until a launch asked
  uint32_t launches;        // reader writes: of the call, or of the piece that it is at, that were looked at
  const char* name;         // of the function; static
  // Identity of what is asked for: function, types and shape. `text`, if not null, gets it for people, zero-terminated:
  // "cublasSgemm_v2 f32 64x32x16". Neither blocks nor allocates; asked while somebody traces.
  uint64_t (*describe)(const Note* note, char* text, uint32_t text_bytes);
  // The reader's books while the call lasts:
  uint64_t expected_ns;      // GPU time of the launches below it
  uint64_t launches_before;  // of the thread, when it began
  uint64_t start_ns;         // 0: nobody traces
  uint32_t gated;            // launches that were looked at one by one
  uint32_t captured;         // and such that became nodes of a graph
};
static_assert(sizeof(Note) == 80);

// Events of the program that matter to pieces. Static storage, constant. Called in the program's threads, which may wait.
struct Listener {
  void (*waited)();                            // for the GPU
  void (*context_ended)(const void* context);  // with all that was made in it; null: every context
  // Memory of the device was refused. Not 0: some was given back, so that it is worth asking again.
  uint32_t (*memory_short)();
};

// The reader's offer. Static storage, constant.
struct NoteReader {
  const uint32_t* role;   // changes at any time; relaxed loads
  uint32_t reading_role;  // notes are of use only while *role is this
  uint32_t reserved;
  // Around the call, in its thread; neither blocks nor allocates.
  void (*begin)(Note* note);
  void (*end)(Note* note);
  // For calls that may go out in pieces (interpose/operations/split.h); in a thread inside a call. None blocks or
  // allocates.
  uint64_t (*slice_ns)();                       // longest single launch that is wanted now; 0: any
  uint64_t (*expected_ns)(const Note* note);    // of the whole call, if it was never made; 0: not known
  uint32_t (*sms)(uint64_t expected_ns);        // that the lease leaves a call of that length; 0: all
  uint32_t (*undisturbed)();                    // 1: nobody of a higher level is busy, no capture is open
  void (*count)(uint32_t counter, uint64_t n);  // 64-bit word of abi::OperationTotals
  void (*listen)(const Listener* listener);     // once
};

// Exported by libtessera.so as tessera_note_reader; null for a version that it does not know.
using GetNoteReader = const NoteReader* (*)(uint32_t version);

}  // namespace tessera::operations
