// What a library call asks of the GPU, told to the launch hooks of the same thread while the call lasts; and how
// libtessera_ops.so, which writes it, meets libtessera.so, which reads it. Both are preloaded, either may be missing or
// of another release: then nothing is told. A C interface: plain data, one function looked up by name.
#pragma once

#include <cstdint>

#include "operations/catalogue.h"

namespace tessera::operations {

// Of Note and NoteReader together, and of the catalogue, whose rows are numbered: each change of its length is another
// version by itself.
inline constexpr uint32_t kNoteVersion = 0x20000 + kEntries;

// One per outermost call, on its stack; touched by the calling thread only.
struct Note {
  uint64_t flop, bytes;     // of the whole call
  uint32_t entry;           // Entry (catalogue.h): reader compares with kEntries
  int32_t type;             // that decides which pipe computes: of A, as cudaDataType
  uint32_t resource_class;  // abi::ResourceClass; reader writes, 0 until a launch asked
  uint32_t launches;        // reader writes: launches that asked how long they take
};
static_assert(sizeof(Note) == 32);

// What the reader offers. Static storage, constant.
struct NoteReader {
  const uint32_t* role;   // changes at any time; relaxed loads
  uint32_t reading_role;  // notes are of use only while *role is this
  uint32_t reserved;
  void (*set_note)(Note* note);  // of the calling thread, null: none; neither blocks nor allocates
};

// Exported by libtessera.so as tessera_note_reader; null for a version that it does not know.
using GetNoteReader = const NoteReader* (*)(uint32_t version);

}  // namespace tessera::operations
