// Containers of GPU code: fat binaries (wrapper v1/v2, several entries, LZ4/zstd/plain), bare PTX, bare cubin
// ELF. Bytes come from programs we did not write: every length is checked, nothing is trusted, a truncated or
// inconsistent container is an error and never a crash. Reading is lazy: list() gives the entries with their
// headers, load() the payload of one of them, so that memory is bounded by the largest entry in use. Any
// thread, no global state.
// Format: shared observations of the public fatbin layout, docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tessera::image {

enum class EntryKind : uint8_t { kPtx, kCubin, kOther };

struct Entry {
  EntryKind kind = EntryKind::kOther;
  unsigned sm = 0;               // 75, 90, ...
  bool arch_specific = false;    // 'a' target: runs on exactly this SM
  bool family_specific = false;  // 'f' target
  bool relocatable =
      false;  // machine code of a translation unit (-rdc): no driver loads it before it is linked
  unsigned version_major = 0, version_minor = 0;  // PTX ISA (9.0) or ELF
  std::string options;                            // options record as text, "" if none
  uint64_t stored_bytes = 0;                      // as it lies in the file
  const char* compression = "none";               // none, lz4, zstd
  std::span<const uint8_t> stored_payload;        // view into the image, still compressed
  uint64_t claimed_bytes = 0;                     // of a compressed payload, as its header says
};

struct LoadedEntry : Entry {
  std::vector<uint8_t> payload;  // as load() gives it
};

// Lists the image behind a pointer given to cuModuleLoadData / cuLibraryLoadData / cuModuleLoadFatBinary. These calls
// carry no length: the size is what the header says, bounded by `max_bytes` and by the end of the readable
// mapping. Nothing is decompressed but the first bytes of machine code (`relocatable`); the entries are good
// while the image is.
base::Result<std::vector<Entry>> list_unsized(const void* image, size_t max_bytes = size_t(1) << 31);

// The same from a buffer of known length (file, fuzz target).
base::Result<std::vector<Entry>> list(std::span<const uint8_t> bytes);

// CUDA Tile IR (13.1), bare or as the payload of an entry: the driver compiles it, and nobody here reads it. It is listed as
// kOther, with its version.
bool is_tile_ir(std::span<const uint8_t> bytes);

// The payload, decompressed; PTX without trailing NULs. kInvalid: damaged, or a header that promises more
// than the compressed bytes can hold.
base::Result<std::vector<uint8_t>> load(const Entry& entry);

// list() with all payloads at once, for small images; fails if one of them does not load.
base::Result<std::vector<LoadedEntry>> read(std::span<const uint8_t> bytes);

// The parts of a file that can be listed one after another, so that a broken one does not hide the others:
// the containers of a fat binary or of a host program, or the whole of anything else. Views into `bytes`;
// nothing is decompressed.
base::Result<std::vector<std::span<const uint8_t>>> parts(std::span<const uint8_t> bytes);

// The entry that a driver for compute capability `sm` (90 = 9.0) would use: newest matching cubin, else
// newest PTX with target <= sm, never relocatable machine code. nullptr if none.
const Entry* choose(const std::vector<Entry>& entries, unsigned sm);

}  // namespace tessera::image
