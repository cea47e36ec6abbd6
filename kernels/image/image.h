// Containers of GPU code: fat binaries (wrapper v1/v2, several entries, LZ4/zstd/plain), bare PTX, bare cubin
// ELF. Bytes come from programs we did not write: every length is checked, nothing is trusted, a truncated or
// inconsistent container is an error and never a crash. Any thread, no global state.
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
  std::vector<uint8_t> payload;                   // decompressed; PTX without trailing NULs
  uint64_t stored_bytes = 0;                      // as it lies in the file
  const char* compression = "none";               // none, lz4, zstd
};

// What a pointer given to cuModuleLoadData / cuLibraryLoadData / cuModuleLoadFatBinary points at. These calls
// carry no length: the size is what the header says, bounded by `max_bytes` and by the end of the readable
// mapping.
base::Result<std::vector<Entry>> read_unsized(const void* image, size_t max_bytes = size_t(1) << 31);

// The same from a buffer of known length (file, fuzz target).
base::Result<std::vector<Entry>> read(std::span<const uint8_t> bytes);

// The parts of a file that can be read one after another, so that a large library needs no more memory than
// its largest part: the containers of a fat binary or of a host program, or the whole of anything else. Views
// into `bytes`; nothing is decompressed.
base::Result<std::vector<std::span<const uint8_t>>> parts(std::span<const uint8_t> bytes);

// The entry that a driver for compute capability `sm` (90 = 9.0) would use: newest matching cubin, else
// newest PTX with target <= sm, never relocatable machine code. nullptr if none.
const Entry* choose(const std::vector<Entry>& entries, unsigned sm);

}  // namespace tessera::image
