// A cubin taken apart: its headers, and its sections with their bytes. Called by code.cc and by
// tests/device/prologue, which edits it. Untrusted bytes. Any thread.
#pragma once

#include <elf.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/image/internal.h"

namespace tessera::image {

// The bytes that a section has in the file.
inline uint64_t bytes_in_file(const Elf64_Shdr& section) {
  return section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL ? 0 : section.sh_size;
}

struct CubinSection {
  Elf64_Shdr header;  // sh_offset and sh_size as they were read
  std::string name;
  std::vector<uint8_t> bytes;  // empty where the file holds none
};

struct CubinFile {
  Elf64_Ehdr header;
  std::vector<CubinSection> sections;  // by index, [0] is the empty one
  std::vector<Elf64_Phdr> segments;

  CubinSection* find(std::string_view name);
};

base::Result<CubinFile> parse_cubin_file(Bytes elf);

}  // namespace tessera::image
