// The other direction of image.h: entries become a container, containers a wrapper as the CUDA runtime
// registers it. What is written is what nvcc 13 writes (docs/formats.md), and read() gives it back. Any
// thread, no state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/image/image.h"

namespace tessera::image {

// One container with these entries, each stored as its `compression` says ("none", "lz4", "zstd"). PTX gets a
// NUL at its end, which read() takes away again; machine code that is stored plain comes back padded to 8
// bytes. kUnsupported: an entry of kind kOther, whose bytes nobody here understands. kInvalid: beyond the
// format's fields.
base::Result<std::vector<uint8_t>> write_container(std::span<const LoadedEntry> entries);

// A text that a driver shall compile as it would compile `entry`, PTX of a container: with the same options, such as
// --fmad false, which change bits. The text itself where there are none.
std::string compiled_as(const Entry& entry, std::string text);

// A wrapper in memory: version 1 around one container, version 2 (device link) around a linked container and
// those of the translation units. Owns the containers; image() is good while this lives and is not changed.
class Wrapper {
 public:
  explicit Wrapper(std::vector<uint8_t> container);
  Wrapper(std::vector<uint8_t> linked, std::vector<std::vector<uint8_t>> units);
  Wrapper(const Wrapper&) = delete;
  Wrapper& operator=(const Wrapper&) = delete;
  const void* image() const { return &header_; }

 private:
  struct Header {
    uint32_t magic, version;
    const void* data;
    const void* const* units;
  };
  std::vector<std::vector<uint8_t>> containers_;
  std::vector<const void*> list_;  // of the units, ends with nullptr
  Header header_;
};

}  // namespace tessera::image
