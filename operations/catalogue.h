// The catalogue of library functions that make the GPU work (entries.def, families.def, layers.def): names, and shapes as text.
// Pure; any thread; nothing allocates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "operations/type.h"

namespace tessera::operations {

enum class Library : uint8_t { kCublas, kCublasLt, kCudnn };

enum class Family : uint8_t {
#define TS_FAMILY(name, layout, n_dims, flop, complex_flop, a, b, c) name,
#include "operations/families.def"
#define TS_LAYER(name, flop) name,
#include "operations/layers.def"
};

enum class Form : uint8_t { kOne, kStrided, kPointers, kGrouped };

// Rows of entries.def, in its order. The numbers are those of one release: see kNoteVersion.
enum class Entry : uint32_t {
#define TS_OPERATION(library, symbol, family, form, type) symbol,
#include "operations/entries.def"
};
inline constexpr uint32_t kEntries = 0
#define TS_OPERATION(library, symbol, family, form, type) +1
#include "operations/entries.def"
    ;

struct EntryKind {
  Family family;
  Form form;
};
// By Entry. Two bytes each: who needs no more does not carry the names.
inline constexpr EntryKind kEntryKinds[] = {
#define TS_OPERATION(library, symbol, family, form, type) {Family::family, Form::form},
#include "operations/entries.def"
};
struct EntryRow {
  std::string_view symbol;  // static, zero-terminated
  Library library;
  Type type;
};
std::span<const EntryRow> entry_rows();  // by Entry
// `entry` must be one of the catalogue: from elsewhere (a file, another library), compare with kEntries first.
const EntryRow& row_of(Entry entry);
constexpr EntryKind kind_of(Entry entry) {
  return kEntryKinds[static_cast<uint32_t>(entry)];
}
// As the library exports it for 32-bit integers: "cublasSgemm_v2". Static.
std::string_view name_of(Entry entry);
// The row of an exported name, with or without _64; null if there is none.
const EntryRow* find_entry(std::string_view symbol);

// The size of a request, in numbers. `n_dims` of them count, with the meaning of the family's row. Groups: none count.
// The others need not be written.
inline constexpr uint32_t kMostDims = 12;
struct Shape {
  int64_t dims[kMostDims] = {};
  int64_t count = 1;  // operations of the call; groups: how many there are
  uint32_t n_dims = 0;

  bool operator==(const Shape& other) const {
    return count == other.count && n_dims == other.n_dims && std::equal(dims, dims + n_dims, other.dims);
  }
};

// "64x32x16": dimensions; "64x32x16 * 8": a batch of 8; "3 groups". Written to `buffer`, cut off where that ends.
inline constexpr size_t kShapeTextBytes = 320;  // enough for any
std::string_view shape_text(Entry entry, const Shape& shape, std::span<char> buffer);

}  // namespace tessera::operations
